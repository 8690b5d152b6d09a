"""Products of matrices in any layout and batch, with an epilogue, on fresh random numbers, in the emulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import erf
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matmill import arch as arches
from matmill import reference
from matmill.arch import Arch
from matmill.dtypes import ALL, F32, F64, DType
from matmill.emulator import Memory, Report, run
from matmill.jit.compile import compile_ptx
from matmill.jit.source import Source, generate
from matmill.jit.steps import binaries
from matmill.kernel import GemmOperands, Kernel
from matmill.launch import Pointer
from matmill.problem import NO_EPILOGUE, Epilogue, Gemm
from matmill.runtime.gpu import GPU

Array = NDArray[Any]
#: A file of a kernel, a text in it, and what stands there instead.
Change: TypeAlias = tuple[str, str, str]
H200 = arches.get("h200")

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


def changed(source: Source, changes: Sequence[Change]) -> Source:
    """Return the source after changes to its files, whose texts they must have once."""
    files = dict(source.headers)
    for file, old, new in changes:
        assert files[file].count(old) == 1, (file, old)
        files[file] = files[file].replace(old, new)
    return replace(source, headers=tuple(sorted(files.items())))


@dataclass(frozen=True)
class Layout:
    """A matrix in its buffer: transposed or not, elements between runs, between elements, before the first.

    ``shared`` says that all products of a batch have the same matrix.
    """

    transposed: bool = False
    pad: int = 0
    step: int = 1
    start: int = 0
    shared: bool = False

    def made(self, batch: int, rows: int, columns: int, dtype: np.dtype[Any]) -> Array:
        """Return a view [batch, rows, columns] of a buffer of NaN."""
        outer, inner = (columns, rows) if self.transposed else (rows, columns)
        pitch, count = inner * self.step + self.pad, 1 if self.shared else batch
        poison = np.full(self.start + count * outer * pitch + self.step, -1, f"i{dtype.itemsize}")
        flat = poison.view(dtype).copy()[self.start : self.start + count * outer * pitch]
        view = flat.reshape(count, outer, pitch)[:, :, : inner * self.step : self.step]
        view = view.swapaxes(1, 2) if self.transposed else view
        return np.broadcast_to(view, (batch, rows, columns)) if self.shared else view

    def align(self, view: Array) -> int:
        """Count the bytes to which the start of every run is aligned, at most 16."""
        size = view.itemsize
        steps = [s for n, s in zip(view.shape[1:], view.strides[1:], strict=True) if n > 1 and s != size]
        bits = 16 | self.start * size | (view.strides[0] if view.shape[0] > 1 else 0)
        for step in steps:
            bits |= step
        return bits & -bits


ROW, COLUMN = Layout(), Layout(transposed=True)


@dataclass
class StridedProduct:
    """D = activation(alpha A B + beta C + bias) for a batch, with D poisoned; ``c`` None means beta = 0."""

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
    alpha: float = 1.0
    beta: float = 0.75
    seed: int = 0

    def __post_init__(self) -> None:
        m, n, k = self.shape
        rng = np.random.default_rng([*self.shape, self.batch, self.seed])
        result = self.out_dtype or self.dtype
        self.arrays: dict[str, Array] = {}
        for name, layout, rows, columns, dtype in (
            ("A", self.a, m, k, self.dtype),
            ("B", self.b, k, n, self.dtype),
            ("C", self.c, m, n, result),
            ("D", self.d, m, n, result),
        ):
            if layout is None:
                continue
            view = layout.made(self.batch, rows, columns, dtype.numpy)
            if name != "D":
                drawn = rng.uniform(-1, 1, view.shape).astype(dtype.numpy)
                own = view if not layout.shared else view[:1]
                own.flags.writeable = True
                own[...] = drawn[: own.shape[0]]
            self.arrays[name] = view
        epilogue = NO_EPILOGUE
        if self.bias or self.activation:
            epilogue = Epilogue(self.bias, self.bias_step, self.activation)
        if self.bias:
            count = n if self.bias == "row" else m
            whole = np.full(count * self.bias_step, np.nan, np.float32).astype(self.dtype.numpy)
            self.arrays["bias"] = whole[:: self.bias_step]
            self.arrays["bias"][:] = rng.uniform(-1, 1, count).astype(self.dtype.numpy)
        if self.c is None:
            self.beta = 0.0
        strides: dict[str, Any] = {}
        for name in "ABCD":
            if name in self.arrays:
                steps = [s // self.arrays[name].itemsize for s in self.arrays[name].strides]
                strides |= {f"{name.lower()}_strides": (steps[1], steps[2]), f"{name.lower()}_batch": steps[0]}
        self.problem = Gemm(
            m, n, k, dtype=self.dtype, batch=self.batch, **strides,
            a_align=self.a.align(self.arrays["A"]), b_align=self.b.align(self.arrays["B"]),
            d_align=self.d.align(self.arrays["D"]), has_c=self.c is not None, epilogue=epilogue,
            out_dtype=self.out_dtype, precision=self.precision,
        )  # fmt: skip

    def emulated(
        self,
        kernel: Kernel[Gemm],
        *,
        arch: Arch = H200,
        late_copies: bool = False,
        schedule: int = 0,
        races: bool = True,
        changes: Sequence[Change] = (),
    ) -> list[Report]:
        """Run all launches of a kernel, after ``changes`` to its sources, on a poisoned D; a report for each."""
        reason = kernel.why_not(self.problem, arch)
        assert reason is None, reason
        memory = Memory()
        self._poison()
        pointers = {name: self._bound(memory, name) for name in self.arrays}
        workspace = np.full(kernel.workspace(self.problem), 0xFF, np.uint8)
        operands = self._operands(pointers, memory.bind("workspace", workspace, access="rw"))
        return [
            run(
                compile_ptx(changed(generate(program, self.dtype), changes), arch.target), launch, memory,
                late_copies=late_copies, schedule=schedule, races=races,
            )
            for program, launch in kernel.steps(self.problem, operands)
        ]  # fmt: skip

    def on_gpu(self, kernel: Kernel[Gemm], gpu: GPU) -> None:
        """Do the same on a GPU; D is copied back."""
        self._poison()
        with ExitStack() as stack:
            held = {name: stack.enter_context(gpu.upload(self.base(name), name)) for name in self.arrays}
            workspace = stack.enter_context(gpu.empty(max(16, kernel.workspace(self.problem))))
            workspace.fill_bytes(0xFF)
            pointers = {name: Pointer(name, one.address + self._start(name)) for name, one in held.items()}
            operands = self._operands(pointers, workspace.pointer("workspace"))
            for binary, launch in binaries(kernel, self.problem, operands, gpu.arch.target):
                gpu.launch(binary, launch)
            gpu.synchronize()
            whole = self.base("D")
            whole[...] = held["D"].download(whole.shape, whole.dtype)

    def base(self, name: str) -> Array:
        """Return the buffer that a matrix is in."""
        view: Array = self.arrays[name]
        while isinstance(view.base, np.ndarray):
            view = view.base
        return view

    def _poison(self) -> None:
        whole = self.base("D")
        whole[...] = np.full(whole.shape, -1, f"i{whole.itemsize}").view(whole.dtype)

    def _operands(self, pointers: dict[str, Pointer], workspace: Pointer) -> GemmOperands:
        return GemmOperands(
            a=pointers["A"],
            b=pointers["B"],
            c=pointers.get("C", Pointer("C", 0)),
            d=pointers["D"],
            alpha=self.alpha,
            beta=self.beta,
            workspace=workspace,
            bias=pointers.get("bias"),
        )

    def _start(self, name: str) -> int:
        """Count the bytes from the start of a matrix's buffer to its first element."""
        whole, view = self.base(name), self.arrays[name]
        return int(view.__array_interface__["data"][0] - whole.__array_interface__["data"][0])

    def _bound(self, memory: Memory, name: str) -> Pointer:
        pointer = memory.bind(name, self.base(name), access="w" if name == "D" else "r")
        return Pointer(name, pointer.address + self._start(name))

    def expected(self) -> tuple[Array, Array]:
        """Return the answer in float64, of float64 in extended precision, and how far from it an element may be.

        Per 16 products a tensor core truncates 17 terms to 2^-25 of the largest one's exponent, and their sum to 2^-23.
        """
        wide: Any = np.longdouble if self.dtype is F64 else np.float64
        unit = F64.roundoff if self.dtype is F64 else 2.0**-24
        a, b = (self.arrays[name].astype(wide) for name in "AB")
        sums, sizes = a @ b * self.alpha, np.abs(a) @ np.abs(b) * abs(self.alpha)
        limit = sizes * max(self.shape[2], 16) * 2 * unit
        if self.precision == "tf32":
            limit += sizes * 2.0**-10
        if self.c is not None:
            sums = sums + self.beta * self.arrays["C"].astype(wide)
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

    def excess(self) -> float:
        """Return the largest error over its limit; infinite where a value is missing or something else was written."""
        d = self.arrays["D"]
        whole = self.base("D").view(f"i{d.itemsize}").copy()
        steps = [s // d.itemsize for s in d.strides]
        start = self._start("D") // d.itemsize
        mine = np.lib.stride_tricks.as_strided(whole.ravel()[start:], d.shape, [s * d.itemsize for s in steps])
        mine[...] = -1
        if not (whole == -1).all():
            return np.inf
        return reference.excess(d, *self.expected())
