"""What the driver is asked when a tensor map is encoded, and what becomes of its answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from cuda.bindings import driver

from matmill.errors import LaunchError
from matmill.launch import Pointer, TensorMap
from matmill.runtime.tensor_map import encode

TENSOR = TensorMap(Pointer("A", 0), "bfloat16", (64, 8, 3), (128, 1024), (64, 4, 1), swizzle=128)


def test_a_tensor_map_is_encoded_as_the_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def encoded(*args: Any) -> tuple[int, SimpleNamespace]:
        asked.extend(args)
        return 0, SimpleNamespace(opaque=list(range(16)))

    monkeypatch.setattr(driver, "cuTensorMapEncodeTiled", encoded)
    assert encode(TENSOR, 4096) == b"".join(word.to_bytes(8, "little") for word in range(16))
    kind, rank, address, sizes, strides, box, steps, _interleave, swizzle, _promotion, _fill = asked
    assert kind == driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
    assert (rank, address) == (3, 4096)
    assert [[int(x) for x in numbers] for numbers in (sizes, strides, box, steps)] == [
        [64, 8, 3],
        [128, 1024],
        [64, 4, 1],
        [1, 1, 1],
    ]
    assert swizzle == driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B


def test_what_the_driver_refuses_is_told_with_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "cuTensorMapEncodeTiled", lambda *_args: (1, None))
    with pytest.raises(LaunchError, match=r"tensor map of A: got TensorMap.* at 0x1001, refused by the driver \(1\)"):
        encode(TENSOR, 0x1001)
