"""The time of a product in the kernel for a short k (``kernels/short_k``).

The time of a launch is a constant and four terms that overlap: the bytes over the bandwidth that so many copies in
flight reach; the instructions of the busiest SM, over the issue slots that its resident warps fill; the passes over the
banks of its shared memory; and the work tiles of one of its blocks one after another, each of which waits for barriers
and for its own sums.

:class:`Demand` counts the work of a product with a configuration; :class:`Constants` have its costs.
``benchmarks/fit_model.py`` fits them to what ``benchmarks/shapes.py`` measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matmill.arch import Arch
from matmill.config import Configs
from matmill.kernel import ceil_div
from matmill.kernels.shared.model import PRICES, Prediction, Prices, either, larger, load_constants, overlapped, smaller
from matmill.kernels.short_k.tiles import keeps_b, sizes
from matmill.problem import Gemm

_VECTOR, _BANKS = 16, 128  # bytes of a copy, and of a pass over all banks
_SCHEDULERS, _LANES = 4, 32
_WIDE = 8  # 16-bit elements that ldmatrix reads together, from aligned addresses


@dataclass(frozen=True)
class Constants:
    """Fitted constants. Times in seconds, cycles of an SM, issue slots of a warp, shares."""

    #: Seconds before the first copy, in which threads compute offsets by division.
    start: float
    #: Share of the data sheet's bandwidth that long streams reach, and the cost of a store of less than 16 bytes from
    #: registers relative to a full one.
    stream_share: float
    narrow: float
    #: Bytes that an SM must copy at a time to reach half of the bandwidth, and the share of the time in which a block
    #: with one stage has copies in flight.
    bytes_half: float
    one_stage: float
    #: Issue slots: per copy of a thread, per vector stored from shared memory, per store of a thread's outputs, and
    #: additional ones per unit of outputs and per work tile; and slots of FMAs and of reads relative to their number.
    copy: float
    store: float
    output: float
    unit: float
    tile: float
    term: float
    #: Issue slots per mma, and per pair of 16-bit elements that is no word: reads and a permutation.
    mma: float
    pair: float
    #: Warps of an SM that would fill half of its issue slots.
    warps_half: float
    #: Cycles of a work tile besides its sums, and of a step along k with a single warp.
    barrier: float
    step: float
    #: The terms overlap partly: the p-norm of their times with this p.
    overlap: float


DEFAULT = load_constants(__name__, Constants)


@dataclass(frozen=True)
class Demand:
    """The work of a product on a GPU with a configuration; costs are in :class:`Constants`.

    ``bytes`` are the least bytes moved, ``narrow_bytes`` those of them that are stored from registers less than 16
    bytes at a time. For an SM: bytes in flight with two stages or one, resident warps that compute, and, for the
    busiest SM, warp instructions by kind and passes over the banks. For a block: work tiles one after another, and the
    instructions and steps along k of a warp's outputs one after another.
    """

    bytes: float
    narrow_bytes: float
    in_flight: float
    one_stage: float
    active: float
    copies: float
    stores: float
    outputs: float
    units: float
    tiles: float
    terms: float
    mmas: float
    pairs: float
    passes: float
    rounds: float
    chain: float
    mma_chain: float
    pair_chain: float
    steps: float
    bytes_per_s: float
    hz: float


def explain(
    problem: Gemm, config: Configs, arch: Arch, constants: Constants = DEFAULT, prices: Prices = PRICES
) -> Prediction:
    """Return the predicted time of ``problem`` with ``config`` on ``arch``, with its terms."""
    return times(demand(problem, config, arch), constants, prices)


def least(problem: Gemm, arch: Arch, constants: Constants = DEFAULT, prices: Prices = PRICES) -> float:
    """Return seconds that no configuration undercuts: those of the least bytes."""
    return prices.launch + constants.start + problem.least_bytes / (constants.stream_share * arch.dram_bytes_per_s)


def times(counts: Demand, constants: Constants, prices: Prices = PRICES) -> Prediction:
    """Return the time of ``counts``. Their fields may be arrays of one shape, and then the result's are too."""
    c, p = constants, constants.overlap
    moved = counts.bytes + (c.narrow - 1) * counts.narrow_bytes
    in_flight = counts.in_flight * (1 - counts.one_stage * (1 - c.one_stage))
    memory = moved / (c.stream_share * counts.bytes_per_s) * (1 + c.bytes_half / in_flight)
    slots = c.copy * counts.copies + c.store * counts.stores + c.output * counts.outputs + c.unit * counts.units
    slots = slots + c.tile * counts.tiles + c.term * counts.terms + c.mma * counts.mmas + c.pair * counts.pairs
    issue = slots / _SCHEDULERS / counts.hz * (1 + c.warps_half / counts.active)
    shared = counts.passes / counts.hz
    chain = c.step * counts.steps + c.term * counts.chain + c.mma * counts.mma_chain + c.pair * counts.pair_chain
    latency = counts.rounds * (c.barrier + chain) / counts.hz
    terms = {"memory": memory, "issue": issue, "shared": shared, "latency": latency}
    return Prediction(prices.launch + c.start + overlapped(p, *terms.values()), terms, tuple(terms))


def demand(problem: Gemm, config: Configs, arch: Arch) -> Demand:
    """Count the work of ``problem`` with one configuration or with each of many on ``arch``."""
    own = sizes(problem, config)
    mma = problem.dtype.itemsize == 2
    group, warps, blocks = config["PRODUCTS"], config["THREADS"] // _LANES, config["BLOCKS"]
    bm, bn = config["BM"], config["BN"]
    unit = _mma_unit(problem, config) if mma else _simt_unit(problem, config, arch)
    count = group * own.units_down * own.units_across
    working = count if mma else ceil_div(count, _LANES)  # warps with a unit
    in_turn = ceil_div(working, warps)
    whole = ceil_div(own.work_tiles, arch.sms)
    resident = smaller(ceil_div(blocks, arch.sms), whole)
    # With many work tiles, all SMs have about as many.
    busiest = either(whole < 2 * resident, whole, own.work_tiles / arch.sms)
    # A block's copies of a B that stays are shared by its work tiles.
    again = either(keeps_b(problem, bn), blocks / larger(own.work_tiles, blocks), 1)
    copies = own.a_copies + again * own.b_copies
    outputs, size, staged = group * bm * bn, problem.d_dtype.itemsize, config["D_STAGED"]
    direct, narrow = staged == 0, config["D_VEC"] * size < _VECTOR
    stored = outputs * either(staged == 2, 1 / config["D_WIDTH"], size / _VECTOR)
    stored = either(direct, 0, stored + (staged == 3) * bm * _VECTOR / size)  # ends of rows
    banks = _VECTOR * copies + either(direct, 0, 2 * outputs * size)
    warp_units = busiest * working
    return Demand(
        bytes=float(problem.least_bytes),
        narrow_bytes=(direct & narrow) * float(problem.batch * problem.m * problem.n * size),
        in_flight=resident * own.stage_elements * problem.dtype.itemsize,
        one_stage=config["STAGES"] == 1,
        active=resident * smaller(warps, working),
        copies=busiest * copies / _LANES,
        stores=busiest * stored / _LANES,
        outputs=warp_units * unit.stores,
        units=warp_units,
        tiles=busiest * warps,
        terms=warp_units * unit.slots,
        mmas=warp_units * unit.mmas,
        pairs=warp_units * unit.pairs,
        passes=busiest * (working * unit.passes + banks / _BANKS),
        rounds=ceil_div(own.work_tiles, blocks),
        chain=in_turn * unit.slots,
        mma_chain=in_turn * unit.mmas,
        pair_chain=in_turn * unit.pairs,
        steps=in_turn * unit.steps,
        bytes_per_s=arch.dram_bytes_per_s,
        hz=arch.boost_hz,
    )


@dataclass(frozen=True)
class _WarpWork:
    """The instructions of a warp for its outputs: FMAs and reads, passes over the banks, steps along k, and stores.

    Of 16-bit elements also the mma, and pairs of elements that are read one by one.
    """

    slots: Any
    passes: Any
    steps: Any
    stores: Any
    mmas: Any = 0.0
    pairs: Any = 0.0


def _simt_unit(problem: Gemm, config: Configs, arch: Arch) -> _WarpWork:
    tm, tn, k, size = config["TM"], config["TN"], problem.k, problem.dtype.itemsize
    a_vec, b_vec = config["A_VEC"], config["B_VEC"]
    per_fma = _SCHEDULERS * _LANES * 2 * arch.sms * arch.boost_hz / arch.peak(problem.dtype.name)
    wide = 4 - 2 * config["QUADS"]  # passes of a read of 16 bytes
    passes = sum(count / vec * either(vec > 1, wide, size / 4) for count, vec in ((tm, a_vec), (tn, b_vec)))
    step = larger(1 + config["A_K_INNER"] * (a_vec - 1), 1 + config["B_K_INNER"] * (b_vec - 1))
    return _WarpWork(k * (per_fma * tm * tn + tm / a_vec + tn / b_vec), k * passes, k / step, tm * tn / config["D_VEC"])


def _mma_unit(problem: Gemm, config: Configs) -> _WarpWork:
    steps = ceil_div(problem.k, 16)
    fragments = ((config["TM"] // 4, config["A_VEC"]), (config["TN"] // 4, config["B_VEC"]))
    # ldmatrix reads four pairs.
    reads = sum(count * (0.25 * (vec == _WIDE) + (vec == 2)) for count, vec in fragments)
    pairs = 1.0 * sum(count * (vec == 1) for count, vec in fragments)
    passes = steps * sum(count * (1 + (vec == 1)) for count, vec in fragments)
    mmas, stores = config["TM"] * config["TN"] / 128, config["TM"] * config["TN"] / _LANES / config["D_VEC"]
    return _WarpWork(1.0 * steps * reads, 1.0 * passes, float(steps), stores, steps * mmas, steps * pairs)
