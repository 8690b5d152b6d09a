"""x, y and the result of a transpose_add made by torch on the GPU, and compared to the bit."""

from __future__ import annotations

import importlib
from typing import Any

from lab import tensors
from lab.transpose_add.shapes import Shape
from matmill.arrays import Operand, inspect
from matmill.kernel import GemmOperands
from matmill.launch import Pointer


class TransposeAddMatrices:
    """x, y and out of one shape as torch's tensors: floats uniform in [-1, 1), integers of all values.

    The same for the same seed. Pitches are those of views of longer rows.
    """

    def __init__(self, shape: Shape, seed: int) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.generator = self.torch.Generator(device=tensors.DEVICE)
        self.generator.manual_seed(seed)
        self._dtype = shape.dtype
        self.x = self._random(shape.batch, shape.m, shape.n, shape.x_pad)
        self.y = self._random(shape.batch, shape.n, shape.m, shape.y_pad)
        self.out = self.torch.empty_like(self.y, memory_format=self.torch.contiguous_format)

    def _random(self, batch: int, rows: int, columns: int, pad: int) -> Any:
        torch, dtype = self.torch, getattr(self.torch, self._dtype.name)
        room = torch.empty((batch, rows, columns + pad), dtype=dtype, device=tensors.DEVICE)
        if dtype.is_floating_point:
            room.uniform_(-1, 1, generator=self.generator)
        else:
            limits = torch.iinfo(dtype)
            room.random_(limits.min, limits.max, generator=self.generator)
        view = room[..., :columns]
        return view[0] if batch == 1 else view

    def poison(self) -> None:
        """Set all bits of ``out``: NaN, or -1, which one in 256 results of int8 is and one in 2**32 of int32."""
        self.out.view(self.torch.uint8).fill_(0xFF)
        self.synchronize()

    def synchronize(self) -> None:
        """Wait until torch's work on the device is done: a clock's stream waits for no other stream."""
        if self.out.is_cuda:
            self.torch.cuda.synchronize()

    def inspected(self) -> tuple[Operand, Operand, Operand]:
        """Return x, y and out as matmill sees them."""
        return inspect(self.x, "x"), inspect(self.y, "y"), inspect(self.out, "out")

    def operands(self) -> GemmOperands:
        """Return the addresses of the matrices, whose sum is to be stored in ``out``."""
        named = zip("XYD", (self.x, self.y, self.out), strict=True)
        x, y, d = (Pointer(name, tensor.data_ptr()) for name, tensor in named)
        return GemmOperands(x, y, d, d, 1.0, 1.0)

    def tensor(self, found: Any) -> Any:
        """Return a result as torch's tensor, whichever library it is of."""
        torch = self.torch
        return found if isinstance(found, torch.Tensor) else torch.from_dlpack(found).view(self.y.dtype)

    def same(self, found: Any, wanted: Any) -> bool:
        """Tell whether two results are equal to the bit."""
        bits = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}[self._dtype.itemsize]
        kind = getattr(self.torch, bits)
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            return False
        return bool(self.torch.equal(found.contiguous().view(kind), wanted.contiguous().view(kind)))
