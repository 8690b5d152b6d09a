"""Tiles and launches of the transpose+add kernel worth considering for a problem, and what makes one legal."""

from __future__ import annotations

from itertools import product

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import ceil_div
from matmill.problem import Geam, View

VECTOR_BYTES = 16
#: How an operand lies, as in kernel.cuh.
ALONG, CROSSED, ABSENT = range(3)
#: Rows and columns are 32-bit integers on the device, and a tile may reach past the end.
_LARGEST = 2**30
_THREADS = (128, 256)
#: Vectors of 16 bytes along each side of a tile: 64 to 256 bytes of a line.
_SIDES = (4, 8, 16)
#: Registers that what a thread has under way takes at most, and those for addresses and counters.
_MOST_LOADED, _OTHERS = 80, 46


def space(problem: Geam, arch: Arch) -> tuple[Config, ...]:
    """Every configuration worth considering for ``problem`` on ``arch``."""
    found = []
    layout = _layout(problem)
    v = layout["V"]
    for down, across, threads in product(_SIDES, _SIDES, _THREADS):
        # Single elements are dealt like vectors of 4 bytes, so that tiles are not tiny.
        unit = v if v > 1 else 4
        config = Config.of(BR=down * unit, BC=across * unit, THREADS=threads, **layout)
        loaded = _loaded(config, problem.dtype.itemsize)
        if config["BR"] * config["BC"] // v % threads or loaded > _MOST_LOADED:
            continue
        config = config.replace(SHARED_BYTES=shared_bytes(config, problem.dtype.itemsize))
        registers = min(255, _OTHERS + loaded)
        by_shared = arch.shared_per_sm // max(1, config["SHARED_BYTES"] + arch.shared_reserved)
        resident = min(arch.registers_per_sm // (registers * threads), by_shared, arch.threads_per_sm // threads)
        found.append(config.replace(BLOCKS_PER_SM=max(1, min(resident, arch.blocks_per_sm))))
    return tuple(found)


def _layout(problem: Geam) -> dict[str, int]:
    """The constants that follow from how the operands lie."""
    size = problem.dtype.itemsize
    full = VECTOR_BYTES // size
    v = full if problem.d.strides[1] == 1 else 1
    x_mode, x_width = _read_as(problem.x, v, size)
    y_mode, y_width = (ABSENT, 1) if problem.y is None else _read_as(problem.y, v, size)
    across = [view for view in (problem.x, problem.y) if view is not None and view.crossed]
    aligned = all(view.align >= VECTOR_BYTES for view in (problem.d, *across))
    return {
        "V": v,
        "SHIFTED": int(v > 1 and not aligned),
        "PLAIN": int(problem.plain),
        "X_MODE": x_mode,
        "X_WIDTH": x_width,
        "Y_MODE": y_mode,
        "Y_WIDTH": y_width,
    }


def _read_as(view: View, v: int, size: int) -> tuple[int, int]:
    """Mode and elements per load of one operand."""
    row, column = view.strides
    if view.crossed:
        return CROSSED, v if row == 1 else 1
    return ALONG, min(v, max(1, view.beside // size)) if column == 1 else 1


def _loaded(config: Config, itemsize: int) -> int:
    """Registers of what a thread loads before it stores the first element: a load takes one at least."""
    halo = config["V"] - 1 if config["SHIFTED"] else 0
    items = config["BR"] * config["BC"] // config["V"]
    total = 0
    for name in "XY":
        width = config[f"{name}_WIDTH"]
        if config[f"{name}_MODE"] == ALONG:
            total += items // config["THREADS"] * ceil_div(config["V"] * itemsize, 4)
        elif config[f"{name}_MODE"] == CROSSED:
            deep = config["BR"] // width + (1 if halo and width > 1 else 0)
            total += ceil_div((config["BC"] + halo) * deep, config["THREADS"]) * ceil_div(width * itemsize, 4)
    return total


def shared_bytes(config: Config, itemsize: int) -> int:
    """Dynamic shared memory of one block: a turned tile for each crossed operand. The device asserts the same."""
    columns = config["BC"] + (config["V"] - 1 if config["SHIFTED"] else 0)
    one = ceil_div((config["BR"] + 1) * columns * itemsize, VECTOR_BYTES) * VECTOR_BYTES
    return one * sum(config[f"{name}_MODE"] == CROSSED for name in "XY")


def blocks(problem: Geam, config: Config) -> int:
    """Blocks of one matrix."""
    halo = config["V"] - 1 if config["SHIFTED"] else 0
    return ceil_div(problem.m, config["BR"]) * ceil_div(problem.n + halo, config["BC"])


def against(problem: Geam, config: Config, arch: Arch) -> str | None:
    """Why the constants do not fit the problem, or None."""
    if max(problem.m, problem.n) > _LARGEST:
        return f"{problem.m} x {problem.n}: more than {_LARGEST} rows or columns"
    wanted = _layout(problem)
    for name in ("X_MODE", "Y_MODE", "PLAIN"):
        if config[name] != wanted[name]:
            return f"{name} = {config[name]} where the operands need {wanted[name]}"
    for name in ("V", "X_WIDTH", "Y_WIDTH"):
        if config[name] > wanted[name]:
            return f"{name} = {config[name]} elements at a time, and the operands allow {wanted[name]}"
    if config["SHIFTED"] < wanted["SHIFTED"]:
        return "not every line starts on 16 bytes"
    needed = shared_bytes(config, problem.dtype.itemsize)
    if needed != config["SHARED_BYTES"]:
        return f"SHARED_BYTES = {config['SHARED_BYTES']}, and the device needs {needed}"
    return None if arch.compiles else f"{arch.title} is older than the compiler"
