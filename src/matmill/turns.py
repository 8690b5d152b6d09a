"""Tiles and launches of ``include/matmill/geam/turn.cuh``: the host's side of its arithmetic.

The production kernel and the last rungs of the transpose+add ladder take their constants from here.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from matmill.arch import Arch
from matmill.config import Config
from matmill.execute import Argument, Pointer
from matmill.kernel import GemmOperands, Geometry, Kernel, ceil_div
from matmill.problem import Geam, View

VECTOR_BYTES = 16
#: How an operand lies, as in kernel.cuh.
ALONG, CROSSED, ABSENT = range(3)
#: Rows and columns are 32-bit integers on the device, and a tile may reach past the end.
_LARGEST = 2**30
_THREADS = (128, 256)
#: Vectors of 16 bytes along each side of a tile: 64 to 256 bytes of a line.
_SIDES = (4, 8, 16)
#: Registers that what a thread has under way takes at most.
_MOST_LOADED = 80
#: What the assembler takes for sm_90a: so many registers by elements of a vector, each of which has a place to be
#: worked out, and for each one under way this many more: single elements, which have addresses of their own, vectors
#: that start where their line does, and shifted ones.
_OTHERS, _SINGLE, _WHOLE, _SHIFTED = {1: 26, 2: 18, 4: 27, 8: 36, 16: 54}, 3.0, 1.8, 2.3


def space(problem: Geam, arch: Arch) -> tuple[Config, ...]:
    """Every configuration worth considering for ``problem`` on ``arch``, with 16-byte vectors wherever lines start."""
    return tiles(problem, arch, layout(problem))


def tiles(problem: Geam, arch: Arch, layout: dict[str, int]) -> tuple[Config, ...]:
    """Every tile and launch worth considering for a :func:`layout`."""
    found = []
    v = layout["V"]
    for down, across, threads in product(_SIDES, _SIDES, _THREADS):
        # Single elements are dealt like vectors of 4 bytes, so that tiles are not tiny.
        unit = v if v > 1 else 4
        config = Config.of(BR=down * unit, BC=across * unit, THREADS=threads, **layout)
        loaded = _loaded(config, problem.dtype.itemsize)
        if config["BR"] * config["BC"] // v % threads or loaded > _MOST_LOADED:
            continue
        config = config.replace(SHARED_BYTES=shared_bytes(config, problem.dtype.itemsize))
        per_loaded = _SINGLE if v == 1 else _SHIFTED if config["SHIFTED"] else _WHOLE
        registers = min(255, round(_OTHERS[v] + per_loaded * loaded))
        resident, _limits = arch.resident(threads, registers, config["SHARED_BYTES"])
        found.append(config.replace(BLOCKS_PER_SM=max(1, resident)))
    return tuple(found)


def layout(problem: Geam, *, shifted: bool = True) -> dict[str, int]:
    """The constants that follow from how the operands lie.

    Without ``shifted`` vectors are only as wide as the alignment of every line allows.
    """
    size = problem.dtype.itemsize
    most = min(view.align for view in _walls(problem)) // size or 1
    v = VECTOR_BYTES // size if shifted else most
    if problem.d.strides[1] != 1:
        v = 1
    x_mode, x_width = _read_as(problem.x, v, size)
    y_mode, y_width = (ABSENT, 1) if problem.y is None else _read_as(problem.y, v, size)
    return {
        "V": v,
        "SHIFTED": int(v > most),
        "PLAIN": int(problem.plain),
        "X_MODE": x_mode,
        "X_WIDTH": x_width,
        "Y_MODE": y_mode,
        "Y_WIDTH": y_width,
    }


def _walls(problem: Geam) -> list[View]:
    """The views whose lines' starts decide how wide vectors may be: D's, and those of operands that lie across."""
    return [problem.d, *(view for view in (problem.x, problem.y) if view is not None and view.crossed)]


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
            total += items // config["THREADS"] * (config["V"] // width) * ceil_div(width * itemsize, 4)
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
    reason = _wrong_loads(problem, config)
    if reason is not None:
        return reason
    needed = shared_bytes(config, problem.dtype.itemsize)
    if needed != config["SHARED_BYTES"]:
        return f"SHARED_BYTES = {config['SHARED_BYTES']}, and the device needs {needed}"
    return None if arch.compiles else f"{arch.title} is older than the compiler"


def _wrong_loads(problem: Geam, config: Config) -> str | None:
    wanted = layout(problem, shifted=bool(config["SHIFTED"]))
    for name in ("X_MODE", "Y_MODE", "PLAIN"):
        if config[name] != wanted[name]:
            return f"{name} = {config[name]} where the operands need {wanted[name]}"
    if config["V"] > wanted["V"]:
        return f"V = {config['V']} elements at a time where lines start on {wanted['V']}"
    for name in ("X_WIDTH", "Y_WIDTH"):
        if config[name] > wanted[name]:
            return f"{name} = {config[name]} elements at a time, and the operand allows {wanted[name]}"
    return None


def kernel(entry: str, package: str) -> Kernel[Geam]:
    """A kernel of this tile; its constants come from :func:`tiles`."""
    config = Config.of(
        V=4, BR=32, BC=32, THREADS=128, SHIFTED=0, PLAIN=0, X_MODE=CROSSED, X_WIDTH=4, Y_MODE=ALONG, Y_WIDTH=4,
        SHARED_BYTES=4224, BLOCKS_PER_SM=8,
    )  # fmt: skip
    return Kernel(entry, package, config, _geometry, _arguments, against)


def _geometry(problem: Geam, config: Config) -> Geometry:
    return Geometry(
        grid=(blocks(problem, config), problem.batch, 1),
        block=(config["THREADS"], 1, 1),
        dynamic_shared=config["SHARED_BYTES"],
    )


def _arguments(problem: Geam, operands: GemmOperands) -> tuple[Argument, ...]:
    wide = problem.dtype.accumulator
    views = (problem.x, problem.y or View((0, 0)), problem.d)
    return (
        operands.a,
        Pointer("none", 0) if problem.y is None else operands.b,
        operands.d,
        np.int32(problem.m),
        np.int32(problem.n),
        *(np.int64(stride) for view in views for stride in (*view.strides, view.batch)),
        wide.scalar(operands.alpha),
        wide.scalar(operands.beta),
    )
