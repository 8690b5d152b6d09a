"""The time of a product on the FMA pipeline of ``kernels/gemm/simt.cuh``.

The time of a launch is a constant plus the larger of two terms: the least bytes over the bandwidth that a product's
loads and stores reach, and the rounds of the busiest SM. Issue slots set a round's pace (FMAs, fragment reads, copies
and the loop's own instructions, over the share of slots that the resident warps fill) or, for a lone small block, the
latency of the copies in flight. Filling and draining the pipeline and merging slices come on top, and with split-K the
launch that adds the partial sums (``kernels/splitk/cost.py``).

The constants were fitted, in logarithms and least absolute error, to the ``fit`` half of
``benchmarks/results/gemm_tiles_h200.json`` (one H200); docs/cost-models.md says how well they predict the other half
and where the model is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matmill.arch import Arch
from matmill.config import Configs
from matmill.kernel import ceil_div
from matmill.kernels.gemm.tiles import threads
from matmill.kernels.shared.model import PRICES, Prediction, Prices, larger, load_constants, smaller
from matmill.kernels.shared.tiled import VECTOR_BYTES, tile_count
from matmill.kernels.splitk.cost import Reduction
from matmill.problem import Gemm


@dataclass(frozen=True)
class Constants:
    """Fitted constants. Times in seconds, cycles of an SM, issue slots of a warp, shares."""

    #: Cycles of a block outside its mainloop: the latency of the first copies, and storing the tile of D.
    fill_cycles: float
    #: Cycles that the STAGES - 1 copies in flight take together, from issue to the barrier that publishes them.
    latency_cycles: float
    #: Issue slots per warp and k-tile besides FMAs, reads and copies: addresses, loop, barrier, and waiting.
    tile_slots: float
    #: Issue slots per copy: the instruction, its bounds check and its pointer.
    copy_slots: float
    #: Warps per SM that would fill half of its issue slots.
    warps_half: float
    #: Cycles per output of a tile that is stored element by element, because D's rows do not start on vectors.
    narrow_cycles: float
    #: Cycles per output and slice beyond the first to merge the slices' sums.
    merge_cycles: float
    #: Share of the data sheet's memory bandwidth at which C is read and D stored: far below a copy's, because this
    #: follows the arithmetic and does not overlap with it.
    store_share: float
    #: The same for A and B, which arrive while earlier tiles are multiplied. An estimate that decides for very long k.
    load_share: float


DEFAULT = load_constants(__name__, Constants)


def explain(
    problem: Gemm, config: Configs, arch: Arch, constants: Constants = DEFAULT, prices: Prices = PRICES
) -> Prediction:
    """Return the predicted time of ``problem`` with ``config`` on ``arch``, with its terms."""
    c = constants
    slices = config.get("SPLIT_K", 1)  # the ladder's rungs do not split k
    per_sm, resident = _blocks(problem, config, arch)
    k_tiles = ceil_div(ceil_div(problem.k, config["BK"]), slices)
    cycles = per_sm * k_tiles * _pace(problem, config, arch, resident, c)
    cycles = cycles + ceil_div(per_sm, resident) * _outside(config, c)
    compute = cycles / arch.boost_hz
    memory = _memory(problem, arch, c)
    added = Reduction.of(problem, config).seconds(prices, arch.sms * arch.boost_hz)
    terms = {"compute": compute, "memory": memory, "second": added}
    return Prediction(prices.launch + larger(compute, memory) + added, terms, ("compute", "memory"))


def least(problem: Gemm, arch: Arch, constants: Constants = DEFAULT, prices: Prices = PRICES) -> float:
    """Return seconds that no configuration undercuts: those of memory, or of the FMAs and of filling the pipeline."""
    multiply = problem.flops / arch.peak(problem.dtype.accumulator.name)
    compute = constants.fill_cycles / arch.boost_hz + multiply
    return prices.launch + max(compute, _memory(problem, arch, constants))


def _memory(problem: Gemm, arch: Arch, c: Constants) -> float:
    """Return the seconds of loading A and B, and of reading C and storing D."""
    outside = (2 if problem.has_c else 1) * problem.batch * problem.m * problem.n * problem.dtype.itemsize
    loaded = max(0, problem.least_bytes - outside)  # less if products of a batch share C
    return (outside / c.store_share + loaded / c.load_share) / arch.dram_bytes_per_s


def rounds(problem: Gemm, config: Configs, arch: Arch) -> Any:
    """Return the rounds of blocks that the busiest SM computes one after the other."""
    per_sm, resident = _blocks(problem, config, arch)
    return ceil_div(per_sm, resident)


def _blocks(problem: Gemm, config: Configs, arch: Arch) -> tuple[Any, Any]:
    """Return the blocks of the busiest SM, and how many of them it holds at a time."""
    slices = config.get("SPLIT_K", 1)
    per_sm = ceil_div(tile_count(problem, config) * problem.batch * slices, arch.sms)
    return per_sm, larger(1, smaller(per_sm, config["BLOCKS_PER_SM"]))


def _pace(problem: Gemm, config: Configs, arch: Arch, resident: Any, c: Constants) -> Any:
    """Return the cycles per k-tile and block of an SM that holds ``resident`` blocks."""
    lanes = arch.peak(problem.dtype.accumulator.name) / (2 * arch.sms * arch.boost_hz)
    schedulers = 4
    slots_per_fma = schedulers * 32 / lanes
    vector = VECTOR_BYTES // problem.dtype.itemsize
    steps = config["BK"] / config["SLICES"]
    fmas = config["TM"] * config["TN"] * steps
    reads = (config["TM"] + config["TN"]) / vector * steps
    copied = config["BK"] * (config["BM"] / config["A_VEC"] + config["BN"] / config["B_VEC"])
    slots = fmas * slots_per_fma + reads + c.copy_slots * copied / threads(config) + c.tile_slots
    warps = threads(config) / 32
    filled = resident * warps / (resident * warps + c.warps_half)
    return larger(slots * warps / schedulers / filled, c.latency_cycles / (config["STAGES"] - 1) / resident)


def _outside(config: Configs, c: Constants) -> Any:
    """Return the cycles of a block outside its mainloop."""
    outputs = config["BM"] * config["BN"]
    narrow = c.narrow_cycles * (config["D_VEC"] == 1)
    return c.fill_cycles + (c.merge_cycles * (config["SLICES"] - 1) + narrow) * outputs
