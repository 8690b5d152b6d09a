"""What the probe of Hopper asks: inputs that follow from seeds, maps that can be encoded, and sources that compile."""

from __future__ import annotations

import numpy as np
import pytest

import hopper_probe as probe
from matmill.jit.compile import assembler_report
from matmill.launch import Pointer, TensorMap
from matmill.tensor_map import encode


def test_arrays_come_back_from_text() -> None:
    array = np.random.default_rng(0).integers(0, 2**32, (5, 7), np.uint32)
    assert np.array_equal(probe.unpacked(probe.packed(array), np.uint32), array.reshape(-1))


@pytest.mark.parametrize("form", probe.FORMATS)
def test_operands_follow_from_the_record(form: str) -> None:
    for product in (product for product in probe.products() if product.form == form and product.count <= 16):
        a, b, c = probe.operands(product)
        assert a.nbytes == 64 * 32 * product.count
        assert b.nbytes == probe.N * 32 * product.count
        for array, again in zip((a, b, c), probe.operands(product), strict=True):
            assert array.tobytes() == again.tobytes()
        with np.errstate(invalid="ignore"):
            finite = np.isfinite(a.astype(np.float64))
        assert finite.all() or product.numbers == "any"
        assert finite.mean() > 0.9


def test_every_box_has_a_map() -> None:
    for name, fields, matrix, _ in probe._boxes():
        assert matrix.flags.c_contiguous, name
        assert len(encode(TensorMap(Pointer("X", 0), **fields), 4096)) == TensorMap.NBYTES


@pytest.mark.parametrize("operand", [cxx for cxx, _ in probe.FORMATS.values()])
def test_products_are_not_serialized(operand: str) -> None:
    report = assembler_report(probe.source("wgmma_bits", operand), "sm_90a")
    assert "C75" not in report
    assert "wgmma_bits" in report
