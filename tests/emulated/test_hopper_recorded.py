"""Records of the probe of Hopper on an H200: products, boxes, elected lanes, parities, ignored bytes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from matmill.emulator.arith.exact import Buffers
from matmill.emulator.arith.tensor_core import TensorCore, rule_of
from matmill.emulator.memory.boxes import Boxes, read_global, write_shared
from matmill.errors import ArgumentError
from matmill.launch import Pointer, TensorMap
from support import hopper_probe as probe
from support.bulk_ptx import bulk, emulate, expect

Array = NDArray[Any]
GOLDEN = Path(__file__).parents[1] / "golden"
RECORDED: dict[str, list[dict[str, Any]]] = json.loads((GOLDEN / "h200_hopper.json").read_text(encoding="utf-8"))
#: The emulator's names of the probe's formats.
NAMES = {"float16": "f16", "bfloat16": "bf16", "tf32": "tf32", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
#: Bytes of shared memory that a box was dumped with, and what they held before.
DUMP, BEFORE = 8192, 0xA5


@cache
def products() -> dict[probe.Product, Array]:
    """Return the bits of each product."""
    with np.load(GOLDEN / "h200_wgmma.npz") as file:
        parts = {name: name.split("|") for name in file}
        return {
            probe.Product(form, int(count), numbers, registers == "1", int(seed)): file[name]
            for name, (form, count, numbers, registers, seed) in parts.items()
        }


@pytest.mark.parametrize("form", NAMES)
def test_products_of_up_to_256_instructions_bit_for_bit(form: str) -> None:
    chosen = {product: bits for product, bits in products().items() if product.form == form}
    assert len(chosen) == len(probe.COUNTS) * len(probe.NUMBERS)
    core = TensorCore(rule_of(probe.TARGET, NAMES[form], "f32"), Buffers())
    for product, bits in chosen.items():
        a, b, out = probe.operands(product)
        if form == "tf32":
            a, b = ((x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, b))
        with np.errstate(all="ignore"):
            wide = a.astype(np.float32).T[:, :, None].copy(), b.astype(np.float32).T[:, None, :].copy()
            core.add(core.factor(wide[0]), core.factor(wide[1]), out)
        np.testing.assert_array_equal(out.view(np.uint32).reshape(-1), bits, str(product))


@pytest.mark.parametrize("registers", [False, True], ids=["shared", "registers"])
@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
def test_products_of_the_probe_in_the_emulator(*, late: bool, registers: bool) -> None:
    chosen = [p for p in products() if p.form == "float16" and p.a_registers == registers and p.count <= 3]
    for product in chosen:
        np.testing.assert_array_equal(probe.emulated_product(product, late=late).reshape(-1), products()[product])


def box_of(record: dict[str, Any]) -> TensorMap:
    """Return the map of a record, of a tensor at address 0."""
    named: dict[str, Any] = {
        key: tuple(v) if isinstance(v, list) else v for key, v in record.items() if key in TensorMap.__annotations__
    }
    return TensorMap(Pointer("X", 0), **named)


BOXES = {record["name"]: record for record in RECORDED["boxes"]}
ASKED = {name: (matrix, first) for name, _, matrix, first in probe.boxes()}


@pytest.mark.parametrize("name", BOXES)
def test_boxes_land_as_they_did(name: str) -> None:
    record, (matrix, first) = BOXES[name], ASKED[name]
    if "fault" in record:
        with pytest.raises(ArgumentError, match="a first coordinate that is a multiple of"):
            Boxes.of(box_of(record), np.array([first]))
        return
    boxes, zero = Boxes.of(box_of(record), np.array([first])), np.zeros(1, np.int64)
    tile = np.full(DUMP, BEFORE, np.uint8)
    write_shared(tile, zero, boxes, zero, read_global(matrix.reshape(-1).view(np.uint8), 0, boxes))
    np.testing.assert_array_equal(tile, probe.unpacked(record["shared"], np.uint8))
    # Fewer bytes expected may end the phase too, more never do.
    assert boxes.nbytes == max(record["ended_at"])


@pytest.mark.parametrize("record", RECORDED["elections"], ids=lambda record: record["elect.sync"])
def test_elect_sync_names_the_lane_that_the_gpu_named(record: dict[str, Any]) -> None:
    assert probe.elected(int(record["elect.sync"], 16)) == record


def test_a_barrier_answers_as_on_the_gpu() -> None:
    assert [probe.parities()] == RECORDED["barriers"]


@pytest.mark.parametrize("record", RECORDED["ignored"], ids=lambda r: f"{r['left']}-{r['right']}-{r['expected']}")
def test_barriers_count_ignored_bytes_too(record: dict[str, Any]) -> None:
    instruction = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.ignore_oob"
    operands = f"[tile], [x], 64, {record['left']}, {record['right']}, [full]"
    body = f"""
{expect(record["expected"])} {bulk(instruction, operands)}
mbarrier.test_wait.parity.shared::cta.b64 done, [full], 0; selp.u32 r0, 1, 0, done; st.global.b32 [o], r0;
"""
    o = np.zeros(1, np.uint32)
    emulate(body, {"x": np.zeros(64, np.uint8), "o": o})
    # Where fewer bytes are expected than come, the GPU's phase had not ended; the emulator reports it as an error.
    assert o[0] == record["ended"] or record["expected"] < 64
