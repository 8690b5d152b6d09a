"""Parameters: what is emitted for the device is what the host lays out; what does not fit is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from matmill.dtypes import BF16, F32, F64, I8
from matmill.errors import ArgumentError
from matmill.jit.compile import compile_ptx
from matmill.jit.source import Source
from matmill.launch import Pointer, TensorMap
from matmill.parameters import Parameters

MIXED = Parameters.of(n="int", A="const Scalar*", alpha="Acc", count="unsigned", stride="Index", x="float", y="double")
VALUES: dict[str, Any] = {
    "n": -3,
    "A": Pointer("A", 4096),
    "alpha": 0.5,
    "count": 7,
    "stride": 2**40,
    "x": 1.5,
    "y": 2.5,
}


@pytest.mark.parametrize("dtype", [F32, F64, BF16, I8], ids=lambda dtype: dtype.name)
def test_host_and_device_agree_on_offsets(dtype: Any) -> None:
    (args,) = MIXED.pack(dtype, **VALUES)
    header = "struct Scalar_;\n" if dtype.header else ""
    scalar = "Scalar_" if dtype.header else dtype.cxx
    checks = "".join(f"static_assert(__builtin_offsetof(Args, {name}) == {at});\n" for name, at in args.offsets.items())
    text = (
        f"{header}using Scalar = {scalar};\n{MIXED.cxx(dtype)}\n{checks}static_assert(sizeof(Args) == {args.nbytes});\n"
    )
    ptx = compile_ptx(
        Source("toy", "k", text + 'extern "C" __global__ void k(const __grid_constant__ Args) {}'), "sm_90a"
    )
    assert f".align {args.align} .b8 k_param_0[{args.nbytes}]" in ptx


def test_numbers_get_the_types_of_their_fields() -> None:
    (args,) = MIXED.pack(BF16, **VALUES)
    kinds = {name: type(value) for name, value in args.fields}
    assert kinds == {
        "n": np.int32,
        "A": Pointer,
        "alpha": np.float32,
        "count": np.uint32,
        "stride": np.int64,
        "x": np.float32,
        "y": np.float64,
    }
    (wrapped,) = MIXED.pack(I8, **{**VALUES, "alpha": -1.0})
    assert wrapped["alpha"] == np.uint32(2**32 - 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": 2**31}, "parameter n: got 2147483648; wanted a value of type int"),
        ({"n": 0.5}, "parameter n: got 0.5"),
        ({"count": -1}, "parameter count: got -1"),
        ({"A": 4096}, r"parameter A: got 4096; wanted a value of type const Scalar\*"),
        ({"x": Pointer("A", 1)}, "parameter x"),
        ({"more": 1}, "wanted n, A, alpha, count, stride, x, y"),
    ],
)
def test_values_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        MIXED.pack(F32, **{**VALUES, **changes})
    with pytest.raises(ArgumentError, match="Give each declared parameter once"):
        MIXED.pack(F32, n=1)


def test_tensor_maps_are_aligned_fields_of_their_own_type() -> None:
    with_map = Parameters.of(n="int", A="matmill::TensorMap")
    (args,) = with_map.pack(F32, n=1, A=TensorMap(Pointer("A", 0), "float32", (4,), (), (4,)))
    assert (args.offsets, args.nbytes) == ({"n": 0, "A": 64}, 192)
    assert with_map.headers == ("matmill/ptx/tensor_map.cuh",)
    assert "matmill::TensorMap A;" in with_map.cxx(F32)
    with pytest.raises(ArgumentError, match="wanted pointers, numbers"):
        _ = args.data
