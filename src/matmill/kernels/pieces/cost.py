"""Demand and cost of splitting matrices into pieces, for the models of the kernels that multiply them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matmill.config import Config, Configs
from matmill.kernels.pieces import PieceMatrix, Pieces, method
from matmill.kernels.shared.exchange import as_launched
from matmill.kernels.shared.model import Prices, for_each
from matmill.problem import Gemm

#: Seconds that pass whatever the size: a block loads, searches, waits and stores. On an H200 the pieces of two matrices
#: of 512 x 512 take as much longer than a launch.
_START = 4e-6
#: Columns take so many times as long as runs along k: 62 and 38 us of 4096 x 4096 on an H200, where a cluster searches
#: columns 32 at a time.
_COLUMNS = 1.6
_ELEMENT = 4  # bytes of a float32


@dataclass(frozen=True)
class Splitting:
    """Launches that split (0 or 1), and the bytes that they read and write, as if all were along k."""

    launches: float
    bytes: float

    @classmethod
    def of(cls, config: Configs, pieces: Callable[[Config], Pieces | None], *names: str) -> Splitting:
        """Count what the ``pieces`` of one configuration demand; they depend on the constants ``names`` alone."""

        def count(one: Config) -> tuple[float, float]:
            split = pieces(one)
            if split is None:
                return 0.0, 0.0
            matrices = (split.a,) if split.is_shared else (split.a, split.b)
            return 1.0, sum(map(_bytes, matrices), 0.0)

        return cls(*for_each(config, count, *names))

    def seconds(self, prices: Prices, bytes_per_s: float) -> float:
        """Price them on a GPU of that bandwidth."""
        seconds: float = self.launches * (prices.second + _START) + self.bytes / (prices.copy_share * bytes_per_s)
        return seconds


def pieces_of(problem: Gemm, config: Config) -> Pieces | None:
    """Return the pieces of a problem with one configuration, None where it has none."""
    return Pieces.of(as_launched(problem, config), method(config)) if config.get("PIECES") else None


def _bytes(matrix: PieceMatrix) -> float:
    """Count the bytes that are read, twice where columns are too long to be held, and written as two pieces."""
    piece = matrix.piece
    elements = float(piece.count * piece.runs * piece.length)
    if matrix.along_k:
        return elements * (_ELEMENT + 2 * piece.itemsize)
    return _COLUMNS * elements * (_ELEMENT * (1 if matrix.is_held else 2) + 2 * piece.itemsize)
