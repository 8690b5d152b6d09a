"""Bulk copies and reductions of contiguous bytes, and the receivers of a multicast.

PTX ISA, "Bulk copy: cp.async.bulk" and "cp.reduce.async.bulk". ``tensormap.cp_fenceproxy`` is such a copy of 128 bytes.
All functions take many copies at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.atomic import REDUCED, check_reduction, reduced
from matmill.errors import ArgumentError

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]

ALIGN = 16
_MOST_IGNORED = 15
# The value of undefined bytes in shared memory: NaN as float32, which exposes them.
_UNDEFINED = 0xFF


@dataclass(frozen=True, eq=False)
class BulkCopies:
    """``n`` copies or reductions: their sources, their destinations, and their bytes (all int64[n]).

    ``left`` and ``right`` are the operands of ``.ignore_oob``: bytes at the ends of the source that are not read, so
    that they may be outside the allocation, and that are undefined in the destination.
    """

    source: Offsets
    target: Offsets
    size: Offsets
    left: Offsets | None = None
    right: Offsets | None = None

    @property
    def ignored(self) -> tuple[Offsets, Offsets]:
        """The bytes ignored on the left and on the right."""
        none = np.zeros_like(self.size)
        return none if self.left is None else self.left, none if self.right is None else self.right

    def read(self) -> tuple[Offsets, Offsets]:
        """Return the starts and ends of the ranges that are read."""
        left, right = self.ignored
        return self.source + left, self.source + self.size - right

    def check(self, name: str, *, align: int = ALIGN) -> None:
        """Raise ``ArgumentError`` for addresses and sizes that the instruction ``name`` does not take.

        They must be multiples of ``align``, and ignored bytes must be 0 to 15 on each side.
        """
        for what, values in (("source", self.source), ("destination", self.target), ("size", self.size)):
            wrong = values % align != 0
            if wrong.any():
                raise ArgumentError(
                    argument=f"{name}: {what}",
                    got=f"{int(values[wrong][0])}",
                    wanted=f"a multiple of {align} bytes",
                    fix="Copy the rest by ordinary loads and stores, or align the arrays.",
                )
        left, right = self.ignored
        wrong = (np.minimum(left, right) < 0) | (np.maximum(left, right) > _MOST_IGNORED) | (left + right > self.size)
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            raise ArgumentError(
                argument=f"{name}: ignored bytes",
                got=f"{int(left[at])} left and {int(right[at])} right of {int(self.size[at])}",
                wanted=f"0 to {_MOST_IGNORED} on each side",
                fix="Round the source's address down, and its end up, to multiples of 16.",
            )


def copy_bulk(source: Bytes, target: Bytes, copies: BulkCopies) -> None:
    """Copy; the addresses are indices of ``source`` and ``target``."""
    starts, ends = (x.tolist() for x in copies.read())
    lefts, _ = copies.ignored
    for start, end, to, size, left in zip(
        starts, ends, copies.target.tolist(), copies.size.tolist(), lefts.tolist(), strict=True
    ):
        copied = source[start:end]
        target[to : to + left] = _UNDEFINED
        target[to + left + len(copied) : to + size] = _UNDEFINED
        target[to + left : to + left + len(copied)] = copied


def reduce_bulk(
    source: Bytes, target: Bytes, copies: BulkCopies, operation: str, kind: str, *, shared: bool = False
) -> None:
    """Combine the target with the source, one reduction after another, each element separately.

    ``kind`` is the PTX type; ``shared`` says that the target is shared memory. Sums of f32 flush subnormals. Raises
    :class:`~matmill.errors.ArgumentError` for an operation that PTX lacks for the type.
    """
    check_reduction(operation, kind, shared=shared)
    word = np.dtype(REDUCED[kind])
    for start, to, size in zip(copies.source.tolist(), copies.target.tolist(), copies.size.tolist(), strict=True):
        elements = target[to : to + size].view(word)
        values = source[start : start + size].view(word)
        elements[...] = reduced(operation, "f32.ftz" if kind == "f32" else kind, elements, values)


def multicast_ranks(mask: int, blocks: int) -> tuple[int, ...]:
    """Return the ranks of the blocks, in a cluster of ``blocks``, that a multicast with this mask writes to.

    >>> multicast_ranks(0b1010, 4)
    (1, 3)

    Raises :class:`~matmill.errors.ArgumentError` for an empty mask, or one with blocks that the cluster lacks.
    """
    if not 0 < mask < 1 << blocks:
        raise ArgumentError(
            argument="multicast mask",
            got=f"{mask:#x}",
            wanted=f"some of the {blocks} lowest bits, one for each block of the cluster",
            fix="Set bit r for the block of rank r.",
        )
    return tuple(rank for rank in range(blocks) if mask >> rank & 1)
