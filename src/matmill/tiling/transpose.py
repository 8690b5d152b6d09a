"""Tiles and launches of ``include/matmill/transpose/tile.cuh``: the host's side of its arithmetic.

The production kernel and the last rungs of the transpose+add ladder take their constants from here.
"""

from __future__ import annotations

from itertools import product

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import GemmOperands, Geometry, Kernel, ceil_div
from matmill.launch import Argument, Pointer
from matmill.parameters import Parameters
from matmill.problem import Geam, View

VECTOR_BYTES, WORD_BYTES = 16, 4
#: How an operand lies, as in turn.cuh: along D's rows; across them with columns that start on whole vectors, or
#: anywhere; contiguous in neither dimension; not at all; or along D's rows, starting elsewhere than D's vectors.
ALONG, CROSSED, MOVED, SINGLE, ABSENT, ASKEW = range(6)
#: Rows and columns are 32-bit integers on the device, and a tile may reach past the end.
_LARGEST = 2**30
#: Bytes that move of a matrix of which narrow vectors may be less than a word.
_SMALL = 2**20
#: Strides below so many bytes are 32-bit integers.
_NEAR = 2**31
_THREADS = (128, 256, 512)
#: Vectors of 16 bytes down a tile, and bytes of its rows: warps that read 128 bytes of a row meet every bank once.
_DEPTHS, _LINES = (4, 8, 16), (128, 256)
#: Vectors down a tile that holds a matrix of few rows whole, and bytes of its rows where it holds few columns whole.
_FLAT, _SHORT = (1, 2), (16, 32, 64)
#: Bytes on which a block's parts of rows start where rows are not aligned: a vector, a sector, a line.
_LINE = 128
_STARTS = (16, 32, 64, _LINE)
#: Registers that what a thread has under way takes at most.
_MOST_LOADED = 80
#: Registers that the assembler takes for sm_90a: so many, and for each one under way this many more, in single
#: elements, which have addresses of their own, and in vectors.
_OTHERS, _SINGLE, _WHOLE = 18, 3.2, 1.15
#: The same where an operand is copied to shared memory without registers: what is gathered from there is in them.
_OTHERS_GATHERED, _WHOLE_GATHERED = 28, 1.5
#: Share of a multiprocessor's shared memory that such blocks take at the most. The rest is L1, which holds the sectors
#: where one line's part ends and the next one's begins: with 208 KB of 228 taken, a sum took 1.5 times as long as with
#: 193 (8192 x 8192 bfloat16, rows 3 and 5 apart, on an H200, 2026-11-20).
_MOST_SHARED = 7 / 8


def space(problem: Geam, arch: Arch) -> tuple[Config, ...]:
    """Every configuration worth considering for ``problem`` on ``arch``.

    Vectors have 16 bytes, wherever lines start, or as many as the alignment of every line allows, where that is a word:
    with elements of 4 and 8 bytes, narrow ones are cheaper than moving wide ones. Or where one small matrix is all:
    the code that moves wide ones takes longer to come from memory than to run.
    """
    wide, narrow = (layout(problem, shifted=shifted) for shifted in (True, False))
    found = tiles(problem, arch, wide)
    small = problem.batch == 1 and problem.least_bytes <= _SMALL
    if narrow != wide and (small or narrow["V"] * problem.dtype.itemsize >= WORD_BYTES):
        found += tiles(problem, arch, narrow)
    return found


def tiles(problem: Geam, arch: Arch, layout: dict[str, int]) -> tuple[Config, ...]:
    """Every tile and launch worth considering for a :func:`layout`."""
    found = []
    v, size = layout["V"], problem.dtype.itemsize
    starts = [start for start in _STARTS if start // size >= v] if layout["SHIFTED"] else [v * size]
    if MOVED in {layout["X_MODE"], layout["Y_MODE"]}:
        # Columns that start anywhere share lines of the cache whatever D's rows do: to start those on whole ones won
        # nothing on an H200 (2026-11-20), and takes the most columns besides a block's own.
        starts = [start for start in starts if start < _LINE]
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
        resident, _limits = arch.resident(threads, min(255, round(_registers(config, loaded))), config["SHARED_BYTES"])
        room = (config["SHARED_BYTES"] + arch.shared_reserved) * resident <= _MOST_SHARED * arch.shared_per_sm
        if room or not _copies(config):
            found.append(config.replace(BLOCKS_PER_SM=max(1, resident)))
    return tuple(_fitting(_fitting(found, "BR", problem.m), "BC", problem.n))


def _copies(config: Config) -> bool:
    """Whether an operand goes to shared memory without registers."""
    return not {config["X_MODE"], config["Y_MODE"]}.isdisjoint({MOVED, ASKEW})


def _registers(config: Config, loaded: int) -> float:
    """What the assembler takes for sm_90a, or a little more, where ``loaded`` are under way."""
    if _copies(config):
        return _OTHERS_GATHERED + _WHOLE_GATHERED * loaded
    return _OTHERS + (_SINGLE if config["V"] == 1 else _WHOLE) * loaded


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
    if column == 1 and width * size <= WORD_BYTES and v * size == VECTOR_BYTES and width < v:
        return ASKEW, v  # one element at a time would take more loads than memory has time for
    return ALONG, width


def halo(config: Config, itemsize: int) -> int:
    """Columns that a turned tile has besides a block's own, for rows of D that are moved to the left."""
    word = _word(config, itemsize)
    return ceil_div(reach(config), word) * word


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
        ASKEW: 0,
        CROSSED: of_lists,
        MOVED: 0,
        SINGLE: ceil_div(columns * config["BR"], threads) * ceil_div(itemsize, WORD_BYTES),
        ABSENT: 0,
    }
    return sum(loads[config[f"{name}_MODE"]] for name in "XY")


def shared_bytes(config: Config, itemsize: int) -> int:
    """Dynamic shared memory of one block: a turned tile, or lines, for each operand. The device asserts the same."""
    return sum(_shared(config, itemsize, config[f"{name}_MODE"]) for name in "XY")


def _shared(config: Config, itemsize: int, mode: int) -> int:
    if mode in {CROSSED, SINGLE}:
        pitch = config["BR"] + (config["BR"] - 1) // 32 * min(4, config["V"] // 2) | 1
        columns = config["BC"] + halo(config, itemsize)
        return ceil_div(pitch * columns * itemsize, VECTOR_BYTES) * VECTOR_BYTES
    across = config["BC"] + reach(config)
    if mode == MOVED:
        return _of_lines(across, config["BR"] * itemsize, itemsize)
    return _of_lines(config["BR"], across * itemsize, itemsize) if mode == ASKEW else 0


def _of_lines(lines: int, nbytes: int, itemsize: int) -> int:
    """Shared memory of parts of lines, ``nbytes`` long, that start anywhere; see lines.cuh."""
    apart = (ceil_div(nbytes, VECTOR_BYTES) + 2) * VECTOR_BYTES - itemsize
    return (ceil_div(lines * apart, VECTOR_BYTES) + 2) * VECTOR_BYTES


def reach(config: Config) -> int:
    """Elements by which a row's part of a tile is moved to the left at the most."""
    return config["START"] - config["SHIFTED"] if config["SHIFTED"] else 0


def blocks(problem: Geam, config: Config) -> int:
    """Blocks of one matrix."""
    return ceil_div(problem.m, config["BR"]) * ceil_div(problem.n + reach(config), config["BC"])


def why_not(problem: Geam, config: Config, arch: Arch) -> str | None:
    """Why the constants do not fit the problem, or None."""
    if max(problem.m, problem.n) > _LARGEST:
        return f"{problem.m} x {problem.n}: more than {_LARGEST} rows or columns"
    reason = _why_not_loads(problem, config)
    if reason is not None:
        return reason
    needed = shared_bytes(config, problem.dtype.itemsize)
    if needed != config["SHARED_BYTES"]:
        return f"SHARED_BYTES = {config['SHARED_BYTES']}, and the device needs {needed}"
    return None if arch.compiles else f"{arch.title} is older than the compiler"


def _why_not_loads(problem: Geam, config: Config) -> str | None:
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


#: Strides are in elements.
_PARAMETERS = Parameters.of(
    X="const Scalar*",
    Y="const Scalar*",
    D="Scalar*",
    m="int",
    n="int",
    **{f"{matrix}_{name}": "Index" for matrix in "xyd" for name in ("row", "column", "batch")},
    alpha="Acc",
    beta="Acc",
)


def kernel(entry: str, package: str) -> Kernel[Geam]:
    """A kernel of this tile; its constants come from :func:`tiles`."""
    config = Config.of(
        V=4, BR=32, BC=32, THREADS=128, START=4, SHIFTED=0, PLAIN=0, FAR=0, X_MODE=CROSSED, X_WIDTH=4, Y_MODE=ALONG,
        Y_WIDTH=4, SHARED_BYTES=4224, BLOCKS_PER_SM=8,
    )  # fmt: skip
    return Kernel(entry, package, config, _geometry, _arguments, why_not, early=True, parameters=_PARAMETERS)


def _geometry(problem: Geam, config: Config) -> Geometry:
    return Geometry(
        grid=(blocks(problem, config), problem.batch, 1),
        block=(config["THREADS"], 1, 1),
        dynamic_shared=config["SHARED_BYTES"],
    )


def _arguments(problem: Geam, operands: GemmOperands) -> tuple[Argument, ...]:
    views = {"x": problem.x, "y": problem.y or View((0, 0)), "d": problem.d}
    strides: dict[str, int] = {}
    for name, view in views.items():
        row, column = view.strides
        strides |= {f"{name}_row": row, f"{name}_column": column, f"{name}_batch": view.batch}
    return _PARAMETERS.pack(
        problem.dtype,
        X=operands.a,
        Y=Pointer("none", 0) if problem.y is None else operands.b,
        D=operands.d,
        m=problem.m,
        n=problem.n,
        **strides,
        alpha=operands.alpha,
        beta=operands.beta,
    )
