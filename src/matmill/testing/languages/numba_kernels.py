"""Kernels of numba-cuda: ``@cuda.jit`` dispatchers, compiled to PTX without a GPU, and arguments by numba's ABI."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import lru_cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import numba
import numpy as np
from numba import cuda, types
from numba.core.errors import NumbaError
from numba.cuda import dispatcher as dispatchers

from matmill.errors import ArgumentError
from matmill.testing.languages import Call, PythonLaunch, bound, capability, uncompiled

#: Types of arguments of the dispatchers that were declared with a signature while launches were redirected.
declared: WeakKeyDictionary[Any, tuple[Any, ...]] = WeakKeyDictionary()


def lower(kernel: Any, call: Call) -> PythonLaunch:
    """Return a launch of a dispatcher on NumPy arrays, numbers, tuples and records."""
    options, function = kernel.targetoptions, kernel.py_func
    name, signature = function.__name__, inspect.signature(function)
    for option in ("device", "link", "extensions", "debug"):
        if options.get(option):
            got, wanted = f"@cuda.jit({option}={options[option]!r})", "a kernel all of whose code numba compiles"
            raise ArgumentError(argument=f"kernel {name}", got=got, wanted=wanted, fix="Leave this option out.")
    values = [_plain(each) for each in bound(signature, call.args, call.named, name)]
    given = [_type_of(*each) for each in zip(signature.parameters, values, strict=True)]
    kinds = declared.get(kernel) or next(iter(kernel.overloads), None) or tuple(given)
    for where, kind, other in zip(signature.parameters, kinds, given, strict=True):
        if isinstance(kind, types.Array) and not _fits(kind, other):
            wanted = f"{kind}, by the signature of {name}"
            raise ArgumentError(argument=where, got=str(other), wanted=wanted, fix="Convert it first.")
    try:
        text = _ptx(function, kinds, capability(call.target), bool(options.get("fastmath")), options.get("opt", True))
    except NumbaError as problem:
        raise uncompiled(name, f"numba does not compile for ({', '.join(map(str, kinds))})", problem) from problem
    flat = [each for row in zip(signature.parameters, kinds, values, strict=True) for each in _expanded(*row)]
    names, args = zip(*flat, strict=True) if flat else ((), ())
    return PythonLaunch(text, None, args, spelled=name, names=names)


@lru_cache(maxsize=64)
def _ptx(function: Any, kinds: tuple[Any, ...], cc: tuple[int, int], *options: bool) -> str:
    """Compile a function. Device functions that it calls are compiled for the same GPU, and with their lines."""
    device, compiler = SimpleNamespace(compute_capability=cc), dispatchers.compile_cuda

    def with_lines(*args: Any, **keywords: Any) -> Any:
        return compiler(*args, **keywords | {"lineinfo": True})

    with patch.multiple(dispatchers, get_current_device=lambda: device, compile_cuda=with_lines):
        fastmath, opt = options
        compiled = cuda.compile_ptx(function, kinds, cc=cc, lineinfo=True, fastmath=fastmath, opt=opt)
    return str(compiled[0])


def _plain(value: object) -> object:
    """Return an array of a subclass, as the arrays of the redirected device are, as a plain one."""
    return np.asarray(value) if isinstance(value, np.ndarray) else value


def _type_of(name: str, value: object) -> Any:
    try:
        return numba.typeof(value)
    except ValueError as problem:
        got, fix = f"a {type(value).__name__}", "Give a NumPy array, a number, or a tuple of them."
        raise ArgumentError(argument=name, got=got, wanted="what numba has a type for", fix=fix) from problem


def _fits(kind: Any, other: Any) -> bool:
    same = isinstance(other, types.Array) and (kind.dtype, kind.ndim) == (other.dtype, other.ndim)
    return same and kind.layout in {"A", other.layout} and (not kind.mutable or other.mutable)


def _expanded(name: str, kind: Any, value: Any) -> Iterator[tuple[str, object]]:
    """Yield the values that numba passes for one argument, and their names."""
    if isinstance(kind, types.Array):
        yield from ((f"{name}.meminfo", None), (f"{name}.parent", None))
        yield from ((f"{name}.size", np.int64(value.size)), (f"{name}.itemsize", np.int64(value.itemsize)))
        yield name, value
        for word in ("shape", "strides"):
            yield from ((f"{name}.{word}[{n}]", np.int64(each)) for n, each in enumerate(getattr(value, word)))
    elif isinstance(kind, types.BaseTuple):
        for n, each in enumerate(zip(kind, value, strict=True)):
            yield from _expanded(f"{name}[{n}]", *each)
    elif isinstance(kind, types.Record):
        yield name, np.asarray(value).reshape(1)
    elif isinstance(kind, types.Complex):
        part = np.float32 if kind is types.complex64 else np.float64
        yield from ((f"{name}.real", part(value.real)), (f"{name}.imag", part(value.imag)))
    elif isinstance(kind, types.Boolean):
        yield name, np.uint8(value)
    elif isinstance(kind, types.Integer | types.Float):
        yield name, np.dtype(str(kind)).type(value)
    else:
        wanted = "an array, a number, a tuple or a record"
        raise ArgumentError(argument=name, got=f"a {kind} of numba", wanted=wanted, fix="Pass its parts.")
