"""The time of a transpose-add on its kernels: ``transpose_add``, ``transpose_small`` and ``transpose_slim``.

A block loads all its input, waits, transposes and stores, and loads nothing while it waits. Other blocks of its SM hide
the wait. So there are three limits, and the slowest decides: all bytes at the rate of a copy; the instructions to load,
transpose and store; and the wait, which is longer with fewer bytes in flight. Short contiguous runs cost more than
their bytes: memory opens a page for less. So do runs that start inside a cache line that two blocks share.

:class:`Demand` counts what a problem asks of the GPU with a configuration; :class:`Constants` say what that costs.
``benchmarks/fit_model.py`` fits them to times measured by ``benchmarks/search.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from matmill.arch import Arch
from matmill.config import Config, Configs
from matmill.kernel import ceil_div
from matmill.kernels.shared.model import PRICES, Prediction, Prices, columnwise, load_constants, overlapped
from matmill.kernels.transpose import chunks
from matmill.kernels.transpose.tiles import COL, COL_UNALIGNED, ROW, ROW_UNALIGNED, STRIDED, VECTOR_BYTES, halo, reach
from matmill.kernels.transpose.tiles import blocks as tiles
from matmill.problem import Geam, View

_LANES, _LINE, _SECTOR = 32, 128, 32
#: Slots to compute the offset of an element. The machine code for sm_90a has 14, in few threads.
_LOCATE = 5.2
#: Factor for copied vectors in a tile at an edge. It stands for all costs of edges, mostly for vectors of D that are
#: stored element by element. It was fitted when such copies took 50 instructions, which are now 14; with 1.5 the tiles
#: chosen for int8 would be up to 1.2 times slower than the best on an H200 (2026-11-20).
_EDGE = 2.5


@dataclass(frozen=True)
class Constants:
    """Fitted constants. Times in seconds; slots are instructions of one thread.

    Fitted to two thirds of the problems in ``benchmarks/results/transpose_add_search_h200.jsonl``, and to some problems
    with a short side, measured when blocks processed many chunks each; docs/cost-models.md says how well today's
    kernels are predicted.
    """

    #: Share of the data sheet's bandwidth that a transpose-add reaches at best.
    copy_share: float
    #: Bytes that each contiguous run of a tile costs in addition to its own.
    run_bytes: float
    #: Bytes that a run costs more if it starts inside a cache line, which two blocks then share.
    split_bytes: float
    #: Vectors in flight on an SM for which waiting takes as long as moving the bytes; with more it takes less.
    alone: float
    #: Share of the bytes' time that is lost if a block that processes many chunks has an SM to itself: its threads wait
    #: for each other. With more blocks, the others continue.
    barrier: float
    #: Slots of a thread before it loads, per vector loaded or stored, per vector copied to shared memory, per element
    #: of the result, and per element gathered from shared memory.
    thread_slots: float
    vector_slots: float
    copied_slots: float
    element_slots: float
    gathered_slots: float
    #: Cycles per slot of one thread's work on one item: the code is fetched from memory once.
    code_cycles: float
    #: Used share of the slots.
    issue_share: float
    #: The times overlap partly: their p-norm with this p.
    overlap: float


DEFAULT = load_constants(__name__, Constants)


@dataclass(frozen=True)
class Demand:
    """The work of a problem on a GPU with a configuration; costs are in :class:`Constants`.

    For the whole GPU: ``bytes`` that move, contiguous ``runs`` of all operands' tiles, and runs that ``split`` a cache
    line with another block.

    For the busiest SM, padding included: ``threads`` that start, ``vectors`` loaded or stored, ``copied`` vectors,
    ``elements`` of the result, ``gathered`` elements, elements whose offset is computed (``located``), ``items`` of
    work over all threads, blocks that process chunk after chunk (``apart``), and vectors of the result in flight
    (``beside``).
    """

    bytes: float
    runs: float
    split: float
    threads: float
    vectors: float
    copied: float
    elements: float
    gathered: float
    located: float
    items: float
    apart: float
    beside: float
    bytes_per_s: float
    hz: float


def explain(
    problem: Geam, config: Configs, arch: Arch, constants: Constants = DEFAULT, prices: Prices = PRICES
) -> Prediction:
    """Return the predicted time of ``problem`` with ``config`` on ``arch``, with its terms."""
    return times(demand(problem, config, arch), constants, prices)


def times(counts: Demand, constants: Constants, prices: Prices = PRICES) -> Prediction:
    """Return the time of ``counts``. Their fields may be arrays of one shape, and then the result's are too."""
    c = constants
    most = c.copy_share * counts.bytes_per_s
    memory = (counts.bytes + c.run_bytes * counts.runs + c.split_bytes * counts.split) / most
    slots = c.thread_slots * counts.threads + c.vector_slots * counts.vectors + c.copied_slots * counts.copied
    slots += c.element_slots * counts.elements + c.gathered_slots * counts.gathered + _LOCATE * counts.located
    issue = slots / (4 * _LANES * c.issue_share) / counts.hz
    blocks = memory * (c.alone / counts.beside + c.barrier / counts.apart)
    terms = {"memory": memory, "issue": issue, "blocks": blocks}
    together = overlapped(c.overlap, *terms.values())
    code = c.code_cycles * slots / counts.items / counts.hz
    return Prediction(prices.launch + code + together, terms, tuple(terms))


@columnwise
def demand(problem: Geam, config: Config, arch: Arch) -> Demand:
    """Count the work of ``problem`` with ``config`` on ``arch``."""
    work = _chunk(problem, config) if "G" in config else _tile(problem, config, arch)
    busiest = ceil_div(work.count, arch.sms)
    resident = min(work.in_flight, busiest)
    starts = min(work.starts, busiest)
    return Demand(
        bytes=float(problem.least_bytes),
        runs=float(work.count * work.runs),
        split=float(work.count * work.split),
        threads=float(starts * config["THREADS"]),
        vectors=float(busiest * work.vectors),
        copied=float(busiest * work.copied),
        elements=float(busiest * work.elements),
        gathered=float(busiest * work.gathered),
        located=float(starts * work.located),
        items=float(busiest * config["THREADS"]),
        apart=min(work.apart, busiest) if work.apart < inf else inf,
        beside=float(resident * work.elements * problem.dtype.itemsize / VECTOR_BYTES),
        bytes_per_s=arch.dram_bytes_per_s,
        hz=arch.boost_hz,
    )


@dataclass(frozen=True)
class _Work:
    """``count`` items of work, tiles or chunks, of a problem, with the counts of :class:`Demand` for one item.

    An SM has ``in_flight`` items at once; threads start for at most ``starts`` items, and ``located`` counts for these.
    """

    count: int
    elements: int
    runs: int
    split: float
    vectors: float
    copied: float
    gathered: int
    located: int
    in_flight: int
    starts: float
    apart: float


def _tile(problem: Geam, config: Config, arch: Arch) -> _Work:
    """Return the work of tiles, each of which one block processes."""
    size, v = problem.dtype.itemsize, config["V"]
    elements = config["BR"] * config["BC"]
    # Transposed tiles have more columns than the block if rows are shifted.
    transposed, unaligned = config["BC"] + halo(config, size), config["BC"] + reach(config)
    runs, vectors, copied, gathered = config["BR"], elements / v, 0.0, 0
    split = config["BR"] * _split_share(problem, problem.d, config, arch)
    for name, view in (("X", problem.x), ("Y", problem.y)):
        if view is None:
            continue
        mode = config[f"{name}_MODE"]
        runs += {ROW: config["BR"], ROW_UNALIGNED: config["BR"], COL_UNALIGNED: unaligned}.get(mode, transposed)
        if mode == ROW:
            vectors += elements / config[f"{name}_WIDTH"]
        elif mode == COL:
            vectors += config["BR"] * transposed / config[f"{name}_WIDTH"]
        else:
            copied += {
                COL_UNALIGNED: unaligned * (config["BR"] / v + 1),
                ROW_UNALIGNED: config["BR"] * (unaligned / v + 1),
                STRIDED: float(config["BR"] * transposed),  # element by element
            }[mode]
        gathered += elements if mode == COL_UNALIGNED else 0
        if mode in {COL_UNALIGNED, ROW_UNALIGNED}:
            split += unaligned if mode == COL_UNALIGNED else config["BR"]
        elif mode == ROW:
            split += config["BR"] * _split_share(problem, view, config, arch)
    if copied:
        copied *= 1 + _EDGE * (1 - _whole(problem, config))
    return _Work(
        count=tiles(problem, config) * problem.batch,
        elements=elements,
        runs=runs,
        split=split,
        vectors=vectors,
        copied=copied,
        gathered=gathered,
        located=0,
        in_flight=config["BLOCKS_PER_SM"],
        starts=inf,
        apart=inf,
    )


def _whole(problem: Geam, config: Config) -> float:
    """Return the share of tiles inside the matrix; in other tiles each vector needs a bounds check."""
    across = problem.n // config["BC"] - (reach(config) > 0)  # the first one starts before the first column
    return max(0, across) * (problem.m // config["BR"]) / tiles(problem, config)


def _split_share(problem: Geam, view: View, config: Config, arch: Arch) -> float:
    """Return how often a block's part of a row of ``view`` starts inside a cache line, and inside a sector.

    Vectors of fewer than 16 bytes are not shifted: each row's parts start where the row does. Neighbours that share a
    sector then meet in the L2 cache if the whole problem fits in it; if not, memory moves the sector twice.
    """
    size = problem.dtype.itemsize
    if config["SHIFTED"]:
        return _inside_cache_line(config["START"] * size)
    narrow = config["V"] * size < VECTOR_BYTES and problem.least_bytes > arch.l2_bytes
    return _inside_cache_line(view.align) if narrow and view.align < VECTOR_BYTES else 0.0


def _inside_cache_line(start: int) -> float:
    """Return how often a run on a multiple of ``start`` bytes starts inside a cache line, and inside a sector."""
    return 1 - start / _LINE + max(0.0, 1 - start / _SECTOR)


def _chunk(problem: Geam, config: Config) -> _Work:
    """Return the work of chunks, of small matrices or of a slim one: a block's only chunk, or one of many.

    Each block computes the offsets of a chunk's elements once, if they differ from vector to vector.
    """
    v = VECTOR_BYTES // problem.dtype.itemsize
    elements = chunks.elements(config)
    runs_x, runs_others, extra, y_width, ahead = 1, 1, 0, v, config["AHEAD"]
    if "WIDE" in config:
        short = config["M"] if config["WIDE"] else config["N"]
        runs_x, runs_others = (1, short) if config["WIDE"] else (short, 1)
        extra, y_width = short * config["APART"], config["Y_WIDTH"]
    others = 1 if problem.y is None else 2
    return _Work(
        count=ceil_div(problem.batch * problem.m * problem.n, elements),
        elements=elements,
        runs=runs_x + others * runs_others,
        # Unaligned runs are split at whole vectors. Bytes of X that are loaded twice are in a cache.
        split=extra * others * _inside_cache_line(VECTOR_BYTES) if runs_others > 1 else 0.0,
        # Y's copied vectors count the same: as offsets are computed once, a copy costs no more.
        vectors=elements / v + (elements / y_width if others > 1 else 0.0),
        copied=elements / v + extra,
        gathered=elements,
        located=0 if config["STEADY"] else elements,
        in_flight=(1 + ahead) * config["BLOCKS_PER_SM"],  # a block's next chunks while it processes one
        starts=config["BLOCKS_PER_SM"] if ahead else inf,
        apart=config["BLOCKS_PER_SM"] if ahead else inf,
    )
