"""The time of a product with few rows or columns on the kernel in ``kernels/thin``.

The time of a launch is a constant plus three terms that overlap: the least bytes over the memory bandwidth that loads
reach; the batches of a warp one after the other, each of which waits for memory; and the issue slots of the busiest SM.
The largest of them decides, and the others add little unless they are nearly as large (a norm of the three). With
split-K, the launch that adds the partial sums comes on top (``kernels/splitk/cost.py``).

The constants were fitted, in logarithms and least absolute error, to 182 configurations of the 24 products with few
rows or columns that ``benchmarks/shapes.py --every thin`` timed on one H200 (``benchmarks/results/thin_h200.json``):
the choice takes 1.04 times as long as the best in the geometric mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matmill.arch import Arch
from matmill.config import Configs
from matmill.kernel import ceil_div
from matmill.kernels.shared.exchange import launched_extents
from matmill.kernels.shared.model import (
    PRICES,
    Prediction,
    Prices,
    larger,
    load_constants,
    overlapped,
    smaller,
)
from matmill.kernels.splitk.cost import Reduction
from matmill.kernels.thin.tiles import WARPS, batch, rows_of_block
from matmill.problem import Gemm


@dataclass(frozen=True)
class Constants:
    """Fitted constants. Times in seconds, cycles of an SM, issue slots of a warp, shares."""

    #: Reached share of the data sheet's memory bandwidth.
    load_share: float
    #: Cycles from a batch's loads to its FMAs on a busy GPU, and of a block outside its loop: the first batch, the
    #: first chunk of B, and the sums.
    latency_cycles: float
    outside_cycles: float
    #: Issue slots per load of A (address, bounds, load), per element of B copied, and in addition per batch.
    load_slots: float
    copy_slots: float
    batch_slots: float
    #: Cycles in which shared memory delivers 16 bytes to each lane of a warp, all from different addresses.
    read_cycles: float
    #: Relative time of the FMAs if warps divide k: measured for 16 columns on an H200.
    divided: float
    #: The power of the norm of the terms: 1 would be their sum, infinity the largest.
    norm: float
    #: Usable share of the issue slots: warps wait for each other at every chunk of B.
    slots_share: float


DEFAULT = load_constants(__name__, Constants)


def explain(
    problem: Gemm, config: Configs, arch: Arch, constants: Constants = DEFAULT, prices: Prices = PRICES
) -> Prediction:
    """Return the predicted time of ``problem`` with ``config`` on ``arch``, with its terms."""
    c = constants
    m, _ = launched_extents(problem, config)
    slices = config["SPLIT_K"]
    blocks = ceil_div(m, rows_of_block(config)) * problem.batch * slices
    per_sm = ceil_div(blocks, arch.sms)
    rounds = ceil_div(per_sm, config["BLOCKS_PER_SM"])
    chunks = ceil_div(ceil_div(problem.k, config["BK"]), slices)
    batches = smaller(chunks * (config["BK"] // batch(config)), ceil_div(problem.k, batch(config)))
    latency = rounds * (batches * c.latency_cycles + c.outside_cycles) / arch.boost_hz
    compute = per_sm * batches * _batch_cycles(problem, config, arch, c) / c.slots_share / arch.boost_hz
    compute *= 1 + (c.divided - 1) * (config["WARPS_K"] > 1)
    memory = problem.least_bytes / (c.load_share * arch.dram_bytes_per_s)
    added = Reduction.of(problem, config).seconds(prices, arch.sms * arch.boost_hz)
    terms = {"compute": compute, "memory": memory, "latency": latency, "second": added}
    seconds = prices.launch + overlapped(c.norm, compute, memory, latency) + added
    return Prediction(seconds, terms, ("memory", "compute", "latency"))


def least(problem: Gemm, arch: Arch, constants: Constants = DEFAULT, prices: Prices = PRICES) -> float:
    """Return seconds that no configuration undercuts: those of the least bytes, and of a batch of a block."""
    memory = problem.least_bytes / (constants.load_share * arch.dram_bytes_per_s)
    latency = (constants.latency_cycles + constants.outside_cycles) / arch.boost_hz
    return prices.launch + overlapped(constants.norm, memory, latency)


def _batch_cycles(problem: Gemm, config: Configs, arch: Arch, c: Constants) -> Any:
    """Return the cycles of an SM per batch of a block: of its issue slots or of shared memory, whichever is more."""
    number = problem.dtype
    schedulers = 4
    lanes = arch.peak(number.accumulator.name) / (2 * arch.sms * arch.boost_hz)
    rows, run, runs = config["ROWS"], config["RUN"], config["RUNS"]
    fmas = rows * run * runs * config["FEW"]
    along_k = config["A_ALONG_K"]  # 0 or 1
    loads = rows * run * runs / (along_k * run + (1 - along_k) * rows)
    reads = runs * config["FEW"] * larger(1.0, run * number.accumulator.itemsize / 16)
    widened = rows * run * runs if number.wider is not None else 0
    copies = config["FEW"] * batch(config) / config["B_VEC"] / (WARPS * 32)
    slots = (
        fmas * schedulers * 32 / lanes + loads * c.load_slots + reads + widened + copies * c.copy_slots + c.batch_slots
    )
    shared = reads * (1 + along_k * (c.read_cycles - 1)) + loads * c.read_cycles
    return WARPS * larger(slots / schedulers, shared)
