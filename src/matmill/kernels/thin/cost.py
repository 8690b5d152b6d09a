"""How long a product with few rows or columns takes on the kernel in ``kernels/thin``.

The time of a launch is a constant plus three terms that overlap: the least bytes over the memory bandwidth that loads
reach; the batches of a warp one after the other, each of which waits for memory; and the issue slots of the busiest SM.
The largest of them decides, and the others add little unless they are nearly as large (a norm of the three). With
split-K, the launch that adds the partial sums comes on top (``kernels/splitk/cost.py``).

The constants were fitted, in logarithms and least absolute error, to 182 configurations of the 24 products with few
rows or columns that ``benchmarks/shapes.py --every thin`` timed on one H200
(``benchmarks/results/thin_h200.json``): the choice takes 1.04 times as long as the best in the geometric mean.
"""

from __future__ import annotations

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import ceil_div
from matmill.kernels.shared.exchange import as_launched
from matmill.kernels.shared.model import Prediction, overlapped
from matmill.kernels.splitk.cost import second
from matmill.kernels.thin.tiles import WARPS, batch, rows_of_block
from matmill.problem import Gemm

#: Seconds of a launch besides its loop, with the sums over lanes and warps.
LAUNCH = 5.33e-6
#: Share of the data sheet's memory bandwidth that is reached.
LOAD_SHARE = 0.804
#: Cycles from a batch's loads to its FMAs on a busy GPU, and of a block outside its loop: the first batch, the first
#: chunk of B, and the sums.
LATENCY_CYCLES, OUTSIDE_CYCLES = 791.0, 4230.0
#: Issue slots per load of A (address, bounds, load), per element of B copied, and per batch besides.
LOAD_SLOTS, COPY_SLOTS, BATCH_SLOTS = 8.52, 13.0, 28.5
#: Cycles in which shared memory delivers 16 bytes to each lane of a warp, where all of them differ.
READ_CYCLES = 1.3
#: How much longer the FMAs take where warps divide k: those of 16 columns did on an H200.
DIVIDED = 1.3
#: The power of the norm: 1 would be the sum of the terms, infinity the largest.
NORM = 3.38
#: Share of the issue slots that are used: warps wait for each other at every chunk of B.
SLOTS_SHARE = 0.665


def explain(problem: Gemm, config: Config, arch: Arch) -> Prediction:
    """The terms of ``problem`` with ``config`` on ``arch``."""
    launched = as_launched(problem, config)
    slices = config["SPLIT_K"]
    blocks = ceil_div(launched.m, rows_of_block(config)) * launched.batch * slices
    per_sm = ceil_div(blocks, arch.sms)
    rounds = ceil_div(per_sm, config["BLOCKS_PER_SM"])
    chunks = ceil_div(ceil_div(launched.k, config["BK"]), slices)
    batches = min(chunks * (config["BK"] // batch(config)), ceil_div(launched.k, batch(config)))
    latency = rounds * (batches * LATENCY_CYCLES + OUTSIDE_CYCLES) / arch.boost_hz
    compute = per_sm * batches * _batch_cycles(launched, config, arch) / SLOTS_SHARE / arch.boost_hz
    compute *= DIVIDED if config["WARPS_K"] > 1 else 1.0
    memory = problem.least_bytes / (LOAD_SHARE * arch.dram_bytes_per_s)
    added = second(problem, slices, arch)
    terms = {"compute": compute, "memory": memory, "latency": latency, "second": added}
    seconds = LAUNCH + overlapped(NORM, compute, memory, latency) + added
    return Prediction(seconds, terms, ("memory", "compute", "latency"))


def predict(problem: Gemm, config: Config, arch: Arch) -> float:
    """Seconds that ``problem`` takes with ``config`` on ``arch``."""
    return explain(problem, config, arch).seconds


def _batch_cycles(launched: Gemm, config: Config, arch: Arch) -> float:
    """Cycles of an SM per batch of a block: of its issue slots or of shared memory, whichever is busier."""
    number = launched.dtype
    schedulers = 4
    lanes = arch.peak(number.accumulator.name) / (2 * arch.sms * arch.boost_hz)
    rows, run, runs = config["ROWS"], config["RUN"], config["RUNS"]
    fmas = rows * run * runs * config["FEW"]
    loads = rows * run * runs / (run if config["A_ALONG_K"] else rows)
    reads = runs * config["FEW"] * max(1.0, run * number.accumulator.itemsize / 16)
    widened = rows * run * runs if number.wider is not None else 0
    copies = config["FEW"] * batch(config) / config["B_VEC"] / (WARPS * 32)
    slots = fmas * schedulers * 32 / lanes + loads * LOAD_SLOTS + reads + widened + copies * COPY_SLOTS + BATCH_SLOTS
    shared = reads * (READ_CYCLES if config["A_ALONG_K"] else 1.0) + loads * READ_CYCLES
    return WARPS * max(slots / schedulers, shared)
