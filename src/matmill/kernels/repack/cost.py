"""What repacking moves and looks up, for the models of the kernels that repack."""

from __future__ import annotations

from matmill.kernels.repack.copies import RepackedMatrix
from matmill.kernels.shared.tiled import VECTOR_BYTES

_LINE, _SECTOR = 128, 32  # bytes


def repacked_bytes(made: RepackedMatrix) -> float:
    """Bytes that repacking reads (whole sectors where elements are apart) and writes."""
    across = made.stride != 1 and made.run_stride == 1  # neighbouring threads then read neighbouring runs
    read = made.itemsize if across else min(_SECTOR, made.itemsize * max(1, abs(made.stride)))
    return float(made.count * made.runs * (made.length * (read + made.itemsize)))


def repacked_lines(made: RepackedMatrix) -> float:
    """Cache lines that repacking looks up: of contiguous runs two vectors for each that it writes, else elements."""
    if made.stride == 1:
        return 2.0 * made.vectors * VECTOR_BYTES / _LINE
    return made.count * made.runs * made.length * min(1.0, abs(made.stride) * VECTOR_BYTES / _LINE)
