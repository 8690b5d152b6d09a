"""The inner ladder: D = alpha * E @ F + beta * C with few outputs and a long k, from the paper's PHVM to one pass."""

from __future__ import annotations

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import GemmOperands, Kernel, Rung, ceil_div
from matmill.ladders.documents import OURS, PAPER
from matmill.ladders.inner.common import (
    REDUCE_PARTIALS,
    REDUCE_TRIANGLE,
    STATIC_SHARED,
    any_size_arguments,
    atomic_kernel,
    block_sum_bytes,
    blocks,
    fixed_size,
    fixed_size_arguments,
    gs_blocks,
    partials_bytes,
    resident_grid,
    shares_a_block,
    takes,
    thread_tile,
    threads,
    tile_config,
    width,
)
from matmill.ladders.inner.vectors import DEFAULT, contiguous_e, per_sm, rounds, tune, vector, wide_loads
from matmill.launch import Argument
from matmill.problem import Gemm

_HERE = "matmill.ladders.inner"


# -- The paper's BasicMM: one parallel inner product per output, a contiguous segment of k per thread.

BASIC: Rung[Gemm] = Rung(
    name="basic",
    source=PAPER,
    idea="an output at a time",
    changes="Each of the m * n outputs is an inner product by all GS * BS threads: a contiguous segment of k per "
    "thread, a tree in shared memory per block, one atomic add per block.",
    predicts="E is read n times and F m times: 2mn / (m + n) times the least, which is m where m = n. Lanes read "
    "k / (GS * BS) elements apart, 32 sectors per request where 4 would do, so that a float32 costs up to 8 times its "
    "bytes unless L1 keeps 2048 threads' sectors (2 * 32 B each, 128 KiB) until they are used up. m * n * GS atomics.",
    claim="The paper: the starting point that PHVM improves on, on RTX 2080 Ti and A100; no time of its own is kept "
    "here. Its MTXC (7 x 2e9 x 7 in float32, 112 GB) cannot have run on the A100 with 40 GB: 2e8 is meant, most "
    "likely.",
    kernel=atomic_kernel("basic", "basic.cuh", Config.of(BS=256, GS=1056), any_size_arguments, takes),
    tune=resident_grid,
)


# -- The paper's PHVM: the same inner products with neighbouring threads on neighbouring terms.

PHVM: Rung[Gemm] = Rung(
    name="phvm",
    source=PAPER,
    idea="lanes side by side",
    changes="Thread i takes the terms i, i + GS * BS, i + 2 * GS * BS, …: a warp's loads coalesce.",
    predicts="4 sectors per request of float32 along k instead of 32. E is still read n times and F m times: at least "
    "m times the time that the bytes need where m = n (5 for 5 x k x 5), and a row-major F costs n sectors where one "
    "would do. m * n * GS atomics: 21,600 for 5 x 5 outputs and 864 blocks.",
    claim="The paper: best launch found (GS 136, BS 512) on RTX 2080 Ti and (GS 864, BS 256) on A100; faster than "
    "cublasSgemm on MTXA (3 x 5e7 x 3), MTXB (5 x 3e8 x 5) and MTXC (7 x 2e9 x 7), more so at small m. Its model "
    "prints a factor GS too many in the last term, and ranks launches whose predictions differ by 0.5%; its time for "
    "MTX1 on an A100 is 80 times what the traffic needs.",
    kernel=atomic_kernel("phvm", "phvm.cuh", Config.of(BS=256, GS=1056), any_size_arguments, takes),
    tune=resident_grid,
)


# -- All outputs in one pass: each element is read once and used for a whole row or column of D.


def _one_pass_tune(problem: Gemm, arch: Arch) -> Config:
    tile = thread_tile(problem)
    bs = threads(tile.sharing)
    gs = blocks(problem, arch, per_sm=4 if tile.tm * tile.tn <= 32 else 2, k_per_block=bs // tile.sharing)
    return tile_config(problem, tile).replace(BS=bs, GS=gs)


ONE_PASS: Rung[Gemm] = Rung(
    name="one-pass",
    source=OURS,
    idea="all outputs in one pass",
    changes="Each thread reads a k once and keeps all m * n sums in registers (up to 64 of them; beyond that a power "
    "of two of neighbouring lanes share the k). One reduction per block for all outputs, by shuffles and one barrier.",
    predicts="Bytes fall to the least: 1 / m of PHVM's where m = n. An FMA costs 2 / m loads instead of 2. "
    "What is left is latency: m + n loads of 4 bytes in flight per thread, 24 KiB per SM for 3 x 3 outputs and 1024 "
    "threads, where 4.8 TB/s over 132 SMs at some 700 ns ask for 25 KiB. The same m * n * GS atomics, with GS 4 per SM "
    "instead of 8.",
    kernel=atomic_kernel(
        "one_pass",
        "one_pass.cuh",
        Config.of(M=3, N=3, TM=3, TN=3, S=1, ACROSS=1, BS=256, GS=528),
        fixed_size_arguments,
        fixed_size,
    ),
    tune=_one_pass_tune,
)


# -- One pass with 16-byte loads along k, several in flight per thread.

VECTORIZED: Rung[Gemm] = Rung(
    name="vectorized",
    source=OURS,
    idea="16 bytes, 16 in flight",
    changes="A thread takes 16 bytes along k of each of its rows and columns at a time, and loads up to 16 such "
    "vectors before it uses the first. A row-major F whose rows are packed is one run of memory and is read as such.",
    predicts="4 times fewer load instructions in float32, 2 in float64, 8 in 16-bit types, for the same bytes: "
    "2 / (4 m) loads per FMA. Up to 256 bytes in flight per thread, 64 KiB per SM with 256 threads where "
    "Little's law asks for 25. Bandwidth is then the limit up to 28 FMAs per element, m * n / (m + n), which "
    "is 55 rows and columns of float32 at 33.5 T FMAs and 1.2 T elements per second. Rows not aligned to "
    "16 bytes (odd k) fall back to narrower loads of the same cache lines, which L1 must merge.",
    kernel=atomic_kernel("vectorized", "vectorized.cuh", DEFAULT, fixed_size_arguments, wide_loads),
    tune=tune,
)


# -- Partial sums per block and a second launch in place of atomics: the same bits in every run.

TWO_STAGE: Rung[Gemm] = Rung(
    name="two-stage",
    source=OURS,
    idea="sums in fixed order",
    changes="Each block writes its m * n sums to a workspace of GS * m * n numbers; a second launch adds those of each "
    "output in fixed order. No atomics, and nothing to clear first.",
    predicts="Two launches instead of three, and 0 atomics. The workspace costs 2 * 4 * GS * m * n bytes: 68 KB for "
    "8 x 8 outputs and 132 blocks, 0.014 us of bandwidth, all of it in L2. For long k the same time as before; the "
    "same inputs give the same bits.",
    kernel=Kernel(
        entry="two_stage",
        package=_HERE,
        file="two_stage.cuh",
        config=DEFAULT,
        geometry=gs_blocks,
        arguments=fixed_size_arguments,
        why_not_config=wide_loads,
        after=(REDUCE_PARTIALS,),
        workspace_bytes=partials_bytes,
    ),
    tune=tune,
)


# -- E times its own transpose: one input, half the FMAs.

#: Registers for sums of a triangle that one thread keeps, and the rows of a tile if these are too few: the first whose
#: sums fit in shared memory.
_MOST_SUMS, _TILES = 160, (8, 4)


def _outputs(m: int, t: int) -> int:
    return t * (t + 1) // 2 if t >= m else t * t


def _sharing(m: int, t: int) -> int:
    """Return the threads that share a k: the least power of two that the triangle's tiles fit in."""
    rows = ceil_div(m, t)
    return int(1 << (rows * (rows + 1) // 2 - 1).bit_length())


def _tile(m: int, itemsize: int) -> int:
    for most in _TILES:
        t = ceil_div(m, ceil_div(m, most))
        shared = _sharing(m, t)
        if block_sum_bytes(itemsize, _outputs(m, t), shared, threads(shared)) <= STATIC_SHARED:
            break
    return t


def _gram_tune(problem: Gemm, arch: Arch) -> Config:
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
    idea="one input, half of D",
    changes="Where F is the transpose of E, the one input is read once and only the outputs on and above the diagonal "
    "are summed; the second launch mirrors them.",
    predicts="Half the bytes of a general product (m * k elements instead of 2 * m * k) and (m + 1) / (2 m) of its "
    "FMAs: half the time of two-stage while bandwidth is the limit.",
    kernel=Kernel(
        entry="gram",
        package=_HERE,
        file="gram.cuh",
        config=Config.of(M=3, T=3, S=1, V=4, U=4, E_WIDTH=4, BS=256, GS=528),
        geometry=gs_blocks,
        arguments=_arguments,
        why_not_config=_why_not,
        after=(REDUCE_TRIANGLE,),
        workspace_bytes=partials_bytes,
    ),
    tune=_gram_tune,
)


# -- The ladder

INNER: tuple[Rung[Gemm], ...] = (BASIC, PHVM, ONE_PASS, VECTORIZED, TWO_STAGE, GRAM)
