"""The host code that rungs of the inner ladder share: parameters, launches around the long sum, tiles of a thread.

Every rung computes D = alpha * E @ F + beta * C for E (m, k) and F (k, n) with m and n much smaller than k: A and B of
the problem are E and F. Its entry point writes sums to the workspace, in the type of ``DType.accumulator``, and
``finish`` of ``kernels/splitk/reduce.cuh`` reduces them to D. Atomic rungs keep one sum per output, which ``clear``
sets to zero first; the others keep one sum per output and block.

All constants come from ``tune``; those of a launch may be changed afterwards: GS, the blocks of the grid (1 to 2^31 -
1), and BS, the threads of a block (a multiple of 32, at most 1024).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

import numpy as np

from matmill.arch import Arch
from matmill.config import Config
from matmill.dtypes import ALL
from matmill.kernel import GemmOperands, Geometry, Kernel, ceil_div
from matmill.kernels.shared.outputs import workspace
from matmill.kernels.splitk import CLEAR, REDUCE_TOTALS, splitk_reduce, sums_bytes
from matmill.launch import Argument
from matmill.problem import Gemm

VECTOR_BYTES = 16
STATIC_SHARED = 48 * 1024
_LARGEST = 2**31 - 1


def slices(config: Config) -> int:
    """Return the number of blocks that k is split over, GS in the source; BS are the threads of a block."""
    return config["GS"]


def partials_bytes(problem: Gemm, config: Config) -> int:
    """Return the bytes of one sum per output and block."""
    return slices(config) * sums_bytes(problem, config)


#: The launch after one partial sum per block, for all outputs or only for those on and above the diagonal.
REDUCE_PARTIALS = splitk_reduce(slices)
REDUCE_TRIANGLE = splitk_reduce(slices, mirrored=True)


def lengths_and_strides(problem: Gemm) -> tuple[Argument, ...]:
    """Return the length k and the strides of E and F, all of them 64-bit: E may hold more than 2^31 elements."""
    return tuple(np.int64(x) for x in (problem.k, *problem.a_row_col, *problem.b_row_col))


def any_size_arguments(problem: Gemm, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    """Return the parameters of a rung that takes any m and n: (E, F, sums, m, n, k, strides)."""
    sizes = (np.int32(problem.m), np.int32(problem.n))
    return (operands.a, operands.b, workspace(operands), *sizes, *lengths_and_strides(problem))


def fixed_size_arguments(problem: Gemm, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    """Return the parameters of a rung compiled for one m and n: (E, F, sums, k, strides)."""
    return (operands.a, operands.b, workspace(operands), *lengths_and_strides(problem))


def gs_blocks(_problem: Gemm, config: Config) -> Geometry:
    """Return the geometry of GS blocks of BS threads."""
    return Geometry(grid=(config["GS"], 1, 1), block=(config["BS"], 1, 1))


def takes(problem: Gemm, config: Config, _arch: Arch) -> str | None:
    """Return ``why_not_config`` of every rung: one product, a launch of whole warps, counts within 32 bits."""
    if problem.dtype.name not in ALL:
        return f"{problem.dtype.name} is none of {', '.join(ALL)}"
    if problem.batch != 1:
        return f"a batch of {problem.batch} is not one product"
    if not 1 <= problem.m * problem.n <= _LARGEST:
        return f"{problem.m} x {problem.n} outputs are not in 1..{_LARGEST}"
    if not 1 <= config["GS"] <= _LARGEST:
        return f"GS = {config['GS']} is not in 1..{_LARGEST}"
    if config["BS"] % 32 or not 32 <= config["BS"] <= 1024:
        return f"BS = {config['BS']} is not a multiple of 32 in 32..1024"
    return None


@dataclass(frozen=True)
class ThreadTile:
    """Rows and columns of D that one thread sums; ``rows`` x ``columns`` threads share a k. Both are powers of two."""

    tm: int
    tn: int
    rows: int
    columns: int

    @property
    def sharing(self) -> int:
        """Threads that work on the same k."""
        return self.rows * self.columns


def most_outputs(problem: Gemm) -> int:
    """Return the most sums that a thread keeps: 64 registers of them."""
    return 256 // problem.dtype.accumulator.itemsize


def thread_tile(problem: Gemm, *, whole_rows: bool = False) -> ThreadTile:
    """Return the tile by which the fewest threads share a k, and of those the squarest: it reads the least.

    ``whole_rows`` asks for tiles as wide as D.

    >>> thread_tile(Gemm(m=9, n=9, k=1000))
    ThreadTile(tm=9, tn=5, rows=1, columns=2)
    """
    powers = [1 << i for i in range(11)]
    tiles = (
        ThreadTile(ceil_div(problem.m, rows), ceil_div(problem.n, columns), rows, columns)
        for rows in powers
        for columns in (powers[:1] if whole_rows else powers)
        if rows < 2 * problem.m and columns < 2 * problem.n
    )
    fitting = [tile for tile in tiles if tile.tm * tile.tn <= most_outputs(problem)]
    # If none fits, m or n exceeds what a block can share, and why_not says so.
    return min(fitting, key=lambda t: (t.sharing, t.tm + t.tn), default=ThreadTile(problem.m, problem.n, 1, 1))


def tile_config(problem: Gemm, tile: ThreadTile) -> Config:
    """Return the constants of a tile; ACROSS of the S threads that share a k have neighbouring tiles of a row."""
    return Config.of(M=problem.m, N=problem.n, TM=tile.tm, TN=tile.tn, S=tile.sharing, ACROSS=tile.columns)


def block_sum_bytes(itemsize: int, outputs: int, sharing: int, threads: int) -> int:
    """Return the static shared memory in which the warps of a block add their sums; the device computes the same."""
    return itemsize * outputs * (threads // 32 * min(32, sharing) + 1)


def fixed_size(problem: Gemm, config: Config, arch: Arch) -> str | None:
    """Return ``why_not_config`` of the rungs compiled for m and n, whose threads keep TM x TN sums."""
    if (config["M"], config["N"]) != (problem.m, problem.n):
        return f"constants for {config['M']} x {config['N']} outputs, not {problem.m} x {problem.n}"
    reason = takes(problem, config, arch)
    if reason:
        return reason
    outputs = config["TM"] * config["TN"]
    if outputs > 2 * most_outputs(problem):
        return f"{outputs} sums per thread > {2 * most_outputs(problem)}"
    down, odd = divmod(config["S"], config["ACROSS"])
    if odd or down * config["TM"] < problem.m or config["ACROSS"] * config["TN"] < problem.n:
        return (
            f"{config['S']} tiles of {config['TM']} x {config['TN']}, {config['ACROSS']} side by side, do not cover D"
        )
    return shares_a_block(problem, config, outputs, config["S"])


def shares_a_block(problem: Gemm, config: Config, outputs: int, sharing: int) -> str | None:
    """Return why ``sharing`` threads that work on the same k do not fit in a block with their sums, or None."""
    if sharing & sharing - 1 or config["BS"] % sharing:
        return f"{sharing} threads that share a k are no power of two that divides BS = {config['BS']}"
    needed = block_sum_bytes(problem.dtype.accumulator.itemsize, outputs, sharing, config["BS"])
    return f"shared memory {needed} > {STATIC_SHARED} bytes" if needed > STATIC_SHARED else None


def threads(sharing: int) -> int:
    """Return the threads per block if that many share a k: 256, or 128 if their sums would exceed shared memory."""
    return 256 if sharing <= 16 else min(1024, max(128, sharing))


def blocks(problem: Gemm, arch: Arch, *, per_sm: int, k_per_block: int) -> int:
    """Return ``per_sm`` blocks for each SM, or fewer if k has no work for them."""
    return max(1, min(arch.sms * per_sm, ceil_div(problem.k, max(1, k_per_block))))


def resident_grid(problem: Gemm, arch: Arch) -> Config:
    """Return GS and BS such that every SM is full of threads: the paper's rule, which yields its optimum on an A100."""
    return Config.of(BS=256, GS=blocks(problem, arch, per_sm=arch.threads_per_sm // 256, k_per_block=256))


def width(align: int, problem: Gemm, outer_stride: int, rows: int) -> int:
    """Return the elements per load along k: as many as the alignment of every row allows, at most 16 bytes."""
    itemsize = problem.dtype.itemsize
    shared = gcd(align, outer_stride * itemsize, VECTOR_BYTES) if rows > 1 else gcd(align, VECTOR_BYTES)
    return max(1, shared // itemsize)


def atomic_kernel(
    entry: str,
    file: str,
    config: Config,
    arguments: Callable[[Gemm, Config, GemmOperands], tuple[Argument, ...]],
    why_not_config: Callable[[Gemm, Config, Arch], str | None],
) -> Kernel[Gemm]:
    """Return a kernel whose blocks add atomically to one sum per output."""
    return Kernel(
        entry=entry,
        package="matmill.ladders.inner",
        file=file,
        config=config,
        geometry=gs_blocks,
        arguments=arguments,
        why_not_config=why_not_config,
        before=(CLEAR,),
        after=(REDUCE_TOTALS,),
        workspace_bytes=sums_bytes,
    )
