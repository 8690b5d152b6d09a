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

VECTOR_BYTES, WORD_BYTES = 16, 4
#: How an operand lies, as in turn.cuh: along D's rows; across them with columns that start on whole vectors, or
#: anywhere; contiguous in neither dimension; not at all; or along D's rows, starting elsewhere than D's vectors.
ALONG, CROSSED, MOVED, SINGLE, ABSENT, ASKEW = range(6)
#: Rows and columns are 32-bit integers on the device, and a tile may reach past the end.
_LARGEST = 2**30
#: Strides below so many bytes are 32-bit integers.
_NEAR = 2**31
_THREADS = (128, 256, 512)
#: Vectors of 16 bytes down a tile, and bytes of its rows: warps that read 128 bytes of a row meet every bank once.
_DEPTHS, _LINES = (4, 8, 16), (128, 256)
#: Vectors down a tile that holds a matrix of few rows whole, and bytes of its rows where it holds few columns whole.
_FLAT, _SHORT = (1, 2), (16, 32, 64)
#: Bytes on which a block's parts of rows start where rows are not aligned: a vector, a sector, a line.
_STARTS = (16, 32, 64, 128)
#: Registers that what a thread has under way takes at most.
_MOST_LOADED = 80
#: Registers that the assembler takes for sm_90a: so many, and for each one under way this many more, in single
#: elements, which have addresses of their own, and in vectors.
_OTHERS, _SINGLE, _WHOLE = 18, 3.2, 1.15


def space(problem: Geam, arch: Arch) -> tuple[Config, ...]:
    """Every configuration worth considering for ``problem`` on ``arch``.

    Vectors have 16 bytes, wherever lines start, or as many as the alignment of every line allows, where that is a word:
    with elements of 4 and 8 bytes, narrow ones are cheaper than moving wide ones.
    """
    wide, narrow = (layout(problem, shifted=shifted) for shifted in (True, False))
    found = tiles(problem, arch, wide)
    if narrow != wide and narrow["V"] * problem.dtype.itemsize >= WORD_BYTES:
        found += tiles(problem, arch, narrow)
    return found


def tiles(problem: Geam, arch: Arch, layout: dict[str, int]) -> tuple[Config, ...]:
    """Every tile and launch worth considering for a :func:`layout`."""
    found = []
    v, size = layout["V"], problem.dtype.itemsize
    starts = [start for start in _STARTS if start // size >= v] if layout["SHIFTED"] else [v * size]
    for depth, line, threads, start in product((*_FLAT, *_DEPTHS), (*_SHORT, *_LINES), _THREADS, starts):
        # Single elements are dealt like fours of them, so that tiles are not tiny.
        rows = depth * (v if v > 1 else 4)
        if (depth in _FLAT and rows < problem.m) or (line in _SHORT and line // size < problem.n):
            continue
        config = Config.of(BR=rows, BC=line // size, THREADS=threads, START=start // size, **layout)
        loaded = _loaded(config, size)
        vectors = config["BC"] // v  # of a row
        if (
            config["BC"] % config["START"]
            or vectors > threads
            or config["BR"] * vectors % threads
            or loaded > _MOST_LOADED
        ):
            continue
        config = config.replace(SHARED_BYTES=shared_bytes(config, size))
        registers = min(255, round(_OTHERS + (_SINGLE if v == 1 else _WHOLE) * loaded))
        resident, _limits = arch.resident(threads, registers, config["SHARED_BYTES"])
        found.append(config.replace(BLOCKS_PER_SM=max(1, resident)))
    return tuple(_fitting(_fitting(found, "BR", problem.m), "BC", problem.n))


def _fitting(found: list[Config], name: str, extent: int) -> list[Config]:
    """Those of ``found`` less than twice as large as ``extent`` in a dimension, or the smallest: padding is work."""
    least = min((config[name] for config in found), default=0)
    return [config for config in found if config[name] < max(least + 1, 2 * extent)]


def layout(problem: Geam, *, shifted: bool = True) -> dict[str, int]:
    """The constants that follow from how the operands lie.

    Without ``shifted`` vectors are only as wide as the alignment of every line allows.
    """
    size = problem.dtype.itemsize
    v = VECTOR_BYTES // size if shifted else min(view.align for view in _walls(problem)) // size or 1
    return _layout(problem, v if problem.d.strides[1] == 1 else 1)


def _layout(problem: Geam, v: int) -> dict[str, int]:
    """The constants for vectors of ``v`` elements."""
    size = problem.dtype.itemsize
    start = max(1, problem.d.align // size)
    x_mode, x_width = _read_as(problem.x, v, size)
    y_mode, y_width = (ABSENT, 1) if problem.y is None else _read_as(problem.y, v, size)
    return {
        "V": v,
        "SHIFTED": start if v > start else 0,
        "PLAIN": int(problem.plain),
        "FAR": int(_farthest(problem) * size >= _NEAR),
        "X_MODE": x_mode,
        "X_WIDTH": x_width,
        "Y_MODE": y_mode,
        "Y_WIDTH": y_width,
    }


def _walls(problem: Geam) -> list[View]:
    """The views whose lines' starts decide how wide vectors may be: D's, and those of operands that lie across."""
    return [problem.d, *(view for view in (problem.x, problem.y) if view is not None and view.crossed)]


def _farthest(problem: Geam) -> int:
    """The longest stride of all, in elements."""
    views = (problem.x, problem.d, *([] if problem.y is None else [problem.y]))
    return max(abs(stride) for view in views for stride in view.strides)


def _read_as(view: View, v: int, size: int) -> tuple[int, int]:
    """Mode and elements per load of one operand."""
    row, column = view.strides
    if view.crossed:
        if row != 1:
            return SINGLE, 1
        return CROSSED if view.align // size >= v else MOVED, v
    width = min(v, max(1, view.beside // size)) if column == 1 else 1
    if column == 1 and width * size < WORD_BYTES and v * size == VECTOR_BYTES:
        return ASKEW, v  # one element at a time would take more loads than memory has time for
    return ALONG, width


def halo(config: Config, itemsize: int) -> int:
    """Columns that a turned tile has besides a block's own, for rows of D that are moved to the left."""
    if not config["SHIFTED"]:
        return 0
    word = _word(config, itemsize)
    return ceil_div(config["START"] - config["SHIFTED"], word) * word


def _word(config: Config, itemsize: int) -> int:
    """Elements of a row that lie in one word of shared memory."""
    return WORD_BYTES // itemsize if itemsize < WORD_BYTES <= config["V"] * itemsize else 1


def _loaded(config: Config, itemsize: int) -> int:
    """Registers of what a thread loads before it stores the first element: a load takes one at least."""
    v, threads, word = config["V"], config["THREADS"], _word(config, itemsize)
    columns, registers = config["BC"] + halo(config, itemsize), ceil_div(v * itemsize, WORD_BYTES)
    of_lists = ceil_div(columns // word * (config["BR"] // v), threads) * word * registers
    slots = config["BR"] * config["BC"] // v // threads
    loads = {
        ALONG: slots * registers,
        ASKEW: slots * (2 * registers + 1),
        CROSSED: of_lists,
        MOVED: 2 * of_lists,
        SINGLE: ceil_div(columns * config["BR"], threads) * ceil_div(itemsize, WORD_BYTES),
        ABSENT: 0,
    }
    return sum(loads[config[f"{name}_MODE"]] for name in "XY")


def shared_bytes(config: Config, itemsize: int) -> int:
    """Dynamic shared memory of one block: a turned tile for each crossed operand. The device asserts the same."""
    columns = config["BC"] + halo(config, itemsize)
    pitch = config["BR"] + (config["BR"] - 1) // 32 * min(4, config["V"] // 2) | 1
    one = ceil_div(pitch * columns * itemsize, VECTOR_BYTES) * VECTOR_BYTES
    return one * sum(config[f"{name}_MODE"] in {CROSSED, MOVED, SINGLE} for name in "XY")


def blocks(problem: Geam, config: Config) -> int:
    """Blocks of one matrix."""
    reach = config["START"] - config["SHIFTED"] if config["SHIFTED"] else 0
    return ceil_div(problem.m, config["BR"]) * ceil_div(problem.n + reach, config["BC"])


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
    v = config["V"]
    if v > 1 and problem.d.strides[1] != 1:
        return f"V = {v} elements at a time, and D's are not side by side"
    wanted = _layout(problem, v)
    for name in ("SHIFTED", "X_MODE", "Y_MODE", "PLAIN"):
        if config[name] != wanted[name]:
            return f"{name} = {config[name]} where the operands need {wanted[name]}"
    if config["FAR"] < wanted["FAR"]:
        return "FAR = 0 where strides take 64 bits"
    for name in ("X_WIDTH", "Y_WIDTH"):
        if config[name] > wanted[name]:
            return f"{name} = {config[name]} elements at a time, and the operand allows {wanted[name]}"
    return None


def kernel(entry: str, package: str) -> Kernel[Geam]:
    """A kernel of this tile; its constants come from :func:`tiles`."""
    config = Config.of(
        V=4, BR=32, BC=32, THREADS=128, START=4, SHIFTED=0, PLAIN=0, FAR=0, X_MODE=CROSSED, X_WIDTH=4, Y_MODE=ALONG,
        Y_WIDTH=4, SHARED_BYTES=4224, BLOCKS_PER_SM=8,
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
