"""What an H200 left where the emulator once left something else: operands and results as bits.

All are from one run of tests/gpu/test_emulator_agrees_gpu.py, unless they say that they are read from machine code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from matmill.emulator.arith import exact
from support.ptx_tools import per_thread

Array = np.ndarray[Any, Any]
KINDS = {"f16": "u2", "f32": "u4", "f64": "u8", "u64": "u8", "s64": "u8", "b64": "u8"}


def results(code: str, rows: Sequence[tuple[int, ...]], kind: str, out: str = "") -> list[int]:
    """Return ``code`` on each row of operands, all of this kind; the rows' last elements are the results wanted."""
    inputs = [np.array(column, kind) for column in zip(*rows, strict=True)][:-1]
    return [int(x) for x in per_thread(code, *inputs, out=out or kind)]


def wanted(rows: Sequence[tuple[int, ...]]) -> list[int]:
    return [row[-1] for row in rows]


# (a, position and length, result): 32-bit fields take the lowest byte of position and length, 64-bit ones all bits.
FIELDS = [
    (0x1, 0x100, 0x1F, 0x0),
    (0x1, 0x80000000, 0x3, 0x0),
    (0x2, 0x100, 0xFFFFFFFF, 0x0),
]


@pytest.mark.parametrize("t", ["u64", "s64"])
def test_bfe_of_64_bits_takes_all_bits_of_position_and_length(t: str) -> None:
    code = f".reg .u32 p, n; cvt.u32.u64 p, a1; cvt.u32.u64 n, a2; bfe.{t} d, a0, p, n;"
    assert results(code, FIELDS, "u8") == wanted(FIELDS)
    # Beyond the word there is nothing of an unsigned number, and the sign of a signed one, as of any wide field.
    low = [(1 << 63, 0x100, 0x1, int(t == "s64") * (2**64 - 1)), (5, 0, 0x100, 5)]
    assert results(code, low, "u8") == wanted(low)


def test_bfi_of_64_bits_takes_all_bits_of_position_and_length() -> None:
    rows = [
        (0x8000, 0x0, 0x8000, 0xFFFFFFFF, 0x0),
        (0x10000, 0x0, 0x10000, 0xFFFFFFFF, 0x0),
        (0x80000000, 0x0, 0x80000000, 0x7FFFFFFF, 0x0),
    ]
    code = ".reg .u32 p, n; cvt.u32.u64 p, a2; cvt.u32.u64 n, a3; bfi.b64 d, a0, a1, p, n;"
    assert results(code, rows, "u8") == wanted(rows)


# (operation, type, rows of operands and result): a result is flushed that is below the smallest normal number after
# rounding to as many bits as a normal number has, whether or not it would be rounded up to it as a subnormal.
FLUSHED: list[tuple[str, str, list[tuple[int, ...]]]] = [
    # 2**-126 (1 - 2**-24), which has 24 bits, is flushed; 2**-126 (1 - 2**-38.8) is not: to 24 bits it is 2**-126.
    ("mul.rn.ftz", "f32", [(0x3F7FFFFF, 0x00800000, 0), (0x3F7FFFE8, 0x0080000C, 0x00800000)]),
    ("mul.rn.ftz", "f32", [(0x00800000, 0xBF7FFFFF, 0x80000000), (0x01000000, 0x3EFFFFFF, 0)]),
    # A product just below 2**-126 (1 - 2**-24) is rounded up to that, and flushed.
    ("mul.rp.ftz", "f32", [(0x3F7FFFFF, 0x00800000, 0), (0x3F7FFFF9, 0x00800003, 0)]),
    ("mul.rp.ftz", "f32", [(0x3F7FFFE8, 0x0080000C, 0x00800000), (0x3F7FFFEA, 0x0080000B, 0x00800000)]),
    ("mul.rm.ftz", "f32", [(0x00800000, 0xBF7FFFFF, 0x80000000), (0x3F7FFFFF, 0x80800000, 0x80000000)]),
    ("div.rm.ftz", "f32", [(0x00800000, 0xBF800001, 0x80000000), (0x80800000, 0x3F800001, 0x80000000)]),
    ("div.rp.ftz", "f32", [(0x00800000, 0x3F800001, 0), (0x80800000, 0xBF800001, 0)]),
    ("fma.rn.ftz", "f32", [(0xBEFFFFFF, 0x81000000, 0x807FFFFF, 0)]),
    ("fma.rp.ftz", "f32", [(0xBEFFFFFF, 0x81000000, 0x807FFFFF, 0)]),
    ("fma.rp.ftz.sat", "f32", [(0xBEFFFFFF, 0x81000000, 0x807FFFFF, 0)]),
    ("mul.rn.ftz", "f16", [(0x400, 0x3BFF, 0), (0x400, 0xBBFF, 0x8000), (0x800, 0x37FF, 0)]),
    ("fma.rn.ftz", "f16", [(0x400, 0xBBFF, 0x83FF, 0x8000), (0x8400, 0xBBFF, 0x8001, 0), (0x8800, 0x37FF, 2, 0x8000)]),
    ("fma.rn.ftz.relu", "f16", [(0x8400, 0xBBFF, 0x8001, 0)]),
    # Read from ptxas' code, which compares with these limits.
    ("rcp.rp.ftz", "f32", [(0x7E800000, 0x00800000), (0x7E800001, 0)]),
]


@pytest.mark.parametrize(("name", "t", "rows"), FLUSHED, ids=lambda x: x if isinstance(x, str) else "")
def test_flushing_looks_at_the_rounded_result(name: str, t: str, rows: list[tuple[int, ...]]) -> None:
    operands = ", ".join(f"a{n}" for n in range(len(rows[0]) - 1))
    assert results(f"{name}.{t} d, {operands};", rows, KINDS[t]) == wanted(rows)


def test_packed_halves_are_flushed_by_the_rounded_result() -> None:
    rows = [(0x49970400, 0x52483BFF, 0x60640000), (0xDC000400, 0x77FFBBFF, 0xFC008000)]
    assert results("mul.rn.ftz.f16x2 d, a0, a1;", rows, "u4") == wanted(rows)


def test_conversions_are_flushed_by_the_rounded_result() -> None:
    # The limits are those that ptxas' code compares with: 2**-126 (1 - 2**-25) to nearest, (1 - 2**-24) upward.
    limits = {
        "rn": (0x380FFFFFEFFFFFFF, 0x380FFFFFF0000000),
        "rp": (0x380FFFFFE0000000, 0x380FFFFFE0000001),
        "rm": (0x380FFFFFFFFFFFFF, 0x3810000000000000),
        "rz": (0x380FFFFFFFFFFFFF, 0x3810000000000000),
    }
    for mode, (flushed, kept) in limits.items():
        rows = [(flushed, 0), (kept, 0x00800000)]
        assert results(f"cvt.{mode}.ftz.f32.f64 d, a0;", rows, "u8", "u4") == wanted(rows), mode


def test_looking_before_rounding_would_flush_more() -> None:
    wide = np.array([1 - 2.0**-24, 1 - 2.0**-25, 1 - 2.0**-38, 1.0]) * 2.0**-126
    for mode, tiny in {"rn": [1, 0, 0, 0], "rp": [1, 0, 0, 0], "rz": [1, 1, 1, 0], "rm": [1, 1, 1, 0]}.items():
        assert exact.is_tiny(wide, np.float32, mode).tolist() == tiny, mode


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_an_infinite_term_outweighs_any_product(mode: str) -> None:
    infinity = 0x7FF0000000000000
    rows = [
        (0x4070000000000001, 0xFFEFFFFFFFFFFFFF, infinity, infinity),
        (0x40E0000000000001, 0xFFEFFFFFFFFFFFFF, infinity, infinity),
        (0xFFEFFFFFFFFFFFFF, 0x4060000000000000, infinity, infinity),
    ]
    assert results(f"fma.{mode}.f64 d, a0, a1, a2;", rows, "u8") == wanted(rows)


@pytest.mark.parametrize(("t", "kind"), [("f32", "u4"), ("f64", "u8")])
def test_zero_counts_as_normal(t: str, kind: str) -> None:
    code = f"testp.normal.{t} p, a0; selp.u32 d, 1, 0, p;"
    sign = 1 << (8 * int(kind[1]) - 1)
    rows = [(0, 1), (sign, 1), (1, 0), (sign | 1, 0)]
    assert results(code, rows, kind, "u4") == wanted(rows)


def test_conversions_to_half_flush_nothing() -> None:
    up, down = [(0x1, 0x1), (0x80000001, 0x8000)], [(0x80000001, 0x8001), (0x1, 0x0)]
    assert results("cvt.rp.ftz.f16.f32 d, a0;", up, "u4", "u2") == wanted(up)
    assert results("cvt.rm.ftz.f16.f32 d, a0;", down, "u4", "u2") == wanted(down)


def test_nan_in_low_bits_becomes_infinite_in_tf32() -> None:
    rows = [(0x7F801001, 0x7F800000), (0xFF801001, 0xFF800000), (0x7F800FFF, 0x7F800000)]
    assert results("cvt.rna.tf32.f32 d, a0;", rows, "u4") == wanted(rows)
    # To nearest even there is an instruction, and NaN stays NaN.
    assert results("cvt.rn.tf32.f32 d, a0;", [(0x7F801001, 0x7FFFFFFF)], "u4") == [0x7FFFFFFF]


def test_the_largest_unsigned_number_is_reached() -> None:
    a = np.array([2.0**64, 2.0**65, np.inf, 2.0**63, 1.5, -1.0], np.float32)
    assert per_thread("cvt.rzi.u64.f32 d, a0;", a, out="u8").tolist() == [2**64 - 1] * 3 + [2**63, 1, 0]
