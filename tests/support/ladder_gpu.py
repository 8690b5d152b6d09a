"""A GPU made of host memory, for runs of ladders on it: launches compute with NumPy what their kernels would."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from matmill.arch import get
from matmill.bench.problems.transpose_sums import exact_sum
from matmill.bench.timing import device_copy
from matmill.jit.compile import Binary
from matmill.ladders.memory.rungs import Fill, filled
from matmill.ladders.registry import LADDERS
from matmill.launch import Launch, Pointer, TensorMap
from matmill.problem import Geam
from matmill.runtime.memory import Allocation
from support.ladder_runs import change, use

Array = NDArray[Any]
#: What every run takes.
MILLISECONDS = 2.0
SECONDS = MILLISECONDS / 1e3
#: Bytes of an allocation that are made rubbish: pages of gigabytes that nobody looks at need not be there.
_POISONED = 1 << 24


class FakeGPU:
    """Enough of the executor for what the benchmarks do with one.

    ``wrong`` names an entry point whose results have a wrong last element.
    """

    def __init__(self, *, wrong: str = "", free: int = 2**34) -> None:
        self.arch = get("h200")
        self.wrong = wrong
        self.free_bytes = free
        self.live: dict[int, NDArray[np.uint8]] = {}

    def empty(self, nbytes: int) -> Allocation:
        """Return memory that holds rubbish."""
        return Allocation(self, nbytes)

    def zeros(self, nbytes: int) -> Allocation:
        """Return host memory of zeros."""
        allocation = self.empty(nbytes)
        ctypes.memset(allocation.address, 0, nbytes)
        return allocation

    def upload(self, array: Array, _name: str) -> Allocation:
        """Return a copy of an array."""
        allocation = Allocation(self, array.nbytes)
        allocation.write(array)
        return allocation

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory."""
        memory = np.empty(nbytes, np.uint8)
        memory[:_POISONED] = 0xAA
        self.live[memory.ctypes.data] = memory
        return int(memory.ctypes.data)

    def free(self, address: int) -> None:
        """Forget memory."""
        del self.live[address]

    def synchronize(self) -> None:
        """Wait for nothing: nothing is ever in flight."""

    def launch(self, _binary: Binary, launch: Launch, stream: object = None) -> None:
        """Fill or multiply as the memory ladder's kernels do."""
        assert stream is None or hasattr(stream, "__cuda_stream__")
        args: tuple[Any, ...] = launch.args
        if launch.entry == "fill":
            where, count, seed = args
            strided(where, (int(count),), (1,), np.float32)[:] = filled(Fill(1, int(count), seed=int(seed)))[0]
            return
        m, n, k = (int(x) for x in args[3:6])
        a, b, c = (
            strided(where, shape, (shape[1], 1), np.float32)
            for where, shape in zip(args, ((m, k), (k, n), (m, n)), strict=False)
        )
        c[...] = a @ b

    def call(self, name: str, *args: Any) -> Any:
        """Return the driver calls that the benchmarks make."""
        if name in {"cuMemAlloc", "cuMemAllocHost", "cuMemAllocManaged"}:
            return self.allocate(args[0])
        if name in {"cuMemFree", "cuMemFreeHost"}:
            return self.free(args[0])
        if name == "cuMemsetD8":
            ctypes.memset(*args)
        if name in {"cuMemcpyHtoD", "cuMemcpyDtoH"}:
            ctypes.memmove(*args)
        return {"cuEventElapsedTime": MILLISECONDS, "cuMemGetInfo": self.free_bytes, "cuStreamCreate": 7}.get(name)


def strided(where: object, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Array:
    """Return the matrix at a pointer, or at that of a tensor map."""
    if isinstance(where, TensorMap):
        where = where.pointer
    assert isinstance(where, Pointer)
    size = np.dtype(dtype).itemsize
    span = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    flat = np.ctypeslib.as_array((ctypes.c_uint8 * (size * span)).from_address(where.address)).view(dtype)
    return np.lib.stride_tricks.as_strided(flat, shape, tuple(size * stride for stride in strides))


class LadderGPU(FakeGPU):
    """Computes in the launch that is given a result's address, from the inputs that launches before it were given.

    ``drift`` makes results differ from run to run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[str] = []
        self.copied = 0
        self.drift = 0.0
        self.runs = 0
        self._next: Any = None
        self._results: dict[int, Any] = {}
        self._seen: dict[str, Pointer] = {}
        self._since: set[str] = set()

    def of(self, matrices: Any) -> Any:
        """Note whose result is allocated next."""
        self._next = matrices
        return matrices

    def empty(self, nbytes: int) -> Allocation:
        """Return memory that holds rubbish."""
        result = super().empty(nbytes)
        problem = getattr(self._next, "problem", None)
        if problem is not None and nbytes == problem.m * problem.n * problem.dtype.itemsize:
            self._results[result.address], self._next = self._next, None
        return result

    def free(self, address: int) -> None:
        """Forget memory, and whose result it was."""
        super().free(address)
        self._results.pop(address, None)

    def launch(self, binary: Binary, launch: Launch, stream: object = None) -> None:
        """Do what the kernel would."""
        assert stream is None or hasattr(stream, "__cuda_stream__")
        assert f".entry {launch.entry}(" in binary.ptx
        self.entries.append(launch.entry)
        args: tuple[Any, ...] = launch.args
        if launch.entry == "stream_copy":
            self.copied = 16 * int(args[2])
            ctypes.memmove(args[1].address, args[0].address, self.copied)
            return
        pointers = [each.pointer if isinstance(each, TensorMap) else each for each in args]
        known = {each.name: each for each in pointers if isinstance(each, Pointer)}
        self._seen |= known
        self._since.add(launch.entry)
        result = next((each for each in known.values() if each.address in self._results), None)
        if result is not None:
            self._compute(self._results[result.address], result)
            self._seen, self._since = {}, set()

    def _compute(self, matrices: Any, where: Pointer) -> None:
        problem, (first, second, _) = matrices.problem, matrices.names
        kind, m, n = problem.dtype.numpy, problem.m, problem.n
        d = strided(where, (m, n), (n, 1), kind)
        self.runs += 1
        wrong = self.wrong in self._since
        if isinstance(problem, Geam):
            assert problem.y is not None
            x = strided(self._seen[first], (m, n), problem.x.strides, kind)
            d[...] = exact_sum(np.ascontiguousarray(x), strided(self._seen[second], (m, n), problem.y.strides, kind))
            d[-1:, -1:].view(f"i{d.itemsize}")[...] ^= wrong
            return
        wide: Any = problem.dtype.accumulator.numpy
        a = strided(self._seen[first], (m, problem.k), problem.a_row_col, kind).astype(wide)
        b = a.T
        if not matrices.shared:
            b = strided(self._seen[second], (problem.k, n), problem.b_row_col, kind).astype(wide)
        product = a @ b
        product[-1, -1] = product[-1, -1] * wide.type(1 + self.drift * self.runs) + 4 * wrong
        d[...] = product


def ladder_gpu(monkeypatch: pytest.MonkeyPatch, ladder: str) -> LadderGPU:
    """Put such a GPU in the place of the one present, for runs of one ladder."""
    gpu = LadderGPU()
    use(monkeypatch, gpu)
    monkeypatch.setattr(device_copy, "LEAST", 4096)
    subject = LADDERS[ladder].subject

    class Watched:
        """The inputs of a run; the GPU learns of each problem."""

        def __init__(self, seed: int) -> None:
            self._inputs = subject.inputs(seed)

        def of(self, problem: Any) -> Any:
            """Return the matrices of a problem."""
            return gpu.of(self._inputs.of(problem))

    fields = {name: getattr(subject, name) for name in subject.__dataclass_fields__}
    change(monkeypatch, ladder, subject=type(subject)(**{**fields, "inputs": Watched}))
    return gpu
