"""Host code of CUDA C++ programs, compiled by nvcc, on a CUDA runtime whose kernels run in the emulator.

``field/cuda_runtime.cpp`` stands for the runtime and the driver. So libraries make their kernels' arguments themselves,
tensor maps among them, on a machine without a GPU.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matmill.emulator import KernelFault, Memory, Module, Order, Report, parse, run
from matmill.errors import MatmillError
from matmill.launch import Launch, Pointer, Struct, TensorMap
from matmill.tensor_map import encode

Array: TypeAlias = NDArray[Any]

FOLDER = Path(__file__).resolve().parents[1] / "field"
#: What every driver exports: it launches a kernel on arrays, with sizes.
ENTRY = "launch"
#: Element types in the order of the driver's ``CUtensorMapDataType``.
_ELEMENTS = (
    "uint8", "uint16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64", "bfloat16", "float32_ftz",
    "tfloat32", "tfloat32_ftz",
)  # fmt: skip
#: nvcc's options for host code of a library that brings its own CUDA runtime.
HOST_CODE = ("-Xcompiler", "-fPIC", "-cudart", "none")
_TO_DEVICE, _TO_HOST, _ON_DEVICE, _FILL = 1, 2, 3, -1


class _Launch(ctypes.Structure):
    _fields_ = (
        ("entry", ctypes.c_char_p), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
        ("cluster", ctypes.c_uint * 3), ("dynamic_shared", ctypes.c_size_t), ("pdl", ctypes.c_int),
        ("args", ctypes.POINTER(ctypes.c_void_p)),
    )  # fmt: skip


class _Map(ctypes.Structure):
    _fields_ = (
        ("element", ctypes.c_int), ("rank", ctypes.c_int), ("interleave", ctypes.c_int), ("swizzle", ctypes.c_int),
        ("promotion", ctypes.c_int), ("nan_fill", ctypes.c_int), ("address", ctypes.c_uint64),
        ("sizes", ctypes.c_uint64 * 5), ("strides", ctypes.c_uint64 * 4), ("box", ctypes.c_uint32 * 5),
        ("element_strides", ctypes.c_uint32 * 5),
    )  # fmt: skip


# The runtime's callbacks, in the order of its table.
_CALLBACKS: tuple[Callable[[Any], Any], ...] = (
    ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_size_t),
    ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int, ctypes.c_int),
    ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Map), ctypes.c_void_p),
    ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Launch)),
)


@dataclass(frozen=True)
class Nvcc:
    """nvcc for compute capability 9.0a, and options for all that it compiles."""

    command: str = "nvcc"
    options: tuple[str, ...] = ()

    def program(self, source: Path, folder: Path, options: Sequence[str]) -> tuple[Path, str]:
        """Compile a driver with its host code in ``folder``; return the library and its kernels' PTX."""
        library = folder / "program.so"
        self._run("-shared", *HOST_CODE, "--keep", "--keep-dir", str(folder), *options, "-o", str(library), str(source))
        return library, (folder / f"{source.stem}.ptx").read_text(encoding="utf-8")

    def kernels(self, source: Path, ptx: Path, options: Sequence[str]) -> str:
        """Compile the kernels of a driver alone to a file, and return their PTX."""
        self._run("-ptx", *options, "-o", str(ptx), str(source))
        return ptx.read_text(encoding="utf-8")

    def _run(self, *options: str) -> None:
        target = ("-gencode", "arch=compute_90a,code=compute_90a", "-lineinfo", "-w")
        subprocess.run([self.command, *target, *self.options, *options], check=True)


def load_runtime(folder: Path, compiler: Sequence[str]) -> ctypes.CDLL:
    """Compile the runtime by a command such as ``("nvcc", …)`` and load it, so that programs loaded later call it."""
    library = folder / "cuda_runtime.so"
    subprocess.run(
        [*compiler, "-std=c++17", "-shared", "-o", str(library), str(FOLDER / "cuda_runtime.cpp")], check=True
    )
    return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


@dataclass
class HostProgram:
    """A loaded program and its memory: each launch of its host code runs in the emulator, in ``order``."""

    runtime: ctypes.CDLL
    library: ctypes.CDLL
    module: Module
    order: Order = field(default_factory=Order)
    memory: Memory = field(default_factory=Memory)
    launches: list[Launch] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    #: The error that ended a call of the runtime: C++ cannot pass on Python's.
    error: MatmillError | None = None

    def __call__(self, arrays: dict[str, Array], sizes: Sequence[int]) -> None:
        """Call the driver; kernels write to the arrays in place.

        Raises what the emulator, or the encoder of tensor maps, raised.
        """
        callbacks = self._connect()
        bound = [self.memory.bind(name, array, access="rw").address for name, array in arrays.items()]
        status = getattr(self.library, ENTRY)(
            (ctypes.c_uint64 * len(bound))(*bound), (ctypes.c_int * len(sizes))(*sizes)
        )
        del callbacks
        if self.error is not None:
            raise self.error
        if status or not self.launches:
            raise RuntimeError(f"the driver returned {status} after {len(self.launches)} launches")

    def main(self, *arguments: str) -> int:
        """Call the program's own ``main``; return its exit code.

        Raises what the emulator, or the encoder of tensor maps, raised.
        """
        callbacks = self._connect()
        words = [word.encode() for word in ("program", *arguments)]
        status: int = self.library.main(len(words), (ctypes.c_char_p * (len(words) + 1))(*words, None))
        del callbacks
        if self.error is not None:
            raise self.error
        return status

    def _connect(self) -> list[Any]:
        """Connect the runtime to this program for as long as the result lives."""
        methods = (self._allocate, self._copy, self._encode, self._launch)
        table: list[Any] = [make(method) for make, method in zip(_CALLBACKS, methods, strict=True)]
        self.runtime.matmill_set_callbacks((ctypes.c_void_p * 4)(*(ctypes.cast(f, ctypes.c_void_p) for f in table)))
        return table

    def _allocate(self, nbytes: int) -> int:
        return self.memory.bind(f"cudaMalloc {nbytes}", np.zeros(max(nbytes, 1), np.uint8), access="rw").address

    def _copy(self, to: int, source: int, nbytes: int, value: int, kind: int) -> int:
        target = self._host(to, nbytes) if kind == _TO_HOST else self._device(to, nbytes)
        if kind == _FILL:
            target[:] = value
        else:
            target[:] = self._host(source, nbytes) if kind == _TO_DEVICE else self._device(source, nbytes)
        return 0

    def _host(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))

    def _device(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        allocation = self.memory.holding(Pointer("", address))
        start = address - allocation.start
        return allocation.data[start : start + nbytes]

    def _encode(self, record: Any, target: int) -> int:
        own = record.contents
        rank = own.rank
        tensor = TensorMap(
            Pointer("tensor", own.address), _ELEMENTS[own.element], tuple(own.sizes[:rank]),
            tuple(own.strides[: rank - 1]), tuple(own.box[:rank]), (0, 32, 64, 128)[own.swizzle],
            tuple(own.element_strides[:rank]), (0, 16, 32)[own.interleave], (0, 64, 128, 256)[own.promotion],
            bool(own.nan_fill),
        )  # fmt: skip

        def put() -> None:
            ctypes.memmove(target, encode(tensor, own.address), TensorMap.NBYTES)

        return self._kept(put)

    def _launch(self, record: Any) -> int:
        own = record.contents
        entry = own.entry.decode()

        def start() -> None:
            params = self.module.entries[entry].params
            args = tuple(
                Struct(ctypes.string_at(own.args[i], variable.size), variable.align)
                for i, variable in enumerate(params)
            )
            launch = Launch(
                entry, entry, tuple(own.grid), tuple(own.block), args, own.dynamic_shared, bool(own.pdl),
                cluster=tuple(own.cluster),
            )  # fmt: skip
            self.launches.append(launch)
            try:
                report = run(self.module, launch, self.memory, order=self.order)
            except KernelFault as fault:
                if fault.report is None:
                    raise
                report = fault.report
            self.reports.append(report)

        return self._kept(start)

    def _kept(self, step: Callable[[], None]) -> int:
        """Run a step of a callback; keep its error for the caller of the program."""
        try:
            step()
        except MatmillError as error:
            self.error = self.error or error
            return 1
        return 0


def load_program(runtime: ctypes.CDLL, library: Path, ptx: str, order: Order) -> HostProgram:
    """Load a compiled program with the kernels of a PTX text."""
    return HostProgram(runtime, ctypes.CDLL(str(library)), parse(ptx), order)
