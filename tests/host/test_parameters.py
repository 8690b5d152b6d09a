"""Parameters: what is emitted for the device is what the host lays out; what does not fit is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from matmill.dtypes import BF16, C64, C128, F32, F64, I8, DType
from matmill.emulator.frontend.parse import parse
from matmill.errors import ArgumentError
from matmill.jit.compile import compile_ptx
from matmill.jit.source import Source, included
from matmill.launch import Pointer, Struct, TensorMap, size_and_alignment
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
def test_the_entry_point_takes_what_the_host_packs(dtype: DType) -> None:
    args = MIXED.pack(dtype, **VALUES)
    header = "struct Scalar_;\n" if dtype.header else ""
    scalar = "Scalar_" if dtype.header else dtype.cxx
    uses = "const Args args = ARGUMENTS; if (args.n == 0) *(volatile int*)0 = args.count;"
    text = (
        f'{header}using Scalar = {scalar};\n{MIXED.cxx(dtype)}\nextern "C" __global__ void k(PARAMETERS) {{ {uses} }}'
    )
    (entry,) = parse(compile_ptx(Source("toy", "k", text), "sm_90a")).entries.values()
    assert [variable.size for variable in entry.params] == [size_and_alignment(arg)[0] for arg in args]


def test_numbers_get_the_types_of_their_fields() -> None:
    kinds = [type(value) for value in MIXED.pack(BF16, **VALUES)]
    assert kinds == [np.int32, Pointer, np.float32, np.uint32, np.int64, np.float32, np.float64]
    assert MIXED.pack(I8, **{**VALUES, "alpha": -1.0})[2] == np.uint32(2**32 - 1)


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


@pytest.mark.parametrize("dtype", [C64, C128], ids=lambda dtype: dtype.name)
def test_factors_of_complex_elements_are_structs(dtype: DType) -> None:
    assert dtype.part is not None
    fields, factor = Parameters.of(alpha="Acc"), Struct.of(*map(dtype.part.scalar, (1.0, 2.0, -1.0)))
    (value,) = fields.pack(dtype, alpha=factor)
    header = f'#include "{dtype.header}"\nusing Scalar = {dtype.cxx};\n{fields.cxx(dtype)}\n'
    text = f'{header}extern "C" __global__ void k(PARAMETERS) {{ if (alpha.sign == 0) *(volatile int*)0 = 1; }}'
    (entry,) = parse(compile_ptx(Source("toy", "k", text, included(header)), "sm_90a")).entries.values()
    assert [variable.size for variable in entry.params] == [size_and_alignment(value)[0]]
    for refused, of in ((1.0, dtype), (factor, dtype.part)):
        with pytest.raises(ArgumentError, match="parameter alpha"):
            fields.pack(of, alpha=refused)


def test_tensor_maps_are_parameters_of_their_own_type() -> None:
    with_map = Parameters.of(n="int", A="matmill::TensorMap")
    tensor = TensorMap(Pointer("A", 0), "float32", (4,), (), (4,))
    assert with_map.pack(F32, n=1, A=tensor) == (np.int32(1), tensor)
    assert with_map.headers == ("matmill/ptx/tensor_map.cuh",)
    emitted = with_map.cxx(F32)
    assert "#define PARAMETERS int n, const __grid_constant__ matmill::TensorMap A\n" in emitted
    assert emitted.endswith("#define ARGUMENTS Args{n}")
