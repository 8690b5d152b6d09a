"""The time of a product on the inner kernel of ``kernels/inner/simt.cuh``.

Four things happen at once, and the slowest decides: bytes arrive from memory, limited by bytes in flight over latency
(Little's law) and by memory's bandwidth, with a smooth transition; instructions are issued; FMAs execute, padding
included; shared memory, or L1, delivers operands. Blocks take chunks of k round-robin, so the busiest SM decides, and
the last chunk is short. To this are added the launch, the latency of the first loads, fetching the code, the last stage
of unaligned rows, the block's own reduction and, with more than one block, the reduction by the last block or by a
second launch.

:class:`Demand` counts what a product asks of the GPU with a configuration; :class:`Constants` say what that costs.
``benchmarks/fit_model.py`` fitted the defaults to times of a search on an H200 (2026-11-23): 152 products, of which 53
can run on tensor cores, in ``inner_search_h200_fit.jsonl`` and ``inner_search_h200_mma_fit.jsonl`` of
``benchmarks/results``. They were fitted together, not measured one by one: weakly identified constants are arbitrary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import Any, NamedTuple

from matmill.arch import Arch
from matmill.config import Config, Configs
from matmill.kernel import ceil_div
from matmill.kernels.inner.passes import (
    ALONG_K,
    FRAGMENTS,
    MMA_OUTPUTS,
    SCHEDULERS,
    SHIFTED,
    VECTOR_BYTES,
    Reads,
    at_once,
    busiest,
    groups,
    k_contiguous,
    k_groups,
    last_block,
    mma_slots,
    mma_tiles,
    on_diagonal,
    outputs_of,
    packed,
    triangle,
)
from matmill.kernels.shared.model import (
    PRICES,
    Prediction,
    Prices,
    larger,
    load_constants,
    of_each,
    overlapped,
    smaller,
)
from matmill.kernels.splitk import LOADED_SLICES, leaves_partials
from matmill.kernels.splitk.cost import Reduction
from matmill.problem import Gemm

_LANES, _CACHE_LINE = 32, 128
#: Lanes that share the k's of a row or column in a warp's load of fragments.
_SHARING = 4
#: The power with which memory slows down as too many bytes are in flight.
_CROWDING = 4
#: Seconds in place of 0 in a denominator, for k = 0.
_INSTANT = 1e-15
#: Warps of an SM that hide little of each other's latency.
_FEW_WARPS = 8
#: Threads that share the partial sums of an output in the second launch.
_WAYS = 16


@dataclass(frozen=True)
class Constants:
    """Fitted constants. Times in seconds; slots are instructions of one thread."""

    #: Share of the data sheet's bandwidth that reads would reach with unlimited bytes in flight.
    read_share: float
    #: Seconds from a request under load to its data. Bandwidth times latency is 19 KB in flight on each SM of an H200,
    #: which reach 71% of the bandwidth; 95% take three times as much.
    latency: float
    #: Bytes in flight on each SM at which memory takes twice as long: on an H200 up to 80 KB are free, and with 130 KB
    #: memory takes 8% to 20% longer.
    crowded: float
    #: Share of bytes that are moved for nothing when rows are read in runs of one cache line; longer runs have less.
    scatter: float
    #: The last stage of unaligned rows or columns, whose incomplete vectors are copied word by word.
    last_shifted: float
    #: Cycles per instruction of the loops, whose code is fetched from memory once.
    code_cycles: float
    #: The last block, which adds all partial sums: seconds until it knows that it is the last, with its own sum;
    #: seconds of each step, in which a thread has as many loads in flight as it can; and bytes of partial sums, written
    #: and read, per cycle.
    last: float
    last_step: float
    last_bytes: float
    #: Reached share of the data sheet's FMA rate.
    fma_share: float
    #: Slots per copy, per load straight from memory, per load from a stage and per 16-bit element that is widened. The
    #: machine code (sm_90a, 2026-11-21) has 2.5, 3, 1.1 and 1.1 instructions.
    copy_slots: float
    read_slots: float
    load_slots: float
    widen_slots: float
    #: Slots of a thread per stage, for its address and the test whether there is another.
    stage_slots: float
    #: Cycles per stage in which a block's warps wait for each other. Other blocks may use them.
    barrier_cycles: float
    #: Cycles per cache line of L1 that a load straight from memory touches.
    line_cycles: float
    #: Cycles per pass through shared memory; above 1 because of bank conflicts that the count misses.
    shared_cycles: float
    #: Cycles per output and thread of the block's reduction.
    sum_cycles: float
    #: Warps per SM that would fill half of its issue slots.
    warps_half: float
    #: The four times overlap partly: their p-norm with this p.
    overlap: float
    #: Share of the times of memory and issue that does not overlap if threads load straight into registers, for equal
    #: times and eight warps on an SM. It falls with more warps, and with the square of the shorter time.
    direct_wait: float
    #: For tensor cores, in place of the above: the share of the data sheet's rate (mma.sync reaches two thirds at
    #: best), the same for float64, slots of a copy and of a load from a stage, and a barrier's cycles.
    mma_share: float
    mma_float64_share: float
    mma_copy_slots: float
    mma_load_slots: float
    mma_barrier_cycles: float
    #: The p of the overlap with tensor cores: copies do not wait for products.
    mma_overlap: float
    #: Share of the products of a block's last stage that overlaps with nothing.
    mma_last: float


DEFAULT = load_constants(__name__, Constants)


@dataclass(frozen=True)
class Demand:
    """The work of a product on a GPU with a configuration; costs are in :class:`Constants`.

    For the whole GPU: ``bytes``, bytes in ``flight`` at a time, ``l1`` (bytes of L1 cache beside the blocks' shared
    memory), and seconds of the FMAs at the data sheet's rate (``multiply_seconds``). For the busiest SM: instructions
    and ``stages`` summed over threads, ``cache_lines`` touched in L1, and ``passes`` through shared memory. ``reads``
    are loads straight from memory, ``loads`` those from stages. ``sums`` are outputs per thread times a block's warps.

    ``reduction`` is the launch that adds partial sums. These are 1 or 0: ``last_block``, if the last block adds them
    all (in ``last_block_steps``); ``shifted``, if rows or columns are unaligned; ``direct``, if threads load straight
    into registers; ``mma``, on tensor cores; ``float64``. ``last`` is one over the stages of a block. ``code`` is the
    number of FMAs in the machine code of the loops.
    """

    bytes: float
    flight: float
    l1: float
    scatter: float
    barriers: float
    stages: float
    multiply_seconds: float
    multiplies: float
    reads: float
    loads: float
    widened: float
    copies: float
    warps: float
    cache_lines: float
    passes: float
    sums: float
    last_block: float
    shifted: float
    mma: float
    float64: float
    last: float
    direct: float
    code: float
    partial_bytes: float
    reduction: Reduction
    last_block_steps: float
    read_bytes_per_s: float
    hz: float
    sms: float


def explain(
    problem: Gemm, config: Configs, arch: Arch, constants: Constants = DEFAULT, prices: Prices = PRICES
) -> Prediction:
    """Return the predicted time of ``problem`` with ``config`` on ``arch``, with its terms."""
    return times(demand(problem, config, arch), constants, prices)


def least(problem: Gemm, arch: Arch, constants: Constants = DEFAULT, prices: Prices = PRICES) -> float:
    """Return seconds that no configuration undercuts: those of reading E and F, and the latency of a first load."""
    row_bytes = (problem.m if problem.gram else problem.m + problem.n) * problem.dtype.itemsize
    return prices.launch + constants.latency + problem.k * problem.batch * row_bytes / arch.dram_bytes_per_s


def times(counts: Demand, constants: Constants, prices: Prices = PRICES) -> Prediction:
    """Return the time of ``counts``. Their fields may be arrays of one shape, and then the result's are too."""
    c = constants

    def either(plain: float, mma: float) -> float:
        return plain + counts.mma * (mma - plain)

    most = c.read_share * counts.read_bytes_per_s
    # All copies pass through L1, also those to shared memory, so that L1's size limits the bytes in flight.
    waiting = (1 / counts.flight**4 + 1 / counts.l1**4) ** 0.5 * (most * c.latency) ** 2
    memory = counts.bytes / most * (1 + waiting) ** 0.5
    memory *= 1 + (counts.flight / (counts.sms * c.crowded)) ** _CROWDING
    memory *= 1 + c.scatter * counts.scatter
    # The share was fitted to one GPU, whose latency costs more than its surplus of bandwidth. No GPU exceeds its data
    # sheet.
    least = counts.bytes / counts.read_bytes_per_s
    memory = (memory + least + abs(memory - least)) / 2

    mma_share = c.mma_share + counts.float64 * (c.mma_float64_share - c.mma_share)
    arithmetic = counts.multiply_seconds / either(c.fma_share, mma_share)

    # While tensor cores read their operands, for several cycles, the scheduler issues nothing else. float64 products
    # take longer, so that other instructions are issued meanwhile.
    held = counts.mma * (1 - counts.float64) * arithmetic
    arithmetic = arithmetic - held
    slots = counts.multiplies + c.read_slots * counts.reads + either(c.load_slots, c.mma_load_slots) * counts.loads
    slots += c.widen_slots * counts.widened + either(c.copy_slots, c.mma_copy_slots) * counts.copies
    slots += c.stage_slots * counts.stages
    filled = counts.warps / (counts.warps + c.warps_half)
    barriers = either(c.barrier_cycles, c.mma_barrier_cycles) * counts.barriers
    issue = (slots / (4 * _LANES * filled) + barriers) / counts.hz + held
    operands = c.line_cycles * counts.cache_lines + c.shared_cycles * counts.passes
    operands /= counts.hz

    p = either(c.overlap, c.mma_overlap)
    together = overlapped(p, memory, arithmetic, issue, operands)
    shorter, longer = (memory + issue - abs(memory - issue)) / 2, (memory + issue + abs(memory - issue)) / 2
    together += counts.direct * c.direct_wait * shorter**2 / (longer + _INSTANT) * _FEW_WARPS / counts.warps
    together += counts.mma * c.mma_last * counts.last * (arithmetic + issue)
    overhead = prices.launch + c.latency + c.sum_cycles * counts.sums / counts.hz
    overhead = overhead + c.last_shifted * counts.shifted + c.code_cycles * counts.code / counts.hz
    overhead += counts.reduction.seconds(prices, counts.sms * counts.hz)
    reduction = c.last + c.last_step * counts.last_block_steps + counts.partial_bytes / (c.last_bytes * counts.hz)
    overhead += counts.last_block * reduction
    terms = {"memory": memory, "issue": issue, "arithmetic": arithmetic, "operands": operands, "overhead": overhead}
    return Prediction(together + overhead, terms, tuple(terms))


def demand(problem: Gemm, config: Configs, arch: Arch) -> Demand:
    """Count the work of ``problem`` with ``config`` on ``arch``."""
    slices, last_block = config["SPLIT_K"], config["LAST_BLOCK"]
    blocks = slices * problem.batch
    resident, busy = smaller(config["BLOCKS_PER_SM"], ceil_div(blocks, arch.sms)), smaller(arch.sms, blocks)
    tile = _Tile(*of_each(config, partial(_tile, problem, arch), resident))
    chunks = ceil_div(ceil_div(problem.k, tile.chunk), slices)
    last = 1 / larger(1, chunks)
    chunks = chunks * ceil_div(blocks, arch.sms * config["BLOCKS_PER_SM"])
    terms = chunks * tile.chunk * resident  # of k, on the busiest SM
    row_bytes = (problem.m if problem.gram else problem.m + problem.n) * problem.dtype.itemsize
    in_flight = larger(1, smaller(chunks, tile.in_flight))  # k may be 0
    adds_apart = leaves_partials(problem, config) * 1.0
    second = adds_apart * (1 - last_block)
    sum_bytes = slices * problem.batch * problem.m * problem.n * problem.dtype.accumulator.itemsize
    moved = adds_apart * tile.moves * sum_bytes
    return Demand(
        bytes=terms * busy * row_bytes,
        flight=in_flight * tile.chunk * row_bytes * resident * busy,
        l1=tile.l1 * busy,
        scatter=tile.scatter,
        barriers=chunks * tile.barriers,
        stages=chunks * tile.stages * resident,
        multiply_seconds=terms * tile.multiply_seconds,
        multiplies=terms * tile.multiplies,
        reads=terms * tile.reads,
        loads=terms * tile.loads,
        widened=terms * tile.widened,
        copies=terms * tile.copies,
        warps=tile.warps,
        cache_lines=terms * tile.cache_lines,
        passes=terms * tile.passes,
        sums=tile.sums,
        last_block=last_block * 1.0,
        shifted=tile.shifted,
        mma=tile.mma,
        float64=float(problem.dtype.name == "float64"),
        last=last,
        direct=tile.direct,
        code=tile.code,
        partial_bytes=moved,
        reduction=Reduction(second, second * ceil_div(slices, _WAYS * LOADED_SLICES), second * moved),
        last_block_steps=tile.last_vectors * ceil_div(slices, tile.last_slices),
        read_bytes_per_s=arch.dram_bytes_per_s,
        hz=arch.boost_hz,
        sms=float(arch.sms),
    )


class _Tile(NamedTuple):
    """Counts of a tile, which depend on the number of slices only through the blocks that share an SM.

    ``chunk`` are the k's of a block's step, ``in_flight`` the most steps in flight. ``multiply_seconds`` to ``passes``
    are for each k on the busiest SM, ``barriers`` and ``stages`` for each step; all others as in :class:`Demand`, but
    ``l1`` for each SM at work. The last block has ``last_vectors`` sums a thread and loads ``last_slices`` slices at a
    time; partial sums move ``moves`` times.
    """

    chunk: Any
    in_flight: float
    l1: float
    scatter: float
    barriers: float
    stages: float
    multiply_seconds: float
    multiplies: float
    reads: float
    loads: float
    widened: float
    copies: float
    cache_lines: float
    passes: float
    warps: float
    sums: float
    shifted: float
    mma: float
    direct: float
    code: float
    last_vectors: float
    last_slices: Any
    moves: float


def _tile(problem: Gemm, arch: Arch, config: Config, resident: int) -> _Tile:
    """Count the work of a tile of which ``resident`` blocks share an SM."""
    staged, bs, s, v = config["BK"] > 0, config["BS"], config["S"], config["V"]
    shared = arch.carveout(resident, config["SHARED_BYTES"]) or arch.shared_per_sm
    size = problem.dtype.itemsize
    mma = config["MMA"] == 1
    one_triangle = triangle(config)
    tm, tn = config["TM"], 0.0 if one_triangle else float(config["TN"])
    products = config["TM"] * (config["TM"] + 1) / 2 if one_triangle else config["TM"] * config["TN"]
    lanes = arch.peak(problem.dtype.accumulator.name) / (2 * arch.sms * arch.boost_hz)
    multiplies, seconds = s * products, s * products / lanes / arch.boost_hz
    threads = float(s)  # threads that load the same k
    if mma:
        warps = resident * bs // _LANES
        each = SCHEDULERS * s / (_LANES * warps)  # as if all schedulers had the busiest one's work
        diagonal, halves = on_diagonal(config, FRAGMENTS[size]), (False, True)
        slots_each = [_mma_slots(problem, config, diagonal=half) for half in halves]
        seconds_each = [_mma_seconds(problem, config, arch, diagonal=half) for half in halves]
        multiplies = each * _LANES * busiest(diagonal, warps, *slots_each)
        seconds = each * busiest(diagonal, warps, *seconds_each)
        products = sum(
            slots_each[half] for half in set(diagonal)
        )  # of the whole code: diagonal tiles have separate code
        threads /= _SHARING
        tn *= diagonal.count(False) / len(diagonal)  # columns of diagonal tiles are their rows

    copied, cache_lines, passes, reads, loads = 0.0, 0.0, 0.0, 0.0, 0.0
    if staged:
        copied = problem.m / config["E_WIDTH"] + (0 if config["GRAM"] else problem.n / config["F_WIDTH"])
        passes = (problem.m if problem.gram else problem.m + problem.n) * size / _CACHE_LINE
        for name, count in (("E", tm), ("F", tn)):
            read = Reads.of(config, name, problem)
            of_one = threads * count * read.per_element
            loads += of_one
            passes += of_one / _LANES * read.passes(config[f"{name}_PITCH"])
    else:
        reads = threads * (tm / config["E_WIDTH"] + tn / config["F_WIDTH"])
        cache_lines = _cache_lines(problem, config, "E", tm, config["DOWN"])
        cache_lines += _cache_lines(problem, config, "F", tn, config["ACROSS"])
    vectors, side_by_side = last_block(config, problem.dtype.accumulator.itemsize)
    ways = bs // side_by_side
    return _Tile(
        chunk=config["BK"] * k_groups(config) if staged else v * (bs // s),
        in_flight=config["STAGES"] - 1 if staged else config["U"],
        l1=arch.l1_bytes(shared) / _held(problem, config),
        scatter=_scatter(problem, config),
        barriers=1 / resident / k_groups(config) if staged else 0.0,
        stages=float(bs) if staged else 0.0,
        multiply_seconds=seconds,
        multiplies=multiplies,
        reads=reads,
        loads=loads,
        widened=threads * (tm + tn) if problem.dtype.wider is not None and not mma else 0.0,
        copies=copied,
        cache_lines=cache_lines,
        passes=passes,
        warps=resident * bs / _LANES,
        sums=outputs_of(config) * bs / _LANES,
        shifted=float(SHIFTED in {config["E_MODE"], config["F_MODE"]}),
        mma=float(mma),
        direct=float(not staged),
        code=_code(config, products),
        last_vectors=ceil_div(vectors, bs),
        last_slices=ways * at_once(ways, bs, config["BLOCKS_PER_SM"]),
        moves=2 if packed(config) else 3,
    )


def _mma_slots(problem: Gemm, config: Config, *, diagonal: bool) -> float:
    """Return the issue slots of a thread per k for products, sums and splitting; a warp's fragments hold several k."""
    fragment = FRAGMENTS[problem.dtype.itemsize]
    chain = max(1, 4 * config["V"] // fragment.length)  # products per short sum, which is added to the long one
    merged = {name: problem.dtype.wider is not None and config[f"{name}_MODE"] != ALONG_K for name in "EF"}
    pairs = 2 * (config["TM"] * merged["E"] + (0 if diagonal else config["TN"] * merged["F"]))
    return (mma_slots(config, fragment, diagonal=diagonal, chain=chain) + pairs) / fragment.length


def _mma_seconds(problem: Gemm, config: Config, arch: Arch, *, diagonal: bool) -> float:
    """Return the seconds of the GPU's tensor cores per k at the data sheet's rate, for one warp of every SM."""
    name = "tf32" if problem.dtype.name == "float32" else problem.dtype.name
    fragment = FRAGMENTS[problem.dtype.itemsize]
    return 2 * fragment.parts * MMA_OUTPUTS * mma_tiles(config, diagonal=diagonal) * arch.sms / arch.matrix_flops[name]


def _code(config: Config, products: float) -> float:
    """Return the number of FMAs (or other ``products``) in the code of the loops, which ``simt.cuh`` unrolls."""
    piece = config["V"] * products
    if not config["BK"]:
        return (2 * config["U"] - 1) * piece + (products if config["V"] > 1 else 0)
    if config["MMA"]:
        return config["BK"] * k_groups(config) / groups(config) * products
    pieces = config["BK"] * config["S"] // (config["V"] * config["BS"])
    most = max(1, 1024 // (config["V"] * config["TM"] * config["TN"]))
    return (min(1 << (pieces.bit_length() - 1), 1 << (most.bit_length() - 1)) + 1) * piece


def _scatter(problem: Gemm, config: Config) -> float:
    """Return a cache line's share of the runs that are read at a time, times the share of rows with contiguous k."""
    extents = {"E": problem.m, "F": 0 if problem.gram else problem.n}
    along = sum(count for name, count in extents.items() if k_contiguous(config, name))
    return along / sum(extents.values()) * _CACHE_LINE / _run(problem, config)


def _held(problem: Gemm, config: Config) -> float:
    """Return the L1 cache lines of bytes in flight, relative to full ones: runs share their first and last line."""
    run, total, held = _run(problem, config), 0, 0.0
    for name, count, pitch in (
        ("E", problem.m, problem.a_row_col[0]),
        ("F", 0 if problem.gram else problem.n, problem.b_row_col[1]),
    ):
        # Every run starts a multiple of this after the start of a cache line.
        grid = gcd(pitch * problem.dtype.itemsize if count > 1 else run, run, _CACHE_LINE)
        total += count
        held += count * (1 + (_CACHE_LINE - grid) / run if k_contiguous(config, name) else 1)
    return held / total


def _run(problem: Gemm, config: Config) -> int:
    """Return the bytes of a contiguous run along k that are read at a time."""
    pieces = _LANES // min(config["S"], _LANES)
    return (config["BK"] or pieces * config["V"]) * problem.dtype.itemsize


def _cache_lines(problem: Gemm, config: Config, name: str, count: float, takers: int) -> float:
    """Return the L1 cache lines per k that direct loads of one matrix touch, for the S threads of a k.

    They are counted for 16-byte loads; narrower loads count in proportion to their width.
    """
    size, s, v = problem.dtype.itemsize, config["S"], config["V"]
    width, mode = config[f"{name}_WIDTH"], config[f"{name}_MODE"]
    sharing = min(s, _LANES)
    pieces = _LANES // sharing  # parts of a warp's request, each with V k's
    apart = min(takers, sharing)  # lanes of a part that read different addresses
    if mode == ALONG_K:  # one run per row or column
        touched = apart * max(1.0, pieces * v * size / _CACHE_LINE)
    else:
        whole = problem.m if name == "E" else problem.n
        spanned = pieces * v * whole * size / _CACHE_LINE
        touched = min(float(pieces * max(1.0, apart * width * size / _CACHE_LINE)), max(1.0, spanned))
    requests = count / width * s / sharing  # requests of warps, per k of one part
    return requests * touched / pieces * width * size / VECTOR_BYTES
