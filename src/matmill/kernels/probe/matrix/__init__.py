"""MMAs from registers through mma.sync: the rate of the tensor cores by element type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import GemmOperands, Geometry, Kernel
from matmill.launch import Argument

#: Element types of A and B, in the order of the enumeration in ``kernel.cuh``. Sums are float32, for float64 they are
#: float64.
INPUTS = ("float16", "bfloat16", "tf32", "float64")
#: (M, N, K) of one instruction by (type, K), and the least compute capability that has it (PTX ISA, "mma").
_SHAPES: dict[tuple[str, int], tuple[tuple[int, int, int], tuple[int, int]]] = {
    ("float16", 8): ((16, 8, 8), (7, 5)),
    ("float16", 16): ((16, 8, 16), (8, 0)),
    ("bfloat16", 16): ((16, 8, 16), (8, 0)),
    ("tf32", 8): ((16, 8, 8), (8, 0)),
    ("float64", 4): ((8, 8, 4), (8, 0)),
    ("float64", 16): ((16, 8, 16), (9, 0)),
}


@dataclass(frozen=True)
class MatrixProducts:
    """``trips`` rounds by ``blocks`` blocks on fragments of A and B with equal elements: see :func:`words`.

    Every thread writes the sum of its own accumulators: float32, or float64 if ``element`` is float64.
    """

    element: str
    trips: int
    blocks: int

    def operations(self, config: Config) -> int:
        """Return the operations of all warps; an FMA counts as two."""
        (m, n, k), _ = _SHAPES[self.element, config["K"]]
        warps = self.blocks * config["THREADS"] // 32
        return 2 * m * n * k * self.trips * config["LENGTH"] * config["TILES"] * warps


def words(element: str, a: float, b: float) -> NDArray[Any]:
    """Return the kernel's input: a register of A whose elements are all ``a``, and one of B.

    The array is uint32[2], or float64[2].

    >>> [hex(word) for word in words("float16", 1, 2)]
    ['0x3c003c00', '0x40004000']
    """
    if element == "float64":
        return np.array([a, b], np.float64)
    if element == "tf32":
        return np.array([a, b], np.float32).view(np.uint32)
    halves = np.array([a, b], np.float16 if element == "float16" else ml_dtypes.bfloat16)
    return np.repeat(halves, 2).view(np.uint32)


def matrix(element: str, arch: Arch) -> Kernel[MatrixProducts]:
    """Return the kernel for A and B of that type, with the largest shape of ``arch``.

    If it has none, the kernel's ``why_not`` says so.
    """
    shapes = [(k, least) for (name, k), (_, least) in _SHAPES.items() if name == element]
    k = next((k for k, least in reversed(shapes) if arch.capability >= least), shapes[0][0])
    config = Config.of(INPUT=INPUTS.index(element), K=k, TILES=8, LENGTH=8, THREADS=256)
    return Kernel("matrix", __name__, config, _geometry, _arguments, _why_not)


def _geometry(problem: MatrixProducts, config: Config) -> Geometry:
    return Geometry(grid=(problem.blocks, 1, 1), block=(config["THREADS"], 1, 1))


def _arguments(problem: MatrixProducts, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    return (operands.a, operands.d, np.int32(problem.trips))


def _why_not(problem: MatrixProducts, config: Config, arch: Arch) -> str | None:
    _, least = _SHAPES[problem.element, config["K"]]
    if arch.capability < least:
        return f"mma.sync of {problem.element} needs compute capability {least[0]}.{least[1]}"
    return None
