"""Results of an H200 that the emulator once missed: the emulator and the reference must have the same.

All rows are from one run of tests/gpu/test_emulator_agrees_gpu.py, unless they are said to be read from machine code.
"""

from __future__ import annotations

import numpy as np
import pytest

from agreement.case import Op, table
from agreement.reference import evaluate
from matmill.emulator.arith import exact

INF64, LARGE = 0x7FF0000000000000, 0xFFEFFFFFFFFFFFFF
_FIELD = "{{.reg .u32 p, n; cvt.u32.u64 p, %{}; cvt.u32.u64 n, %{}; {} p, n;}}"
_NORMAL = "{{.reg .pred p; testp.normal.{} p, %1; selp.u32 %0, 1, 0, p;}}"
#: Opcode, or PTX; the type of the operands and that of the result; operands and results.
ROWS: tuple[tuple[str, str, str, tuple[tuple[int, ...], ...]], ...] = (
    # 32-bit fields take the lowest byte of position and length, 64-bit ones all bits. Beyond the word there is nothing
    # of an unsigned number, and the sign of a signed one, as of any wide field.
    *((_FIELD.format(2, 3, f"bfe.{t}64 %0, %1,"), "u8", "u8", (
        (0x1, 0x100, 0x1F, 0x0), (0x1, 0x80000000, 0x3, 0x0), (0x2, 0x100, 0xFFFFFFFF, 0x0), (5, 0, 0x100, 5),
        (1 << 63, 0x100, 0x1, 2**64 - 1 if t == "s" else 0))) for t in "us"),
    (_FIELD.format(3, 4, "bfi.b64 %0, %1, %2,"), "u8", "u8", (
        (0x8000, 0, 0x8000, 0xFFFFFFFF, 0), (0x10000, 0, 0x10000, 0xFFFFFFFF, 0),
        (0x80000000, 0, 0x80000000, 0x7FFFFFFF, 0))),
    # A result is flushed that is below the smallest normal number after rounding to as many bits as a normal number
    # has, whether or not it would be rounded up to it as a subnormal. 2**-126 (1 - 2**-24), which has 24 bits, is
    # flushed; 2**-126 (1 - 2**-38.8) is not: to 24 bits it is 2**-126.
    ("mul.rn.ftz.f32", "f4", "f4", (
        (0x3F7FFFFF, 0x00800000, 0), (0x3F7FFFE8, 0x0080000C, 0x00800000), (0x00800000, 0xBF7FFFFF, 0x80000000),
        (0x01000000, 0x3EFFFFFF, 0))),
    # A product just below 2**-126 (1 - 2**-24) is rounded up to that, and flushed.
    ("mul.rp.ftz.f32", "f4", "f4", (
        (0x3F7FFFFF, 0x00800000, 0), (0x3F7FFFF9, 0x00800003, 0), (0x3F7FFFE8, 0x0080000C, 0x00800000),
        (0x3F7FFFEA, 0x0080000B, 0x00800000))),
    ("mul.rm.ftz.f32", "f4", "f4", ((0x00800000, 0xBF7FFFFF, 0x80000000), (0x3F7FFFFF, 0x80800000, 0x80000000))),
    ("div.rm.ftz.f32", "f4", "f4", ((0x00800000, 0xBF800001, 0x80000000), (0x80800000, 0x3F800001, 0x80000000))),
    ("div.rp.ftz.f32", "f4", "f4", ((0x00800000, 0x3F800001, 0), (0x80800000, 0xBF800001, 0))),
    *((f"fma.{m}.f32", "f4", "f4", ((0xBEFFFFFF, 0x81000000, 0x807FFFFF, 0),)) for m in (
        "rn.ftz", "rp.ftz", "rp.ftz.sat")),
    ("mul.rn.ftz.f16", "f2", "f2", ((0x400, 0x3BFF, 0), (0x400, 0xBBFF, 0x8000), (0x800, 0x37FF, 0))),
    ("mul.rn.ftz.f16x2", "f2x2", "f2x2", ((0x49970400, 0x52483BFF, 0x60640000), (0xDC000400, 0x77FFBBFF, 0xFC008000))),
    ("fma.rn.ftz.f16", "f2", "f2", (
        (0x400, 0xBBFF, 0x83FF, 0x8000), (0x8400, 0xBBFF, 0x8001, 0), (0x8800, 0x37FF, 2, 0x8000))),
    ("fma.rn.ftz.relu.f16", "f2", "f2", ((0x8400, 0xBBFF, 0x8001, 0),)),
    # Read from ptxas' code, which compares with these limits: 2**-126 (1 - 2**-25) to nearest, (1 - 2**-24) upward.
    ("rcp.rp.ftz.f32", "f4", "f4", ((0x7E800000, 0x00800000), (0x7E800001, 0))),
    *((f"cvt.{m}.ftz.f32.f64", "f8", "f4", ((flushed, 0), (kept, 0x00800000))) for m, flushed, kept in (
        ("rn", 0x380FFFFFEFFFFFFF, 0x380FFFFFF0000000), ("rp", 0x380FFFFFE0000000, 0x380FFFFFE0000001),
        ("rm", 0x380FFFFFFFFFFFFF, 0x3810000000000000), ("rz", 0x380FFFFFFFFFFFFF, 0x3810000000000000))),
    # An infinite term outweighs any product.
    *((f"fma.{m}.f64", "f8", "f8", (
        (0x4070000000000001, LARGE, INF64, INF64), (0x40E0000000000001, LARGE, INF64, INF64),
        (LARGE, 0x4060000000000000, INF64, INF64))) for m in ("rn", "rz", "rm", "rp")),
    # Zero counts as normal.
    (_NORMAL.format("f32"), "f4", "u4", ((0, 1), (1 << 31, 1), (1, 0), (1 << 31 | 1, 0))),
    (_NORMAL.format("f64"), "f8", "u4", ((0, 1), (1 << 63, 1), (1, 0), (1 << 63 | 1, 0))),
    # Conversions to half flush nothing.
    ("cvt.rp.ftz.f16.f32", "f4", "f2", ((0x1, 0x1), (0x80000001, 0x8000))),
    ("cvt.rm.ftz.f16.f32", "f4", "f2", ((0x80000001, 0x8001), (0x1, 0x0))),
    # NaN in low bits becomes infinite in tf32. To nearest even there is an instruction, and NaN stays NaN.
    ("cvt.rna.tf32.f32", "f4", "u4", (
        (0x7F801001, 0x7F800000), (0xFF801001, 0xFF800000), (0x7F800FFF, 0x7F800000))),
    ("cvt.rn.tf32.f32", "f4", "tf", ((0x7F801001, 0x7FFFFFFF),)),
    # 2**64, 2**65 and infinity, 2**63, 1.5 and -1: the largest unsigned number is reached.
    ("cvt.rzi.u64.f32", "f4", "u8", (
        (0x5F800000, 2**64 - 1), (0x60000000, 2**64 - 1), (0x7F800000, 2**64 - 1), (0x5F000000, 2**63), (0x3FC00000, 1),
        (0xBF800000, 0))),
)  # fmt: skip


@pytest.mark.parametrize(("text", "kind", "out", "rows"), ROWS, ids=lambda x: x if isinstance(x, str) else "")
def test_rows(text: str, kind: str, out: str, rows: tuple[tuple[int, ...], ...]) -> None:
    *columns, wanted = ([*column] for column in zip(*rows, strict=True))
    op = Op(text if "%" in text else f"{text} %0, {', '.join(f'%{n + 1}' for n in range(len(columns)))};", out)
    word = {"f8": "u8", "u8": "u8", "f2": "u2"}.get(kind, "u4")
    arrays, _ = table(f"measured {text[:30]}", [(kind, np.array(c, word)) for c in columns], [op]).emulate()
    assert arrays["o"].tolist() == wanted
    python = evaluate(op, columns)
    assert python == wanted or out == "tf"


def test_looking_before_rounding_would_flush_more() -> None:
    wide = np.array([1 - 2.0**-24, 1 - 2.0**-25, 1 - 2.0**-38, 1.0]) * 2.0**-126
    for mode, tiny in {"rn": [1, 0, 0, 0], "rp": [1, 0, 0, 0], "rz": [1, 1, 1, 0], "rm": [1, 1, 1, 0]}.items():
        assert exact.is_tiny(wide, np.float32, mode).tolist() == tiny, mode
