"""How long a transpose+add takes on the kernel of ``kernels/transpose_add``: bytes over attainable bandwidth.

Every block loads all that it needs before it stores, so what a multiprocessor has in flight is what its resident blocks
load. Blocks at the edges move less than they have room for, and the last ones leave multiprocessors idle: the time is
that of the busiest one.

The constants are estimates and have not been fitted to a GPU yet; each says where it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import ceil_div
from matmill.problem import Geam

#: Share of the data sheet's bandwidth that a copy reaches: 4.28 of 4.8 TB/s, measured on an H200.
COPY_SHARE = 0.892
#: Seconds from a request under load to its data. Of the inner model.
LATENCY = 0.7e-6
#: Seconds from launch to the first instruction and from the last to the end of the kernel. Of the GEMM model.
LAUNCH = 3.57e-6
#: Seconds of a block besides its loads: barrier, turning, stores.
BLOCK = 0.3e-6


@dataclass(frozen=True)
class Prediction:
    """Seconds in all, those of moving bytes, and those of blocks that wait for nothing but themselves."""

    seconds: float
    memory: float
    blocks: float


def predict(problem: Geam, config: Config, arch: Arch) -> float:
    """Seconds that ``problem`` takes in tiles with ``config`` on ``arch``."""
    return explain(problem, config, arch).seconds


def explain(problem: Geam, config: Config, arch: Arch) -> Prediction:
    """The terms behind :func:`predict`."""
    halo = config["V"] - 1 if config["SHIFTED"] else 0
    tiles = ceil_div(problem.m, config["BR"]) * ceil_div(problem.n + halo, config["BC"]) * problem.batch
    return _time(problem, tiles, config["BR"] * config["BC"], config["BLOCKS_PER_SM"], arch)


def predict_runs(problem: Geam, config: Config, arch: Arch) -> float:
    """Seconds that ``problem`` takes in runs of G small matrices with ``config`` on ``arch``."""
    runs = ceil_div(problem.batch, config["G"])
    return _time(problem, runs, config["G"] * problem.m * problem.n, config["BLOCKS_PER_SM"], arch).seconds


def _time(problem: Geam, blocks: int, elements: int, per_sm: int, arch: Arch) -> Prediction:
    """The time of ``blocks`` that have room for ``elements`` each, ``per_sm`` of them on a multiprocessor."""
    rounds = ceil_div(blocks, arch.sms * per_sm)
    resident = min(blocks, arch.sms * min(per_sm, ceil_div(blocks, arch.sms)))
    flight = resident * elements * problem.dtype.itemsize * (1 if problem.y is None else 2)
    most = COPY_SHARE * arch.dram_bytes_per_s
    rate = most / sqrt(1 + (most * LATENCY / flight) ** 2)
    memory = problem.least_bytes / rate
    waiting = rounds * (LATENCY + BLOCK)
    return Prediction(LAUNCH + max(memory, waiting), memory, waiting)
