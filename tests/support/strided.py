"""Matrices in buffers of their own, and kernels that run on them: what tests of products and of sums share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from matmill import arch as arches
from matmill.arch import Arch
from matmill.emulator import Memory, Report, run
from matmill.jit.compile import compile_ptx
from matmill.jit.source import Source, generate
from matmill.jit.steps import binaries
from matmill.kernel import GemmOperands, Kernel
from matmill.launch import Pointer
from matmill.problem import Geam, Gemm
from matmill.runtime.gpu import GPU

Array = NDArray[Any]
P = TypeVar("P", Gemm, Geam)
H200 = arches.get("h200")
TARGET = H200.target
BARRIER = "__syncthreads();"
#: Vectors have so many bytes at most.
ALIGN = 16


def without(source: Source, header: str, snippet: str, index: int = 0, instead: str = "") -> Source:
    """Return the source with the ``index``-th ``snippet`` replaced in the file whose name ends in ``header``.

    An empty ``header`` means the one file that has the snippet. Line numbers stay unless ``instead`` changes them.
    """
    headers = dict(source.headers)
    (name,) = (name for name, text in headers.items() if name.endswith(header) and (header or snippet in text))
    parts = headers[name].split(snippet)
    assert len(parts) > index + 1, f"{snippet!r} is not in {name}"
    headers[name] = snippet.join(parts[: index + 1]) + instead + snippet.join(parts[index + 1 :])
    return replace(source, headers=tuple(sorted(headers.items())))


@dataclass(frozen=True)
class Layout:
    """A matrix in its buffer: transposed or not, elements between runs, between elements, before the first.

    ``shared`` says that all matrices of a batch are the same one, ``backwards`` that rows and columns run backwards.
    With a step of 0 all elements of a run are one.
    """

    transposed: bool = False
    pad: int = 0
    step: int = 1
    start: int = 0
    shared: bool = False
    backwards: bool = False

    def view(self, batch: int, rows: int, columns: int, dtype: np.dtype[Any]) -> Array:
        """Return a view [batch, rows, columns] of a buffer whose bits are all ones: NaN in every float type."""
        matrix, row, column = map(abs, self.strides(rows, columns))
        count = rows * row if not self.transposed else columns * column
        buffer = np.empty(self.start + count + (batch - 1) * matrix + self.step, dtype)
        buffer.view(np.uint8)[...] = 0xFF
        strides = tuple(elements * dtype.itemsize for elements in (matrix, row, column))
        view = as_strided(buffer[self.start :], (batch, rows, columns), strides)
        return view[:, ::-1, ::-1] if self.backwards else view

    def strides(self, rows: int, columns: int) -> tuple[int, int, int]:
        """Count the elements between neighbours in the batch, in a column and in a row, of empty matrices too."""
        outer, inner = (columns, rows) if self.transposed else (rows, columns)
        pitch = inner * self.step + self.pad
        row, column = (self.step, pitch) if self.transposed else (pitch, self.step)
        sign = -1 if self.backwards else 1
        return 0 if self.shared else outer * pitch, sign * row, sign * column

    def align(self, batch: int, rows: int, columns: int, size: int) -> int:
        """Count the bytes to which the start of every run is aligned, at most 16, of elements of ``size`` bytes."""
        matrix, *apart = self.strides(rows, columns)
        steps = [step for extent, step in zip((rows, columns), apart, strict=True) if extent > 1 and step != 1]
        return gcd(self.start_align(batch, matrix, size), *(step * size for step in steps))

    def start_align(self, batch: int, matrix: int, size: int) -> int:
        """Count the bytes to which the start of every matrix is aligned, at most 16: they are ``matrix`` apart."""
        return gcd(ALIGN, self.first(size), matrix * size if batch > 1 else 0)

    def first(self, size: int) -> int:
        """Count bytes that divide the address of the first element, of elements of ``size`` bytes."""
        return size if self.backwards else self.start * size


ROW, COLUMN = Layout(), Layout(transposed=True)


def buffer_of(view: Any) -> Array:
    """Return the buffer that a matrix is in."""
    while getattr(view, "base", None) is not None:
        view = view.base
    whole: Array = view
    return whole


def start_of(view: Array) -> int:
    """Count the bytes from the start of a matrix's buffer to its first element."""
    first, buffer = (array.__array_interface__["data"][0] for array in (view, buffer_of(view)))
    return int(first - buffer)


class Strided(ABC, Generic[P]):
    """A problem, its matrices, and kernels that compute it; D is the result.

    Matrices that share a buffer are one to a kernel: B of a Gram matrix is A, and C or Y may be D.
    """

    problem: P
    alpha: float
    beta: float
    #: What D's buffer holds before a launch.
    before: Array

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """The matrices by name, drawn when a test first needs them."""
        arrays = self._matrices()
        self.before = buffer_of(arrays["D"]).copy()
        return arrays

    def restore(self) -> None:
        """Give D's buffer what it held before the first run."""
        buffer = buffer_of(self.arrays["D"])
        buffer[...] = self.before

    def emulated(
        self,
        kernel: Kernel[P],
        *,
        arch: Arch = H200,
        source: Source | None = None,
        target: str = "",
        counter: NDArray[np.uint32] | None = None,
        late_copies: bool = False,
        schedule: int = 0,
        races: bool = True,
        own_waits: bool = False,
    ) -> list[Report]:
        """Run all launches of a kernel; a report for each.

        ``source`` replaces that of the launch with its entry point, ``target`` the arch's. ``counter`` is what last
        blocks count in.
        """
        reason = kernel.why_not(self.problem, arch)
        assert reason is None, reason
        memory = Memory()
        self.restore()
        pointers = self._bound(memory)
        workspace = np.full(kernel.workspace(self.problem), 0xFF, np.uint8)
        operands = self._operands(
            pointers,
            memory.bind("workspace", workspace, access="rw"),
            None if counter is None else memory.bind("counter", counter, access="rw"),
        )
        reports = []
        for program, launch in kernel.steps(self.problem, operands):
            own = source if source and source.entry == program.entry else generate(program, self.problem.dtype)
            ptx = compile_ptx(own, target or arch.target)
            reports.append(
                run(
                    ptx,
                    launch,
                    memory,
                    late_copies=late_copies,
                    schedule=schedule,
                    races=races,
                    own_waits=own_waits,
                )
            )
        return reports

    def on_gpu(self, kernel: Kernel[P], gpu: GPU) -> None:
        """Do the same on a GPU; D is copied back."""
        self.restore()
        with ExitStack() as stack:
            buffers = {id(buffer_of(view)): (name, buffer_of(view)) for name, view in self.arrays.items()}
            held = {key: stack.enter_context(gpu.upload(array, name)) for key, (name, array) in buffers.items()}
            workspace = stack.enter_context(gpu.empty(max(ALIGN, kernel.workspace(self.problem))))
            workspace.fill_bytes(0xFF)
            pointers = {
                name: Pointer(name, held[id(buffer_of(view))].address + start_of(view))
                for name, view in self.arrays.items()
            }
            operands = self._operands(pointers, workspace.pointer("workspace"), None)
            for binary, launch in binaries(kernel, self.problem, operands, gpu.arch.target):
                gpu.launch(binary, launch)
            gpu.synchronize()
            whole = buffer_of(self.arrays["D"])
            whole[...] = held[id(whole)].download(whole.shape, whole.dtype)

    def untouched(self) -> bool:
        """Tell whether D's buffer has, around D, what it had before."""
        d = self.arrays["D"]
        around = []
        for buffer in (buffer_of(d), self.before):
            bits = buffer.copy()
            inside = as_strided(bits[start_of(d) // d.itemsize :], d.shape, d.strides)
            inside[...] = 0
            around.append(bits.tobytes())
        return around[0] == around[1]

    def _bound(self, memory: Memory) -> dict[str, Pointer]:
        """Bind every buffer once, from 16 bytes before its matrix on to the matrix's last element.

        Of D it is to the end of the 16 bytes that the last element is in, which stores by TMA write.
        """
        pointers: dict[str, Pointer] = {}
        d = buffer_of(self.arrays["D"])
        for name, view in self.arrays.items():
            buffer, size = buffer_of(view), view.itemsize
            shared = next((other for other in pointers if buffer_of(self.arrays[other]) is buffer), None)
            if shared is not None:
                moved = start_of(view) - start_of(self.arrays[shared])
                pointers[name] = Pointer(name, pointers[shared].address + moved)
                continue
            first = start_of(view) // size
            reaches = [max(n - 1, 0) * stride // size for n, stride in zip(view.shape, view.strides, strict=True)]
            low, high = (first + sum(sign(reach, 0) for reach in reaches) for sign in (min, max))
            vector = ALIGN // size
            low -= low % vector
            if buffer is d:
                high += vector - 1 - high % vector
            own = "r" if buffer is not d else "w" if self._overwrites() else "rw"
            pointer = memory.bind(name, buffer[low : high + 1] if view.size else buffer[low:low], access=own)
            pointers[name] = Pointer(name, pointer.address + (first - low) * size)
        return pointers

    def _overwrites(self) -> bool:
        """Tell whether no operand is in D's buffer."""
        d = buffer_of(self.arrays["D"])
        return all(buffer_of(view) is not d for name, view in self.arrays.items() if name != "D")

    @abstractmethod
    def excess(self, kernel: Kernel[P] | None = None) -> float:
        """Return the largest error over its limit; infinite where a value is missing or something else was written.

        ``kernel`` is the one that ran, where its sums have a limit of their own.
        """

    @abstractmethod
    def _matrices(self) -> dict[str, Array]:
        """Draw the matrices; their names are keys."""

    @abstractmethod
    def _operands(self, pointers: dict[str, Pointer], workspace: Pointer, counter: Pointer | None) -> GemmOperands:
        """Return what a launch of the problem takes."""
