"""The time of a product on the FMA pipeline of ``kernels/gemm/simt.cuh``.

The time of a launch is a constant and two terms that overlap: the least bytes over the bandwidth that a product's
loads and stores reach, and the k-tiles of the busiest SM. A k-tile takes as long as the slower of two things that go
on at the same time: issue slots (FMAs, fragment reads, copies and the loop's own instructions, over the share of slots
that the resident warps fill) and, for few small blocks, the latency of the copies in flight. Filling and draining the
pipeline and merging slices come on top, and with split-K the launch that adds the partial sums
(``kernels/splitk/cost.py``).

:class:`Demand` counts the work of a product with a configuration; :class:`Constants` say what that costs.
``benchmarks/fit_model.py`` fits them; docs/cost-models.md says how well they predict, and where the model is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matmill.arch import Arch
from matmill.config import Configs
from matmill.kernel import ceil_div
from matmill.kernels.gemm.tiles import threads
from matmill.kernels.shared.model import PRICES, Prediction, Prices, either, larger, load_constants, overlapped, smaller
from matmill.kernels.shared.tiled import VECTOR_BYTES, tile_count
from matmill.kernels.splitk.cost import Reduction
from matmill.problem import Gemm

_SCHEDULERS, _LANES = 4, 32


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
    #: Cycles per sector that is stored to where D's rows do not start on vectors.
    narrow_cycles: float
    #: Cycles per output and slice beyond the first to merge the slices' sums.
    merge_cycles: float
    #: Share of the data sheet's memory bandwidth at which C is read and D stored: far below a copy's, because this
    #: follows the arithmetic.
    store_share: float
    #: The same for A and B, which arrive while earlier tiles are multiplied.
    load_share: float
    #: The terms of a k-tile overlap partly: the p-norm of their cycles with this p. So do memory and SMs.
    pace_overlap: float
    overlap: float


DEFAULT = load_constants(__name__, Constants)


@dataclass(frozen=True)
class Demand:
    """The work of a product on a GPU with a configuration; costs are in :class:`Constants`.

    Per k-tile of a block: issue slots of FMAs and reads (``slots``), copies of a warp, and ``warps``; it has ``ahead``
    copies in flight. Of the busiest SM: k-tiles while ``resident`` blocks are on it and while the ``last`` ones are,
    rounds of blocks, the sectors that a block stores to where it does not store vectors (``narrow``), and outputs of
    slices that are merged. Of the whole GPU: bytes that are ``loaded`` and ``stored``, and the reduction of partial
    sums.
    """

    slots: float
    copies: float
    warps: float
    ahead: float
    resident: float
    tiles: float
    last: float
    last_tiles: float
    rounds: float
    narrow: float
    merged: float
    loaded: float
    stored: float
    reduction: Reduction
    bytes_per_s: float
    hz: float
    sms: float


def explain(
    problem: Gemm, config: Configs, arch: Arch, constants: Constants = DEFAULT, prices: Prices = PRICES
) -> Prediction:
    """Return the predicted time of ``problem`` with ``config`` on ``arch``, with its terms."""
    return times(demand(problem, config, arch), constants, prices)


def least(problem: Gemm, arch: Arch, constants: Constants = DEFAULT, prices: Prices = PRICES) -> float:
    """Return seconds that no configuration undercuts: those of memory, and of the FMAs and of filling the pipeline."""
    c = constants
    multiply = problem.flops / arch.peak(problem.dtype.accumulator.name)
    compute = c.fill_cycles / arch.boost_hz + multiply
    memory = _memory(*_moved(problem), arch.dram_bytes_per_s, c)
    return prices.launch + overlapped(c.overlap, compute, memory)


def times(counts: Demand, constants: Constants, prices: Prices = PRICES) -> Prediction:
    """Return the time of ``counts``. Their fields may be arrays of one shape, and then the result's are too."""
    c = constants
    slots = counts.slots + c.copy_slots * counts.copies + c.tile_slots * counts.warps
    inside = counts.tiles * _pace(counts, slots, counts.resident, c)
    inside = inside + counts.last_tiles * _pace(counts, slots, counts.last, c)
    outside = counts.rounds * (c.fill_cycles + c.narrow_cycles * counts.narrow + c.merge_cycles * counts.merged)
    compute = (inside + outside) / counts.hz
    memory = _memory(counts.loaded, counts.stored, counts.bytes_per_s, c)
    added = counts.reduction.seconds(prices, counts.sms * counts.hz)
    terms = {"compute": compute, "memory": memory, "second": added}
    seconds = prices.launch + overlapped(c.overlap, compute, memory) + added
    return Prediction(seconds, terms, ("compute", "memory"))


def _pace(counts: Demand, slots: Any, resident: Any, c: Constants) -> Any:
    """Return the cycles of a k-tile of a block of an SM that holds ``resident`` of them."""
    resident = larger(1, resident)
    active = resident * counts.warps
    issue = slots / _SCHEDULERS * (active + c.warps_half) / active
    return overlapped(c.pace_overlap, issue, c.latency_cycles / (counts.ahead * resident))


def _memory(loaded: Any, stored: Any, bytes_per_s: Any, c: Constants) -> Any:
    """Return the seconds of loading A and B, and of reading C and storing D."""
    return (stored / c.store_share + loaded / c.load_share) / bytes_per_s


def _moved(problem: Gemm) -> tuple[float, float]:
    """Return the least bytes that are loaded of A and B, and those of C and D."""
    outside = (2 if problem.has_c else 1) * problem.batch * problem.m * problem.n * problem.dtype.itemsize
    return float(max(0, problem.least_bytes - outside)), float(outside)  # less if products of a batch share C


def demand(problem: Gemm, config: Configs, arch: Arch) -> Demand:
    """Count what ``problem`` demands of ``arch`` with one configuration or with each of many."""
    bm, bn, bk, tm, tn = (config[name] for name in ("BM", "BN", "BK", "TM", "TN"))
    warps, slices, vector = threads(config) / _LANES, config["SLICES"], VECTOR_BYTES // problem.dtype.itemsize
    per_sm, resident = _blocks(problem, config, arch)
    k_tiles = ceil_div(ceil_div(problem.k, bk), config.get("SPLIT_K", 1))
    last = per_sm % resident
    lanes = arch.peak(problem.dtype.accumulator.name) / (2 * arch.sms * arch.boost_hz)
    steps, terms = bk / slices, 1 if problem.dtype.part is None else 4
    reads = (tm + tn) / vector * steps
    loaded, stored = _moved(problem)
    outputs = bm * bn
    return Demand(
        slots=warps * (terms * tm * tn * steps * _SCHEDULERS * _LANES / lanes + reads),
        copies=warps * (_passes(config, "A", bm) + _passes(config, "B", bn)),
        warps=1.0 * warps,
        ahead=config["STAGES"] - 1.0,
        resident=1.0 * resident,
        tiles=1.0 * (per_sm - last) * k_tiles,
        last=1.0 * last,
        last_tiles=1.0 * last * k_tiles,
        rounds=1.0 * ceil_div(per_sm, resident),
        narrow=_narrow(outputs, config),
        merged=1.0 * outputs * (slices - 1),
        loaded=loaded,
        stored=stored,
        reduction=Reduction.of(problem, config),
        bytes_per_s=arch.dram_bytes_per_s,
        hz=arch.boost_hz,
        sms=float(arch.sms),
    )


def _passes(config: Configs, operand: str, extent: Any) -> Any:
    """Return the copies of each thread for its part of an operand's k-tile: passes of all threads over whole rows."""
    along_k, bk = config[f"{operand}_ALONG_K"], config["BK"]
    row = either(along_k == 1, bk, extent / config[f"{operand}_VEC"])
    rows = either(along_k == 1, extent, bk)
    return ceil_div(rows, larger(1, threads(config) // row))


def _narrow(outputs: Any, config: Configs) -> Any:
    """Return the sectors that a block stores to, or 0 where it stores vectors.

    Lanes of a row of D store to neighbouring addresses at best: up to eight of them to one sector.
    """
    lanes = config["BN"] / (config["WARPS_N"] * config["TN"])
    return outputs / smaller(lanes, 8) * (config["D_VEC"] == 1)


def rounds(problem: Gemm, config: Configs, arch: Arch) -> Any:
    """Return the rounds of blocks that the busiest SM computes one after the other."""
    per_sm, resident = _blocks(problem, config, arch)
    return ceil_div(per_sm, resident)


def _blocks(problem: Gemm, config: Configs, arch: Arch) -> tuple[Any, Any]:
    """Return the blocks of the busiest SM, and how many of them it holds at a time."""
    slices = config.get("SPLIT_K", 1)
    per_sm = ceil_div(tile_count(problem, config) * problem.batch * slices, arch.sms)
    return per_sm, larger(1, smaller(per_sm, config["BLOCKS_PER_SM"]))
