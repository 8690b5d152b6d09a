"""E times its own transpose: one input, half the FMAs."""

from __future__ import annotations

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import GemmOperands, Kernel, Rung, ceil_div
from matmill.ladder.documents import OURS
from matmill.ladder.inner.common import (
    REDUCE_TRIANGLE,
    STATIC_SHARED,
    block_sum_bytes,
    blocks,
    fixed_size_arguments,
    gs_blocks,
    partials_bytes,
    shares_a_block,
    takes,
    threads,
    width,
)
from matmill.ladder.inner.vectors import contiguous_e, per_sm, rounds, vector
from matmill.launch import Argument
from matmill.problem import Gemm

#: Registers of sums in a triangle that one thread keeps, and the rows of a tile where that is too few: the first
#: whose sums fit in shared memory.
_MOST_SUMS, _TILES = 160, (8, 4)


def _outputs(m: int, t: int) -> int:
    return t * (t + 1) // 2 if t >= m else t * t


def _sharing(m: int, t: int) -> int:
    """Threads that share a k: a power of two that the triangle's tiles fit in."""
    rows = ceil_div(m, t)
    return int(1 << (rows * (rows + 1) // 2 - 1).bit_length())


def _tile(m: int, itemsize: int) -> int:
    for most in _TILES:
        t = ceil_div(m, ceil_div(m, most))
        shared = _sharing(m, t)
        if block_sum_bytes(itemsize, _outputs(m, t), shared, threads(shared)) <= STATIC_SHARED:
            break
    return t


def _tune(problem: Gemm, arch: Arch) -> Config:
    m, itemsize = problem.m, problem.dtype.accumulator.itemsize
    whole = _outputs(m, m) * itemsize // 4 <= _MOST_SUMS
    t = m if whole else _tile(m, itemsize)
    loaded = t if whole else 2 * t  # rows of E
    sharing, u, v = _sharing(m, t), rounds(loaded), vector(problem)
    bs = threads(sharing)
    resident = per_sm(_outputs(m, t), u * loaded, itemsize, bs)
    gs = blocks(problem, arch, per_sm=resident, k_per_block=bs // sharing * v)
    e_width = width(problem.a_align, problem, problem.a_row_col[0], m)
    return Config.of(M=m, T=t, S=sharing, V=v, U=u, E_WIDTH=e_width, BS=bs, GS=gs)


def _why_not(problem: Gemm, config: Config, arch: Arch) -> str | None:
    if not problem.gram or problem.m != problem.n:
        return "F is not the transpose of E"
    if config["M"] != problem.m:
        return f"constants for {config['M']} rows, not {problem.m}"
    reason = takes(problem, config, arch) or contiguous_e(problem)
    if reason:
        return reason
    most = width(problem.a_align, problem, problem.a_row_col[0], problem.m)
    if config["E_WIDTH"] > most:
        return f"E_WIDTH = {config['E_WIDTH']} needs rows aligned to {config['E_WIDTH'] * problem.dtype.itemsize} bytes"
    return shares_a_block(problem, config, _outputs(problem.m, config["T"]), config["S"])


def _arguments(problem: Gemm, config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    e, _, partial_sums, k, e_row, *_ = fixed_size_arguments(problem, config, operands)
    return e, partial_sums, k, e_row


GRAM: Rung[Gemm] = Rung(
    name="gram",
    source=OURS,
    changes="Where F is the transpose of E, the one input is read once and only the outputs on and above the diagonal "
    "are summed; the second launch mirrors them.",
    predicts="Half the bytes of a general product (m * k elements instead of 2 * m * k) and (m + 1) / (2 m) of its "
    "FMAs: half the time of two-stage while bandwidth is the limit.",
    kernel=Kernel(
        entry="gram",
        package=__name__,
        config=Config.of(M=3, T=3, S=1, V=4, U=4, E_WIDTH=4, BS=256, GS=528),
        geometry=gs_blocks,
        arguments=_arguments,
        why_not_config=_why_not,
        after=(REDUCE_TRIANGLE,),
        workspace_bytes=partials_bytes,
    ),
    tune=_tune,
)
