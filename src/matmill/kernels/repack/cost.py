"""What repacking demands and costs, for the models of the kernels that repack."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from matmill.config import Config, Configs
from matmill.kernels.repack.copies import RepackedMatrix
from matmill.kernels.shared.model import Prices, for_each, larger
from matmill.kernels.shared.tiled import VECTOR_BYTES

_LINE, _SECTOR = 128, 32  # bytes


@dataclass(frozen=True)
class Repacking:
    """Launches that repack (0 or 1), bytes that they move, and cache lines that they look up."""

    launches: float
    bytes: float
    lines: float

    @classmethod
    def of(cls, config: Configs, copies: Callable[[Config], Collection[RepackedMatrix]], *names: str) -> Repacking:
        """Count what ``copies`` of one configuration demand; they depend on the constants ``names`` alone."""
        return cls(*for_each(config, lambda one: repacking_of(copies(one)), *names))

    def seconds(self, prices: Prices, bytes_per_s: float, sm_hz: float) -> float:
        """Price them on a GPU of that bandwidth, whose SMs have ``sm_hz`` cycles per second together."""
        moved = self.bytes / (prices.copy_share * bytes_per_s)
        looked = prices.lookup_cycles * self.lines / sm_hz
        seconds: float = self.launches * prices.repack + larger(moved, looked)
        return seconds


def repacking_of(copies: Collection[RepackedMatrix]) -> tuple[float, float, float]:
    """Return what ``copies`` demand, as :class:`Repacking` has it."""
    return float(bool(copies)), sum(map(_bytes, copies), 0.0), sum(map(_lines, copies), 0.0)


def _bytes(matrix: RepackedMatrix) -> float:
    """Count the bytes that repacking reads (whole sectors where elements are apart) and writes."""
    across = matrix.stride != 1 and matrix.run_stride == 1  # neighbouring threads then read neighbouring runs
    read = matrix.itemsize if across else min(_SECTOR, matrix.itemsize * max(1, abs(matrix.stride)))
    return float(matrix.count * matrix.runs * (matrix.length * (read + matrix.itemsize)))


def _lines(matrix: RepackedMatrix) -> float:
    """Count the cache lines that repacking looks up: two for each vector of contiguous runs, else one an element."""
    if matrix.stride == 1:
        return 2.0 * matrix.vectors * VECTOR_BYTES / _LINE
    return matrix.count * matrix.runs * matrix.length * min(1.0, abs(matrix.stride) * VECTOR_BYTES / _LINE)
