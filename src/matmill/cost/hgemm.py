"""How long a product takes on the tensor-core pipeline of ``include/matmill/tile/mma_gemm.cuh``.

The time of a launch is a constant plus two that overlap, of which the larger decides: the bytes that must move over the
bandwidth that reading reaches, and the tiles that the busiest multiprocessor works through. What a k-tile of a block
costs is the largest of what five parts do at the same time (:class:`Pace`): matrix units multiply, shared memory takes
what is copied and hands out fragments, L2 delivers tiles, load units look up lines, schedulers issue; or the latency of
the copies under way, where that is longer. Filling the pipeline and storing D come on top, and, where k is split over
blocks, the second launch that adds the parts.

**The constants have not been fitted to a GPU yet**: each says where it comes from. ``benchmarks/gemm_tiles.py``
measures what they can be fitted to.
"""

from __future__ import annotations

from dataclasses import dataclass

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import ceil_div
from matmill.mma_tiles import ELEMENT_BYTES
from matmill.problem import Gemm
from matmill.tiles import tiles

#: Seconds from launch to the first instruction and from the last to the end of the kernel: of the FMA pipeline's model.
LAUNCH = 3.57e-6
#: What a second launch right behind the first adds, and each step in which its threads add STEP_PARTS parts: of the
#: inner kernel's model.
SECOND, SECOND_STEP, STEP_PARTS = 1.5e-6, 0.3e-6, 64
#: Share of the data sheet's bandwidth that reading reaches: 4.35 of 4.8 TB/s, measured on an H200.
READ_SHARE = 0.906
#: Share of the data sheet's rate that mma.sync reaches, by major capability; elsewhere all of it. A T4's power allows
#: 49.4 of 65 TFLOP/s (S2, of which ``cost/roofline.py`` has the figures). Hopper's sheet is that of wgmma (Luo et al.,
#: "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", 2024).
MMA_SHARE = {7: 0.76, 9: 0.62}
#: Multiply-adds of a multiprocessor per clock where the arch does not know: of the data sheets' GPUs since Ampere the
#: least (GeForce RTX 4090, with float32 sums).
LEAST_FMAS = 256.0
#: Bytes that L2 delivers to each multiprocessor per clock: an estimate, as in the inner kernel's model.
L2_BYTES = 32.0
#: Cycles that the STAGES - 1 copies under way take together, from issue to the barrier that publishes them: fitted to
#: the FMA pipeline on an H200, whose copies are of the same kind.
LATENCY_CYCLES = 1460.0
#: Cycles per k-tile and block that nothing of the same block hides, the barrier and the loop: an estimate.
BARRIER_CYCLES = 60.0
#: Cycles of a block outside its main loop besides storing D: the first copies' latency, and the launch of the block.
FILL_CYCLES = 2000.0
#: Issue slots per copy (its bounds check and pointer with it), of the FMA pipeline's model; per element that goes
#: through registers, whose place in a word costs two more; and per warp and k-tile for addresses and the loop.
COPY_SLOTS, ELEMENT_SLOTS, TILE_SLOTS = 4.0, 6.0, 72.0
#: Issue slots per output that is stored element by element, and per 8 outputs that are stored at once: counted.
STORE_SLOTS, STORE_PIECE_SLOTS = 16.0, 40.0

#: Memory and multiprocessors overlap in part: the p-norm of their times with this p, as in the inner kernel's model.
OVERLAP = 4.0

_LINE, _SCHEDULERS, _STEP = 128, 4, 16


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

    @property
    def cycles(self) -> float:
        """What the slowest takes."""
        return float(getattr(self, self.bound))


@dataclass(frozen=True)
class Prediction:
    """Where the time of a product goes, in seconds: ``second`` is that of the launch that adds parts of k."""

    seconds: float
    compute: float
    memory: float
    second: float
    pace: Pace

    @property
    def bound(self) -> str:
        """``memory``, or what sets the pace of a k-tile."""
        return self.pace.bound if self.compute >= self.memory else "memory"


def predict(problem: Gemm, config: Config, arch: Arch) -> float:
    """Seconds that ``problem`` takes with ``config`` on ``arch``.

    >>> from matmill.arch import get
    >>> from matmill.dtypes import F16
    >>> from matmill.mma_tiles import space
    >>> problem, h200 = Gemm(8192, 8192, 8192, F16), get("h200")
    >>> found = {(c["BM"], c["BN"]): predict(problem, c.launched(GS=1), h200) for c in space(problem, h200)}
    >>> min(found, key=found.get)
    (128, 256)
    """
    return explain(problem, config, arch).seconds


def explain(problem: Gemm, config: Config, arch: Arch) -> Prediction:
    """The terms behind :func:`predict`."""
    parts = config["GS"]
    per_sm = ceil_div(tiles(problem, config) * problem.batch * parts, arch.sms)
    resident = max(1, min(per_sm, config["BLOCKS_PER_SM"]))
    steps = ceil_div(ceil_div(problem.k, config["BK"]), parts)
    made = pace(problem, config, arch, resident)
    inside = per_sm * steps * (made.cycles + BARRIER_CYCLES / resident)
    outside = ceil_div(per_sm, resident) * FILL_CYCLES + per_sm * _store(config, whole=parts == 1)
    compute = (inside + outside) / arch.boost_hz
    memory = problem.least_bytes / (READ_SHARE * arch.dram_bytes_per_s)
    second = _second(problem, parts, arch)
    together = (compute**OVERLAP + memory**OVERLAP) ** (1 / OVERLAP)
    return Prediction(LAUNCH + together + second, compute, memory, second, made)


def pace(problem: Gemm, config: Config, arch: Arch, resident: int) -> Pace:
    """What a k-tile of a block costs on a multiprocessor that holds ``resident`` of them."""
    bm, bn, bk = config["BM"], config["BN"], config["BK"]
    warps_m, warps_n = config["WARPS_M"], config["WARPS_N"]
    warps, copied = warps_m * warps_n, (bm + bn) * bk * ELEMENT_BYTES
    steps = bk / _STEP
    fragments = warps * (bm / warps_m + bn / warps_n) * bk * ELEMENT_BYTES
    # 16 x 16 of A or B to an ldmatrix, 16 x 8 of D to an mma.
    reads, multiplies = fragments / (_STEP * _STEP * ELEMENT_BYTES), steps * bm * bn / (_STEP * 8)
    copies = [_copies(problem, config, name) for name in ("A", "B")]
    # Tiles that go through registers are asked for one at a time, however many stages there are.
    ahead = 1 if any(held for _, _, held in copies) or arch.capability < (8, 0) else config["STAGES"] - 1
    slots = reads + multiplies + sum(slots for slots, _, _ in copies) / 32 + TILE_SLOTS * warps
    shared_bytes = arch.shared_bytes_per_s / (arch.sms * arch.boost_hz)
    return Pace(
        multiply=bm * bn * bk / _fmas(problem, arch),
        shared=(fragments + copied) / shared_bytes,
        l2=_asked(problem, config) / L2_BYTES,
        lines=sum(lines for _, lines, _ in copies),
        issue=slots / _SCHEDULERS,
        latency=LATENCY_CYCLES / ahead / resident,
    )


def _asked(problem: Gemm, config: Config) -> float:
    """Bytes of a k-tile that are asked of L2, on average: what lies outside the matrices is filled with zeros."""
    rows = problem.m / ceil_div(problem.m, config["BM"])
    columns = problem.n / ceil_div(problem.n, config["BN"])
    return (rows + columns) * config["BK"] * ELEMENT_BYTES


def _fmas(problem: Gemm, arch: Arch) -> float:
    """Multiply-adds of a multiprocessor's matrix units per clock."""
    flops = arch.matrix_flops.get(problem.dtype.name)
    if flops is None:
        return LEAST_FMAS
    return MMA_SHARE.get(arch.capability[0], 1.0) * flops / (2 * arch.sms * arch.boost_hz)


def _copies(problem: Gemm, config: Config, name: str) -> tuple[float, float, bool]:
    """For one matrix's tile: issue slots of its copies, 128-byte lines that they look up, whether it is held.

    A thread copies 16 bytes in parts of VEC elements. Each part of a warp's 512 bytes looks up their four lines anew;
    elements that do not touch lie in a line of their own each.
    """
    extent, strides = (config["BM"], problem.a_row_col) if name == "A" else (config["BN"], problem.b_row_col)
    elements, width = extent * config["BK"], config[f"{name}_VEC"]
    apart = min(map(abs, strides)) > 1
    lines = elements if apart else elements * ELEMENT_BYTES / _LINE * (8 / width)
    return elements / width * (ELEMENT_SLOTS if width == 1 else COPY_SLOTS), lines, width == 1


def _store(config: Config, *, whole: bool) -> float:
    """Cycles in which a block stores its tile of D, or the sums of its part of k: what is issued, and written."""
    outputs = config["BM"] * config["BN"]
    if not whole:
        return outputs * max(2.0 / 32 / _SCHEDULERS, 4 / L2_BYTES)
    slots = STORE_PIECE_SLOTS / 8 if config["D_VEC"] > 1 else STORE_SLOTS
    return outputs * max(slots / 32 / _SCHEDULERS, ELEMENT_BYTES / L2_BYTES)


def _second(problem: Gemm, parts: int, arch: Arch) -> float:
    """Seconds of the launch that adds the parts of k, through L2, and makes D."""
    if parts == 1:
        return 0.0
    moved = parts * problem.batch * problem.m * problem.n * problem.dtype.accumulator.itemsize
    return SECOND + SECOND_STEP * ceil_div(parts, STEP_PARTS) + moved / (L2_BYTES * arch.sms * arch.boost_hz)
