"""What is audited: a function of two matrices, and operands for it in buffers that are NaN around them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from matmill.dtypes import ALL, DType, of_numpy

Array = NDArray[Any]
Sizes = tuple[int, int, int]

#: Elements before and after a matrix in its buffer: more than kernels read or write at once.
_AROUND = 1024


@dataclass(frozen=True)
class Form:
    """The memory of a matrix: by columns instead of rows, and so many elements behind an aligned address."""

    columns: bool = False
    start: int = 0


PLAIN = Form()


def spelled(sizes: tuple[int, ...]) -> str:
    """Return the sizes of a product, in the order m, n, k, behind those of a batch.

    >>> spelled((33, 24, 300))
    '33 x 24 x 300'
    """
    return " x ".join(map(str, sizes))


@dataclass(frozen=True)
class Subject:
    """A function ``f(a, b)`` that multiplies matrices of one element type.

    ``device`` is that of torch's tensors, or empty for NumPy's arrays. Keyword parameters ``out``, and ``c`` with
    ``beta``, are tried where the function declares them.
    """

    function: Callable[..., Any]
    name: str
    dtype: DType = ALL["float32"]
    device: str = ""

    @cached_property
    def result(self) -> DType:
        """The element type of results, as a small product shows it."""
        return of_numpy(self.product(*(np.ones((4, 4)),) * 2).dtype, "the result of f")

    @cached_property
    def takes(self) -> frozenset[str]:
        """The names of the function's keyword parameters."""
        try:
            return frozenset(inspect.signature(self.function).parameters)
        except (TypeError, ValueError):  # of a function in C
            return frozenset()

    @property
    def as_result(self) -> Subject:
        """The same function, for matrices of the type of its results."""
        return replace(self, dtype=self.result)

    def product(self, a: Array, b: Array, forms: tuple[Form, Form] = (PLAIN, PLAIN), **options: Any) -> Array:
        """Return the function's product of numbers, each matrix in a buffer whose other elements are NaN."""
        operands = (self.matrix(values, form) for values, form in zip((a, b), forms, strict=True))
        try:
            with np.errstate(all="ignore"):  # infinities and NaN are meant
                return self.on_host(self.function(*operands, **options))
        except Exception as error:
            error.add_note(spelled((*a.shape[:-1], b.shape[-1], a.shape[-1])))
            raise

    def written(self, a: Array, b: Array, fill: float) -> tuple[Array, Array]:
        """Return what the function writes into ``out=``, and all of its buffer, which was ``fill`` before."""
        shape = (*a.shape[:-1], b.shape[-1])
        out, buffer = self.as_result.in_buffer(np.full(shape, fill), around=fill)
        self.function(self.matrix(a), self.matrix(b), out=out)
        return self.on_host(out), self.on_host(buffer)

    def matrix(self, values: Array, form: Form = PLAIN) -> Any:
        """Return numbers as a matrix of the function's library, in a buffer that is NaN elsewhere."""
        return self.in_buffer(values, form)[0]

    def in_buffer(self, values: Array, form: Form = PLAIN, around: float = float("nan")) -> tuple[Any, Any]:
        """Return numbers as a matrix, and its buffer, which is ``around`` elsewhere."""
        memory = values.swapaxes(-1, -2) if form.columns else values
        buffer = np.full(memory.size + 2 * _AROUND + form.start, around, np.float64).astype(self.dtype.numpy)
        first = _AROUND + form.start
        buffer[first : first + memory.size] = memory.astype(self.dtype.numpy).ravel()
        strides = [int(np.prod(memory.shape[axis + 1 :])) for axis in range(memory.ndim)]
        if form.columns:
            strides[-1], strides[-2] = strides[-2], strides[-1]
        if self.device:
            tensor = self._tensor(buffer)
            return tensor.as_strided(values.shape, strides, first), tensor
        size = self.dtype.itemsize
        return as_strided(buffer[first:], values.shape, [stride * size for stride in strides]), buffer

    def on_host(self, result: Any) -> Array:
        """Return a result as a NumPy array of its own."""
        if not self.device:
            return np.array(result)
        torch: Any = importlib.import_module("torch")
        bits = result.detach().cpu().contiguous().view(torch.uint8)  # NumPy does not know torch's bfloat16
        kind = ALL[str(result.dtype).removeprefix("torch.")].numpy
        array: Array = bits.numpy().copy().view(kind)
        return array.reshape(tuple(result.shape))

    def _tensor(self, buffer: Array) -> Any:
        torch: Any = importlib.import_module("torch")
        bits = torch.from_numpy(buffer.view(f"i{buffer.itemsize}")).to(self.device)
        return bits.view(getattr(torch, self.dtype.name))
