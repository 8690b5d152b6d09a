"""Tensor maps beside those of the driver: the same bytes, and the same refusals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from matmill.errors import ArgumentError
from matmill.launch import HOPPER, TensorMap
from matmill.runtime.gpu import GPU
from matmill.tensor_map import ELEMENTS, encode
from support.examples import examples
from support.tensor_maps import any_maps

SETTINGS = examples(1000, ignore=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def hopper(device: GPU) -> Iterator[None]:
    if device.arch.capability < HOPPER:
        pytest.skip("tensor maps need compute capability 9.0")
    # The driver encodes within a context alone.
    with device.within():
        yield


def by_driver(tensor: TensorMap) -> bytes | None:
    """Return the first 64 bytes of the driver's map, or None where it refuses."""
    driver: Any = pytest.importorskip("cuda.bindings.driver")
    kinds, swizzles = driver.CUtensorMapDataType, driver.CUtensorMapSwizzle
    interleaves, promotions = driver.CUtensorMapInterleave, driver.CUtensorMapL2promotion
    fills = driver.CUtensorMapFloatOOBfill

    def named(table: Any, prefix: str, size: int) -> Any:
        return getattr(table, f"CU_TENSOR_MAP_{prefix}_{f'{size}B' if size else 'NONE'}")

    status, encoded = driver.cuTensorMapEncodeTiled(
        getattr(kinds, f"CU_TENSOR_MAP_DATA_TYPE_{tensor.element.upper()}"),
        len(tensor.sizes),
        tensor.pointer.address,
        [driver.cuuint64_t(n) for n in tensor.sizes],
        # An empty list is a null pointer, which the driver refuses.
        [driver.cuuint64_t(n) for n in tensor.strides or (16,)],
        [driver.cuuint32_t(n) for n in tensor.box],
        [driver.cuuint32_t(n) for n in tensor.element_strides],
        named(interleaves, "INTERLEAVE", tensor.interleave),
        named(swizzles, "SWIZZLE", tensor.swizzle),
        getattr(promotions, f"CU_TENSOR_MAP_L2_PROMOTION_{f'L2_{tensor.promotion}B' if tensor.promotion else 'NONE'}"),
        fills.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
        if tensor.nan_fill
        else fills.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    assert int(status) in {0, 1}, status
    return None if int(status) else b"".join(int(word).to_bytes(8, "little") for word in encoded.opaque)[:64]


@SETTINGS
@given(any_maps())
def test_the_driver_writes_the_same_64_bytes(tensor: TensorMap) -> None:
    assert by_driver(tensor) == encode(tensor, tensor.pointer.address)[:64]


@st.composite
def spoilt_maps(draw: st.DrawFn) -> TensorMap:
    """Return maps of which one field is drawn anew, which often breaks a rule."""
    tensor = draw(any_maps())
    rank = len(tensor.sizes)
    fields: dict[str, st.SearchStrategy[Any]] = {
        "element": st.sampled_from(sorted(ELEMENTS)),
        "sizes": st.tuples(*[st.integers(0, (1 << 32) + 2)] * rank),
        "strides": st.tuples(*[st.integers(0, 1 << 41)] * (rank - 1)),
        "box": st.tuples(*[st.integers(0, 260)] * rank),
        "element_strides": st.tuples(*[st.integers(0, 10)] * rank),
        "swizzle": st.sampled_from((0, 32, 64, 128)),
        "interleave": st.sampled_from((0, 16, 32)),
        "nan_fill": st.booleans(),
    }
    name = draw(st.sampled_from(sorted(fields)))
    changed: TensorMap = replace(tensor, **{name: draw(fields[name])})
    return changed


@SETTINGS
@given(spoilt_maps())
def test_the_driver_refuses_what_we_refuse(tensor: TensorMap) -> None:
    # The driver's rules for interleaved tensors, which are not emulated, are not all documented.
    assume(not tensor.interleave)
    try:
        encoded = encode(tensor, tensor.pointer.address)[:64]
    except ArgumentError:
        encoded = None
    assert by_driver(tensor) == encoded
