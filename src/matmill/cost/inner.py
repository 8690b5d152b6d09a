"""How long a product takes on the inner kernel of ``include/matmill/inner/simt.cuh``.

While the kernel runs, four things happen at once, and the slowest decides: bytes arrive from memory, as fast as the
bytes in flight over the latency allow (Little's law) and no faster than memory reads at best, with a smooth passage
between the two; instructions are issued; multiply-adds are done, those on padding included; shared memory, or L1, hands
operands to threads. Blocks take portions of k in turns, so the busiest multiprocessor decides, and the last portion is
short. Launching, the first loads' latency, the code that comes from memory, the last stage of lines that begin
anywhere, the block's own sum and, with more than one block, the last one's work or the second launch come on top.

What a product demands with a configuration (:class:`Demand`) is counted; what that costs is a matter of
:class:`Constants`. The defaults were fitted by ``benchmarks/fit_model.py`` to times that ``benchmarks/inner_search.py``
measured on an H200: 152 products, of which 53 can go to matrix units, in the files ``inner_search_h200_fit.jsonl`` and
``..._units_fit.jsonl`` of ``benchmarks/results``. They are what fits together, not what each would be measured alone:
those that hardly matter beside others lie anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from matmill.arch import Arch
from matmill.config import Config
from matmill.cost.inner_passes import (
    ALONG_K,
    FRAGMENTS,
    SCHEDULERS,
    SHIFTED,
    UNIT_OUTPUTS,
    VECTOR_BYTES,
    Reads,
    at_once,
    busiest,
    groups,
    last_block,
    lies_along_k,
    on_diagonal,
    outputs_of,
    packed,
    teams,
    triangle,
    unit_slots,
    units_of,
)
from matmill.kernel import ceil_div
from matmill.problem import Gemm

_LANES, _SECTOR_LINE = 32, 128
#: Lanes that share a line's k's where a warp loads fragments.
_SHARING = 4
#: How steeply memory slows down where too much is in flight.
_CROWDING = 4
#: Seconds that are none: where k is 0, nothing takes longer.
_INSTANT = 1e-15
#: Warps of a multiprocessor that hide little of each other's waiting.
_FEW_WARPS = 8
#: Threads that share the partial sums of an output in the second launch, and how many each has under way at once.
_WAYS, _UNROLLED = 16, 16


@dataclass(frozen=True)
class Constants:
    """What the model does not derive. Times in seconds; slots are instructions of one thread."""

    #: Share of the data sheet's bandwidth that reading would come to with any number of bytes in flight.
    read_share: float = 1.01
    #: From a request under load to its data. Bandwidth times latency is 19 KB in flight on each of an H200's SMs, with
    #: which 71% of the bandwidth is reached; 95% take three times as much.
    latency: float = 5.14e-07
    #: Bytes in flight on each multiprocessor with which memory takes twice as long: up to 80 KB they do no harm, with
    #: 130 KB it takes 8% to 20% longer, as measured on an H200.
    crowded: float = 249000.0
    #: Share of bytes moved in vain where rows are read in runs of a line of 128 bytes; less where they are longer.
    scatter: float = 0.0217
    #: From launch to the first instruction and from the last to the end of the kernel.
    launch: float = 3.49e-06
    #: What a second launch right behind the first adds, without its own work.
    second: float = 2.42e-06
    #: Of the last stage where lines begin anywhere: what is short of a vector goes word by word.
    last_shifted: float = 1.04e-06
    #: Cycles per instruction of the loops, which come from memory once.
    code_cycles: float = 2.57
    #: Of each step of the second launch, in which a thread adds up to 16 partial sums: L2's latency.
    second_step: float = 5.78e-07
    #: Of the block that adds the sums of all others: until it knows that it is the last, and its own sum; of each step,
    #: in which a thread has as many loads under way as it can; and bytes of partial sums, written and read, per cycle.
    last: float = 1.21e-06
    last_step: float = 6e-07
    last_bytes: float = 144.0
    #: Share of the data sheet's multiply-adds that are reached.
    fma_share: float = 0.68
    #: Slots per copy and per load straight from memory, with what else they cost; per load from a stage; per element of
    #: 16 bits that is widened. In machine code (``benchmarks/inner_sass.py``) they are 2.5, 3, 1.1, 1.1 instructions.
    copy_slots: float = 11.5
    read_slots: float = 11.2
    load_slots: float = 1.68
    widen_slots: float = 0.878
    #: Slots of a thread for each stage: whether there is another, and where it lies.
    stage_slots: float = 24.0
    #: Cycles of a stage in which a block's warps wait for each other; other blocks fill them.
    barrier_cycles: float = 91.9
    #: Cycles per 128-byte line that a load straight from memory touches in L1.
    line_cycles: float = 1.26
    #: Cycles per pass through shared memory: more than one, where lanes want different words of a bank all the same.
    shared_cycles: float = 1.06
    #: Cycles per output and thread of the sum over a block.
    sum_cycles: float = 0.0602
    #: Warps per multiprocessor that would fill half of its issue slots.
    warps_half: float = 0.877
    #: The four times overlap in part: the p-norm of them with this p.
    overlap: float = 3.78
    #: Of memory's and issue's times the part that comes on top where threads load for themselves and wait for it, both
    #: are equal, and eight warps share a multiprocessor; more fill it, and it falls with the square of the shorter one.
    direct_wait: float = 0.25
    #: Bytes per cycle of each multiprocessor to and from L2 for partial sums.
    l2_bytes: float = 11.0
    #: On the matrix units, in place of the above: the share of the data sheet's rate, of which mma.sync reaches two
    #: thirds at best, and that of float64's; slots of a copy and of a load from a stage; and a barrier's cycles.
    unit_share: float = 0.65
    double_share: float = 0.904
    unit_copy_slots: float = 7.93
    unit_load_slots: float = 3.04
    unit_barrier_cycles: float = 151.0
    #: The p of their overlap: what is copied meanwhile waits for nothing that is multiplied.
    unit_overlap: float = 5.7
    #: Of the multiplying of a block's last stage, the part that nothing else overlaps.
    unit_last: float = 0.839


DEFAULT = Constants()


@dataclass(frozen=True)
class Demand:
    """What a product demands of a GPU with a configuration, whatever that costs.

    ``bytes``, ``flight`` (bytes under way at a time), ``l1`` (bytes of L1 cache beside the shared memory of the blocks)
    and the seconds that multiply-adds take at the data sheet's rate (``multiply_seconds``) are of the whole GPU;
    instructions and ``stages``, per thread added up, ``lines`` of 128 bytes touched in L1 and ``passes`` through shared
    memory are of the busiest multiprocessor. ``reads`` are loads straight from memory, ``loads`` those from stages.
    ``sums`` are outputs per thread times warps of a block. ``parted`` is 1 where there is a second launch, of so many
    ``steps``, ``counted`` where the last block adds all sums, in so many ``turns``, ``shifted`` where lines begin
    anywhere, else 0. ``direct`` is 1 where threads load straight into registers, ``units`` where matrix units multiply,
    ``doubles`` where numbers are float64; ``last`` is one over the stages of a block. ``code`` are the multiply-adds in
    the machine code of the loops.
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
    lines: float
    passes: float
    sums: float
    parted: float
    counted: float
    shifted: float
    units: float
    doubles: float
    last: float
    direct: float
    code: float
    partial_bytes: float
    steps: float
    turns: float
    read_bytes_per_s: float
    hz: float
    sms: float


@dataclass(frozen=True)
class Prediction:
    """Where the time of a product goes: seconds of memory, issue, arithmetic, operands and what comes on top."""

    seconds: float
    memory: float
    issue: float
    arithmetic: float
    operands: float
    overhead: float

    @property
    def bound(self) -> str:
        """The slowest of the four, or ``overhead`` where that takes longer than any of them."""
        times = {name: getattr(self, name) for name in ("memory", "issue", "arithmetic", "operands", "overhead")}
        return max(times, key=times.__getitem__)


def predict(problem: Gemm, config: Config, arch: Arch, constants: Constants = DEFAULT) -> float:
    """Seconds that ``problem`` takes with ``config`` on ``arch``."""
    return times(demand(problem, config, arch), constants).seconds


def explain(problem: Gemm, config: Config, arch: Arch, constants: Constants = DEFAULT) -> Prediction:
    """The terms behind :func:`predict`."""
    return times(demand(problem, config, arch), constants)


def times(asked: Demand, constants: Constants) -> Prediction:
    """What ``asked`` costs. The fields of ``asked`` may also be arrays of one shape; those of the result then are."""
    c = constants

    def either(plain: float, units: float) -> float:
        return plain + asked.units * (units - plain)

    most = c.read_share * asked.read_bytes_per_s
    # Copies pass through L1, also those to shared memory: no more than it holds is in flight.
    waiting = (1 / asked.flight**4 + 1 / asked.l1**4) ** 0.5 * (most * c.latency) ** 2
    memory = asked.bytes / most * (1 + waiting) ** 0.5
    memory *= 1 + (asked.flight / (asked.sms * c.crowded)) ** _CROWDING
    memory *= 1 + c.scatter * asked.scatter

    unit_share = c.unit_share + asked.doubles * (c.double_share - c.unit_share)
    arithmetic = asked.multiply_seconds / either(c.fma_share, unit_share)

    # While the matrix units take in what they multiply, for several cycles, their scheduler issues nothing else. Those
    # of float64 multiply longer than that, so that other instructions come between.
    held = asked.units * (1 - asked.doubles) * arithmetic
    arithmetic = arithmetic - held
    slots = asked.multiplies + c.read_slots * asked.reads + either(c.load_slots, c.unit_load_slots) * asked.loads
    slots += c.widen_slots * asked.widened + either(c.copy_slots, c.unit_copy_slots) * asked.copies
    slots += c.stage_slots * asked.stages
    filled = asked.warps / (asked.warps + c.warps_half)
    barriers = either(c.barrier_cycles, c.unit_barrier_cycles) * asked.barriers
    issue = (slots / (4 * _LANES * filled) + barriers) / asked.hz + held
    operands = c.line_cycles * asked.lines + c.shared_cycles * asked.passes
    operands /= asked.hz

    p = either(c.overlap, c.unit_overlap)
    together = (memory**p + arithmetic**p + issue**p + operands**p) ** (1 / p)
    shorter, longer = (memory + issue - abs(memory - issue)) / 2, (memory + issue + abs(memory - issue)) / 2
    together += asked.direct * c.direct_wait * shorter**2 / (longer + _INSTANT) * _FEW_WARPS / asked.warps
    together += asked.units * c.unit_last * asked.last * (arithmetic + issue)
    overhead = c.launch + c.latency + c.sum_cycles * asked.sums / asked.hz
    overhead += c.last_shifted * asked.shifted + c.code_cycles * asked.code / asked.hz
    traffic = asked.partial_bytes / (c.l2_bytes * asked.sms * asked.hz)
    overhead += asked.parted * (c.second + c.second_step * asked.steps + traffic)
    overhead += asked.counted * (c.last + c.last_step * asked.turns + asked.partial_bytes / (c.last_bytes * asked.hz))
    return Prediction(together + overhead, memory, issue, arithmetic, operands, overhead)


def demand(problem: Gemm, config: Config, arch: Arch) -> Demand:
    """What ``problem`` demands of ``arch`` with ``config``."""
    staged, bs, s, v, gs = config["BK"] > 0, config["BS"], config["S"], config["V"], config["GS"]
    portion = config["BK"] * teams(config) if staged else v * (bs // s)
    blocks = gs * problem.batch
    slots = arch.sms * config["BLOCKS_PER_SM"]
    portions = ceil_div(ceil_div(problem.k, portion), gs) * ceil_div(blocks, slots)
    resident = min(config["BLOCKS_PER_SM"], ceil_div(blocks, arch.sms))
    busy = min(arch.sms, blocks)
    shared = arch.carveout(resident, config["SHARED_BYTES"]) or arch.shared_per_sm
    terms = portions * portion * resident  # of k, that the busiest multiprocessor works through

    size = problem.dtype.itemsize
    row_bytes = (problem.m if problem.gram else problem.m + problem.n) * size
    under_way = min(portions, config["STAGES"] - 1 if staged else config["U"])
    units = config["UNITS"] == 1
    alone = triangle(config)
    tm, tn = config["TM"], 0.0 if alone else float(config["TN"])
    products = config["TM"] * (config["TM"] + 1) / 2 if alone else config["TM"] * config["TN"]
    lanes = arch.peak(problem.dtype.name) / (2 * arch.sms * arch.boost_hz)
    multiplies, seconds = terms * s * products, terms * s * products / lanes / arch.boost_hz
    threads = float(s)  # that load the same k
    if units:
        warps = resident * bs // _LANES
        each = terms * SCHEDULERS * s / (_LANES * warps)  # as if all schedulers had what the busiest one has
        diagonal, halves = on_diagonal(config, FRAGMENTS[size]), (False, True)
        slots_each = [_unit_slots(problem, config, diagonal=half) for half in halves]
        seconds_each = [_unit_seconds(problem, config, arch, diagonal=half) for half in halves]
        multiplies = each * _LANES * busiest(diagonal, warps, *slots_each)
        seconds = each * busiest(diagonal, warps, *seconds_each)
        products = sum(slots_each[half] for half in set(diagonal))  # of all the code there is: halves have their own
        threads /= _SHARING
        tn *= diagonal.count(False) / len(diagonal)  # the others' columns are their rows

    copied, lines, passes, reads, loads = 0.0, 0.0, 0.0, 0.0, 0.0
    if staged:
        copied = problem.m / config["E_WIDTH"] + (0 if config["GRAM"] else problem.n / config["F_WIDTH"])
        passes = row_bytes / _SECTOR_LINE
        for name, count in (("E", tm), ("F", tn)):
            read = Reads.of(config, name, problem)
            each = threads * count * read.per_element
            loads += each
            passes += each / _LANES * read.passes(config[f"{name}_PITCH"])
    else:
        reads = threads * (tm / config["E_WIDTH"] + tn / config["F_WIDTH"])
        lines = _lines(problem, config, "E", tm, config["DOWN"]) + _lines(problem, config, "F", tn, config["ACROSS"])

    counted = config["LAST"] == 1
    parted = gs > 1 and not counted
    sum_bytes = gs * problem.batch * problem.m * problem.n * problem.dtype.accumulator.itemsize
    return Demand(
        bytes=float(terms * busy * row_bytes),
        flight=float(under_way * portion * row_bytes * resident * busy),
        l1=arch.l1_bytes(shared) * busy / _held(problem, config),
        scatter=_scatter(problem, config),
        barriers=portions / resident / teams(config) if staged else 0.0,
        stages=float(portions * bs * resident) if staged else 0.0,
        multiply_seconds=seconds,
        multiplies=multiplies,
        reads=terms * reads,
        loads=terms * loads,
        widened=float(terms * threads * (tm + tn)) if problem.dtype.wider is not None and not units else 0.0,
        copies=terms * copied,
        warps=resident * bs / _LANES,
        lines=terms * lines,
        passes=terms * passes,
        sums=outputs_of(config) * bs / _LANES,
        parted=float(parted),
        counted=float(counted),
        units=float(config["UNITS"]),
        doubles=float(problem.dtype.name == "float64"),
        last=1 / max(1, ceil_div(ceil_div(problem.k, portion), gs)),
        direct=float(not staged),
        code=_code(config, products),
        shifted=float(SHIFTED in {config["E_MODE"], config["F_MODE"]}),
        partial_bytes=float((2 if packed(config) else 3) * sum_bytes) if gs > 1 else 0.0,
        steps=float(ceil_div(gs, _WAYS * _UNROLLED)),
        turns=float(_turns(problem, config)),
        read_bytes_per_s=arch.dram_bytes_per_s,
        hz=arch.boost_hz,
        sms=float(arch.sms),
    )


def _unit_slots(problem: Gemm, config: Config, *, diagonal: bool) -> float:
    """Issue slots of a thread per k, of which a warp's fragments hold several: products, sums and splitting."""
    made = FRAGMENTS[problem.dtype.itemsize]
    chain = max(1, 4 * config["V"] // made.length)  # of products whose sum is added to the long one
    merged = {name: problem.dtype.wider is not None and config[f"{name}_MODE"] != ALONG_K for name in "EF"}
    pairs = 2 * (config["TM"] * merged["E"] + (0 if diagonal else config["TN"] * merged["F"]))
    return (unit_slots(config, made, diagonal=diagonal, chain=chain) + pairs) / made.length


def _unit_seconds(problem: Gemm, config: Config, arch: Arch, *, diagonal: bool) -> float:
    """Of the GPU's matrix units per k at the data sheet's rate, on behalf of one warp of every multiprocessor."""
    name = "tf32" if problem.dtype.name == "float32" else problem.dtype.name
    made = FRAGMENTS[problem.dtype.itemsize]
    return 2 * made.parts * UNIT_OUTPUTS * units_of(config, diagonal=diagonal) * arch.sms / arch.matrix_flops[name]


def _code(config: Config, products: float) -> float:
    """Multiply-adds in the machine code of the loops, unrolled as ``simt.cuh`` says; or whatever is ``products``."""
    piece = config["V"] * products
    if not config["BK"]:
        return (2 * config["U"] - 1) * piece + (products if config["V"] > 1 else 0)
    if config["UNITS"]:
        return config["BK"] * teams(config) / groups(config) * products
    pieces = config["BK"] * config["S"] // (config["V"] * config["BS"])
    most = max(1, 1024 // (config["V"] * config["TM"] * config["TN"]))
    return (min(1 << (pieces.bit_length() - 1), 1 << (most.bit_length() - 1)) + 1) * piece


def _turns(problem: Gemm, config: Config) -> int:
    """Of the last block: loads of a thread that wait for each other, as ``last_block.cuh`` has them."""
    bs = config["BS"]
    places, lanes = last_block(config, problem.dtype.accumulator.itemsize)
    ways = bs // lanes
    return ceil_div(places, bs) * ceil_div(config["GS"], ways * at_once(ways, bs, config["BLOCKS_PER_SM"]))


def _scatter(problem: Gemm, config: Config) -> float:
    """Lines of 128 bytes over the runs that are read at a time of matrices whose lines lie along k, by their share."""
    lines = {"E": problem.m, "F": 0 if problem.gram else problem.n}
    along = sum(count for name, count in lines.items() if lies_along_k(config, name))
    return along / sum(lines.values()) * _SECTOR_LINE / _run(problem, config)


def _held(problem: Gemm, config: Config) -> float:
    """Lines of L1 that bytes under way take, over those that they would fill: runs begin and end within a line."""
    run, lines, held = _run(problem, config), 0, 0.0
    for name, count, pitch in (
        ("E", problem.m, problem.a_row_col[0]),
        ("F", 0 if problem.gram else problem.n, problem.b_row_col[1]),
    ):
        # What every run's distance from the start of a line is a multiple of.
        grid = gcd(pitch * problem.dtype.itemsize if count > 1 else run, run, _SECTOR_LINE)
        lines += count
        held += count * (1 + (_SECTOR_LINE - grid) / run if lies_along_k(config, name) else 1)
    return held / lines


def _run(problem: Gemm, config: Config) -> int:
    """Bytes that are read at a time of a line along k."""
    pieces = _LANES // min(config["S"], _LANES)
    return (config["BK"] or pieces * config["V"]) * problem.dtype.itemsize


def _lines(problem: Gemm, config: Config, name: str, count: float, takers: int) -> float:
    """128-byte lines of L1 that loads of one matrix touch per k, straight into the registers of S threads per k.

    Lines that 16-byte loads touch; of narrower loads all lanes' together count as much less as they are narrower.
    """
    size, s, v = problem.dtype.itemsize, config["S"], config["V"]
    width, mode = config[f"{name}_WIDTH"], config[f"{name}_MODE"]
    sharing = min(s, _LANES)
    pieces = _LANES // sharing  # of a warp's request, each of V k's
    apart = min(takers, sharing)  # lanes of a piece that read different places
    if mode == ALONG_K:  # a run per line
        touched = apart * max(1.0, pieces * v * size / _SECTOR_LINE)
    else:
        whole = problem.m if name == "E" else problem.n
        spanned = pieces * v * whole * size / _SECTOR_LINE
        touched = min(float(pieces * max(1.0, apart * width * size / _SECTOR_LINE)), max(1.0, spanned))
    requests = count / width * s / sharing  # of warps, per k of one piece
    return requests * touched / pieces * width * size / VECTOR_BYTES
