"""How long a product takes on the tensor-core pipeline of ``include/matmill/gemm/mma.cuh``.

The time of a launch is a constant plus two that overlap, of which the larger decides: the bytes that must move over the
bandwidth that reading reaches, and the tiles that the busiest multiprocessor works through. What a k-tile of a block
costs is about the largest of what six parts take that go on at the same time (:class:`Pace`): matrix units multiply,
shared memory takes what is copied and hands out fragments, L2 delivers tiles, load units look up lines, schedulers
issue; and the latency of the copies under way passes. Filling the pipeline and storing D come on top, and so do the
launch that packs matrices first, where there is one, and the one that adds the parts of k, where it is split.

What a product demands with a configuration (:class:`Demand`) is counted; what that costs is a matter of
:class:`Constants`, which ``benchmarks/fit_model.py`` fitted to times that ``benchmarks/gemm_tiles.py`` measured on an
H200: to the fit half, 66 products, of ``benchmarks/results/hgemm_tiles_h200.json``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import ceil_div
from matmill.problem import Gemm
from matmill.tiling.mma import ELEMENT_BYTES, Packing, packing, padded
from matmill.tiling.simt import tiles

_LANES, _LINE, _SECTOR, _SCHEDULERS, _STEP, _VECTOR = 32, 128, 32, 4, 16, 8
#: Parts of k that the threads of the last launch add in one step.
_STEP_PARTS = 64
#: Multiply-adds of a multiprocessor's matrix units per clock where the arch does not know: of the data sheets' GPUs
#: since Ampere the least (GeForce RTX 4090, with float32 sums).
LEAST_FMAS = 256.0
#: Share of their rate that a T4's power allows: 49.4 of 65 TFLOP/s (S2, of which ``analysis/roofline.py`` has the figures).
TURING_SHARE = 0.76


@dataclass(frozen=True)
class Constants:
    """What the model does not derive. Times in seconds; slots are instructions of one thread.

    All are fitted, together: each also takes up what the model leaves out and goes along with it.
    """

    #: From launch to the first instruction and from the last to the end of the kernel.
    launch: float = 4.28e-06
    #: What a launch right before or behind adds, without its own work.
    second: float = 4.72e-06
    #: Of each step of the last launch, in which its threads add 64 parts of k.
    second_step: float = 1.29e-06
    #: Share of the data sheet's bandwidth that a product's reading reaches.
    read_share: float = 0.604
    #: The same of packing, reading and writing added up.
    copy_share: float = 0.775
    #: Share of Hopper's multiply-adds at the boost clock that mma.sync reaches, at the clock that power leaves it. Luo
    #: et al. measured 62%; the rest takes wgmma ("Benchmarking and Dissecting the Nvidia Hopper GPU
    #: Architecture via Microbenchmarking", 2024).
    mma_share: float = 0.539
    #: Bytes that L2 delivers to each multiprocessor per clock.
    l2_bytes: float = 47.9
    #: Cycles per 128-byte line that a load looks up: the least that the fit allows, so lookups hardly show.
    line_cycles: float = 0.25
    #: Cycles that the STAGES - 1 copies under way take together, from issue to the barrier that publishes them.
    latency_cycles: float = 2060.0
    #: Cycles per k-tile and block that nothing of the same block hides: the barrier and the loop.
    barrier_cycles: float = 8.76
    #: Cycles of a block outside its main loop besides storing D: the first copies' latency, and the block's launch.
    fill_cycles: float = 1060.0
    #: Slots per copy, its bounds check and pointer with it; per element that goes through registers, waiting for it
    #: included; and per warp and k-tile for addresses and the loop.
    copy_slots: float = 4.07
    element_slots: float = 67.0
    tile_slots: float = 35.4
    #: Slots per output that is stored by itself, per 8 that are stored at once, and per sum of a part of k.
    store_slots: float = 58.6
    piece_slots: float = 256.0
    keep_slots: float = 60.0
    #: The parts of a k-tile overlap in part: the p-norm of their cycles with this p.
    pace_overlap: float = 4.85
    #: So do memory and multiprocessors.
    overlap: float = 10.9


DEFAULT = Constants()


@dataclass(frozen=True)
class Demand:
    """What a product demands of a GPU with a configuration, whatever that costs.

    Of one k-tile of a block: cycles of the matrix units at their full rate (``multiply``, or ``beside_wgmma`` where it
    takes other instructions to reach that) and of shared memory (``shared``), bytes asked of L2, lines looked up, and
    what is issued: ``matrix`` instructions, ``copies``, ``elements`` that go through registers, for so many ``warps``.
    ``ahead`` copies are under way on a multiprocessor at a time.

    Of the busiest multiprocessor: ``tiles`` of k, ``rounds`` of ``resident`` blocks, outputs ``stored`` one by one, in
    ``pieces`` of 8 and ``kept`` as sums of parts, ``stored_bytes``.

    Of the whole GPU: ``bytes`` that move at the least; those that packing reads and writes and the lines that it looks
    up; those of the partial sums. ``padded`` and ``parted`` are 1 where there is a launch before or behind, else 0, and
    ``steps`` are those of the last.
    """

    multiply: float
    beside_wgmma: float
    shared: float
    l2_bytes: float
    lines: float
    matrix: float
    copies: float
    elements: float
    warps: float
    ahead: float
    tiles: float
    rounds: float
    resident: float
    stored: float
    pieces: float
    kept: float
    stored_bytes: float
    bytes: float
    padded: float
    packed_bytes: float
    packed_lines: float
    parted: float
    partial_bytes: float
    steps: float
    bytes_per_s: float
    hz: float
    sms: float


@dataclass(frozen=True)
class Pace:
    """Cycles that a multiprocessor takes for one k-tile of a block, by each of what it does meanwhile."""

    multiply: float
    shared: float
    l2: float
    lines: float
    issue: float
    latency: float

    @property
    def bound(self) -> str:
        """The slowest."""
        names = ("multiply", "shared", "l2", "lines", "issue", "latency")
        return max(names, key=lambda name: float(getattr(self, name)))

    def cycles(self, overlap: float) -> float:
        """What all take together: the p-norm of theirs."""
        parts = (self.multiply, self.shared, self.l2, self.lines, self.issue, self.latency)
        total: float = sum(part**overlap for part in parts) ** (1 / overlap)
        return total


@dataclass(frozen=True)
class Prediction:
    """Where the time of a product goes, in seconds.

    ``pad`` is that of the launch that packs matrices, ``second`` of the one that adds parts of k.
    """

    seconds: float
    compute: float
    memory: float
    pad: float
    second: float
    pace: Pace

    @property
    def bound(self) -> str:
        """``memory``, ``pad``, ``second``, or what sets the pace of a k-tile."""
        times = {self.pace.bound: self.compute, "memory": self.memory, "pad": self.pad, "second": self.second}
        return max(times, key=times.__getitem__)


def predict(problem: Gemm, config: Config, arch: Arch) -> float:
    """Seconds that ``problem`` takes with ``config`` on ``arch``.

    >>> from matmill.arch import get
    >>> from matmill.dtypes import F16
    >>> from matmill.tiling.mma import space
    >>> problem, h200 = Gemm(8192, 8192, 8192, F16), get("h200")
    >>> found = {(c["BM"], c["BN"]): predict(problem, c.launched(GS=1), h200) for c in space(problem, h200)}
    >>> min(found, key=found.get)
    (128, 256)
    """
    return explain(problem, config, arch).seconds


def explain(problem: Gemm, config: Config, arch: Arch, constants: Constants = DEFAULT) -> Prediction:
    """The terms behind :func:`predict`."""
    return times(demand(problem, config, arch), constants)


def times(asked: Demand, constants: Constants) -> Prediction:
    """What ``asked`` costs. The fields of ``asked`` may also be arrays of one shape; those of the result then are."""
    c, p = constants, constants.overlap
    per_cycle = _LANES * _SCHEDULERS  # threads' instructions, where those of a warp are not counted already
    slots = asked.matrix + c.tile_slots * asked.warps
    slots += (c.copy_slots * asked.copies + c.element_slots * asked.elements) / _LANES
    pace = Pace(
        multiply=asked.multiply + asked.beside_wgmma / c.mma_share,
        shared=asked.shared,
        l2=asked.l2_bytes / c.l2_bytes,
        lines=c.line_cycles * asked.lines,
        issue=slots / _SCHEDULERS,
        latency=c.latency_cycles / asked.ahead,
    )
    inside = asked.tiles * (pace.cycles(c.pace_overlap) + c.barrier_cycles / asked.resident)
    issued = (c.store_slots * asked.stored + c.piece_slots * asked.pieces + c.keep_slots * asked.kept) / per_cycle
    written = asked.stored_bytes / c.l2_bytes
    stores = (issued**p + written**p) ** (1 / p)
    compute = (inside + asked.rounds * c.fill_cycles + stores) / asked.hz
    memory = asked.bytes / (c.read_share * asked.bytes_per_s)

    moved = asked.packed_bytes / (c.copy_share * asked.bytes_per_s)
    looked = c.line_cycles * asked.packed_lines / (asked.sms * asked.hz)
    pad = asked.padded * c.second + (moved**p + looked**p) ** (1 / p)
    traffic = asked.partial_bytes / (c.l2_bytes * asked.sms * asked.hz)
    second = asked.parted * (c.second + c.second_step * asked.steps + traffic)
    together = (compute**p + memory**p) ** (1 / p)
    return Prediction(c.launch + together + pad + second, compute, memory, pad, second, pace)


def demand(problem: Gemm, config: Config, arch: Arch) -> Demand:
    """What ``problem`` demands of ``arch`` with ``config``."""
    bm, bn, bk, parts = config["BM"], config["BN"], config["BK"], config["GS"]
    per_sm = ceil_div(tiles(problem, config) * problem.batch * parts, arch.sms)
    resident = max(1, min(per_sm, config["BLOCKS_PER_SM"]))

    warps = config["WARPS_M"] * config["WARPS_N"]
    fragments = warps * (bm / config["WARPS_M"] + bn / config["WARPS_N"]) * bk * ELEMENT_BYTES
    # 16 x 16 of A or B to an ldmatrix, 16 x 8 of D to an mma.
    reads, multiplies = fragments / (_STEP * _STEP * ELEMENT_BYTES), bk * bm * bn / (_STEP * _STEP * _VECTOR)
    shared_bytes = arch.shared_bytes_per_s / (arch.sms * arch.boost_hz)
    cycles, share = bm * bn * bk / _fmas(problem, arch), TURING_SHARE if arch.capability[0] == 7 else 1.0
    beside_wgmma = arch.capability[0] == 9 and problem.dtype.name in arch.matrix_flops

    wide = {name: bm if name == "A" else bn for name in "AB"}
    vectors = {name: wide[name] * bk / config[f"{name}_VEC"] for name in "AB"}
    held = [name for name in "AB" if config[f"{name}_VEC"] == 1]
    # Tiles that go through registers are asked for one at a time, however many stages there are.
    ahead = 1 if held or arch.capability < (8, 0) else config["STAGES"] - 1

    outputs, whole, pieces = per_sm * bm * bn, parts == 1, config["D_VEC"] > 1
    copies = [packing(problem, config, name) for name in _packed(problem, config)]
    return Demand(
        multiply=0.0 if beside_wgmma else cycles / share,
        beside_wgmma=cycles if beside_wgmma else 0.0,
        shared=(fragments + (bm + bn) * bk * ELEMENT_BYTES) / shared_bytes,
        l2_bytes=_asked(problem, config),
        lines=sum(_lines(problem, config, name, wide[name] * bk) for name in "AB"),
        matrix=reads + multiplies,
        copies=float(sum(vectors[name] for name in "AB" if name not in held)),
        elements=float(sum(vectors[name] for name in held)),
        warps=float(warps),
        ahead=float(ahead * resident),
        tiles=float(per_sm * ceil_div(ceil_div(problem.k, bk), parts)),
        rounds=float(ceil_div(per_sm, resident)),
        resident=float(resident),
        stored=float(outputs * (whole and not pieces)),
        pieces=outputs / _VECTOR * (whole and pieces),
        kept=float(outputs * (not whole)),
        stored_bytes=float(outputs * (ELEMENT_BYTES if whole else problem.dtype.accumulator.itemsize)),
        bytes=float(problem.least_bytes),
        padded=float(bool(copies)),
        packed_bytes=float(sum(_packed_bytes(one) for one in copies)),
        packed_lines=float(sum(_packed_lines(one) for one in copies)),
        parted=float(not whole),
        partial_bytes=float(
            0 if whole else parts * problem.batch * problem.m * problem.n * problem.dtype.accumulator.itemsize
        ),
        steps=float(ceil_div(parts, _STEP_PARTS)),
        bytes_per_s=arch.dram_bytes_per_s,
        hz=arch.boost_hz,
        sms=float(arch.sms),
    )


def _asked(problem: Gemm, config: Config) -> float:
    """Bytes of a k-tile that are asked of L2, on average: what lies outside the matrices is filled with zeros."""
    rows = problem.m / ceil_div(problem.m, config["BM"])
    columns = problem.n / ceil_div(problem.n, config["BN"])
    return (rows + columns) * config["BK"] * ELEMENT_BYTES


def _fmas(problem: Gemm, arch: Arch) -> float:
    """Multiply-adds of a multiprocessor's matrix units per clock, at their full rate.

    That is a power of two. Data sheets say it at a clock of their own: Hopper's at 1.83 GHz, not at the boost clock.
    """
    flops = arch.matrix_flops.get(problem.dtype.name)
    if flops is None:
        return LEAST_FMAS
    return float(2 ** round(log2(flops / (2 * arch.sms * arch.boost_hz))))


def _lines(problem: Gemm, config: Config, name: str, elements: int) -> float:
    """128-byte lines that the copies of one matrix's tile look up.

    A thread copies 16 bytes in parts of VEC elements. Each part of a warp's 512 bytes looks up their four lines anew;
    elements that do not touch lie in a line of their own each.
    """
    strides = problem.a_row_col if name == "A" else problem.b_row_col
    if name not in padded(config) and min(map(abs, strides)) > 1:
        return float(elements)
    return elements * ELEMENT_BYTES / _LINE * (_VECTOR / config[f"{name}_VEC"])


def _packed(problem: Gemm, config: Config) -> tuple[str, ...]:
    """The matrices that are packed: of a Gram matrix's two, one is the other's copy."""
    names = padded(config)
    return names[:1] if problem.gram and len(names) == 2 else names


def _packed_bytes(made: Packing) -> float:
    """What packing reads, in sectors where elements lie apart, and what it writes."""
    read = min(_SECTOR, ELEMENT_BYTES * max(1, abs(made.stride)))
    return float(made.count * made.lines * (made.length * read + made.pitch * ELEMENT_BYTES))


def _packed_lines(made: Packing) -> float:
    """128-byte lines that packing looks up: a load's elements lie eight of them apart from lane to lane."""
    apart = min(1.0, max(1, abs(made.stride)) * _VECTOR * ELEMENT_BYTES / _LINE)
    return made.count * made.lines * made.length * apart / made.width
