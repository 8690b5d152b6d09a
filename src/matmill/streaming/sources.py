"""The inputs: arrays on the host, and files behind memory maps, which are read rather than mapped.

Touching a page of a map beyond the end of its file kills the process (SIGBUS). If the file behind a map is known, long
contiguous runs are therefore read with ``preadv``, which reports the end of the file. Short runs are copied from the
map after a check of the file's size; a file that is truncated in the milliseconds between check and copy cannot be
caught.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.errors import TruncatedFileError
from matmill.streaming.plan import Packed

Bits = NDArray[np.unsignedinteger[Any]]

#: Bytes of a piece: enough to hide its fixed cost, few enough for several threads to share a chunk.
_PIECE = 4 << 20
#: Bytes that are transposed from columns into rows at a time, so that each cache line is fetched once: 2-4 times as
#: fast as whole rows of a piece, from 16 rows on.
_BLOCK = 256 << 10
#: Bytes below which a run in a file is not worth a system call.
_RUN = 64 << 10
_MAPS = Path("/proc/self/maps")


class MatrixSource:
    """One matrix as ``vectors`` (vectors, k), read piece by piece; :meth:`close` it at the end."""

    def __init__(self, vectors: NDArray[Any], name: str) -> None:
        self._vectors = _bits(vectors)
        self._file = _MappedFile.behind(vectors, name)

    def close(self) -> None:
        """Close the file behind the array, if any."""
        if self._file is not None and self._file.descriptor is not None:
            os.close(self._file.descriptor)

    def pieces(self, start: int, stop: int, packed: Packed, buffer: Bits) -> Iterator[tuple[Bits, Bits]]:
        """Yield pairs of a part of ``buffer`` and its source.

        Together they cover all vectors, from ``start`` to ``stop``.
        """
        part = self._vectors[:, start:stop]
        first, rows = packed.offset // part.itemsize, packed.shape[0]
        target = buffer[first : first + rows * packed.pitch].reshape(rows, packed.pitch)[:, : packed.shape[1]]
        if not packed.along_k:
            part = part.T
        step = max(1, _PIECE // (packed.shape[1] * part.itemsize))
        for row in range(0, rows, step):
            yield target[row : row + step], part[row : row + step]

    def read(self, target: Bits, part: Bits) -> None:
        """Copy one piece; any thread may.

        Raises :class:`~matmill.errors.TruncatedFileError` if the file has become too short, and ``OSError``.
        """
        if self._file is None:
            _copy(target, part)
            return
        descriptor = self._file.descriptor
        whole = part.flags.c_contiguous and target.flags.c_contiguous
        adjacent = part.shape[1] == 1 or part.strides[1] == part.itemsize
        if descriptor is not None and (whole or (adjacent and part.shape[1] * part.itemsize >= _RUN)):
            runs = ((target.reshape(-1), part),) if whole else zip(target, part, strict=True)
            for into, run in runs:
                self._file.read(descriptor, into, run.ctypes.data)
        else:
            self._file.check(part)
            _copy(target, part)


def _bits(array: NDArray[Any]) -> Bits:
    """Return the array's memory as unsigned integers: copies keep every bit and let other threads run."""
    bits: Bits = array.view(np.ndarray).view(np.dtype(f"u{array.itemsize}"))
    return bits


def _copy(target: Bits, part: Bits) -> None:
    if part.shape[1] > 1 and part.strides[1] != part.itemsize:
        block = max(1, _BLOCK // max(1, part.shape[0] * part.itemsize))
        for start in range(0, part.shape[1], block):
            np.copyto(target[:, start : start + block], part[:, start : start + block])
    else:
        np.copyto(target, part)


@dataclass(frozen=True)
class _MappedFile:
    """The file behind an array, whose byte ``position`` is mapped at ``address``.

    ``descriptor`` is None if the file cannot be opened; its map is then copied.
    """

    argument: str
    path: str
    memory: mmap
    address: int
    position: int
    descriptor: int | None

    @classmethod
    def behind(cls, array: NDArray[Any], argument: str) -> _MappedFile | None:
        """Return the file of an array that is a ``np.memmap`` or a view of one, else None."""
        base: Any = array
        while base is not None:
            if isinstance(base, np.memmap) and isinstance(base.base, mmap):
                start = base.ctypes.data
                descriptor = _open(start, base.nbytes, base.offset)
                return cls(argument, str(base.filename), base.base, start, base.offset, descriptor)
            base = getattr(base, "base", None)  # as_strided inserts an object of its own
        return None

    def read(self, descriptor: int, target: Bits, address: int) -> None:
        """Fill a contiguous ``target`` with the bytes of the file that are mapped at ``address``."""
        into: memoryview = target.view(np.uint8).data
        position = address - self.address + self.position
        while into:
            try:
                got = os.preadv(descriptor, [into], position)
            except OSError as error:
                raise OSError(error.errno, error.strerror, self.path) from error
            if not got:
                raise self._cut(position + len(into))
            into, position = into[got:], position + got

    def check(self, part: Bits) -> None:
        """Raise :class:`~matmill.errors.TruncatedFileError` unless the file now holds all of ``part``."""
        if part.size:
            steps = (stride * (extent - 1) for stride, extent in zip(part.strides, part.shape, strict=True))
            last = part.ctypes.data + sum(max(0, step) for step in steps)
            needed = last + part.itemsize - self.address + self.position
            if self.memory.size() < needed:
                raise self._cut(needed)

    def _cut(self, needed: int) -> TruncatedFileError:
        return TruncatedFileError(
            argument=self.argument,
            got=f"{self.path} with {self.memory.size()} bytes",
            wanted=f"the {needed} or more that it had when it was mapped",
            fix="It was cut short meanwhile: write it again, and to a new name before renaming it.",
        )


def _open(address: int, nbytes: int, position: int) -> int | None:
    """Return a descriptor of the file that is mapped at ``address``, or None.

    Only the system's inode and offset of the shared map count: the path may now name another file, and a private map
    may differ from its file.
    """
    try:
        lines = os.fsdecode(_MAPS.read_bytes()).split("\n")[:-1]
    except OSError:
        return None
    for line in lines:
        where, mode, offset, _device, inode, *path = line.split(maxsplit=5)
        low, high = (int(end, 16) for end in where.split("-"))
        if not low <= address < high:
            continue
        inside = address + nbytes <= high and int(offset, 16) + address - low == position
        if not (path and inside and mode.endswith("s")):
            return None
        try:
            descriptor = os.open(path[0], os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        facts = os.fstat(descriptor)
        if stat.S_ISREG(facts.st_mode) and facts.st_ino == int(inode):
            return descriptor
        os.close(descriptor)
    return None
