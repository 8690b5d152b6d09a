"""The code that rungs of the memory ladder share: they differ in the transfer, not in the kernel.

All rungs run the same two kernels. ``PRODUCT`` computes C = alpha * A @ B + beta * C in float32 on packed row-major
matrices of any shape, with the parameters of the SGEMM ladder. ``FILL`` writes reproducible numbers on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from matmill.config import Config
from matmill.kernel import Document, GemmOperands, Geometry, Kernel, always, ceil_div
from matmill.ladders.packed import packed, packed_arguments, tiles
from matmill.launch import Argument
from matmill.problem import Gemm

Transfer = Literal["pageable", "pinned", "unified"]

_TILE = 16
_THREADS = 256


@dataclass(frozen=True)
class Fill:
    """A packed matrix of float32 to be filled with numbers in [-1, 1) that depend only on position and seed."""

    rows: int
    columns: int
    seed: int = 0


@dataclass(frozen=True)
class TransferRung:
    """A way to move matrices to the device and back, around the same product.

    ``transfer`` is the kind of host memory: pageable or page-locked (pinned), both copied explicitly, or unified
    (managed), which host and device share without copies. ``claim`` is the source's figure.
    """

    name: str
    source: Document
    idea: str
    changes: str
    predicts: str
    claim: str
    transfer: Transfer
    fill: Kernel[Fill]
    product: Kernel[Gemm]
    base: str = ""

    @property
    def kernel(self) -> Kernel[Gemm]:
        """The kernel that runs between the transfers."""
        return self.product

    @property
    def label(self) -> str:
        """The rung's name."""
        return self.name


def filled(problem: Fill) -> NDArray[np.float32]:
    """Return the result of ``FILL``, computed on the host: float32[rows, columns], equal bit for bit.

    >>> filled(Fill(2, 2, seed=1))
    array([[0.14679515, 0.1767875 ],
           [0.40826738, 0.85552573]], dtype=float32)
    """
    index = np.arange(problem.rows * problem.columns, dtype=np.uint64).astype(np.uint32)
    h = index + np.array(problem.seed * 0x9E3779B9 % 2**32, dtype=np.uint32)
    h = (h ^ h >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    h = (h ^ h >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    values = (h >> np.uint32(8)).astype(np.float32) * np.float32(2**-23) - np.float32(1)
    return values.reshape(problem.rows, problem.columns)


def _fill_geometry(problem: Fill, _config: Config) -> Geometry:
    return Geometry(grid=(ceil_div(problem.rows * problem.columns, _THREADS), 1, 1), block=(_THREADS, 1, 1))


def _fill_arguments(problem: Fill, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    # The matrix to fill is the output, d.
    return (operands.d, np.int64(problem.rows * problem.columns), np.uint32(problem.seed))


PRODUCT: Kernel[Gemm] = Kernel(
    entry="product",
    package="matmill.ladders.memory",
    file="product.cuh",
    config=Config.of(T=_TILE),
    geometry=tiles(_TILE, _TILE, (_TILE, _TILE)),
    arguments=packed_arguments,
    why_not_config=packed(),
)

FILL: Kernel[Fill] = Kernel(
    entry="fill",
    package="matmill.ladders.memory",
    file="fill.cuh",
    config=Config.of(THREADS=_THREADS),
    geometry=_fill_geometry,
    arguments=_fill_arguments,
    why_not_config=always,
)
