"""What the matrices of both operations have in common where torch makes them on the GPU."""

from __future__ import annotations

import importlib
from typing import Any

from matmill.bench.libraries.blas import installed
from matmill.errors import ArgumentError

#: Where tensors are made.
DEVICE = "cuda"


def needs_torch() -> None:
    """Raise :class:`~matmill.errors.ArgumentError` where torch is not installed."""
    if "torch" not in installed():
        raise ArgumentError(
            argument="torch",
            got="not installed",
            wanted="torch with CUDA, whose tensors are the inputs",
            fix="Install it.",
        )


def random_operands(
    sizes: tuple[int, int, int], dtype: str, layouts: str, *, batch: int = 1, device: str = DEVICE
) -> tuple[Any, Any]:
    """Return matrices m x k and k x n of normal numbers, or batches of them, as torch's tensors.

    ``layouts`` are those of A and B: n for rows, t for columns that are contiguous.
    """
    torch: Any = importlib.import_module("torch")
    several = (batch,) if batch > 1 else ()

    def matrix(rows: int, columns: int, order: str) -> Any:
        shape = (rows, columns) if order == "n" else (columns, rows)
        result = torch.randn(*several, *shape, device=device, dtype=getattr(torch, dtype))
        return result if order == "n" else result.transpose(-1, -2)

    m, n, k = sizes
    return matrix(m, k, layouts[0]), matrix(k, n, layouts[1])


class Tensors:
    """torch, a generator that gives the same numbers for the same seed, and the result's tensor ``out``.

    A subclass makes its inputs, then ``out``. torch is imported by the constructor.
    """

    out: Any

    def __init__(self, seed: int) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.generator = self.torch.Generator(device=DEVICE)
        self.generator.manual_seed(seed)

    def poison(self) -> None:
        """Set all bits of ``out``: NaN, or -1, which one in 256 results of int8 is and one in 2**32 of int32."""
        self.out.view(self.torch.uint8).fill_(0xFF)
        self.synchronize()

    def synchronize(self) -> None:
        """Wait until torch's work on the device is done: a clock's stream waits for no other stream."""
        if self.out.is_cuda:
            self.torch.cuda.synchronize()
