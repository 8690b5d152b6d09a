"""Tile shapes of the tensor-core pipeline in ``kernels/hgemm/mma.cuh``: the host's side of its arithmetic.

The production kernel and the last rungs of the HGEMM ladder take their constants from here. A matrix whose rows (or
columns, where those are contiguous) do not start on 16 bytes is copied to shared memory in narrow copies. One of 16-bit
elements can be repacked instead: a launch before the product copies it to aligned rows (``kernels/repack/repack.cuh``).
``repack`` and :func:`repacked` name such matrices, ``"A"`` and ``"B"``. Wider elements do not need that: cp.async
copies one of them, and the copies of neighbouring threads share cache lines.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from matmill.arch import Arch
from matmill.config import Columns, Config, Tiles
from matmill.dtypes import F16, F32, F64, DType
from matmill.kernel import ceil_div
from matmill.kernels.repack.copies import repacked
from matmill.kernels.shared.tensor_cores import ELEMENT_BYTES, splits_float32, why_not_tensor_cores
from matmill.kernels.shared.tiled import VECTOR_BYTES, tile_count, why_not_extents, why_not_vector_widths
from matmill.kernels.splitk import epilogue_constants
from matmill.precision import SHORTEST_K_BEFORE_HOPPER
from matmill.problem import Gemm

_VECTOR = VECTOR_BYTES // ELEMENT_BYTES
#: Bytes per copy, widest first: cp.async copies 16, 8 or 4; single 16-bit elements go through registers.
_COPIES = (16, 8, 4)
#: Rows of a warp's epilogue staging buffer in shared memory, and the padding of its float32 rows.
_STAGING_ROWS, _STAGING_PAD = 16, 8
#: The most registers for accumulators and for elements copied one by one that cause no spills, determined by compiling.
_MOST_REGISTERS = 144


def shared_bytes(config: Config, itemsize: int) -> int:
    """Return the dynamic shared memory of a block in bytes.

    It holds the stages, or the epilogue's staging buffers if they need more.

    Only outputs of 16 bits are staged. The device asserts the same number.

    >>> shared_bytes(tile(128, 256, 32, 2, 4, stages=3), 2), shared_bytes(tile(128, 128, 32, 2, 2, stages=2), 2)
    (73728, 32768)
    """
    stages = _stages_bytes(config, itemsize)
    if itemsize != ELEMENT_BYTES:
        return stages
    staging = _STAGING_ROWS * (config["BN"] // config["WARPS_N"] + _STAGING_PAD) * 4
    return max(stages, config["WARPS_M"] * config["WARPS_N"] * staging)


def tile(
    bm: int, bn: int, bk: int, warps_m: int, warps_n: int, *, stages: int, blocks_per_sm: int = 1, group: int = 8
) -> Config:
    """Return a tile shape of 16-bit elements with float32 accumulators.

    :func:`with_vector_widths` adds the copies' constants per problem.

    Raster order: blocks walk down ``group`` tiles before they step to the next column of tiles. The blocks that run at
    the same time should cover about as many rows as columns.
    """
    return Config.of(
        ACC16=0,
        BM=bm,
        BN=bn,
        BK=bk,
        WARPS_M=warps_m,
        WARPS_N=warps_n,
        STAGES=stages,
        BLOCKS_PER_SM=blocks_per_sm,
        GROUP_M=group,
    )


def double_tile(
    bm: int, bn: int, bk: int, warps_m: int, warps_n: int, *, stages: int, blocks_per_sm: int = 1, mma_k: int = 4
) -> Config:
    """Return a tile shape of float64, whose mma instructions multiply ``mma_k`` terms: 4, 8 or 16.

    All else is as in :func:`tile`.

    With 8, threads of warp tiles of 64 x 32 take all of their 255 registers and some spill; with 4 they take up to 234.
    """
    return _wide(tile(bm, bn, bk, warps_m, warps_n, stages=stages, blocks_per_sm=blocks_per_sm), MMA_K=mma_k)


def split_tile(
    bm: int, bn: int, bk: int, warps_m: int, warps_n: int, *, stages: int, blocks_per_sm: int = 1, sum_k: int = 32
) -> Config:
    """Return a tile shape of float32, whose sums on the tensor cores have ``sum_k`` terms: a divisor of ``bk``.

    All else is as in :func:`tile`.
    """
    return _wide(tile(bm, bn, bk, warps_m, warps_n, stages=stages, blocks_per_sm=blocks_per_sm), SUM_K=sum_k)


def _wide(shape: Config, **constants: int) -> Config:
    """Return the shape of tiles of float32 or float64, which have other constants than ACC16."""
    return Config.of(**{name: value for name, value in shape.constants if name != "ACC16"}, **constants)


#: The constants that tell one tile shape from another; an element type has MMA_K, SUM_K or neither.
TILE = ("BM", "BN", "BK", "WARPS_M", "WARPS_N", "STAGES", "MMA_K", "SUM_K")
#: Tile shapes, largest first: later ones have less intensity and more blocks, and the last two are for few rows or few
#: columns. 128 x 128 with eight warps is for copies through registers. 132 blocks of 128 x 256 read 20% fewer rows and
#: columns with a raster group of 16 tiles than with 8.
_AMPERE = (
    tile(128, 256, 64, 2, 4, stages=4, group=16),
    tile(256, 128, 64, 4, 2, stages=4),
    tile(128, 128, 64, 2, 2, stages=3, blocks_per_sm=2),
    tile(128, 128, 64, 2, 4, stages=3),
    tile(128, 64, 64, 2, 2, stages=3, blocks_per_sm=2),
    tile(64, 64, 64, 2, 2, stages=3, blocks_per_sm=2),
    tile(32, 128, 64, 1, 4, stages=4, blocks_per_sm=2),
    tile(128, 32, 64, 4, 1, stages=4, blocks_per_sm=2),
)
#: The default constants of kernel descriptors.
LARGEST = _AMPERE[0]
_SMALL_SHARED = (
    tile(128, 256, 32, 2, 4, stages=4, group=16),
    tile(128, 128, 32, 2, 2, stages=3, blocks_per_sm=2),
    tile(128, 128, 32, 2, 4, stages=3),
    tile(64, 64, 64, 2, 2, stages=2, blocks_per_sm=2),
    tile(32, 128, 64, 1, 4, stages=2, blocks_per_sm=2),
    tile(128, 32, 64, 4, 1, stages=2, blocks_per_sm=2),
)
_TURING = (
    tile(128, 256, 32, 2, 4, stages=2),
    tile(128, 128, 32, 2, 4, stages=2),
    tile(64, 64, 64, 2, 2, stages=2, blocks_per_sm=2),
    tile(32, 128, 32, 1, 4, stages=2, blocks_per_sm=2),
    tile(128, 32, 32, 4, 1, stages=2, blocks_per_sm=2),
)
#: Tile shapes of float64, not measured yet. An SM of an H200 multiplies 128 terms per clock. For that L2, which
#: delivers about 48 bytes per clock to an SM, must deliver 16 with tiles of 128 x 128, 24 with 128 x 64 and 32 with 64
#: x 64. Smaller tiles are for products with fewer tiles than SMs, which are limited by the latency of copies.
_DOUBLE_HOPPER = (
    double_tile(128, 128, 16, 2, 4, stages=4),
    double_tile(128, 64, 16, 2, 2, stages=4, blocks_per_sm=2),
    double_tile(64, 128, 16, 1, 4, stages=4, blocks_per_sm=2),
    double_tile(64, 64, 16, 2, 2, stages=4, blocks_per_sm=3),
    double_tile(32, 64, 16, 2, 2, stages=4, blocks_per_sm=4),
    double_tile(32, 32, 16, 2, 2, stages=5, blocks_per_sm=4),
)
#: An A100 multiplies 64 terms per clock and has less shared memory.
_DOUBLE_AMPERE = (
    double_tile(128, 128, 16, 2, 4, stages=4),
    double_tile(128, 64, 16, 2, 2, stages=3, blocks_per_sm=2),
    double_tile(64, 64, 16, 2, 2, stages=3, blocks_per_sm=3),
    double_tile(32, 64, 16, 2, 2, stages=3, blocks_per_sm=4),
    double_tile(32, 32, 16, 2, 2, stages=4, blocks_per_sm=4),
)
#: Tile shapes of float32 with the most stages: the fastest of 23 on an H200 for large, tall, small and narrow products.
#: Larger warp tiles than 64 x 32 leave no registers for pieces.
_SPLIT = (
    split_tile(128, 128, 32, 2, 4, stages=4),
    split_tile(128, 64, 16, 2, 2, stages=6, blocks_per_sm=2, sum_k=16),
    split_tile(64, 64, 32, 2, 2, stages=4, blocks_per_sm=3),
    split_tile(64, 64, 16, 2, 2, stages=6, blocks_per_sm=3, sum_k=16),
    split_tile(128, 32, 32, 4, 1, stages=3, blocks_per_sm=3),
    split_tile(32, 128, 32, 1, 4, stages=4, blocks_per_sm=2),
)
#: Compute capabilities whose tensor cores multiply float64 faster than the FMA units do.
_DOUBLE_CAPABILITIES = ((8, 0), (9, 0))


def shapes(arch: Arch, dtype: DType = F16) -> tuple[Config, ...]:
    """Return the tile shapes for a GPU that fit its shared memory, and its registers without spilling."""
    if dtype is F32:
        fitting = (_with_stages(config, arch, dtype.itemsize) for config in _SPLIT)
        return tuple(config for config in fitting if config["STAGES"] > 1)
    if dtype is F64:
        return _DOUBLE_HOPPER if arch.capability >= (9, 0) else _DOUBLE_AMPERE
    if arch.capability < (8, 0):
        return _TURING
    return _AMPERE if arch.shared_per_block >= _stages_bytes(_AMPERE[0], ELEMENT_BYTES) else _SMALL_SHARED


def _with_stages(config: Config, arch: Arch, itemsize: int) -> Config:
    """Return ``config`` with no more stages than its blocks on an SM have shared memory for."""
    block = min(arch.shared_per_block, arch.shared_per_sm // config["BLOCKS_PER_SM"] - arch.shared_reserved)
    return config.replace(STAGES=min(config["STAGES"], block // _stages_bytes(config.replace(STAGES=1), itemsize)))


def why_not_elements(problem: Gemm, config: Config, arch: Arch) -> str | None:
    """Return why the pipeline cannot multiply the problem's elements on ``arch``, or None.

    float64 is limited to compute capabilities on which its tensor cores are fast. GPUs of compute capability 8.6 and
    newer have mma.sync on float64 too. Except for Hopper's, it is no faster than their FMA units.

    >>> from matmill.arch import get
    >>> why_not_elements(Gemm(8, 8, 8, F64), LARGEST, get("rtx4090"))
    'tensor cores for float64 need compute capability 8.0 or 9.0: rtx4090 has 8.9'
    """
    own, ampere, *needed = (".".join(map(str, one)) for one in (arch.capability, (8, 0), *_DOUBLE_CAPABILITIES))
    if splits_float32(problem, "tf32x3"):
        missing = f"mma.sync on tf32 needs compute capability {ampere}: {arch.name} has {own}"
        short = f"FMA is as exact for k < {SHORTEST_K_BEFORE_HOPPER} on {arch.name}"
        reasons = (
            (problem.d_dtype is not F32, f"D of {problem.d_dtype.name} has wider sums than tensor cores of float32"),
            (arch.capability < (8, 0), missing),
            (arch.capability < (9, 0) and problem.k < SHORTEST_K_BEFORE_HOPPER, short),
        )
        return next((words for holds, words in reasons if holds), None)
    if problem.dtype is not F64:
        return why_not_tensor_cores(problem, arch, acc16=bool(config.get("ACC16", 0)))
    if arch.capability in _DOUBLE_CAPABILITIES:
        return None
    return f"tensor cores for float64 need compute capability {' or '.join(needed)}: {arch.name} has {own}"


def copies(problem: Gemm, repack: Collection[str] = ()) -> dict[str, int]:
    """Return the constants of each matrix's copies: the dimension of the tile's rows, and the vector width.

    A tile's row runs along the dimension in which the matrix is contiguous. A copy moves as many elements as the
    alignment of every row and the extent allow, and 8 elements of the matrices in ``repack``. Matrices that are
    contiguous in neither dimension are copied element by element, along the shorter stride. Such elements of 16 bits
    stay in registers for one tile (before the loop: for all stages but one), so k-tiles are shorter and stages fewer.
    """
    a_row, a_column = problem.a_row_col
    b_row, b_column = problem.b_row_col
    a_k_inner, b_k_inner = abs(a_column) <= abs(a_row), abs(b_row) < abs(b_column)
    if problem.gram and "A" in repack and "B" in repack:
        b_k_inner = a_k_inner  # both share one copy
    a_stride, a_extent = (a_column, problem.k) if a_k_inner else (a_row, problem.m)
    b_stride, b_extent = (b_row, problem.k) if b_k_inner else (b_column, problem.n)
    itemsize = problem.dtype.itemsize
    vector = VECTOR_BYTES // itemsize
    stored = vector if itemsize == ELEMENT_BYTES else 2
    d_wide = problem.d_row_col[1] == 1 and problem.d_align >= stored * itemsize and problem.n % stored == 0
    return {
        "A_K_INNER": int(a_k_inner),
        "A_VEC": vector if "A" in repack else _width(a_stride, a_extent, problem.a_align, itemsize),
        "B_K_INNER": int(b_k_inner),
        "B_VEC": vector if "B" in repack else _width(b_stride, b_extent, problem.b_align, itemsize),
        "D_VEC": stored if d_wide else 1,
    }


def with_vector_widths(config: Config, problem: Gemm, repack: Collection[str] = ()) -> Config:
    """Return ``config`` with the constants of each matrix's copies."""
    if problem.dtype is F32:
        config = with_epilogue(config, problem)
    return _with_copies(config, copies(problem, repack), problem.dtype.itemsize)


def _with_copies(config: Config, constants: dict[str, int], itemsize: int) -> Config:
    config = _shortened(config, constants, itemsize).replace(**constants)
    return config.replace(SHARED_BYTES=shared_bytes(config, itemsize))


def _shortened(config: Config, constants: dict[str, int], itemsize: int) -> Config:
    """Return a tile shape with shorter k-tiles where copies of single 16-bit elements go through registers."""
    if itemsize == ELEMENT_BYTES and 1 in (constants["A_VEC"], constants["B_VEC"]):
        return config.replace(BK=min(config["BK"], 32), STAGES=min(config["STAGES"], 3))
    return config


def with_epilogue(config: Config, problem: Gemm, slices: int = 1) -> Config:
    """Return ``config`` with :func:`epilogue_constants`."""
    return config.replace(**epilogue_constants(problem, slices))


def space(problem: Gemm, arch: Arch, repack: Collection[str] = ()) -> tuple[Config, ...]:
    """Return every config worth considering on ``arch`` where the matrices in ``repack`` are repacked."""
    configs = (with_vector_widths(config, problem, repack) for config in shapes(arch, problem.dtype))
    return tuple(config for config in configs if problem.dtype.itemsize > ELEMENT_BYTES or _fits_registers(config))


def shaped(problem: Gemm, arch: Arch, repacks: tuple[tuple[str, ...], ...], tiles: Tiles | None) -> Columns:
    """Return :func:`space` for each of ``repacks``, or those of it among ``tiles``, with constants for repacking.

    Of float32 each comes twice, with the epilogue of a product whose k is whole, and of one whose k is split.
    """
    variants = tuple((repack, tuple(copies(problem, repack).items())) for repack in repacks)
    slices = (1, 2) if problem.dtype is F32 else (1,)
    epilogues = tuple(tuple(epilogue_constants(problem, count).items()) for count in slices) if len(slices) > 1 else ()
    return _shaped(arch, problem.dtype, variants, epilogues, tiles)


_Constants = tuple[tuple[str, int], ...]


@lru_cache(maxsize=1024)
def _shaped(
    arch: Arch,
    dtype: DType,
    variants: tuple[tuple[tuple[str, ...], _Constants], ...],
    epilogues: tuple[_Constants, ...],
    tiles: Tiles | None,
) -> Columns:
    rows = [
        _with_copies(config.replace(**dict(epilogue)), dict(constants), dtype.itemsize).launched(
            REPACK_A=int("A" in repack), REPACK_B=int("B" in repack)
        )
        for repack, constants in variants
        for config in shapes(arch, dtype)
        if tiles is None or _tile(_shortened(config, dict(constants), dtype.itemsize)) in tiles
        for epilogue in epilogues or ((),)
    ]
    return Columns([config for config in rows if dtype.itemsize > ELEMENT_BYTES or _fits_registers(config)])


def _tile(config: Config) -> tuple[int, ...]:
    return tuple([config.get(name) for name in TILE])


def unaligned(problem: Gemm) -> tuple[str, ...]:
    """Return the matrices of 16-bit elements whose copies are narrower than 16 bytes without repacking.

    >>> unaligned(Gemm(64, 64, 63, F16, a_align=2)), unaligned(Gemm(64, 64, 0, F16, a_align=2))
    (('A',), ())
    """
    if problem.dtype.itemsize != ELEMENT_BYTES:
        return ()
    copied = copies(problem)
    return tuple(name for name in "AB" if problem.k and copied[f"{name}_VEC"] < _VECTOR)


def _fits_registers(config: Config) -> bool:
    """Tell whether a thread has registers for its accumulators and for its share of elements copied one by one.

    Each element needs a register until it has arrived; then two share one.
    """
    single = sum(config[side] for side, width in (("BM", "A_VEC"), ("BN", "B_VEC")) if config[width] == 1)
    return (config["BM"] * config["BN"] + single * config["BK"]) // threads(config) <= _MOST_REGISTERS


def threads(config: Config) -> int:
    """Return the threads per block."""
    return config["WARPS_M"] * config["WARPS_N"] * 32


def rounds(problem: Gemm, config: Config, arch: Arch) -> float:
    """Return the FMAs per k of the busiest SM, padding included.

    Tiles below 128 x 128 count for more than their size: they read shared memory more often for the same sums.
    """
    blocks = ceil_div(tile_count(problem, config) * problem.batch, arch.sms)
    warp = config["BM"] // config["WARPS_M"], config["BN"] // config["WARPS_N"]
    reads_per_sum = (warp[0] + warp[1]) / (warp[0] * warp[1])
    return blocks * config["BM"] * config["BN"] * (1.0 + 16.0 * reads_per_sum)


def why_not(problem: Gemm, config: Config, arch: Arch) -> str | None:
    """Return why the pipeline cannot compute ``problem`` with ``config`` on ``arch``, or None."""
    reason = why_not_elements(problem, config, arch)
    if reason is not None:
        return reason
    wanted = copies(problem, repacked(config))
    reason = why_not_extents(problem) or why_not_vector_widths(config, wanted)
    if reason is not None:
        return reason
    epilogue = epilogue_constants(problem, config.get("SPLIT_K", 1)) if problem.dtype is F32 else {}
    if any(config.get(name, -1) != value for name, value in epilogue.items()):
        return "the constants of the epilogue are another problem's"
    for name in ("A_K_INNER", "B_K_INNER"):
        vector = name.replace("K_INNER", "VEC")
        if config[name] != wanted[name] and config[vector] > 1:
            return f"{name} = {config[name]} takes {config[vector]} elements at a time along the longer stride"
    return None


def _stages_bytes(config: Config, itemsize: int) -> int:
    return config["STAGES"] * (config["BM"] + config["BN"]) * config["BK"] * itemsize


def _width(stride: int, extent: int, align: int, itemsize: int) -> int:
    """Return the elements per copy of rows of ``extent`` elements that start on multiples of ``align`` bytes."""
    if stride != 1:
        return 1
    widths = (copied // itemsize for copied in _COPIES if copied >= itemsize)
    return next((width for width in widths if align >= width * itemsize and extent % width == 0), 1)
