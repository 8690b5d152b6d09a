"""Kernels of Triton: ``@triton.jit`` functions, also behind ``autotune`` and ``heuristics``, compiled without a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import CompilationError, CompiledKernel

from matmill.arrays import host_array
from matmill.errors import ArgumentError
from matmill.launch import Pointer, TensorMap
from matmill.testing.arguments import Mapped
from matmill.testing.languages import Call, PythonLaunch, capability, refused, uncompiled

_NUMBERS: dict[str, Any] = {
    "fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp32": np.float32, "fp64": np.float64,
    **{f"{sign}{bits}": np.dtype(f"{sign}{max(bits // 8, 1)}").type for sign in "iu" for bits in (1, 8, 16, 32, 64)},
}  # fmt: skip
# An H100's; and 128 registers of each thread, since the assembler's choice is unknown here.
_PROPERTIES = {"max_shared_mem": 232448, "max_num_regs": 65536, "multiprocessor_count": 132, "warpSize": 32}
_LOADED = {"n_regs": 128, "n_spills": 0, "n_max_threads": 1024}
_SWIZZLES = (0, 32, 64, 128)
# Loads and stores are inline assembly, into whose middle LLVM may put the line of what comes after it.
_ASSEMBLY = re.compile(r"(// begin inline asm\n\s*\.loc[^\n]*)(.*?)(?=// end inline asm)", re.DOTALL)


class Tensor:
    """A NumPy array, or one of arrays, as Triton asks for tensors: an address and an element type."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.dtype = "int64" if array.dtype.hasobject else str(array.dtype)

    def data_ptr(self) -> int:
        """Return the address, for whose divisibility Triton specialises kernels."""
        return int(self.array.ctypes.data)


class _Driver:
    """Triton's driver of an emulated GPU. No other has its number, by which Triton keeps compiled kernels."""

    def __init__(self, target: str) -> None:
        major, minor = capability(target)
        self.target = GPUTarget("cuda", 10 * major + minor, 32)
        self.utils = SimpleNamespace(get_device_properties=lambda _device: dict(_PROPERTIES))
        self.get_current_target = lambda: self.target
        self.get_device_capability = lambda _device=0: (major, minor)
        self.get_current_device, self.get_current_stream = lambda: -1, lambda _device: 0
        self.get_active_torch_device = lambda: import_module("torch").device("cpu")
        # The first configuration of autotune is as fast as any.
        self.get_benchmarker = lambda: lambda _call, quantiles=(0,), **_: [0.0] * len(quantiles)


def lower(kernel: Any, call: Call) -> PythonLaunch:
    """Return a launch as ``kernel[grid](*args, **named)`` makes it; arrays are NumPy's or torch's."""
    if call.block is not None:
        wanted, fix = "None: a block has 32 threads per warp", "Write None, and num_warps= among the arguments."
        raise ArgumentError(argument="block", got=repr(call.block), wanted=wanted, fix=fix)
    launches: list[PythonLaunch] = []
    grid = (call.grid,) if isinstance(call.grid, int) else call.grid
    named = {name: _wrapped(each) for name, each in call.named.items()}
    with redirection(launches.append, call.target):
        try:
            kernel[grid](*map(_wrapped, call.args), **named)
        except (TypeError, KeyError) as problem:
            raise refused(str(problem), f"those of {kernel}") from problem
        except (CompilationError, RuntimeError) as problem:
            raise uncompiled(str(kernel), "Triton does not compile", problem) from problem
    return launches[0]


@contextmanager
def redirection(launch: Callable[[PythonLaunch], None], target: str) -> Iterator[None]:
    """Let ``launch`` run the launches of Triton's kernels."""

    def prepare(kernel: Any) -> None:
        # Grid, stream, handle, metadata and hooks come before the arguments.
        vars(kernel).update(_LOADED, _run=lambda *launched: launch(_launch(kernel, launched[:3], launched[9:])))

    driver = patch.object(triton.runtime.driver, "_active", _Driver(target))
    with driver, patch.object(CompiledKernel, "_init_handles", prepare):
        yield


def _launch(kernel: Any, grid: tuple[int, int, int], args: tuple[object, ...]) -> PythonLaunch:
    """Return a launch of a compiled kernel, whose arguments are those of the function."""
    meta, ctas = kernel.metadata, kernel.metadata.num_ctas
    maps = iter(getattr(meta, "tensordesc_meta", None) or ())
    rows = zip(kernel.src.signature.items(), args, strict=True)
    flat = [each for (name, kind), value in rows for each in _expanded(name, kind, value, maps)]
    scratch = np.zeros(int(np.prod(grid)) * ctas * getattr(meta, "global_scratch_size", 0), np.uint8)
    return PythonLaunch(
        _ASSEMBLY.sub(lambda block: block[1] + re.sub(r"\.loc[^\n]*", "", block[2]), kernel.asm["ptx"]), meta.name,
        tuple(value for _, value in flat), names=tuple(name for name, _ in flat),
        padding=(scratch if scratch.size else None, None), grid=(grid[0] * ctas, *grid[1:]),
        block=(32 * meta.num_warps, 1, 1), shared=meta.shared, cluster=(ctas, 1, 1),
        cooperative=getattr(meta, "launch_cooperative_grid", False), pdl=getattr(meta, "launch_pdl", False),
    )  # fmt: skip


def _wrapped(value: object) -> object:
    return Tensor(value) if isinstance(value, np.ndarray) else value


def _expanded(name: str, kind: Any, value: Any, maps: Iterator[Any]) -> Iterator[tuple[str, object]]:
    """Yield the values that Triton passes for one argument, and their names."""
    if isinstance(kind, tuple):
        for n, each in enumerate(zip(kind, value, strict=True)):
            yield from _expanded(f"{name}[{n}]", *each, maps)
    elif kind.startswith("tensordesc"):
        yield from _descriptor(name, value, next(maps, None))
    elif kind.startswith("*"):
        yield name, _array(value)
    elif kind != "constexpr":
        yield name, _NUMBERS[kind](value)


def _array(value: Any) -> Any:
    """Return the array behind a tensor of NumPy or torch, or behind another view of its elements."""
    value = value.base if isinstance(value, triton.runtime.jit.TensorWrapper) else value
    name = str(getattr(value, "dtype", ""))
    if isinstance(value, Tensor):
        return value.array
    if name.startswith("torch.float8"):
        return value.detach().view(import_module("torch").uint8).numpy().view(getattr(ml_dtypes, name[6:]))
    return host_array("tensor", value.detach()) if name == "torch.bfloat16" else value.detach().numpy()


def _descriptor(name: str, value: Any, meta: Any) -> Iterator[tuple[str, object]]:
    """Yield the values of a tensor descriptor: its tensor map, or its parts where the kernel has no TMA."""
    array, nan, rounded = _array(value.base), value.padding == "nan", getattr(value, "round_f32_to_tf32", False)
    sizes = [(f"{name}.shape[{n}]", int(each)) for n, each in enumerate(value.shape)]
    strides = [(f"{name}.strides[{n}]", np.int64(each)) for n, each in enumerate(value.strides)]
    if meta is None:
        yield name, array
        yield from ((where, np.int64(each)) for where, each in sizes)
        yield from (*strides, (f"{name}.padding", np.int8(nan)), (f"{name}.round_f32_to_tf32", np.int8(rounded)))
    elif meta["fp4_padded"] or meta.get("is_im2col"):
        wanted, fix = "one of tiles of whole bytes", "Run this kernel on a GPU."
        raise ArgumentError(argument=name, got="a descriptor of fp4 or of im2col", wanted=wanted, fix=fix)
    else:
        element = "tfloat32" if rounded else f"uint{8 * array.itemsize}" if array.itemsize == 1 else str(array.dtype)
        outer = tuple(int(each) * array.itemsize for each in value.strides[-2::-1])
        tile, swizzle = tuple(meta["block_size"])[::-1], _SWIZZLES[meta["swizzle"]]
        shape = tuple(each for _, each in sizes)[::-1]
        yield name, Mapped(array, TensorMap(Pointer(name, 0), element, shape, outer, tile, swizzle, nan_fill=nan))
    yield from ((where, np.int32(each)) for where, each in sizes)
    yield from strides
