"""Transpose-add of a matrix of few rows or few columns, in chunks of its long side: tiles would be mostly padding.

With few columns (tall), D and Y are packed, so that several of their rows are one contiguous run, and X has long
columns. With few rows (wide), X is packed, and Y and D have long rows. If Y is the transposed operand, the kernel
exchanges X and Y (SWAPPED).
"""

from __future__ import annotations

from collections.abc import Mapping

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import GemmOperands, Geometry, Kernel, Production, ceil_div
from matmill.kernels.shared.bank_padding import VECTOR_BYTES, best, same_rows, steady
from matmill.kernels.transpose.chunks import (
    assign_threads,
    chunks_ahead,
    elements,
    gather_registers,
    launch,
    one_chunk_registers,
    shared_bytes,
    transposed_first,
)
from matmill.kernels.transpose.cost import explain
from matmill.kernels.transpose.tiles import factors
from matmill.launch import Argument, Pointer
from matmill.parameters import Parameters
from matmill.problem import Geam, View

#: The short side's limits, and the least ratio of the long side to it. With 64 elements and more, tiles are well
#: filled.
_LEAST, _SHORT, _TIMES = 2, 63, 16
#: The longest long side: the device counts along it in 32 bits, a chunk and more past its end.
_LONGEST = 2**30
#: Bytes of a cache line, of which the part of each long row or column in a chunk is a multiple.
_CACHE_LINE = 128
#: Vectors of a chunk, about.
_VECTORS = (128, 256, 512, 1024)
#: Chunks that are loaded ahead, and the longest short side for several. On an H200 (2026-11-20) 30 x 3000000 int8 took
#: 0.87 of the time with two, and 1000001 x 17 bfloat16 0.84; a third gained nothing. Two gained nothing if the short
#: side is whole vectors, and with 48 rows of float64 took 1.13 times as long.
_AHEAD, _MOST_AHEAD = 2, 32
#: Registers of a vector, of a vector's offset in each operand, and of a thread besides its vectors and offsets.
_VECTOR_REGISTERS, _OFFSET, _OTHERS = 4, 3, 23
#: Extra registers with per-element offsets and several chunks.
_SEVERAL = 16


def space(problem: Geam, arch: Arch) -> tuple[Config, ...]:
    """Return every configuration worth considering for ``problem`` on ``arch``; none unless a side is short."""
    if why_not_slim(problem) is not None or max(problem.m, problem.n) < _TIMES * min(problem.m, problem.n):
        return ()
    size = problem.dtype.itemsize
    constants, short, width = _layout(problem), min(problem.m, problem.n), _CACHE_LINE // size
    configs: dict[Config, None] = {}
    for wanted in _VECTORS:
        count = max(1, wanted * VECTOR_BYTES // (short * _CACHE_LINE))  # cache lines of each row or column
        shape = (problem.m, width, count) if constants["WIDE"] else (count * width, problem.n, 1)
        chunk = _with_padding(Config.of(**constants, **dict(zip("MNG", shape, strict=True))), size, arch)
        for ahead in chunks_ahead(chunk, size, _ahead(constants, short, size)):
            config = chunk.replace(AHEAD=ahead)
            config = config.replace(SHARED_BYTES=_shared_bytes(config, size))
            assigned = assign_threads(config, held(config, size), lambda one: _registers(one, size), arch)
            if assigned is not None:
                configs[assigned] = None
    # While one block waits at its barrier, another one works.
    beside = [config for config in configs if config["BLOCKS_PER_SM"] > 1]
    return tuple(beside or configs)


def _with_padding(config: Config, size: int, arch: Arch) -> Config:
    """Return ``config`` with the bank padding for its chunk."""
    vectors = elements(config) * size // VECTOR_BYTES
    every, padding = best(_pitch(config, size), config["N"], size, vectors, arch.shared_per_block // 2)
    config = config.replace(PAD_EVERY=every, PAD_VECTORS=padding)
    return config.replace(STEADY=int(_steady(config, size)))


def _shared_bytes(config: Config, size: int) -> int:
    """Return a block's dynamic shared memory in bytes, with chunks of Y if several are loaded ahead."""
    beside = elements(config) * size // VECTOR_BYTES if config["HAS_Y"] and config["AHEAD"] > 1 else 0
    return shared_bytes(held(config, size), config["PAD_EVERY"], config["PAD_VECTORS"], 1 + config["AHEAD"], beside)


def _ahead(layout: Mapping[str, int], short: int, size: int) -> int:
    """Return the number of chunks to load ahead; several only if Y can be copied to shared memory."""
    several = layout["HAS_Y"] and short <= _MOST_AHEAD and short * size % VECTOR_BYTES and _copies_y(layout, size)
    return _AHEAD if several else 1


def _copies_y(constants: Mapping[str, int], size: int) -> bool:
    """Tell whether Y, if there is one, can be copied to shared memory in whole vectors."""
    return not constants["HAS_Y"] or constants["Y_WIDTH"] * size == VECTOR_BYTES


def _pitch(config: Config, size: int) -> int:
    """Return the elements from one column of X to the next in shared memory."""
    return config["M"] + (VECTOR_BYTES // size if config["APART"] and not config["WIDE"] else 0)


def _steady(config: Config, size: int) -> bool:
    """Tell whether every vector of D has its elements at the same distances in shared memory. The device asserts it."""
    m, n, v = config["M"], config["N"], VECTOR_BYTES // size
    if not config["APART"]:
        return steady(m, n, v, config["PAD_EVERY"])
    # Unaligned rows start anywhere between two paddings, each of X's rows at another distance.
    return bool(config["WIDE"]) and config["PAD_VECTORS"] == 0 and same_rows(m, n, v)


def held(config: Config, itemsize: int) -> int:
    """Return the vectors of X in a chunk."""
    return elements(config) * itemsize // VECTOR_BYTES + config["APART"] * _short(config)


def _short(config: Config) -> int:
    """Return the short side: rows or columns of D."""
    return config["M"] if config["WIDE"] else config["N"]


def why_not_slim(problem: Geam) -> str | None:
    """Return why a problem has no short and long side with the strides that this kernel needs, or None."""
    names, problem = ("YX" if problem.y_transposed else "XY"), problem.transposed_first
    m, n = problem.m, problem.n
    if problem.batch != 1 or not _LEAST <= min(m, n) <= _SHORT or max(m, n) > _LONGEST:
        return f"{problem.batch} x {m} x {n} is not one matrix with one side of {_LEAST} to {_SHORT}"
    wide, y = m < n, problem.y or problem.d
    for index, (name, view) in enumerate(zip((*names, "D"), (problem.x, y, problem.d), strict=True)):
        transposed = index == 0
        if wide:
            fits = view.strides == (1, m) if transposed else view.strides[1] == 1
        else:
            fits = view.strides[0] == 1 if transposed else view.strides == (n, 1)
        if not fits:
            needed = "packed" if wide == transposed else f"contiguous in its {'columns' if transposed else 'rows'}"
            return f"{name} with strides {view.strides} is not {needed}"
    return None


def _layout(problem: Geam) -> dict[str, int]:
    """Return the constants that depend on the operands' strides and alignments."""
    v, swapped = VECTOR_BYTES // problem.dtype.itemsize, problem.y_transposed
    problem = problem.transposed_first
    wide = problem.m < problem.n
    long = problem.d if wide else problem.x
    beside = VECTOR_BYTES if problem.y is None else problem.y.relative_align
    return {
        "WIDE": int(wide),
        "APART": int(long.align < VECTOR_BYTES),
        "PLAIN": int(problem.plain),
        "HAS_Y": int(problem.y is not None),
        "SWAPPED": int(swapped),
        "Y_WIDTH": min(v, max(1, beside // problem.dtype.itemsize)),
    }


def _registers(config: Config, itemsize: int) -> int:
    """Return the registers that the assembler takes for sm_90a, or a few more."""
    if config["AHEAD"] == 0:
        return one_chunk_registers(config, itemsize, apart=bool(config["APART"]))
    v, threads = VECTOR_BYTES // itemsize, config["THREADS"]
    vectors = ceil_div(elements(config), v * threads)
    given = ceil_div(held(config, itemsize), threads)
    in_chunk = 1 if config["STEADY"] else v
    in_memory = _OFFSET * ((1 + config["HAS_Y"]) * vectors + given)
    # Asynchronous copies to shared memory need no registers for their data.
    several = config["AHEAD"] > 1
    loaded = 0 if several else _VECTOR_REGISTERS * (config["HAS_Y"] * vectors + given)
    others = _OTHERS + (_SEVERAL if several and not config["STEADY"] else 0)
    return others + in_memory + in_chunk * vectors + loaded + gather_registers(itemsize, vectors)


def _why_not(problem: Geam, config: Config, arch: Arch) -> str | None:
    reason = why_not_slim(problem)
    if reason is not None:
        return reason
    if _short(config) != min(problem.m, problem.n):
        return f"constants for a short side of {_short(config)}"
    for name, value in _layout(problem).items():
        if config[name] != value:
            return f"{name} = {config[name]} where the operands need {value}"
    size = problem.dtype.itemsize
    if config["AHEAD"] > 1 and not _copies_y(dict(config.constants), size):
        return f"AHEAD = {config['AHEAD']} chunks, and Y is loaded {config['Y_WIDTH']} elements at a time"
    needed = {
        "SHARED_BYTES": _shared_bytes(config, size),
        "STEADY": int(_steady(config, size)),
    }
    for name, value in needed.items():
        if config[name] != value:
            return f"{name} = {config[name]}, and the device needs {value}"
    return None if arch.compiles else f"{arch.title} is older than the compiler"


def _geometry(problem: Geam, config: Config) -> Geometry:
    # Rows that are shifted left end up to a vector less one element further on. The device computes the same.
    reach = VECTOR_BYTES // problem.dtype.itemsize - 1 if config["WIDE"] and config["APART"] else 0
    long = config["G"] * config["N"] if config["WIDE"] else config["M"]
    chunks = ceil_div(max(problem.m, problem.n) + reach, long)
    return launch(config, chunks)


def _arguments(problem: Geam, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    problem, operands = transposed_first(problem, operands)
    y = problem.y or View((0, 0))
    return _PARAMETERS.pack(
        problem.dtype,
        X=operands.a,
        Y=Pointer("none", 0) if problem.y is None else operands.b,
        D=operands.d,
        length=max(problem.m, problem.n),
        x_pitch=problem.x.strides[1],
        y_pitch=y.strides[0],
        d_pitch=problem.d.strides[0],
        **factors(problem, operands),
    )


#: ``length`` is the long side's; pitches are the elements from one long row or column to the next.
_PARAMETERS = Parameters.of(
    X="const Scalar*",
    Y="const Scalar*",
    D="Scalar*",
    length="int",
    x_pitch="Index",
    y_pitch="Index",
    d_pitch="Index",
    alpha="Acc",
    beta="Acc",
)
TRANSPOSE_SLIM: Kernel[Geam] = Kernel(
    entry="transpose_slim",
    package=__name__,
    config=Config.of(
        WIDE=0,
        APART=0,
        M=128,
        N=8,
        G=1,
        THREADS=256,
        PAD_EVERY=32,
        PAD_VECTORS=1,
        STEADY=1,
        PLAIN=0,
        HAS_Y=1,
        SWAPPED=0,
        AHEAD=1,
        Y_WIDTH=4,
        SHARED_BYTES=8416,
        BLOCKS_PER_SM=4,
        BLOCKS=528,
    ),
    geometry=_geometry,
    arguments=_arguments,
    why_not_config=_why_not,
    pdl=True,
    parameters=_PARAMETERS,
)

PRODUCTION: Production[Geam] = Production(TRANSPOSE_SLIM, space, explain)
