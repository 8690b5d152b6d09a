"""D = alpha * A @ B + beta * C of 8-bit integers on tensor cores, with C, D and the sums in 32 bits.

The twin of ``kernels/hgemm``, whose pipeline takes two bytes along k for one element of 16 bits. A launch before the
product repacks an operand that is not contiguous along k, or whose rows do not start and end on 16 bytes. Split-K and
its reduction are as there.
"""

from __future__ import annotations

from dataclasses import replace

from matmill.arch import Arch
from matmill.config import Columns, Config, Configs, Tiles
from matmill.dtypes import F16, F32, I8, I32, U8
from matmill.kernel import Kernel, Prediction, Production, ceil_div
from matmill.kernels.hgemm import HGEMM, cost
from matmill.kernels.hgemm.tiles import LARGEST
from matmill.kernels.hgemm.tiles import shapes as pair_shapes
from matmill.kernels.repack import why_not_repack
from matmill.kernels.repack.copies import repacked
from matmill.kernels.shared.tiled import VECTOR_BYTES, tile_count, why_not_extents
from matmill.kernels.splitk import splits, why_not_precision, why_not_split
from matmill.problem import NO_EPILOGUE, Gemm

#: The fewest k-steps of a split-K slice: with fewer, filling the pipeline dominates.
_LEAST_STEPS = 4
#: The first compute capability with m16n8k32.
_OLDEST = (8, 0)
#: The constants that tell one tile shape from another.
TILE = ("BM", "BN", "BK", "WARPS_M", "WARPS_N", "STAGES")


def tile(pairs: Config, problem: Gemm) -> Config:
    """Return a tile shape of 16-bit elements as one of bytes, with the constants of the problem's copies.

    ACTIVATION, none, says that the kernel needs no reduction for D of 32 bits.
    """
    names = ("BM", "BN", "WARPS_M", "WARPS_N", "STAGES", "BLOCKS_PER_SM", "GROUP_M")
    shape = {name: pairs[name] for name in names} | {"BK": 2 * pairs["BK"], "ACTIVATION": 0}
    copies = {"A_K_INNER": 1, "A_VEC": VECTOR_BYTES, "B_K_INNER": 1, "B_VEC": VECTOR_BYTES, "D_VEC": _d_vec(problem)}
    nbytes = shape["STAGES"] * (shape["BM"] + shape["BN"]) * shape["BK"]
    repacks = {f"REPACK_{name}": int(not _on_vectors(problem, name)) for name in "AB"}
    return Config.of(**shape, **copies, SHARED_BYTES=nbytes).launched(**repacks)


def _d_vec(problem: Gemm) -> int:
    aligned = problem.d_row_col[1] == 1 and problem.d_align >= 2 * I32.itemsize
    return 2 if aligned and problem.n % 2 == 0 else 1


def _on_vectors(problem: Gemm, name: str) -> bool:
    """Tell whether an operand is whole vectors along k, each on 16 bytes; without terms nothing is read."""
    sides = {"A": (problem.a_row_col[1], problem.a_align), "B": (problem.b_row_col[0], problem.b_align)}
    along_k, align = sides[name]
    return not problem.k or (along_k == 1 and align >= VECTOR_BYTES and problem.k % VECTOR_BYTES == 0)


def _among(problem: Gemm, arch: Arch, tiles: Tiles | None) -> Columns:
    """Return the tile shapes (those among ``tiles``), without and (for few tiles) with split-K.

    There is only one if the GPU lacks the instruction, so that the reason is given once.
    """
    if problem.dtype not in (I8, U8):
        return Columns(())
    shaped = Columns([tile(pairs, problem) for pairs in pair_shapes(arch)]).having(TILE, tiles)
    pairs = [
        (row, slices)
        for row, config in enumerate(shaped.configs)
        for slices in splits(
            tile_count(problem, config) * problem.batch,
            ceil_div(problem.k, config["BK"]) // _LEAST_STEPS,
            config["BLOCKS_PER_SM"],
            arch,
        )
    ][: None if _why_not_elements(problem, arch) is None else 1]
    return shaped.take([row for row, _ in pairs], SPLIT_K=[slices for _, slices in pairs])


def explain(problem: Gemm, config: Configs, arch: Arch) -> Prediction:
    """Return the predicted time: that of float16 with half of the terms and float32 results.

    It is assumed that m16n8k32 takes as long as m16n8k16 does. Its bytes are the same.
    """
    pairs = replace(problem, dtype=F16, k=ceil_div(problem.k, 2), out_dtype=F32)
    tiles = Columns([_of_pairs(one) for one in config.configs]) if isinstance(config, Columns) else _of_pairs(config)
    return cost.explain(pairs, tiles, arch)


def _of_pairs(config: Config) -> Config:
    return config.replace(BK=config["BK"] // 2, A_VEC=VECTOR_BYTES // 2, B_VEC=VECTOR_BYTES // 2)


def _why_not_elements(problem: Gemm, arch: Arch) -> str | None:
    if problem.dtype not in (I8, U8) or problem.d_dtype is not I32 or problem.epilogue != NO_EPILOGUE:
        return f"{problem.dtype.name} to {problem.d_dtype.name} is not int8 or uint8 to int32, without an epilogue"
    if arch.capability < _OLDEST:
        needed, own = (".".join(map(str, version)) for version in (_OLDEST, arch.capability))
        return f"mma.sync m16n8k32 on {problem.dtype.name} needs compute capability {needed}: {arch.name} has {own}"
    return why_not_precision(problem, promotes=False)


def _why_not(problem: Gemm, config: Config, arch: Arch) -> str | None:
    reason = _why_not_elements(problem, arch) or why_not_extents(problem)
    if reason is not None:
        return reason
    for name in "AB":
        if name not in repacked(config) and not _on_vectors(problem, name):
            return f"{name} is not whole vectors along k on {VECTOR_BYTES} bytes, and is not repacked"
    if config["D_VEC"] > _d_vec(problem):
        return "pairs of outputs need aligned, contiguous rows of an even length"
    return why_not_split(problem, config) or why_not_repack(problem, config)


IGEMM: Kernel[Gemm] = replace(
    HGEMM,
    entry="igemm",
    package=__name__,
    config=tile(LARGEST, Gemm(128, 256, 128, I8, out_dtype=I32)).launched(SPLIT_K=1),
    why_not_config=_why_not,
    sums_in_slices=None,
)

PRODUCTION: Production[Gemm] = Production.of(IGEMM, _among, explain, TILE)
