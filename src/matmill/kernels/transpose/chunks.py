"""Shared memory and threads of ``kernels/transpose/chunk.cuh``: the host's side of its arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import GemmOperands, Geometry, ceil_div
from matmill.kernels.shared.bank_padding import VECTOR_BYTES
from matmill.problem import Geam

_WARP, _MOST_THREADS = 32, 1024
#: Schedulers of an SM, each with a quarter of its registers, and the granularity of register allocation.
_SCHEDULERS, _REGISTERS = 4, 8
#: The fewest threads, about, of a block whose threads make several vectors each.
_ENOUGH = 256

#: Registers of a thread of a block with one chunk, and of each vector that the thread makes.
_ONE_CHUNK, _EACH = 20, 6
#: The widest elements, in bytes, for which a block may process several chunks.
_NARROW = 2


def elements(config: Config) -> int:
    """Count the elements of D in a chunk."""
    return config["G"] * config["M"] * config["N"]


def transposed_first(problem: Geam, operands: GemmOperands) -> tuple[Geam, GemmOperands]:
    """Return the problem and its operands with X as the transposed one, as chunks need it."""
    if not problem.y_transposed:
        return problem, operands
    a, b, alpha, beta, imaginary = operands.b, operands.a, operands.beta, operands.alpha, operands.imaginary[::-1]
    return problem.transposed_first, replace(operands, a=a, b=b, alpha=alpha, beta=beta, imaginary=imaginary)


def shared_bytes(vectors: int, every: int, padding: int, stages: int = 2, beside: int = 0) -> int:
    """Return a block's dynamic shared memory in bytes: ``stages`` chunks of X with bank padding, and of Y.

    ``beside`` is the number of vectors of Y in each stage. The device asserts the same.

    >>> shared_bytes(vectors=256, every=32, padding=1)
    8416
    """
    return stages * (vectors + (vectors - 1) // every * padding + beside) * VECTOR_BYTES


def assign_threads(config: Config, vectors: int, registers: Callable[[Config], int], arch: Arch) -> Config | None:
    """Return ``config`` with threads for the ``vectors`` of a chunk: the most blocks per SM, then the most threads.

    ``registers`` returns a thread's registers for a configuration with THREADS. The result is None if nothing fits.
    """
    choices = []
    fewest = ceil_div(vectors, _MOST_THREADS)
    for each in range(fewest, max(fewest, vectors // _ENOUGH) + 1):
        threads = ceil_div(vectors, each * _WARP) * _WARP
        one = config.replace(THREADS=threads)
        resident = _resident(threads, registers(one), config["SHARED_BYTES"], arch)
        if resident:
            choices.append(one.replace(BLOCKS_PER_SM=resident, BLOCKS=resident * arch.sms if config["AHEAD"] else 0))
    return max(choices, key=lambda one: (one["BLOCKS_PER_SM"], one["THREADS"]), default=None)


def chunks_ahead(config: Config, itemsize: int, several: int) -> tuple[int, ...]:
    """Return how many chunks a block of ``config`` may load ahead: 0 if it processes only one, and maybe ``several``.

    Several pay off only if each chunk needs new offsets of many elements. On an H200 (2026-11-22) blocks with one chunk
    took 0.93 to 1.00 of the time in 50 of 64 problems, and 1.01 to 1.39 times as long in the others: elements of one or
    two bytes whose offsets differ from vector to vector, or that are in rows or columns without alignment.
    """
    apart = config.get("APART")  # which configurations of small matrices lack
    return (0, several) if itemsize <= _NARROW and (not config["STEADY"] or apart == 1) else (0,)


def launch(config: Config, chunks: int) -> Geometry:
    """Return the launch for so many chunks: one block each, or persistent blocks that take them round-robin."""
    blocks = min(chunks, config["BLOCKS"]) if config["AHEAD"] else chunks
    return Geometry((blocks, 1, 1), (config["THREADS"], 1, 1), config["SHARED_BYTES"])


def one_chunk_registers(config: Config, itemsize: int, *, apart: bool = False) -> int:
    """Return the registers of a thread of a block with one chunk.

    ``apart`` says that rows or columns of the long side start anywhere.
    """
    v = VECTOR_BYTES // itemsize
    vectors = ceil_div(elements(config), v * config["THREADS"])
    several = 0 if vectors == 1 or config["STEADY"] else vectors - 1 + apart
    offsets = several * max(0, v - 4) // 2  # of small elements, which are inserted into a register one after another
    return _ONE_CHUNK + _EACH * (vectors + apart) + offsets + gather_registers(itemsize, vectors)


def gather_registers(itemsize: int, vectors: int) -> int:
    """Return the registers, besides those of the vectors, of a thread that gathers ``vectors`` from shared memory.

    Elements smaller than a register have one each until they are combined.
    """
    return VECTOR_BYTES // itemsize // 2 if itemsize == 1 or (itemsize == 2 and vectors > 1) else 0


def _resident(threads: int, registers: int, shared: int, arch: Arch) -> int:
    """Return the blocks that an SM holds if its schedulers hold equal numbers of their warps, give or take one.

    The assembler assumes that, and spills registers that do not fit: with 10 blocks of 5 warps a thread has 32
    registers.

    >>> from matmill.arch import get
    >>> _resident(160, 40, 0, get("h200")), _resident(128, 40, 0, get("h200"))
    (9, 12)
    """
    resident, _limits = arch.resident(threads, registers, shared)
    each = arch.registers_per_sm // _SCHEDULERS // (_WARP * ceil_div(registers, _REGISTERS) * _REGISTERS)
    return min(resident, _SCHEDULERS * each // (threads // _WARP))
