"""Products of matrices in any layout and batch, with an epilogue, on fresh random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import erf, gcd
from typing import Any

import numpy as np

from matmill import reference
from matmill.bench.problems.error_bounds import float16_sums
from matmill.dtypes import ALL, F32, F64, DType
from matmill.kernel import GemmOperands, Kernel
from matmill.launch import Pointer
from matmill.problem import Epilogue, Gemm
from support.strided import ALIGN, ROW, Array, Layout, Strided

#: What activations are, in float64.
ACTIVATED: dict[str | None, Callable[[Array], Array]] = {
    None: lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(erf, otypes=[np.float64])(x * np.sqrt(0.5))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}
#: By how much the slope of an activation exceeds 1 at most, and the error of its own evaluation in float32.
_SLOPE, _EVALUATION = 1.2, 2.0**-20


@dataclass
class StridedProduct(Strided[Gemm]):
    """D = activation(alpha A B + beta C + bias) for a batch; ``c`` None means beta = 0.

    B of a ``gram`` matrix is A's transpose; of a product ``in_place`` C and D are one matrix.
    """

    shape: tuple[int, int, int]
    a: Layout = ROW
    b: Layout = ROW
    d: Layout = ROW
    c: Layout | None = None
    dtype: DType = field(default_factory=lambda: ALL["bfloat16"])
    out_dtype: DType | None = None
    batch: int = 1
    bias: str | None = None
    bias_step: int = 1
    activation: str | None = None
    precision: str = "default"
    slice_k: int = 0
    alpha: float = 1.0
    beta: float = 0.75
    seed: int = 0
    gram: bool = False
    in_place: bool = False

    def __post_init__(self) -> None:
        if self.c is None and not self.in_place:
            self.beta = 0.0
        m, n, k = self.shape
        result = self.out_dtype or self.dtype
        strides: dict[str, Any] = {}
        aligns, starts, firsts = {}, {}, []
        for name, layout, sizes, dtype in (
            ("a", self.a, (m, k), self.dtype),
            ("b", self.b, (k, n), self.dtype),
            ("c", self.d if self.in_place else self.c, (m, n), result),
            ("d", self.d, (m, n), result),
        ):
            if layout is None or (name == "b" and self.gram):
                continue
            matrix, *apart = layout.strides(*sizes)
            strides |= {f"{name}_strides": tuple(apart), f"{name}_batch": matrix}
            if name != "c":
                aligns[name] = layout.align(self.batch, *sizes, dtype.itemsize)
                starts[name] = layout.start_align(self.batch, matrix, dtype.itemsize)
                firsts.append(layout.first(dtype.itemsize))
        self.problem = Gemm(
            m, n, k, dtype=self.dtype, batch=self.batch, **strides,
            a_align=aligns["a"], b_align=aligns["a" if self.gram else "b"], d_align=aligns["d"],
            has_c=self.beta != 0, gram=self.gram, epilogue=Epilogue(self.bias, self.bias_step, self.activation),
            out_dtype=self.out_dtype, precision=self.precision, slice_k=self.slice_k, base_align=gcd(ALIGN, *firsts),
            a_start_align=starts["a"], b_start_align=starts["a" if self.gram else "b"],
        )  # fmt: skip

    def _matrices(self) -> dict[str, Array]:
        m, n, k = self.shape
        rng = np.random.default_rng([*self.shape, self.batch, self.seed])
        result = self.out_dtype or self.dtype
        arrays = {"A": self._drawn(rng, self.a, (m, k), self.dtype)}
        arrays["B"] = arrays["A"].swapaxes(1, 2) if self.gram else self._drawn(rng, self.b, (k, n), self.dtype)
        arrays["D"] = self.d.view(self.batch, m, n, result.numpy)
        if self.in_place:
            arrays["C"] = arrays["D"]
            if self.beta:
                arrays["C"][...] = rng.uniform(-1, 1, arrays["D"].shape)
        elif self.c is not None:
            arrays["C"] = self._drawn(rng, self.c, (m, n), result)
        if self.bias:
            count = n if self.bias == "row" else m
            whole = np.full(count * self.bias_step, np.nan, np.float32).astype(self.dtype.numpy)
            arrays["bias"] = whole[:: self.bias_step]
            arrays["bias"][:] = rng.uniform(-1, 1, count)
        return arrays

    def _drawn(self, rng: np.random.Generator, layout: Layout, shape: tuple[int, int], dtype: DType) -> Array:
        """Return random numbers in a buffer of NaN."""
        view = layout.view(self.batch, *shape, dtype.numpy)
        first = view[:1] if layout.shared else view
        first[...] = rng.uniform(-1, 1, first.shape)
        return view

    def _operands(self, pointers: dict[str, Pointer], workspace: Pointer, counter: Pointer | None) -> GemmOperands:
        return GemmOperands(
            a=pointers["A"],
            b=pointers["B"],
            c=pointers.get("C", Pointer("C", 0)),
            d=pointers["D"],
            alpha=self.alpha,
            beta=self.beta,
            workspace=workspace,
            bias=pointers.get("bias"),
            counter=counter,
        )

    def addend(self) -> Array | None:
        """Return C as it is before a launch, or None where there is none."""
        if "C" not in self.arrays:
            return None
        if not self.in_place:
            return self.arrays["C"]
        d = self.arrays["D"]
        whole = self.before[self.d.start :]
        return np.lib.stride_tricks.as_strided(whole, d.shape, d.strides)

    def expected(self) -> tuple[Array, Array]:
        """Return the answer in float64, of float64 in extended precision, and how far from it an element may be.

        Plain products are within the library's own bound. Of others, per 16 products a tensor core truncates 17 terms
        to 2^-25 of the largest one's exponent, and their sum to 2^-23.
        """
        if self.problem.plain:
            given = self.arrays["A"], self.arrays["B"], self.addend()
            answer = reference.answer(*given, alpha=self.alpha, beta=self.beta)
            return answer, reference.bound(*given, alpha=self.alpha, beta=self.beta)
        wide: Any = np.longdouble if self.dtype is F64 else np.float64
        unit = F64.roundoff if self.dtype is F64 else 2.0**-24
        a, b = (self.arrays[name].astype(wide) for name in "AB")
        sums, sizes = a @ b * self.alpha, np.abs(a) @ np.abs(b) * abs(self.alpha)
        limit = sizes * max(self.shape[2], 16) * 2 * unit
        if self.precision == "tf32":
            limit += sizes * 2.0**-10
        c = self.addend()
        if c is not None and self.beta:
            sums = sums + self.beta * c.astype(wide)
        if self.bias:
            vector = self.arrays["bias"].astype(wide)
            sums = sums + (vector if self.bias == "row" else vector[:, None])
        limit = limit + 4 * unit * np.abs(sums)
        found = ACTIVATED[self.activation](sums.astype(np.float64) if self.activation else sums)
        if self.activation:
            limit = _SLOPE * limit + _EVALUATION * (np.abs(found) + 2.0**-10)
        result = self.out_dtype or self.dtype
        if result not in (F32, F64):
            limit = limit + result.roundoff * (np.abs(found) + limit) + result.tiny
        return found, limit

    def excess(self, kernel: Kernel[Gemm] | None = None) -> float:
        """Return the largest error over its limit; infinite where a value is missing or something else was written.

        A ``kernel`` that sums in float16 may lose what the roundings of those sums lose.
        """
        if not self.untouched():
            return np.inf
        result, limit = self.expected()
        if kernel is not None and kernel.config.get("ACC16", 0):
            a, b = (np.abs(self.arrays[name]).astype(np.float64) for name in "AB")
            limit = limit + abs(self.alpha) * float16_sums(a @ b, self.shape[2])
        return reference.excess(self.arrays["D"], result, limit)
