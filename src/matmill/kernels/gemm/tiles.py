"""Tile shapes of the FMA pipeline in ``kernels/gemm/simt.cuh``: the host's side of its arithmetic.

The production kernel and the last rung of the SGEMM ladder take their constants from here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from matmill.arch import Arch
from matmill.config import Columns, Config, Configs, Tiles
from matmill.dtypes import DType
from matmill.kernels.shared.tiled import VECTOR_BYTES, why_not_extents, why_not_vector_widths
from matmill.problem import Gemm


def shared_bytes(config: Config, dtype: DType) -> int:
    """Return the dynamic shared memory of a block in bytes.

    It holds the pipeline's stages, or the slices' sums if they need more. The device asserts the same number.
    """
    pad = VECTOR_BYTES // dtype.itemsize
    stage = config["BK"] * (config["BM"] + pad + config["BN"] + pad)
    merge = (config["SLICES"] - 1) * config["BM"] * config["BN"]
    return max(config["STAGES"] * stage * dtype.itemsize, merge * dtype.accumulator.itemsize)


def tile(  # noqa: PLR0917 — the order is that of the field: tile, thread tile, warps
    bm: int,
    bn: int,
    bk: int,
    tm: int,
    tn: int,
    warps_m: int,
    warps_n: int,
    *,
    slices: int = 1,
    stages: int = 3,
    blocks_per_sm: int = 1,
) -> Config:
    """Return a tile shape. :func:`with_vector_widths` adds the constants of a problem's copies."""
    return Config.of(
        BM=bm,
        BN=bn,
        BK=bk,
        TM=tm,
        TN=tn,
        WARPS_M=warps_m,
        WARPS_N=warps_n,
        SLICES=slices,
        STAGES=stages,
        BLOCKS_PER_SM=blocks_per_sm,
        GROUP_M=8,
    )


#: The constants that tell one tile shape from another.
TILE = ("BM", "BN", "BK")
#: Tile shapes by element size. Those of float32 are the fewest of 75 among which no product of the record loses 1%
#: (benchmarks/results/gemm_tiles_h200.json). Large ones are the fastest per SM where many fill it. An SM's warps are a
#: multiple of four, one for each scheduler, and with 16 of them a thread has 128 registers, with 12 168, with 8 255.
#: Thread tiles of 12, 20 and 28 rows or columns are for sizes between powers of two, slices for few tiles.
TILES: dict[int, tuple[Config, ...]] = {
    4: (
        tile(128, 256, 8, 16, 8, 2, 4),
        tile(256, 128, 8, 16, 8, 4, 2),
        tile(64, 256, 8, 16, 8, 1, 4, blocks_per_sm=2),
        tile(256, 64, 8, 16, 8, 4, 1, blocks_per_sm=2),
        tile(128, 128, 8, 16, 8, 2, 2, blocks_per_sm=2),
        tile(112, 128, 8, 28, 4, 1, 4, blocks_per_sm=2),
        tile(128, 112, 8, 4, 28, 4, 1, blocks_per_sm=2),
        tile(96, 128, 8, 12, 8, 2, 2, blocks_per_sm=3),
        tile(128, 96, 8, 8, 12, 2, 2, blocks_per_sm=3),
        tile(80, 128, 8, 20, 4, 1, 4, blocks_per_sm=3),
        tile(128, 80, 8, 4, 20, 4, 1, blocks_per_sm=3),
        tile(64, 128, 8, 8, 8, 1, 4, blocks_per_sm=4),
        tile(128, 64, 8, 8, 8, 2, 2, blocks_per_sm=4),
        tile(64, 128, 16, 8, 8, 1, 4, slices=2),
        tile(48, 128, 16, 12, 8, 1, 2, slices=2, blocks_per_sm=3),
        tile(128, 48, 16, 8, 12, 2, 1, slices=2, blocks_per_sm=3),
        tile(40, 128, 16, 20, 4, 1, 2, slices=2, blocks_per_sm=3),
        tile(128, 40, 16, 4, 20, 2, 1, slices=2, blocks_per_sm=3),
        tile(96, 64, 16, 12, 8, 2, 1, slices=2, blocks_per_sm=3),
        tile(64, 64, 16, 8, 8, 1, 2, slices=4, blocks_per_sm=2),
        tile(32, 96, 16, 4, 8, 1, 3, slices=2, blocks_per_sm=3),
        tile(96, 32, 16, 4, 8, 3, 1, slices=2, blocks_per_sm=3),
        tile(32, 64, 32, 4, 8, 1, 2, slices=4, blocks_per_sm=2),
        tile(32, 32, 32, 4, 8, 1, 1, slices=8, blocks_per_sm=2),
    ),
    8: (
        tile(128, 128, 8, 8, 8, 2, 4),
        tile(64, 128, 8, 8, 8, 2, 2, blocks_per_sm=2),
        tile(32, 64, 16, 4, 8, 1, 2, slices=2, blocks_per_sm=2),
    ),
}


def copies(problem: Gemm) -> dict[str, int]:
    """Return the constants of each matrix's copies: the dimension along which a copy runs, and the vector width.

    An operand is copied along the dimension in which it is contiguous. Copies of 16 bytes are legal if that dimension
    is not k (along k the copy transposes the tile), every row starts on 16 bytes, and the extent is a multiple of a
    vector.
    """
    vector = VECTOR_BYTES // problem.dtype.itemsize
    a_along_k = _along_k(outer=problem.a_row_col[0], k=problem.a_row_col[1])
    b_along_k = _along_k(outer=problem.b_row_col[1], k=problem.b_row_col[0])
    a_wide = not a_along_k and problem.a_row_col[0] == 1 and problem.a_align >= VECTOR_BYTES and problem.m % vector == 0
    b_wide = not b_along_k and problem.b_row_col[1] == 1 and problem.b_align >= VECTOR_BYTES and problem.n % vector == 0
    narrow = problem.dtype.accumulator.itemsize == problem.dtype.itemsize
    d_wide = narrow and problem.d_row_col[1] == 1 and problem.d_align >= VECTOR_BYTES and problem.n % vector == 0
    return {
        "A_ALONG_K": int(a_along_k),
        "A_VEC": vector if a_wide else 1,
        "B_ALONG_K": int(b_along_k),
        "B_VEC": vector if b_wide else 1,
        "D_VEC": vector if d_wide else 1,
    }


def with_vector_widths(config: Config, problem: Gemm) -> Config:
    """Return ``config`` with the constants of each matrix's copies."""
    return config.replace(**copies(problem), SHARED_BYTES=shared_bytes(config, problem.dtype))


def _along_k(*, outer: int, k: int) -> bool:
    """Tell whether neighbouring threads should copy neighbouring elements along k, not along m or n."""
    return abs(k) < abs(outer)


def space(problem: Gemm, _arch: Arch) -> tuple[Config, ...]:
    """Return the tile shapes worth considering."""
    return shapes(problem).configs


def shapes(problem: Gemm, tiles: Tiles | None = None) -> Columns:
    """Return the tile shapes worth considering, or those among ``tiles``."""
    return _shapes(problem.dtype, tuple(copies(problem).items()), tiles)


@lru_cache(maxsize=1024)
def _shapes(dtype: DType, constants: tuple[tuple[str, int], ...], tiles: Tiles | None) -> Columns:
    every = Columns(() if dtype.itemsize < 4 else TILES[dtype.accumulator.itemsize]).having(TILE, tiles).configs
    return Columns([config.replace(**dict(constants), SHARED_BYTES=shared_bytes(config, dtype)) for config in every])


def threads(config: Configs) -> Any:
    """Return the threads per block."""
    return config["WARPS_M"] * config["WARPS_N"] * config["SLICES"] * 32


def why_not(problem: Gemm, config: Config) -> str | None:
    """Return why the pipeline cannot compute ``problem`` with ``config``, or None."""
    if problem.dtype.itemsize < 4:
        return f"{problem.dtype.name} is too narrow for copies of single elements, which have at least 4 bytes"
    return why_not_extents(problem) or why_not_vector_widths(config, copies(problem)) or _why_not_copies(config)


def _why_not_copies(config: Config) -> str | None:
    """Say which operand's tile has rows that are longer than a pass of all threads, or None."""
    for operand, side in (("A", "BM"), ("B", "BN")):
        along_k, vector = config[f"{operand}_ALONG_K"], config[f"{operand}_VEC"]
        copied = config["BK"] if along_k else config[side] // vector
        if copied > threads(config):
            return f"{threads(config)} threads are too few to copy {copied} elements of {operand} at once"
    return None
