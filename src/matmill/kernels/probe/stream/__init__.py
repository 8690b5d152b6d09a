"""Reading, copying and writing long buffers: the bandwidth of memory, or of L2 for buffers that fit in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from matmill.config import Config
from matmill.kernel import GemmOperands, Geometry, Kernel, always, ceil_div
from matmill.launch import Argument

#: Bytes that one access of a thread moves.
VECTOR = 16


@dataclass(frozen=True)
class Stream:
    """``vectors`` of 16 bytes, ``passes`` times over, by ``blocks`` blocks.

    Reading writes the sum of each thread's words as uint32, modulo 2**32. Writing fills all words with ``value``.
    Moving reads ``vectors`` and writes ``written``, which is at least 1.
    """

    vectors: int
    blocks: int
    passes: int = 1
    value: int = 0
    written: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer, times ``passes``."""
        return VECTOR * self.vectors * self.passes


def _geometry(problem: Stream, config: Config) -> Geometry:
    return Geometry(grid=(problem.blocks, 1, 1), block=(config["THREADS"], 1, 1))


def _read(problem: Stream, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    return (operands.a, operands.d, np.int64(problem.vectors), np.int32(problem.passes))


def _copy(problem: Stream, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    return (operands.a, operands.d, np.int64(problem.vectors))


def _write(problem: Stream, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    return (operands.d, np.int64(problem.vectors), np.uint32(problem.value))


def _move(problem: Stream, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    return (operands.a, operands.d, np.int64(problem.vectors), np.int64(problem.written))


_CONFIG = Config.of(THREADS=256, DEPTH=4, BYPASS_L1=0)

READ: Kernel[Stream] = Kernel("stream_read", __name__, _CONFIG, _geometry, _read, always)
#: The same, bypassing L1: the bandwidth of L2 for a buffer that fits in it.
READ_L2: Kernel[Stream] = READ.with_config(_CONFIG.replace(BYPASS_L1=1))
#: Writing is fastest in the order of addresses, with one vector per thread and as many blocks as that takes: on an H200
#: a copy then reaches 4.25 TB/s, and 3.94 with persistent blocks that take vectors far apart.
_ORDERLY = _CONFIG.replace(DEPTH=1)
COPY: Kernel[Stream] = Kernel("stream_copy", __name__, _ORDERLY, _geometry, _copy, always)
WRITE: Kernel[Stream] = Kernel("stream_write", __name__, _ORDERLY, _geometry, _write, always)
MOVE: Kernel[Stream] = Kernel("stream_move", __name__, _ORDERLY, _geometry, _move, always)


def moved(read: int, written: int) -> Stream:
    """Return a stream that reads and writes at least so many bytes, one vector of each per thread.

    >>> moved(1000, 5000)
    Stream(vectors=63, blocks=2, passes=1, value=0, written=313)
    """
    vectors, stored = ceil_div(read, VECTOR), ceil_div(written, VECTOR)
    return replace(orderly(max(vectors, stored)), vectors=vectors, written=stored)


def orderly(vectors: int) -> Stream:
    """Return a stream of ``vectors``, one per thread.

    >>> orderly(1000).blocks
    4
    """
    return Stream(vectors, ceil_div(vectors, _ORDERLY["THREADS"]))
