"""How long a product takes on the inner kernel of ``include/matmill/inner/product.cuh``.

While the kernel runs, four things happen at once, and the slowest decides: bytes arrive from memory, as fast as the
bytes in flight over the latency allow (Little's law) and no faster than memory reads at best, with a smooth passage
between the two; instructions are issued;
multiply-adds are done, those on padding included; shared memory, or L1, hands operands to threads. Blocks take portions
of k in turns, so the busiest multiprocessor decides, and the last portion is short. Launching, the first loads'
latency, the block's own sum and, with more than one block, the second launch come on top.

The constants below are first estimates and have not been fitted to a GPU yet; each says where it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import ceil_div
from matmill.problem import Gemm

#: Share of the data sheet's bandwidth that reading reaches: 4.35 of 4.8 TB/s, measured on an H200.
READ_SHARE = 0.906
#: Seconds from a request under load to its data. 23 KB in flight on each of an H200's SMs are then bandwidth times
#: latency, with which 71% of the bandwidth is reached; 95% take three times as much.
LATENCY = 0.7e-6
#: Seconds from launch to the first instruction and from the last to the end of the kernel: of the GEMM model.
LAUNCH = 3.57e-6
#: Seconds that a second launch right behind the first adds, without its own traffic.
SECOND = 1.5e-6
#: Issue slots per copy: instruction, bounds check, pointer. Of the GEMM model.
COPY_SLOTS = 4.0
#: Issue slots of a thread per portion of k besides loads and multiply-adds: loop, addresses, waiting.
PORTION_SLOTS = 20.0
#: The same where there is a barrier: the warps wait for each other as well.
STAGE_SLOTS = 60.0
#: Bytes per cycle that a multiprocessor's L1 or shared memory hands to registers (CUDA programming guide: 32 banks).
L1_BYTES = 128
#: Passes of an access to shared memory over the least, where lanes want the same words.
SHARED_PASSES = 2.0
#: Cycles per output and thread of the sum over a block.
SUM_CYCLES = 4.0
#: Warps per multiprocessor that would fill half of its issue slots. Of the GEMM model.
WARPS_HALF = 0.90
#: The four times overlap in part: the p-norm of them with this p.
OVERLAP = 4.0
#: Bytes per cycle of each multiprocessor to and from L2 for partial sums.
L2_BYTES = 32.0


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
        """The slowest of the four."""
        times = {name: getattr(self, name) for name in ("memory", "issue", "arithmetic", "operands")}
        return max(times, key=times.__getitem__)


def predict(problem: Gemm, config: Config, arch: Arch) -> float:
    """Seconds that ``problem`` takes with ``config`` on ``arch``."""
    return explain(problem, config, arch).seconds


def explain(problem: Gemm, config: Config, arch: Arch) -> Prediction:
    """The terms behind :func:`predict`."""
    portion = config["BK"] or config["V"] * config["BS"] // config["S"] * config["U"]
    blocks = config["GS"] * problem.batch
    slots = arch.sms * config["BLOCKS_PER_SM"]
    portions = ceil_div(ceil_div(problem.k, portion), config["GS"]) * ceil_div(blocks, slots)
    resident = min(config["BLOCKS_PER_SM"], ceil_div(blocks, arch.sms))
    busy = min(arch.sms, blocks)
    terms = portions * portion * resident  # of k, that the busiest multiprocessor works through

    size = problem.dtype.itemsize
    lines = problem.m if problem.gram else problem.m + problem.n
    flight = (config["STAGES"] - 1 if config["BK"] else 1) * portion * lines * size * resident
    most = READ_SHARE * arch.dram_bytes_per_s
    rate = most / sqrt(1 + (most * LATENCY / (busy * flight)) ** 2)
    memory = terms * busy * lines * size / rate

    per_cycle = arch.peak(problem.dtype.name) / (2 * arch.sms * arch.boost_hz)
    products, reads, copies = _instructions(problem, config)
    threads = config["S"]
    arithmetic = terms * threads * products / per_cycle / arch.boost_hz
    fixed = STAGE_SLOTS if config["BK"] else PORTION_SLOTS
    outside = fixed * config["BS"] / portion
    warps = resident * config["BS"] / 32
    filled = warps / (warps + WARPS_HALF)
    issue = terms * (threads * (products + reads) + copies * COPY_SLOTS + outside) / (128 * filled) / arch.boost_hz
    operands = terms * _operand_bytes(problem, config) / L1_BYTES / arch.boost_hz

    norm = sum(t**OVERLAP for t in (memory, issue, arithmetic, operands)) ** (1 / OVERLAP)
    overhead = LAUNCH + LATENCY + config["TM"] * config["TN"] * SUM_CYCLES * config["BS"] / 32 / arch.boost_hz
    if config["GS"] > 1:
        sums = config["GS"] * problem.batch * problem.m * problem.n * problem.dtype.accumulator.itemsize
        overhead += SECOND + LATENCY + 2 * sums / (L2_BYTES * arch.sms * arch.boost_hz)
    return Prediction(norm + overhead, memory, issue, arithmetic, operands, overhead)


def _instructions(problem: Gemm, config: Config) -> tuple[float, float, float]:
    """Per k: multiply-adds and loads (conversions among them) of each of the S threads, and copies of all together."""
    tm, tn, v = config["TM"], config["TN"], config["V"]
    alone = config["GRAM"] and config["DOWN"] == 1
    products = tm * (tm + 1) / 2 if alone else tm * tn
    reads = 0.0
    copies = 0.0
    for name, count in (("E", tm), ("F", 0 if alone else tn)):
        width = config[f"{name}_WIDTH"]
        if config["BK"]:
            wide = v if config[f"{name}_MODE"] == 0 else config[f"{name}_GROUP"]
            lines = {"E": problem.m, "F": 0 if config["GRAM"] else problem.n}[name]
            copies += lines / width
        else:
            wide = width
        reads += count / wide
        if problem.dtype.wider is not None:
            reads += count  # each element is converted
    return products, reads, copies


def _operand_bytes(problem: Gemm, config: Config) -> float:
    """Bytes per k that L1 or shared memory moves: to all threads, and with stages into shared memory as well."""
    size = problem.dtype.itemsize
    lines = config["TM"] + (0 if config["GRAM"] and config["DOWN"] == 1 else config["TN"])
    if not config["BK"]:
        return float(config["S"] * lines * size)
    whole = problem.m if problem.gram else problem.m + problem.n
    merged = SHARED_PASSES / 4 if config["DOWN"] > 1 and config["ACROSS"] > 1 else 1.0
    return config["S"] * lines * size * merged + whole * size
