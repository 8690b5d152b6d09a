"""Shared memory and threads of ``include/matmill/transpose/chunk.cuh``: the host's side of its arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import GemmOperands, Geometry, ceil_div
from matmill.problem import Geam
from matmill.tiling.bank_padding import VECTOR_BYTES

_WARP, _MOST_THREADS = 32, 1024
#: A multiprocessor's schedulers, each with a quarter of its registers, and the registers given out at a time.
_SCHEDULERS, _REGISTERS = 4, 8
#: Threads of a block that makes several vectors with each, about, at least.
_ENOUGH = 256

#: Registers of a thread of a block with one portion, and of each vector that it makes.
_ALONE, _EACH = 20, 6
#: Bytes of elements, at the most, of which a block may make several portions.
_NARROW = 2


def elements(config: Config) -> int:
    """Elements of D in a portion."""
    return config["G"] * config["M"] * config["N"]


def turned_first(problem: Geam, operands: GemmOperands) -> tuple[Geam, GemmOperands]:
    """The problem and its operands as portions take them: in front, the one that is turned."""
    if not problem.y_turned:
        return problem, operands
    a, b, alpha, beta = operands.b, operands.a, operands.beta, operands.alpha
    return problem.turned_first, replace(operands, a=a, b=b, alpha=alpha, beta=beta)


def shared_bytes(vectors: int, every: int, gap: int, parts: int = 2, beside: int = 0) -> int:
    """Dynamic shared memory of one block: ``parts`` portions of X with gaps. The device asserts the same.

    Beside each of them are so many vectors of Y.

    >>> shared_bytes(vectors=256, every=32, gap=1)
    8416
    """
    return parts * (vectors + (vectors - 1) // every * gap + beside) * VECTOR_BYTES


def dealt(config: Config, vectors: int, registers: Callable[[Config], int], arch: Arch) -> Config | None:
    """``config`` with the ``vectors`` of a portion dealt to threads: as many under way as possible, by as many threads.

    ``registers`` are those that a thread takes with a configuration whose THREADS are set. None where nothing fits.
    """
    found = []
    fewest = ceil_div(vectors, _MOST_THREADS)
    for each in range(fewest, max(fewest, vectors // _ENOUGH) + 1):
        threads = ceil_div(vectors, each * _WARP) * _WARP
        one = config.replace(THREADS=threads)
        resident = _resident(threads, registers(one), config["SHARED_BYTES"], arch)
        if resident:
            found.append(one.replace(BLOCKS_PER_SM=resident, BLOCKS=resident * arch.sms if config["AHEAD"] else 0))
    return max(found, key=lambda one: (one["BLOCKS_PER_SM"], one["THREADS"]), default=None)


def aheads(config: Config, itemsize: int, several: int) -> tuple[int, ...]:
    """Portions ahead of the one that a block of ``config`` makes: none, where it has one alone, and maybe ``several``.

    One alone, unless where each of many elements lies is to be worked out for every portion anew. On an H200
    (2026-11-22) blocks with one took 0.93 to 1.00 of the time in 50 of 64 sums, and 1.01 to 1.39 times as long in the
    others: those of elements of one or two bytes whose places differ from vector to vector, or of lines that start
    anywhere.
    """
    apart = dict(config.constants).get("APART", 0)  # which small matrices do not have
    return (0, several) if itemsize <= _NARROW and (not config["STEADY"] or apart == 1) else (0,)


def launch(config: Config, portions: int) -> Geometry:
    """The launch that makes so many portions: a block for each, or those that run at once, in turns."""
    blocks = min(portions, config["BLOCKS"]) if config["AHEAD"] else portions
    return Geometry((blocks, 1, 1), (config["THREADS"], 1, 1), config["SHARED_BYTES"])


def alone(config: Config, itemsize: int, *, apart: bool = False) -> int:
    """Registers of a thread that makes its vectors of its block's only portion, of lines that lie ``apart`` or not."""
    v = VECTOR_BYTES // itemsize
    made = ceil_div(elements(config), v * config["THREADS"])
    several = 0 if made == 1 or config["STEADY"] else made - 1 + apart
    places = several * max(0, v - 4) // 2  # of small elements, of which one after another is put into a register
    return _ALONE + _EACH * (made + apart) + places + gathering(itemsize, made)


def gathering(itemsize: int, vectors: int) -> int:
    """Registers of a thread that gathers ``vectors`` from shared memory, besides theirs.

    Elements smaller than a register have one of their own each until they are joined.
    """
    return VECTOR_BYTES // itemsize // 2 if itemsize == 1 or (itemsize == 2 and vectors > 1) else 0


def _resident(threads: int, registers: int, shared: int, arch: Arch) -> int:
    """Blocks that an SM holds at once where each scheduler holds as many of their warps as any other, or one more.

    The assembler reckons so, and spills what does not fit: beside 10 blocks of 5 warps a thread has 32 registers.

    >>> from matmill.arch import get
    >>> _resident(160, 40, 0, get("h200")), _resident(128, 40, 0, get("h200"))
    (9, 12)
    """
    resident, _limits = arch.resident(threads, registers, shared)
    each = arch.registers_per_sm // _SCHEDULERS // (_WARP * ceil_div(registers, _REGISTERS) * _REGISTERS)
    return min(resident, _SCHEDULERS * each // (threads // _WARP))
