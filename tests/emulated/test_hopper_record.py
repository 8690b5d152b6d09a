"""The emulator answers the probe of 2026-11-23 as an H200 did, by the record."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matmill.emulator.arith.exact import Buffers
from matmill.emulator.arith.tensor_core import TensorCore, rule_of
from matmill.emulator.memory.boxes import Boxes, read_global, write_shared
from matmill.errors import ArgumentError
from matmill.launch import Pointer, TensorMap
from support import hopper_probe as probe

RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "hopper_probe_h200.json"
ANSWERS: dict[str, list[dict[str, Any]]] = json.loads(RECORD.read_text(encoding="utf-8"))
FORMATS = {"float16": "f16", "bfloat16": "bf16", "tf32": "tf32", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
UNTOUCHED = 0xCC


@pytest.mark.parametrize("form", FORMATS)
def test_products_have_the_bits_of_wgmma(form: str) -> None:
    answers = {
        (answer["count"], answer["numbers"], answer["sha256"]) for answer in ANSWERS["wgmma"] if answer["form"] == form
    }
    assert len(answers) == len(probe.COUNTS) * len(probe.NUMBERS)  # with A in registers the same bits
    for count, numbers, digest in answers:
        a, b, sums = probe.operands(probe.Product(form, count, numbers, a_registers=False, seed=count))
        core = TensorCore(rule_of("sm_90a", FORMATS[form], "f32"), Buffers())
        core.add(core.factor(factor(a)[:, :, None]), core.factor(factor(b)[:, None, :]), sums)
        assert hashlib.sha256(sums.tobytes()).hexdigest() == digest, (count, numbers)


def factor(elements: probe.Array) -> probe.Array:
    """Return [k][rows] in float32, of tf32 without the 13 bits that wgmma ignores."""
    with np.errstate(invalid="ignore"):
        wide = np.ascontiguousarray(elements.T.astype(np.float32))
    if elements.dtype == np.float32:
        wide.view(np.uint32)[...] &= np.uint32(0xFFFFE000)
    return wide


BOXES = list(zip(probe.boxes(), ANSWERS["boxes"], strict=True))


@pytest.mark.parametrize(("box", "answer"), BOXES, ids=[answer["name"] for _, answer in BOXES])
def test_boxes_are_left_as_by_tma(box: tuple[Any, ...], answer: dict[str, Any]) -> None:
    _, fields, matrix, first = box
    tensor = TensorMap(Pointer("X", 0), **fields)
    if "fault" in answer:
        with pytest.raises(ArgumentError, match="illegal instruction"):
            Boxes.of(tensor, np.array([first]))
        return
    boxes, zero = Boxes.of(tensor, np.array([first])), np.zeros(1, np.int64)
    tile = np.full(8192, UNTOUCHED, np.uint8)
    write_shared(tile, zero, boxes, zero, read_global(matrix.view(np.uint8).reshape(-1), 0, boxes))
    written = tile != UNTOUCHED
    assert np.array_equal(tile[written], probe.unpacked(answer["shared"], np.uint8)[written])
    assert boxes.nbytes in answer["ended_at"]
