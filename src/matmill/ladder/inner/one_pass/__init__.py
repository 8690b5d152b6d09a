"""All outputs in one pass: each element is read once and used for a whole row or column of D."""

from __future__ import annotations

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import Rung
from matmill.ladder.documents import OURS
from matmill.ladder.inner.common import (
    atomic_kernel,
    blocks,
    fixed_size,
    fixed_size_arguments,
    thread_tile,
    threads,
    tile_config,
)
from matmill.problem import Gemm


def _tune(problem: Gemm, arch: Arch) -> Config:
    tile = thread_tile(problem)
    bs = threads(tile.sharing)
    gs = blocks(problem, arch, per_sm=4 if tile.tm * tile.tn <= 32 else 2, k_per_block=bs // tile.sharing)
    return tile_config(problem, tile).replace(BS=bs, GS=gs)


ONE_PASS: Rung[Gemm] = Rung(
    name="one-pass",
    source=OURS,
    changes="Each thread reads a k once and keeps all m * n sums in registers (up to 64 of them; beyond that a power "
    "of two of neighbouring lanes share the k). One reduction per block for all outputs, by shuffles and one barrier.",
    predicts="Bytes fall to the least: 1 / m of PHVM's where m = n. An FMA costs 2 / m loads instead of 2. "
    "What is left is latency: m + n loads of 4 bytes in flight per thread, 24 KiB per SM for 3 x 3 outputs and 1024 "
    "threads, where 4.8 TB/s over 132 SMs at some 700 ns ask for 25 KiB. The same m * n * GS atomics, with GS 4 per SM "
    "instead of 8.",
    kernel=atomic_kernel(
        "one_pass",
        __name__,
        Config.of(M=3, N=3, TM=3, TN=3, S=1, ACROSS=1, BS=256, GS=528),
        fixed_size_arguments,
        fixed_size,
    ),
    tune=_tune,
)
