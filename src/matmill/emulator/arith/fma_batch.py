"""A batch of float32 FMAs as a few NumPy calls on blocks of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.exact import LOW_BITS, MIDPOINT, Buffers, repair_midpoints, repair_subnormals
from matmill.emulator.arith.row import Row

# Elements per piece of a batch: its float64 products and their bits stay in a core's second-level cache.
_PIECE = 32768


def runs(rows: Sequence[int]) -> list[tuple[int, int, int]]:
    """Split row numbers into runs of consecutive ones: (index in the list, first row, length).

    >>> runs([4, 5, 6, 9])
    [(0, 4, 3), (3, 9, 1)]
    """
    result: list[tuple[int, int, int]] = []
    for index, row in enumerate(rows):
        if result and result[-1][1] + result[-1][2] == row:
            result[-1] = (result[-1][0], result[-1][1], result[-1][2] + 1)
        else:
            result.append((index, row, 1))
    return result


@dataclass(frozen=True)
class BatchRows:
    """The rows that a batch reads and writes, in the order of its instructions.

    ``outer`` has the rows of the factors of an outer product, whose second factor changes fastest.
    """

    left: list[int]
    right: list[int]
    addends: list[int]
    sums: list[int]
    outer: tuple[list[int], list[int]] | None


@dataclass(frozen=True)
class _Piece:
    """Some rows of a batch, with prepared views: factors, products (also as bits), and rows to add and to store."""

    a: Row
    b: Row
    shaped: Row
    product: Row
    bits: Row
    hit: Row
    narrow: Row
    adds: list[tuple[Row, Row]]
    stores: list[tuple[Row, Row]]
    addends: list[int]


class FusedBatch:
    """``sums = left * right + addends`` over rows of ``file`` (float32[rows, lanes]), each rounded once.

    The factors are read before any sum is written, and sums are written in the order of the instructions. The creator
    of the batch ensures that no instruction reads another one's result.
    """

    def __init__(self, file: NDArray[np.float32], rows: BatchRows, buffers: Buffers, underflow: list[bool]) -> None:
        self.file = file
        self.underflow = underflow
        lanes = file.shape[1]
        slow, fast = rows.outer if rows.outer is not None else (rows.left, rows.right)
        self.slow = buffers.take("slow", "f8", len(slow) * lanes).reshape(len(slow), lanes)
        self.fast = buffers.take("fast", "f8", len(fast) * lanes).reshape(len(fast), lanes)
        self.loads = [
            (wide[at : at + n], file[row : row + n])
            for wide, wanted in ((self.slow, slow), (self.fast, fast))
            for at, row, n in runs(wanted)
        ]
        width = len(fast) if rows.outer is not None else 1
        count = len(rows.sums) // width
        step = max(1, _PIECE // (lanes * width))
        self.pieces = [
            self._piece(first, min(first + step, count), width, rows, buffers) for first in range(0, count, step)
        ]

    def _piece(self, first: int, last: int, width: int, rows: BatchRows, buffers: Buffers) -> _Piece:
        file, lanes = self.file, self.file.shape[1]
        size = (last - first) * width

        def buffer(name: str, dtype: str) -> Row:
            return buffers.take(name, dtype, size * lanes).reshape(size, lanes)

        product, narrow = buffer("product", "f8"), buffer("narrow", "f4")
        outer = rows.outer is not None
        addends, sums = (x[first * width : last * width] for x in (rows.addends, rows.sums))
        return _Piece(
            a=self.slow[first:last, None] if outer else self.slow[first:last],
            b=self.fast[None] if outer else self.fast[first:last],
            shaped=product.reshape(last - first, width, lanes) if outer else product,
            product=product,
            bits=buffer("bits", "u8"),
            hit=buffer("hit", "?"),
            narrow=narrow,
            adds=[(product[at : at + n], file[row : row + n]) for at, row, n in runs(addends)],
            stores=[(narrow[at : at + n], file[row : row + n]) for at, row, n in runs(sums)],
            addends=addends,
        )

    def __call__(self) -> None:
        """Run the batch."""
        for wide, rows in self.loads:
            np.copyto(wide, rows)
        for piece in self.pieces:
            np.multiply(piece.a, piece.b, out=piece.shaped)
            for product, rows in piece.adds:
                np.add(product, rows, out=product)
            np.bitwise_and(piece.product.view(np.uint64), LOW_BITS, out=piece.bits)
            np.equal(piece.bits, MIDPOINT, out=piece.hit)
            if piece.hit.any():
                repair_midpoints(piece.product, piece.hit, *self._operands(piece))
            self.underflow[0] = False
            np.copyto(piece.narrow, piece.product, casting="same_kind")
            if self.underflow[0]:
                repair_subnormals(piece.narrow, *self._operands(piece))
            for narrow, rows in piece.stores:
                np.copyto(rows, narrow)

    def _operands(self, piece: _Piece) -> tuple[Row, Row, Row]:
        a, b = (np.broadcast_to(x, piece.shaped.shape).reshape(piece.product.shape) for x in (piece.a, piece.b))
        return a, b, self.file[piece.addends]
