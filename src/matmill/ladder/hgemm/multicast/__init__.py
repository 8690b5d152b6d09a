"""Clusters of two blocks share an operand."""

from __future__ import annotations

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import Geometry, Rung, ceil_div
from matmill.ladder.documents import OURS
from matmill.ladder.hgemm.hopper import kernel, specialised
from matmill.problem import Gemm

CONFIG = specialised(128, 256, stages=3, staging=1, SHARES_B=1).launched(BLOCKS=132)


def tune(problem: Gemm, arch: Arch) -> Config:
    """Clusters that leave fewer tiles without work; of equal ones those that share B, the larger part of a stage."""
    shared = min((1, 0), key=lambda shares_b: _pairs(problem, CONFIG.replace(SHARES_B=shares_b)))
    return CONFIG.replace(SHARES_B=shared).launched(BLOCKS=arch.sms)


def pairs_of_blocks(problem: Gemm, config: Config) -> Geometry:
    """A cluster of two blocks for every two SMs, or as many as there are pairs of tiles."""
    clusters = min(config["BLOCKS"] // 2, _pairs(problem, config))
    grid = (2 * clusters, 1, 1)
    return Geometry(grid, (config["THREADS"], 1, 1), config["SHARED_BYTES"], cluster=(2, 1, 1))


def _pairs(problem: Gemm, config: Config) -> int:
    """Pairs of tiles, one below the other where they share B, else side by side."""
    down, across = (2, 1) if config["SHARES_B"] else (1, 2)
    return ceil_div(problem.m, down * config["BM"]) * ceil_div(problem.n, across * config["BN"])


MULTICAST: Rung[Gemm] = Rung(
    name="multicast",
    source=OURS,
    changes="Clusters of two blocks work on neighbouring tiles. Two below each other (2x1) share B, two side by "
    "side (1x2) share A, as suits the shape: each block loads half of what they share and TMA writes it to both.",
    predicts="Nothing, or a loss of up to 4%, on an H200. L2 has to deliver 32 instead of 48 bytes per clock and "
    "SM (40 where A is shared), but 48 are less than it can, and each stage now waits for the slower of two "
    "blocks. fast.cu went from 715 to 710 TFLOP/s at 4096 and from 666 to 638 at 8192 by this step. At 16384, "
    "where L2 holds less of what a group shares, it may gain.",
    kernel=kernel("multicast", __name__, CONFIG, pairs_of_blocks, stores_boxes=True),
    tune=tune,
)
