"""How long a transpose+add takes on its kernels: ``transpose_add``, ``transpose_small`` and ``transpose_slim``.

A block loads all that it needs, waits for it, turns it and stores it, and asks for nothing while it waits. That is
hidden by what else its multiprocessor has under way. So there are three limits, of which the slowest decides: all bytes
at the rate of a copy; the instructions of loading, turning and storing; and the waiting, the longer the fewer bytes are
under way. Lines of a tile that are short cost more than their bytes: the memory's
pages are opened for less. So do those that start inside 128 bytes, which two blocks then share.

What a sum demands with a configuration (:class:`Demand`) is counted; what that costs is a matter of
:class:`Constants`, which ``benchmarks/fit_model.py`` fits to times measured by ``benchmarks/transpose_add_search.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import ceil_div
from matmill.problem import Geam
from matmill.tiling import transpose_chunks as portions
from matmill.tiling.transpose import ALONG, ASKEW, CROSSED, MOVED, SINGLE, VECTOR_BYTES, halo, reach
from matmill.tiling.transpose import blocks as tiles

_LANES, _LINE, _SECTOR = 32, 128, 32
#: Slots that finding the place of an element costs. Counted in machine code for sm_90a: 14, of few threads.
_PLACE = 5.2
#: How much more a vector counts that a tile at an edge copies. It stands for all that edges take, of which vectors of D
#: that go element by element are the most. Fitted when copies there took 50 instructions rather than 14; with 1.5 the
#: tiles that are chosen for int8 would be up to 1.2 times slower than the best, on an H200 (2026-11-20).
_PICKED = 2.5


@dataclass(frozen=True)
class Constants:
    """What the model does not derive. Times in seconds; slots are instructions of one thread.

    Fitted to two thirds of the sums in ``benchmarks/results/transpose_add_search_h200.jsonl``, and of some with a short
    side when blocks made many portions each; docs/cost-models.md says how well those of today are met.
    """

    #: Share of the data sheet's bandwidth that a sum reaches at best.
    copy_share: float = 0.939
    #: From launch to the first instruction and from the last to the end of the kernel.
    launch: float = 3.89e-06
    #: Bytes that each line of a tile costs besides its own.
    line_bytes: float = 2.43
    #: Bytes that it costs more where a part of a row starts inside a line of 128, which two blocks then share.
    split_bytes: float = 13.3
    #: Vectors under way on a multiprocessor with which waiting takes as long as moving the bytes; with more, less.
    alone: float = 1230.0
    #: Share of the time of the bytes that is lost where one block that makes portion after portion has a multiprocessor
    #: to itself: its threads wait for each other. With more blocks the others go on.
    barrier: float = 0.687
    #: Slots of a thread before it loads, of a vector that it loads or stores, of one that it copies to shared memory,
    #: of an element that it makes of both operands, and of one that it gathers from shared memory.
    thread_slots: float = 32.2
    vector_slots: float = 6.62
    copied_slots: float = 18.2
    element_slots: float = 6.52
    gathered_slots: float = 1.04
    #: Cycles per slot of one thread's work on one piece, which is all there is of code: it comes from memory once.
    code_cycles: float = 6.72
    #: Share of the slots that are filled.
    issue_share: float = 0.464
    #: The times overlap in part: the p-norm of them with this p.
    overlap: float = 5.06


DEFAULT = Constants()


@dataclass(frozen=True)
class Demand:
    """What a sum demands of a GPU with a configuration, whatever that costs.

    ``bytes`` that move, ``lines`` of tiles, of all operands, and those that ``split`` a line with another block's,
    are of the whole GPU; ``threads`` that start, and the ``vectors``, ``copied`` vectors, ``elements`` and ``gathered``
    elements of them all, are of the busiest multiprocessor, padding included, as are elements whose place is ``found``;
    they work ``turns`` times on a piece. Of blocks that do one after another it holds so many ``apart`` from each
    other; ``beside`` is how many vectors of the result it has under way.
    """

    bytes: float
    lines: float
    split: float
    threads: float
    vectors: float
    copied: float
    elements: float
    gathered: float
    found: float
    turns: float
    apart: float
    beside: float
    bytes_per_s: float
    hz: float


@dataclass(frozen=True)
class Prediction:
    """Seconds in all, those of moving bytes, of instructions, and of what blocks wait for."""

    seconds: float
    memory: float
    issue: float
    blocks: float

    @property
    def bound(self) -> str:
        """The slowest of the three."""
        times = {name: getattr(self, name) for name in ("memory", "issue", "blocks")}
        return max(times, key=times.__getitem__)


def predict(problem: Geam, config: Config, arch: Arch) -> float:
    """Seconds that ``problem`` takes with ``config``, of any of the kernels, on ``arch``."""
    return explain(problem, config, arch).seconds


def explain(problem: Geam, config: Config, arch: Arch, constants: Constants = DEFAULT) -> Prediction:
    """The terms behind :func:`predict`."""
    return times(demand(problem, config, arch), constants)


def times(asked: Demand, constants: Constants) -> Prediction:
    """What ``asked`` costs. The fields of ``asked`` may also be arrays of one shape; those of the result then are."""
    c = constants
    most = c.copy_share * asked.bytes_per_s
    memory = (asked.bytes + c.line_bytes * asked.lines + c.split_bytes * asked.split) / most
    slots = c.thread_slots * asked.threads + c.vector_slots * asked.vectors + c.copied_slots * asked.copied
    slots += c.element_slots * asked.elements + c.gathered_slots * asked.gathered + _PLACE * asked.found
    issue = slots / (4 * _LANES * c.issue_share) / asked.hz
    blocks = memory * (c.alone / asked.beside + c.barrier / asked.apart)
    p = c.overlap
    together = (memory**p + issue**p + blocks**p) ** (1 / p)
    code = c.code_cycles * slots / asked.turns / asked.hz
    return Prediction(c.launch + code + together, memory, issue, blocks)


def demand(problem: Geam, config: Config, arch: Arch) -> Demand:
    """What ``problem`` demands of ``arch`` with ``config``."""
    work = _portion(problem, config) if "G" in dict(config.constants) else _tile(problem, config)
    busiest = ceil_div(work.count, arch.sms)
    resident = min(work.under_way, busiest)
    starts = min(work.starts, busiest)
    return Demand(
        bytes=float(problem.least_bytes),
        lines=float(work.count * work.lines),
        split=float(work.count * work.split),
        threads=float(starts * config["THREADS"]),
        vectors=float(busiest * work.vectors),
        copied=float(busiest * work.copied),
        elements=float(busiest * work.elements),
        gathered=float(busiest * work.gathered),
        found=float(starts * work.found),
        turns=float(busiest * config["THREADS"]),
        apart=min(work.apart, busiest) if work.apart < inf else inf,
        beside=float(resident * work.elements * problem.dtype.itemsize / VECTOR_BYTES),
        bytes_per_s=arch.dram_bytes_per_s,
        hz=arch.boost_hz,
    )


@dataclass(frozen=True)
class _Work:
    """One of ``count`` pieces of work that a sum consists of, with the counts of :class:`Demand` for one of them.

    A multiprocessor has so many ``under_way`` at once, and threads start for so many at most; ``found`` is counted for
    those alone.
    """

    count: int
    elements: int
    lines: int
    split: float
    vectors: float
    copied: float
    gathered: int
    found: int
    under_way: int
    starts: float
    apart: float


def _tile(problem: Geam, config: Config) -> _Work:
    """A tile, which is one block's work."""
    size, v = problem.dtype.itemsize, config["V"]
    elements, shifted = config["BR"] * config["BC"], config["SHIFTED"]
    # What lies across has more columns than the block where rows are shifted.
    turned, moved = config["BC"] + halo(config, size), config["BC"] + reach(config)
    lines, vectors, copied, gathered = config["BR"], elements / v, 0.0, 0
    split = config["BR"] * _inside(config["START"] * size) if shifted else 0.0
    for name in "X" if problem.y is None else "XY":
        mode = config[f"{name}_MODE"]
        lines += {ALONG: config["BR"], ASKEW: config["BR"], MOVED: moved}.get(mode, turned)
        if mode == ALONG:
            vectors += elements / config[f"{name}_WIDTH"]
        elif mode == CROSSED:
            vectors += config["BR"] * turned / config[f"{name}_WIDTH"]
        else:
            copied += {
                MOVED: moved * (config["BR"] / v + 1),
                ASKEW: config["BR"] * (moved / v + 1),
                SINGLE: float(config["BR"] * turned),  # by elements
            }[mode]
        gathered += elements if mode == MOVED else 0
        if mode in {MOVED, ASKEW}:
            split += moved if mode == MOVED else config["BR"]
        elif mode == ALONG and shifted:
            split += config["BR"] * _inside(config["START"] * size)
    if copied:
        copied *= 1 + _PICKED * (1 - _whole(problem, config))
    return _Work(
        count=tiles(problem, config) * problem.batch,
        elements=elements,
        lines=lines,
        split=split,
        vectors=vectors,
        copied=copied,
        gathered=gathered,
        found=0,
        under_way=config["BLOCKS_PER_SM"],
        starts=inf,
        apart=inf,
    )


def _whole(problem: Geam, config: Config) -> float:
    """Share of tiles that no row or column sticks out of: in others each vector is asked for whether it exists."""
    across = problem.n // config["BC"] - (reach(config) > 0)  # the first one starts before the first column
    return max(0, across) * (problem.m // config["BR"]) / tiles(problem, config)


def _inside(start: int) -> float:
    """How often a part of a row that starts on so many bytes starts inside a line of 128, and inside a sector of it."""
    return 1 - start / _LINE + max(0.0, 1 - start / _SECTOR)


def _portion(problem: Geam, config: Config) -> _Work:
    """A portion of small matrices or of a slim one: a block's only one, or one of many.

    Where an element of a portion lies is worked out once by each block, if vectors differ in that.
    """
    v = VECTOR_BYTES // problem.dtype.itemsize
    elements = portions.elements(config)
    lines_x, lines_others, room, y_width, ahead = 1, 1, 0, v, config["AHEAD"]
    if "WIDE" in dict(config.constants):
        short = config["M"] if config["WIDE"] else config["N"]
        lines_x, lines_others = (1, short) if config["WIDE"] else (short, 1)
        room, y_width = short * config["APART"], config["Y_WIDTH"]
    others = 1 if problem.y is None else 2
    return _Work(
        count=ceil_div(problem.batch * problem.m * problem.n, elements),
        elements=elements,
        lines=lines_x + others * lines_others,
        # Lines that start anywhere are cut at whole vectors. What of X is loaded twice is in a cache.
        split=room * others * _inside(VECTOR_BYTES) if lines_others > 1 else 0.0,
        # Y's are counted alike where they are copied: with places that are worked out once that takes no more.
        vectors=elements / v + (elements / y_width if others > 1 else 0.0),
        copied=elements / v + room,
        gathered=elements,
        found=0 if config["STEADY"] else elements,
        under_way=(1 + ahead) * config["BLOCKS_PER_SM"],  # the next portions of each block while it does one
        starts=config["BLOCKS_PER_SM"] if ahead else inf,
        apart=config["BLOCKS_PER_SM"] if ahead else inf,
    )
