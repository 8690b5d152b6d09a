"""Matrices that torch makes on the GPU."""

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
