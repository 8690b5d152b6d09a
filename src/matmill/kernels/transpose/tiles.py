"""Tiles and launches of ``kernels/transpose/tile.cuh``: the host's side of its arithmetic.

The production kernel and the last rungs of the transpose-add ladder take their constants from here.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import GemmOperands, Geometry, Kernel, ceil_div
from matmill.kernels.shared.outputs import complex_factor
from matmill.launch import Argument, Pointer
from matmill.parameters import Parameters
from matmill.problem import Geam, View

VECTOR_BYTES, WORD_BYTES = 16, 4
#: Layouts of an operand, as in tile.cuh: contiguous along D's rows; along D's columns, which start on whole vectors, or
#: anywhere; in neither dimension; operand absent; along D's rows, but aligned differently from D's vectors.
ROW, COL, COL_UNALIGNED, STRIDED, ABSENT, ROW_UNALIGNED = range(6)
#: Rows and columns are 32-bit integers on the device, and a tile may reach past the end.
_LARGEST = 2**30
#: The largest problem in bytes for which vectors may be narrower than a word.
_SMALL = 2**20
#: Strides below so many bytes fit in 32-bit integers.
_NEAR = 2**31
_THREADS, _WARP = (128, 256, 512), 32
#: Vectors of 16 bytes down a tile, and bytes of its rows: warps that read 128 bytes of a row use every bank once.
_DEPTHS, _ROW_BYTES = (4, 8, 16), (128, 256)
#: Vectors down a tile that has all of few rows, and bytes of its rows if it has all of few columns.
_FLAT, _SHORT = (1, 2), (16, 32, 64)
_CACHE_LINE = 128
#: Rows of the tile for sums whose own tile is not compiled.
_GENERAL = 32
#: Boundaries in bytes on which a block's part of an unaligned row may start: vector, one or two sectors, 128 bytes.
_STARTS = (16, 32, 64, _CACHE_LINE)
#: The most registers for a thread's loads in flight.
_MOST_LOADED = 80
#: Registers that the assembler takes for sm_90a: a constant, and more for each register of loads in flight, for single
#: elements (which need addresses of their own), for those of 16 bytes, and for vectors.
_OTHERS, _EACH_SCALAR, _EACH_WIDE, _EACH_VECTOR = 18, 3.2, 1.5, 1.15
#: The same if an operand is copied to shared memory without registers: these hold the elements gathered from there.
_OTHERS_GATHERED, _EACH_GATHERED = 28, 1.5
#: The largest share of an SM's shared memory that such blocks take. The rest is L1 cache, for the sectors that two
#: neighbouring blocks share: with 208 KB of 228 used, a problem took 1.5 times as long as with 193 (8192 x 8192
#: bfloat16, rows 3 and 5 elements apart, on an H200, 2026-11-20).
_MOST_SHARED = 7 / 8


def space(problem: Geam, arch: Arch) -> tuple[Config, ...]:
    """Return every configuration worth considering for ``problem`` on ``arch``.

    Vectors have 16 bytes whatever the alignment of rows and columns, or as many as the alignment of all of them allows,
    if that is at least a word: for elements of 4 and 8 bytes, narrow vectors are cheaper than shifted wide ones. A
    single small matrix may have vectors below a word, because fetching the code that shifts wide ones takes longer than
    running it.
    """
    wide, narrow = (layout(problem, shifted=shifted) for shifted in (True, False))
    configs = tiles(problem, arch, wide)
    small = problem.batch == 1 and problem.least_bytes <= _SMALL
    if narrow != wide and (small or narrow["V"] * problem.dtype.itemsize >= WORD_BYTES):
        configs += tiles(problem, arch, narrow)
    return configs


def general(problem: Geam, arch: Arch) -> Config:
    """Return a tile of single elements: operands of one order take the same, whatever their extents and alignments."""
    large = replace(problem, m=_GENERAL * _GENERAL, n=_GENERAL * _GENERAL)
    of_elements = tiles(large, arch, {**_layout(problem, 1), "FAR": 1})
    return next(config for config in of_elements if config["BR"] == _GENERAL)


def tiles(problem: Geam, arch: Arch, layout: dict[str, int]) -> tuple[Config, ...]:
    """Return every tile and launch worth considering for a :func:`layout`."""
    configs = []
    v, size = layout["V"], problem.dtype.itemsize
    starts = [start for start in _STARTS if start // size >= v] if layout["SHIFTED"] else [v * size]
    if COL_UNALIGNED in {layout["X_MODE"], layout["Y_MODE"]}:
        # Unaligned columns share cache lines whatever D's rows do: starting rows on whole cache lines gained nothing on
        # an H200 (2026-11-20), and needs the most columns besides a block's own.
        starts = [start for start in starts if start < _CACHE_LINE]
    for depth, row, threads, start in product((*_FLAT, *_DEPTHS), (*_SHORT, *_ROW_BYTES), _THREADS, starts):
        # Single elements are distributed like vectors of four, so that tiles are not too small.
        rows = depth * (v if v > 1 else 4)
        if (depth in _FLAT and rows < problem.m) or (row in _SHORT and row // size < problem.n):
            continue
        config = Config.of(BR=rows, BC=row // size, THREADS=threads, START=start // size, **layout)
        loaded = _loaded(config, size)
        vectors = config["BC"] // v  # of a row
        if (
            config["BC"] % config["START"]
            or vectors > threads
            or config["BR"] * vectors % threads
            or rows * size * _WARP // _CACHE_LINE > threads  # warps down a column, whose lanes read 128 bytes of it
            or loaded > _MOST_LOADED
        ):
            continue
        config = config.replace(SHARED_BYTES=shared_bytes(config, size))
        resident, _limits = arch.resident(
            threads, min(255, round(_registers(config, size, loaded))), config["SHARED_BYTES"]
        )
        leaves_l1 = (config["SHARED_BYTES"] + arch.shared_reserved) * resident <= _MOST_SHARED * arch.shared_per_sm
        if leaves_l1 or not _copies(config):
            configs.append(config.replace(BLOCKS_PER_SM=max(1, resident)))
    return tuple(_fitting(_fitting(configs, "BR", problem.m), "BC", problem.n))


def _copies(config: Config) -> bool:
    """Tell whether an operand is copied to shared memory without registers."""
    return not {config["X_MODE"], config["Y_MODE"]}.isdisjoint({COL_UNALIGNED, ROW_UNALIGNED})


def _registers(config: Config, itemsize: int, loaded: int) -> float:
    """Return the registers of a thread for sm_90a, or a few more, if ``loaded`` registers of loads are in flight."""
    if _copies(config):
        return _OTHERS_GATHERED + _EACH_GATHERED * loaded
    alone = _EACH_SCALAR if itemsize < VECTOR_BYTES else _EACH_WIDE
    return _OTHERS + (alone if config["V"] == 1 else _EACH_VECTOR) * loaded


def _fitting(configs: list[Config], name: str, extent: int) -> list[Config]:
    """Return the configs whose tile is less than twice ``extent`` in a dimension, or the smallest: padding is work."""
    least = min((config[name] for config in configs), default=0)
    return [config for config in configs if config[name] < max(least + 1, 2 * extent)]


def layout(problem: Geam, *, shifted: bool = True) -> dict[str, int]:
    """Return the constants that depend on the operands' strides and alignments.

    Without ``shifted``, vectors are only as wide as the alignment of all rows and columns allows.
    """
    size = problem.dtype.itemsize
    v = VECTOR_BYTES // size if shifted else min(view.align for view in _limiting(problem)) // size or 1
    return _layout(problem, v if problem.d.strides[1] == 1 else 1)


def _layout(problem: Geam, v: int) -> dict[str, int]:
    """Return the constants for vectors of ``v`` elements."""
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


def _limiting(problem: Geam) -> list[View]:
    """Return the views whose alignment limits the vector width: D, and the transposed operands."""
    return [problem.d, *(view for view in (problem.x, problem.y) if view is not None and view.transposed)]


def _farthest(problem: Geam) -> int:
    """Return the longest stride, in elements."""
    views = (problem.x, problem.d, *([] if problem.y is None else [problem.y]))
    return max(abs(stride) for view in views for stride in view.strides)


def _read_as(view: View, v: int, size: int) -> tuple[int, int]:
    """Return layout and elements per load of one operand."""
    row, column = view.strides
    if view.transposed:
        if row != 1:
            return STRIDED, 1
        return COL if view.align // size >= v else COL_UNALIGNED, v
    width = min(v, max(1, view.relative_align // size)) if column == 1 else 1
    if column == 1 and width * size <= WORD_BYTES and v * size == VECTOR_BYTES and width < v:
        return ROW_UNALIGNED, v  # single elements would take more loads than memory has time for
    return ROW, width


def halo(config: Config, itemsize: int) -> int:
    """Return the columns of a transposed tile besides the block's own, for rows of D that are shifted left."""
    word = _word(config, itemsize)
    return ceil_div(reach(config), word) * word


def _word(config: Config, itemsize: int) -> int:
    """Return the elements of a row in one word of shared memory."""
    return WORD_BYTES // itemsize if itemsize < WORD_BYTES <= config["V"] * itemsize else 1


def _loaded(config: Config, itemsize: int) -> int:
    """Return the registers of a thread's loads before it stores the first element; each load needs at least one."""
    v, threads, word = config["V"], config["THREADS"], _word(config, itemsize)
    columns, registers = config["BC"] + halo(config, itemsize), ceil_div(v * itemsize, WORD_BYTES)
    of_columns = ceil_div(columns // word * (config["BR"] // v), threads) * word * registers
    slots = config["BR"] * config["BC"] // v // threads
    loads = {
        ROW: slots * registers,
        ROW_UNALIGNED: 0,
        COL: of_columns,
        COL_UNALIGNED: 0,
        STRIDED: ceil_div(columns * config["BR"], threads) * ceil_div(itemsize, WORD_BYTES),
        ABSENT: 0,
    }
    return sum(loads[config[f"{name}_MODE"]] for name in "XY")


def shared_bytes(config: Config, itemsize: int) -> int:
    """Return a block's dynamic shared memory in bytes: each operand's tile. The device asserts the same."""
    return sum(_shared(config, itemsize, config[f"{name}_MODE"]) for name in "XY")


def _shared(config: Config, itemsize: int, mode: int) -> int:
    if mode in {COL, STRIDED}:
        pitch = config["BR"] + (config["BR"] - 1) // 32 * min(4, config["V"] // 2) | 1
        columns = config["BC"] + halo(config, itemsize)
        return ceil_div(pitch * columns * itemsize, VECTOR_BYTES) * VECTOR_BYTES
    across = config["BC"] + reach(config)
    if mode == COL_UNALIGNED:
        return _staging_bytes(across, config["BR"] * itemsize, itemsize)
    return _staging_bytes(config["BR"], across * itemsize, itemsize) if mode == ROW_UNALIGNED else 0


def _staging_bytes(runs: int, nbytes: int, itemsize: int) -> int:
    """Return the shared memory of contiguous runs of ``nbytes`` that start anywhere (``staging.cuh``)."""
    pitch = (ceil_div(nbytes, VECTOR_BYTES) + 2) * VECTOR_BYTES - itemsize
    return (ceil_div(runs * pitch, VECTOR_BYTES) + 2) * VECTOR_BYTES


def reach(config: Config) -> int:
    """Return the most elements by which a tile's part of a row is shifted left."""
    return config["START"] - config["SHIFTED"] if config["SHIFTED"] else 0


def blocks(problem: Geam, config: Config) -> int:
    """Return the number of blocks that process one matrix."""
    return ceil_div(problem.m, config["BR"]) * ceil_div(problem.n + reach(config), config["BC"])


def why_not(problem: Geam, config: Config, arch: Arch) -> str | None:
    """Return why the constants do not fit the problem, or None."""
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
        return f"V = {v} elements at a time, and D's rows are not contiguous"
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


def kernel(entry: str, package: str, file: str = "kernel.cuh") -> Kernel[Geam]:
    """Return a kernel of this tile; its constants come from :func:`tiles`."""
    config = Config.of(
        V=4, BR=32, BC=32, THREADS=128, START=4, SHIFTED=0, PLAIN=0, FAR=0, X_MODE=COL, X_WIDTH=4, Y_MODE=ROW,
        Y_WIDTH=4, SHARED_BYTES=4224, BLOCKS_PER_SM=8,
    )  # fmt: skip
    return Kernel(entry, package, config, _geometry, _arguments, why_not, pdl=True, parameters=_PARAMETERS, file=file)


def factors(problem: Geam, operands: GemmOperands) -> dict[str, Argument | float]:
    """Return alpha and beta as kernels take them: those of complex elements with the sign of imaginary parts."""
    alpha, beta = operands.alpha, operands.beta
    if problem.dtype.part is None:
        return {"alpha": alpha, "beta": beta}
    alpha_im, beta_im = operands.imaginary
    of_y = problem.y is not None and problem.y.conjugate
    return {
        "alpha": complex_factor(problem.dtype, alpha, alpha_im, conjugate=problem.x.conjugate),
        "beta": complex_factor(problem.dtype, beta, beta_im, conjugate=of_y),
    }


def _geometry(problem: Geam, config: Config) -> Geometry:
    return Geometry(
        grid=(blocks(problem, config), problem.batch, 1),
        block=(config["THREADS"], 1, 1),
        dynamic_shared=config["SHARED_BYTES"],
    )


def _arguments(problem: Geam, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
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
        **factors(problem, operands),
    )
