"""Implementations for torch's dispatcher: a GPU's kernels, torch's operators on the CPU, and shapes for fake tensors.

Autograd and vmap are dispatched before these (:mod:`matmill.torch.gradients`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from matmill import ops
from matmill.arrays import inspect, will_write
from matmill.arrays.operand import refuse_conjugated
from matmill.dtypes import PRODUCTS
from matmill.errors import ArgumentError
from matmill.torch import gradients, host
from matmill.torch.checks import check_fake, check_host
from matmill.torch.compiling import lower_operators
from matmill.torch.schemas import FUNCTIONAL, LIBRARY, NAMES, OUT
from matmill.torch.states import differentiated


@dataclass(frozen=True)
class _Implementation:
    """An operator's functions for a GPU and for the CPU, and its derivative."""

    on_gpu: Callable[..., Any]
    on_host: Callable[..., None]
    gradient: Any


def _matmul_on_gpu(a: Any, b: Any, bias: Any = None, **others: Any) -> Any:
    return ops.matmul(a, b, bias=bias, **others)


_ROWS = {
    "transpose_add": _Implementation(ops.transpose_add, host.transpose_add, gradients.TransposeAdd),
    "transpose": _Implementation(ops.transpose, host.transpose, gradients.Transpose),
    "inner": _Implementation(ops.inner, host.matmul, gradients.Inner),
    "matmul": _Implementation(_matmul_on_gpu, host.matmul, gradients.MatMul),
}
#: Kinds of tensors with their own dispatch keys. All are refused, by the checks of strided tensors.
_LAYOUTS = ("Sparse", "SparseCsr", "NestedTensor", "Quantized")


def _host(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    fill = _ROWS[name].on_host

    def functional(*tensors: Any, **factors: Any) -> Any:
        out = tensors[0].new_empty(check_host(name, tensors, factors), dtype=factors.get("out_dtype"))
        fill(out, *tensors, **factors)
        return out

    def into(*tensors: Any, out: Any, **factors: Any) -> None:
        check_host(name, tensors, factors, out)
        will_write(out, "torch")
        fill(out, *tensors, **factors)

    return functional, into


def _fake(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def functional(*tensors: Any, **factors: Any) -> Any:
        lower_operators()
        return tensors[0].new_empty(check_fake(name, tensors, factors), dtype=factors.get("out_dtype"))

    def into(*tensors: Any, out: Any, **factors: Any) -> None:
        check_fake(name, tensors, factors, out)
        will_write(out, "torch")

    return functional, into


def _autograd(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    function, operator, writing = _ROWS[name].gradient, FUNCTIONAL[name], OUT[name]

    def functional(*tensors: Any, **factors: Any) -> Any:
        if differentiated(*tensors):
            return function.recorded(*tensors, **factors)
        with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 — what torch.library's own autograd does
            return operator(*tensors, **factors)

    def into(*tensors: Any, out: Any, **factors: Any) -> None:
        if differentiated(*tensors, out):
            raise ArgumentError(
                argument="out",
                got="a tensor to write into, where a derivative is recorded",
                wanted="out = None, or tensors of which no derivative is recorded",
                fix="Omit out=, or call inside torch.no_grad().",
            )
        with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 — see above
            writing(*tensors, out=out, **factors)

    return functional, into


def _on_gpu(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    compute = _ROWS[name].on_gpu

    def into(*tensors: Any, out: Any, **factors: Any) -> None:
        compute(*tensors, out=out, **factors)

    return compute, into


def _lazy(name: str) -> Callable[..., None]:
    writing = OUT[name]

    def into(*tensors: Any, out: Any, **factors: Any) -> None:
        # torch's own handling of lazily negated and conjugated tensors copies them, and fails for operators that return
        # nothing.
        held = [None if x is None else x.resolve_neg().resolve_conj() for x in tensors]
        if out.is_neg() or out.is_conj():
            check_host(name, tuple(held), factors, out)  # raises for other faults, and for negated ones
            refuse_conjugated(out, inspect(out, "out", dtypes=PRODUCTS), "out")
        writing(*held, out=out, **factors)

    return into


def _batched(name: str) -> Callable[..., Any]:
    function = _ROWS[name].gradient
    operator = FUNCTIONAL["matmul" if name == "inner" else name]

    def batched(_info: Any, dims: tuple[Any, ...], *tensors: Any, **factors: Any) -> Any:
        return function.batched(operator, dims, *tensors, **factors)

    return batched


def register() -> None:
    """Register all functions with torch's dispatcher."""
    for name in NAMES:
        on_gpu, on_host = _on_gpu(name), _host(name)
        forms = {"CUDA": on_gpu, "CPU": on_host, "MkldnnCPU": on_host, "Autograd": _autograd(name)}
        for layout in _LAYOUTS:
            forms |= {f"{layout}CUDA": on_gpu, f"{layout}CPU": on_host}
        for key, (functional, into) in forms.items():
            LIBRARY.impl(name, functional, key)
            LIBRARY.impl(f"{name}.out", into, key)
        for key in ("Negative", "Conjugate"):
            LIBRARY.impl(f"{name}.out", _lazy(name), key)
        functional, into = _fake(name)
        torch.library.register_fake(f"matmill::{name}", functional, lib=LIBRARY)
        torch.library.register_fake(f"matmill::{name}.out", into, lib=LIBRARY)
        torch.library.register_vmap(f"matmill::{name}", _batched(name), lib=LIBRARY)
