"""Signatures: what calls must have in common to share a plan, and that tensors and operands say it alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matmill.arrays import Operand
from matmill.dispatch import plan_cache
from matmill.dispatch.gemm import INNER, MATMUL
from matmill.dispatch.plan_cache import signature
from matmill.dispatch.transpose import TRANSPOSE, TRANSPOSE_ADD
from matmill.dispatch.validate import Operation, Options, Request
from matmill.dtypes import F16, F32, F64

_GPU = ("cuda", 0)


def _operand(shape: tuple[int, ...], strides: tuple[int, ...], address: int, **other: Any) -> Operand:
    return Operand(shape, strides, F32, _GPU, address, readonly=False, library="torch", owner=None)._replace(**other)


_A, _B = _operand((4, 64), (64, 1), 1 << 20), _operand((64, 4), (4, 1), 1 << 21)
_SQUARE = _operand((4, 4), (4, 1), 1 << 22)
_ROW = _operand((4,), (1,), 1 << 23)
_HALF_A, _HALF_B = _A._replace(dtype=F16), _B._replace(dtype=F16)


def _request(**changes: Any) -> Request:
    return Request(MATMUL, _A, _B, None, None, 1.0, 0.0, None, _A, None)._replace(**changes)


#: Each differs from all others in what a plan depends on.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "operation": {"operation": INNER},
    "GPU": {"a": _A._replace(device=("cuda", 1))},
    "type": {"a": _A._replace(dtype=F64)},
    "extents": {"a": _A._replace(shape=(3, 64))},
    "strides": {"a": _A._replace(strides=(128, 1))},
    "alignment of a": {"a": _A._replace(address=_A.address + 4)},
    "alignment of b": {"b": _B._replace(address=_B.address + 8)},
    "one address": {"b": _B._replace(address=_A.address)},
    "c": {"c": _SQUARE},
    "another c": {"c": _SQUARE._replace(strides=(1, 4))},
    "c, scaled by 1": {"c": _SQUARE, "beta": 1.0},
    "c, scaled": {"c": _SQUARE, "beta": 2.0},
    "nothing of a and b": {"alpha": 0.0},
    "scaled": {"alpha": 3.0},
    "out": {"out": _SQUARE},
    "another out": {"out": _SQUARE._replace(strides=(1, 4))},
    "alignment of out": {"out": _SQUARE._replace(address=_SQUARE.address + 4)},
    "c and out": {"c": _SQUARE, "out": _SQUARE},
    "bias": {"bias": _ROW},
    "bias of rows": {"bias": _ROW._replace(shape=(4, 1), strides=(1, 1))},
    "another bias": {"bias": _ROW._replace(strides=(-2,))},
    "activation": {"options": Options("relu")},
    "another activation": {"options": Options("silu")},
    "bias and activation": {"bias": _ROW, "options": Options("relu")},
    "precision": {"options": Options(precision="high")},
    "halves": {"a": _HALF_A, "b": _HALF_B},
    "wider result": {"a": _HALF_A, "b": _HALF_B, "options": Options(out_dtype=F32)},
    "wider out": {"a": _HALF_A, "b": _HALF_B, "out": _SQUARE, "options": Options(out_dtype=F32)},
    "transpose": {"operation": TRANSPOSE, "b": None},
    "transpose into out": {"operation": TRANSPOSE, "b": None, "out": _SQUARE},
    "transpose, scaled": {"operation": TRANSPOSE_ADD, "b": None, "alpha": 2.0},
    "bits moved": {"operation": TRANSPOSE_ADD, "b": None},
    "sum, X scaled": {"operation": TRANSPOSE_ADD, "alpha": 2.0, "beta": 1.0},
    "sum, both scaled": {"operation": TRANSPOSE_ADD, "alpha": 2.0, "beta": 3.0},
    "zeros": {"operation": TRANSPOSE_ADD, "b": None, "alpha": 0.0},
}


def test_whatever_a_plan_depends_on_is_part_of_the_signature() -> None:
    assert len({signature(_request(**changes), mixed=True) for changes in KINDS.values()}) == len(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_addresses_and_libraries_are_not(name: str) -> None:
    request = _request(**KINDS[name])

    def moved(x: Operand | None, by: int) -> Operand | None:
        return x and x._replace(address=x.address + by, library="cupy", owner=object())

    same = 0 if name == "one address" else 1 << 24
    there = request._replace(
        a=request.a._replace(address=request.a.address + (1 << 23), library="cupy", owner=object()),
        b=moved(request.b, (1 << 23) + same),
        c=moved(request.c, 4),
        bias=moved(request.bias, 4),
        out=moved(request.out, 1 << 5),
        alpha=request.alpha if request.alpha in {0, 1} else -0.5,
        beta=request.beta if request.beta in {0, 1} else float("nan"),
        like=object(),
    )
    assert signature(there, mixed=True) == signature(request, mixed=True)


@pytest.mark.parametrize("place", ["a", "b", "c", "bias", "out"])
@pytest.mark.parametrize(
    "other", [{"library": "jax"}, {"dtype": F64}, {"device": ("cuda", 1)}, {"device": ("cpu", 0)}], ids=str
)
def test_operands_that_need_a_check_at_every_call_have_no_signature(place: str, other: dict[str, Any]) -> None:
    request = _request(c=_SQUARE, bias=_ROW, out=_SQUARE)
    assert signature(request)
    assert signature(request._replace(**{place: getattr(request, place)._replace(**other)})) == ()


@pytest.mark.parametrize("other", [{"library": "numpy"}, {"device": ("cpu", 0)}], ids=str)
def test_nor_have_arrays_on_the_host_or_of_a_library_that_matmill_does_not_allocate_with(other: dict[str, Any]) -> None:
    assert signature(_request(a=_A._replace(**other), b=_B._replace(**other))) == ()


@pytest.mark.parametrize("operation", [MATMUL, TRANSPOSE_ADD, TRANSPOSE])
def test_the_scalars_of_a_call_that_names_none_leave_the_operation_alone(operation: Operation) -> None:
    assert signature(_request(operation=operation, beta=operation.beta))[0] is operation


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=4))
def test_packed_is_what_numpy_and_torch_call_contiguous(dimensions: list[tuple[int, int]]) -> None:
    shape, strides = tuple(extent for extent, _ in dimensions), tuple(stride for _, stride in dimensions)
    array = np.lib.stride_tricks.as_strided(np.zeros(64, np.int8), shape, strides)
    packed = bool(array.flags.c_contiguous)
    assert plan_cache._layout(shape, strides) == (True if packed else strides)
