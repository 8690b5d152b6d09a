"""The time of a product on the tensor-core pipeline of ``kernels/hgemm/mma.cuh``.

The time of a launch is a constant plus two terms that overlap, of which the larger decides: the least bytes over the
bandwidth that reading reaches, and the tiles of the busiest SM. Six things happen at the same time during a k-tile of a
block (``pace``), and the slowest about decides: tensor cores multiply, shared memory takes copies and delivers
fragments, L2 delivers tiles, load units look up cache lines, schedulers issue, and and the copies in flight take their
latency. Filling the pipeline, storing D, the launch that repacks matrices and the launch that adds split-K partial sums
come on top.

:class:`Demand` counts the work of a product with a configuration; :class:`Constants` have its costs.
``benchmarks/fit_model.py`` fitted them to the times of 66 products on an H200, the fit half of
``benchmarks/results/hgemm_tiles_h200.json``.

All of these were 16-bit products. float64 has the same constants: its products have not been timed with this pipeline.
Its counts differ in the bytes per element and in the rate of the tensor cores, which mma.sync reaches on Hopper for
float64. float32 has three products of tf32 for one, and instructions that split its elements and promote its sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import log2
from typing import Any

from matmill.arch import Arch
from matmill.config import Configs
from matmill.dtypes import F32, F64, DType
from matmill.kernel import ceil_div
from matmill.kernels.hgemm.tiles import copies, shapes
from matmill.kernels.repack.copies import repacked, repacked_matrix
from matmill.kernels.repack.cost import Repacking
from matmill.kernels.shared.model import PRICES, Prediction, Prices, larger, load_constants, overlapped, smaller
from matmill.kernels.shared.tensor_cores import ELEMENT_BYTES, TF32_PRODUCTS
from matmill.kernels.shared.tiled import tile_count
from matmill.kernels.splitk import leaves_partials
from matmill.kernels.splitk.cost import Reduction
from matmill.problem import Gemm

_LANES, _LINE, _SECTOR, _SCHEDULERS, _STEP, _VECTOR = 32, 128, 32, 4, 16, 8
#: Bytes of a fragment that one instruction of a warp reads: an ldmatrix, or a 16-byte load of float64.
_READ = 512
#: Instructions that split a float32 element: scale, round, cut, subtract.
_SPLIT = 4
#: Cycles of a scheduler of an H200 for an mma on tf32, in which it issues nothing else, as for the inner kernel's: of
#: 4096 x 4096 x 4096 a k-tile of 128 x 128 x 32 takes 3790, with 384 mma and 1114 other instructions a scheduler.
_ISSUE = 7
#: FMAs per clock of an SM's tensor cores if the arch has no figure: the least among the data sheets since Ampere
#: (GeForce RTX 4090, with float32 sums).
LEAST_FMAS = 256.0
#: Share of the peak rate that a T4's power limit allows: 49.4 of 65 TFLOP/s (the blog; the figures are in
#: ``analysis/roofline.py``).
TURING_SHARE = 0.76


@dataclass(frozen=True)
class Constants:
    """Fitted constants. Times in seconds; slots are instructions of one thread.

    They were fitted together, so each also absorbs correlated effects that the model omits.
    """

    #: Share of the data sheet's bandwidth at which a product's operands are read.
    read_share: float
    #: Share of Hopper's FMAs at the boost clock that mma.sync reaches, at the clock within the power limit. Luo et al.
    #: measured 62%; only wgmma reaches the rest ("Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via
    #: Microbenchmarking", 2024).
    mma_share: float
    #: Bytes that L2 delivers to each SM per clock.
    l2_bytes: float
    #: Cycles per cache line that a load looks up: the least that the fit allows.
    line_cycles: float
    #: Cycles of the load units per copy of a warp whose threads move 4 or 8 bytes of 16-bit elements. (Copies of 16
    #: bytes are limited by L2 about equally.) Fitted separately to ``benchmarks/results/shapes_h200.json``.
    narrow_cycles: float
    #: Cycles that the STAGES - 1 copies in flight take together, from issue to the barrier that publishes them.
    latency_cycles: float
    #: Cycles per k-tile and block that other blocks must hide: the barrier and the loop.
    barrier_cycles: float
    #: Cycles of a block outside its mainloop besides storing D: the latency of the first copies, and its launch.
    fill_cycles: float
    #: Slots per copy, with its bounds check and pointer; per element that goes through registers, with the wait for it;
    #: and per warp and k-tile, for addresses and the loop.
    copy_slots: float
    element_slots: float
    tile_slots: float
    #: Slots per output stored alone, per 8 outputs stored together, and per split-K partial sum.
    store_slots: float
    piece_slots: float
    keep_slots: float
    #: The terms of a k-tile overlap partly: the p-norm of their cycles with this p.
    pace_overlap: float
    #: The same p for memory and SMs.
    overlap: float


DEFAULT = load_constants(__name__, Constants)
#: Those of float64, whose products take four times as long as what else goes on.
DOUBLE = load_constants(__name__, Constants, "h200 float64")


@dataclass(frozen=True)
class Demand:
    """The work of a product on a GPU with a configuration; costs are in :class:`Constants`.

    Per k-tile of a block: cycles of the tensor cores at their full rate (``multiply``, or ``mma_sync_on_hopper`` where
    only wgmma reaches that rate) and of shared memory (``shared``), bytes read from L2, cache lines looked up
    (``lines``), and issued ``matrix`` instructions, ``copies`` (``narrow`` ones are of 4 and 8 bytes) and ``elements``
    that go through registers, all by ``warps``. An SM has ``ahead`` copies in flight.

    For the busiest SM: k-tiles (``tiles``), ``rounds`` of ``resident`` blocks, outputs ``stored`` one by one, in
    ``pieces`` of 8 and as ``partial_sums`` of split-K, ``stored_bytes``.

    For the whole GPU: the least ``bytes``, and the demands of repacking and of the reduction of partial sums.
    """

    multiply: float
    mma_sync_on_hopper: float
    shared: float
    l2_bytes: float
    lines: float
    matrix: float
    copies: float
    narrow: float
    elements: float
    warps: float
    ahead: float
    tiles: float
    rounds: float
    resident: float
    stored: float
    pieces: float
    partial_sums: float
    stored_bytes: float
    bytes: float
    repacking: Repacking
    reduction: Reduction
    bytes_per_s: float
    hz: float
    sms: float


def explain(
    problem: Gemm, config: Configs, arch: Arch, constants: Constants | None = None, prices: Prices = PRICES
) -> Prediction:
    """Return the predicted time of ``problem`` with ``config`` on ``arch``, with its terms.

    Without ``constants`` they are those of its element type.

    >>> from matmill.arch import get
    >>> from matmill.dtypes import F16
    >>> from matmill.kernels.hgemm.tiles import space
    >>> problem, h200 = Gemm(8192, 8192, 8192, F16), get("h200")
    >>> configs = [config.launched(SPLIT_K=1) for config in space(problem, h200)]
    >>> best = min(configs, key=lambda config: explain(problem, config, h200).seconds)
    >>> best["BM"], best["BN"]
    (128, 256)
    """
    return times(demand(problem, config, arch), constants or _constants(problem), prices)


def _constants(problem: Gemm) -> Constants:
    return DOUBLE if problem.dtype is F64 else DEFAULT


def least(problem: Gemm, arch: Arch, constants: Constants | None = None, prices: Prices = PRICES) -> float:
    """Return seconds that no configuration undercuts: memory's, or those of all products and of storing whole tiles.

    Elements that are copied one by one are not ahead of their use, unless a launch before the product repacks them.
    """
    c = constants or _constants(problem)
    tile, stages = _extremes(arch, problem.dtype)
    blocks = ceil_div(problem.batch, arch.sms)  # of the busiest SM
    outputs = max(blocks * tile, problem.batch * problem.m * problem.n / arch.sms)
    slots = min(c.store_slots, c.piece_slots / _VECTOR, c.keep_slots) / (_LANES * _SCHEDULERS)
    share = c.mma_share if arch.capability[0] == 9 and problem.dtype is not F64 else 1.0
    products = TF32_PRODUCTS if problem.dtype is F32 else 1
    multiply = products * problem.flops / (2 * arch.sms * _fmas(problem, arch) * share)
    outside = c.fill_cycles + slots * outputs
    memory = problem.least_bytes / (c.read_share * arch.dram_bytes_per_s)
    latency = c.latency_cycles if problem.k else 0.0
    ahead, alone = (
        overlapped(c.overlap, (max(multiply, latency / count) + outside) / arch.boost_hz, memory)
        for count in (stages - 1, 1)
    )
    own = copies(problem)
    single = problem.dtype.itemsize == ELEMENT_BYTES and 1 in (own["A_VEC"], own["B_VEC"])
    return prices.launch + (min(alone, ahead + prices.second) if single else ahead)


@cache
def _extremes(arch: Arch, dtype: DType) -> tuple[int, int]:
    """Return the fewest outputs of a tile, and the most stages; a GPU with little shared memory may have no tile."""
    tiles = shapes(arch, dtype)
    outputs = (tile["BM"] * tile["BN"] for tile in tiles)
    return min(outputs, default=0), max((tile["STAGES"] for tile in tiles), default=2)


def times(counts: Demand, constants: Constants, prices: Prices = PRICES) -> Prediction:
    """Return the time of ``counts``. Their fields may be arrays of one shape, and then the result's are too."""
    c, p = constants, constants.overlap
    per_cycle = _LANES * _SCHEDULERS  # of threads; instructions of warps are counted once
    slots = counts.matrix + c.tile_slots * counts.warps
    slots = slots + (c.copy_slots * counts.copies + c.element_slots * counts.elements) / _LANES
    pace = {
        "multiply": counts.multiply + counts.mma_sync_on_hopper / c.mma_share,
        "shared": counts.shared,
        "l2": counts.l2_bytes / c.l2_bytes,
        "lines": c.line_cycles * counts.lines + c.narrow_cycles * counts.narrow / _LANES,
        "issue": slots / _SCHEDULERS,
        "latency": c.latency_cycles / counts.ahead,
    }
    inside = counts.tiles * (overlapped(c.pace_overlap, *pace.values()) + c.barrier_cycles / counts.resident)
    issued = (
        c.store_slots * counts.stored + c.piece_slots * counts.pieces + c.keep_slots * counts.partial_sums
    ) / per_cycle
    written = counts.stored_bytes / c.l2_bytes
    stores = overlapped(p, issued, written)
    compute = (inside + counts.rounds * c.fill_cycles + stores) / counts.hz
    memory = counts.bytes / (c.read_share * counts.bytes_per_s)
    sm_hz = counts.sms * counts.hz
    repack = counts.repacking.seconds(prices, counts.bytes_per_s, sm_hz)
    second = counts.reduction.seconds(prices, sm_hz)
    seconds = prices.launch + overlapped(p, compute, memory) + repack + second
    terms = {"compute": compute, "memory": memory, "repack": repack, "second": second}
    return Prediction(seconds, terms, tuple(terms), pace, paced="compute")


def demand(problem: Gemm, config: Configs, arch: Arch) -> Demand:
    """Count what ``problem`` demands of ``arch`` with one configuration or with each of many."""
    bm, bn, bk, slices = config["BM"], config["BN"], config["BK"], config["SPLIT_K"]
    per_sm = ceil_div(tile_count(problem, config) * problem.batch * slices, arch.sms)
    resident = larger(1, smaller(per_sm, config["BLOCKS_PER_SM"]))

    size, double, split = problem.dtype.itemsize, problem.dtype is F64, problem.dtype is F32
    wide, products = size > ELEMENT_BYTES, TF32_PRODUCTS if split else 1
    warps_m, warps_n = config["WARPS_M"], config["WARPS_N"]
    read = {"A": warps_n * bm * bk * size, "B": warps_m * bn * bk * size}
    # Of wide elements one at a time is read; of float64 two, and of float32 four, where rows of the tile run along k.
    times = 16 // size if wide else 1
    reads = sum(read[name] / _READ * (times - (times - 1) * config[f"{name}_K_INNER"]) for name in "AB")
    # An mma computes 16 x 8 of D.
    mma_k = config["MMA_K"] if double else _STEP // 2 if split else _STEP
    multiplies = products * bk * bm * bn / (_STEP * _VECTOR * mma_k)
    if split:
        splits = _SPLIT * (read["A"] + read["B"]) / (size * _LANES)
        multiplies = _ISSUE * multiplies + splits + bk / config["SUM_K"] * bm * bn / _LANES
    shared_bytes = arch.shared_bytes_per_s / (arch.sms * arch.boost_hz)
    cycles, share = products * bm * bn * bk / _fmas(problem, arch), TURING_SHARE if arch.capability[0] == 7 else 1.0
    mma_sync_on_hopper = arch.capability[0] == 9 and _matrix_type(problem) in arch.matrix_flops and not double

    elements = {"A": bm * bk, "B": bn * bk}
    vec = {name: config[f"{name}_VEC"] for name in "AB"}
    vectors = {name: elements[name] / vec[name] for name in "AB"}
    # 16-bit elements that cannot be copied 4 bytes at a time go through registers one by one.
    held = {name: (vec[name] == 1) & (not wide) for name in "AB"}
    narrow = {name: (vec[name] < _VECTOR) & (not wide) & (vec[name] > 1) for name in "AB"}
    # Tiles that go through registers are loaded one at a time, whatever the number of stages.
    one_ahead = held["A"] | held["B"] | (arch.capability < (8, 0))
    ahead = 1 + (1 - one_ahead) * (config["STAGES"] - 2)

    # Wide elements are stored without staging, in pairs or twice as many stores; neither was timed.
    outputs, partial, pieces = per_sm * bm * bn, leaves_partials(problem, config), (config["D_VEC"] > 1) | wide
    sums = problem.dtype.accumulator.itemsize
    return Demand(
        multiply=0.0 * cycles if mma_sync_on_hopper else cycles / share,
        mma_sync_on_hopper=cycles if mma_sync_on_hopper else 0.0 * cycles,
        shared=(read["A"] + read["B"] + (bm + bn) * bk * size) / shared_bytes,
        l2_bytes=_l2_bytes(problem, config),
        lines=sum(_lines(problem, config, name, elements[name]) for name in "AB"),
        matrix=reads + multiplies,
        copies=1.0 * sum(vectors[name] * (1 - held[name]) for name in "AB"),
        narrow=1.0 * sum(vectors[name] * narrow[name] for name in "AB"),
        elements=1.0 * sum(vectors[name] * held[name] for name in "AB"),
        warps=1.0 * warps_m * warps_n,
        ahead=1.0 * ahead * resident,
        tiles=1.0 * per_sm * ceil_div(ceil_div(problem.k, bk), slices),
        rounds=1.0 * ceil_div(per_sm, resident),
        resident=1.0 * resident,
        stored=1.0 * outputs * (1 - partial) * (1 - pieces),
        pieces=outputs / _VECTOR * (1 - partial) * pieces * (1 + (config["D_VEC"] == 1) * wide),
        partial_sums=1.0 * outputs * partial,
        stored_bytes=1.0 * outputs * (size + partial * (sums - size)),
        bytes=float(problem.least_bytes),
        repacking=Repacking.of(
            config,
            lambda one: [repacked_matrix(problem, one, name) for name in _repacked(problem, one)],
            *("REPACK_A", "REPACK_B", "A_K_INNER", "B_K_INNER"),
        ),
        reduction=Reduction.of(problem, config),
        bytes_per_s=arch.dram_bytes_per_s,
        hz=arch.boost_hz,
        sms=float(arch.sms),
    )


def _l2_bytes(problem: Gemm, config: Configs) -> Any:
    """Return the average bytes of a k-tile that are read from L2; elements outside the matrices are not."""
    rows = problem.m / ceil_div(problem.m, config["BM"])
    columns = problem.n / ceil_div(problem.n, config["BN"])
    return (rows + columns) * config["BK"] * problem.dtype.itemsize


def _matrix_type(problem: Gemm) -> str:
    """Return the type that the tensor cores multiply, as ``Arch.matrix_flops`` names it."""
    return "tf32" if problem.dtype is F32 else problem.dtype.name


def _fmas(problem: Gemm, arch: Arch) -> float:
    """Return the FMAs per clock of an SM's tensor cores at full rate, a power of two.

    Data sheets have their own clocks: Hopper's is 1.83 GHz, not the boost clock.
    """
    flops = arch.matrix_flops.get(_matrix_type(problem))
    if flops is None and problem.dtype is F64:
        flops = 2 * arch.fp64_flops  # as for an A100 and an H200
    if flops is None:
        return LEAST_FMAS
    return float(2 ** round(log2(flops / (2 * arch.sms * arch.boost_hz))))


def _lines(problem: Gemm, config: Configs, name: str, elements: Any) -> Any:
    """Return the cache lines that the copies of one matrix's tile look up.

    A thread copies 16 bytes of 16-bit elements, VEC at a time. Each of a warp's copies looks up the four cache lines of
    its 512 bytes again. Of wider elements, neighbouring threads copy neighbouring ones. Elements that are not
    contiguous have a cache line each.
    """
    strides = problem.a_row_col if name == "A" else problem.b_row_col
    again = 1.0 if problem.dtype.itemsize > ELEMENT_BYTES else _VECTOR / config[f"{name}_VEC"]
    near = problem.dtype.itemsize / _LINE * again
    apart = min(map(abs, strides)) > 1
    return elements * (near + apart * (1 - config.get(f"REPACK_{name}")) * (1 - near))


def _repacked(problem: Gemm, config: Any) -> tuple[str, ...]:
    """Return the names of the matrices that are copied; both of a Gram matrix share one copy."""
    names = repacked(config)
    return names[:1] if problem.gram and len(names) == 2 else names
