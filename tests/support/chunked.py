"""Kernels that transpose chunks, with so few blocks that each processes several."""

from __future__ import annotations

from matmill.kernel import Kernel
from matmill.kernels.shared.bank_padding import VECTOR_BYTES
from matmill.kernels.transpose.chunks import elements, shared_bytes
from matmill.kernels.transpose.slim import held
from matmill.problem import Geam


def in_blocks(kernel: Kernel[Geam], problem: Geam, blocks: int, ahead: int = 1) -> Kernel[Geam]:
    """Return the kernel with so many blocks, whose copies are so many chunks ahead."""
    config, size = kernel.config, problem.dtype.itemsize
    vectors = elements(config) * size // VECTOR_BYTES
    of_x, of_y = vectors, 0
    if kernel.entry == "transpose_slim":
        of_x, of_y = held(config, size), vectors if ahead > 1 and problem.y else 0
    shared = shared_bytes(of_x, config["PAD_EVERY"], config["PAD_VECTORS"], 1 + ahead, of_y)
    return kernel.with_config(config.replace(AHEAD=ahead, BLOCKS=blocks, SHARED_BYTES=shared))
