"""Integer, logic, bit-field and comparison instructions against Python's own integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from support.ptx_tools import per_thread

EDGES = [0, 1, 2, 3, 5, 7, 31, 32, 33, 63, 64, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF,
         0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF, 0x123456789, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000,
         0xFFFFFFFFFFFFFFFF, 0xDEADBEEFCAFEBABE]  # fmt: skip


def numbers(bits: int, count: int, seed: int) -> np.ndarray[Any, Any]:
    """Return edge cases against each other, then random numbers, as unsigned integers."""
    rng = np.random.default_rng(seed)
    edges = rng.permutation(np.array(EDGES * 8, np.uint64))
    drawn = rng.integers(0, 1 << 63, count, dtype=np.uint64) * 2 + rng.integers(0, 2, count, dtype=np.uint64)
    return (np.concatenate([edges, drawn]) & np.uint64((1 << bits) - 1)).astype(f"u{bits // 8}")


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def as_type(value: int, type_name: str) -> int:
    bits = int(type_name[1:])
    return signed(value, bits) if type_name[0] == "s" else value & ((1 << bits) - 1)


def truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


BINARY: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "min": min,
    "max": max,
    "div": lambda a, b: truncated(a, b) if b else -1,
    "rem": lambda a, b: a - truncated(a, b) * b if b else -1,
}


@pytest.mark.parametrize("type_name", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("name", BINARY)
def test_arithmetic_wraps_as_integers_do(name: str, type_name: str) -> None:
    bits = int(type_name[1:])
    a, b = numbers(bits, 300, 1), numbers(bits, 300, 2)
    got = per_thread(f"{name}.{type_name} d, a0, a1;", a, b, out=a.dtype)
    for x, y, d in zip(a.tolist(), b.tolist(), got.tolist(), strict=True):
        wanted = BINARY[name](as_type(x, type_name), as_type(y, type_name))
        # By 0 PTX leaves both open; the code that ptxas makes for sm_75 to sm_90 gives all ones.
        assert d == wanted & ((1 << bits) - 1), (name, x, y)


@pytest.mark.parametrize("type_name", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_mul_hi_is_the_upper_half(type_name: str) -> None:
    bits = int(type_name[1:])
    a, b, c = (numbers(bits, 300, s) for s in (3, 4, 5))
    got = per_thread(f"mul.hi.{type_name} d, a0, a1;", a, b, out=a.dtype)
    summed = per_thread(f"mad.hi.{type_name} d, a0, a1, a2;", a, b, c, out=a.dtype)
    for x, y, z, d, e in zip(*(r.tolist() for r in (a, b, c, got, summed)), strict=True):
        high = as_type(x, type_name) * as_type(y, type_name) >> bits
        assert d == high & ((1 << bits) - 1)
        assert e == (high + z) & ((1 << bits) - 1)


@pytest.mark.parametrize("type_name", ["u16", "s16", "u32", "s32"])
def test_wide_products_keep_all_bits(type_name: str) -> None:
    bits = int(type_name[1:])
    a, b = numbers(bits, 300, 6), numbers(bits, 300, 7)
    c = numbers(2 * bits, 300, 8)
    product = per_thread(f"mul.wide.{type_name} d, a0, a1;", a, b, out=c.dtype)
    total = per_thread(f"mad.wide.{type_name} d, a0, a1, a2;", a, b, c, out=c.dtype)
    for x, y, z, d, e in zip(*(r.tolist() for r in (a, b, c, product, total)), strict=True):
        exact = as_type(x, type_name) * as_type(y, type_name)
        assert d == exact & ((1 << 2 * bits) - 1)
        assert e == (exact + z) & ((1 << 2 * bits) - 1)


@pytest.mark.parametrize("type_name", ["u32", "s32"])
def test_24_bit_products(type_name: str) -> None:
    a, b = numbers(32, 300, 9), numbers(32, 300, 10)
    low = per_thread(f"mul24.lo.{type_name} d, a0, a1;", a, b, out=np.uint32)
    high = per_thread(f"mul24.hi.{type_name} d, a0, a1;", a, b, out=np.uint32)
    for x, y, d, e in zip(*(r.tolist() for r in (a, b, low, high)), strict=True):
        x24, y24 = (signed(v, 24) if type_name == "s32" else v & 0xFFFFFF for v in (x, y))
        assert d == x24 * y24 & 0xFFFFFFFF
        assert e == x24 * y24 >> 16 & 0xFFFFFFFF


def test_long_sums_carry() -> None:
    a, b = numbers(64, 300, 11), numbers(64, 300, 12)
    code = """
    .reg .b32 x0, x1, y0, y1, z0, z1;
    mov.b64 {{x0, x1}}, a0; mov.b64 {{y0, y1}}, a1;
    {0}.cc.u32 z0, x0, y0; {0}c.u32 z1, x1, y1;
    mov.b64 d, {{z0, z1}};
    """
    for name, exact in (("add", a + b), ("sub", a - b)):
        np.testing.assert_array_equal(per_thread(code.format(name), a, b, out=np.uint64), exact)


def test_saturated_sums() -> None:
    a, b = (numbers(32, 300, s).view(np.int32) for s in (13, 14))
    got = per_thread("add.sat.s32 d, a0, a1;", a, b, out=np.int32)
    np.testing.assert_array_equal(got, np.clip(a.astype(np.int64) + b, -(1 << 31), (1 << 31) - 1))
    got = per_thread("sub.sat.s32 d, a0, a1;", a, b, out=np.int32)
    np.testing.assert_array_equal(got, np.clip(a.astype(np.int64) - b, -(1 << 31), (1 << 31) - 1))


def test_sad_dp4a_neg_abs() -> None:
    a, b, c = (numbers(32, 300, s).view(np.int32) for s in (15, 16, 17))
    wide = np.abs(a.astype(np.int64) - b) + c
    np.testing.assert_array_equal(per_thread("sad.s32 d, a0, a1, a2;", a, b, c, out=np.int32), wide.astype(np.int32))
    got = per_thread("dp4a.s32.u32 d, a0, a1, a2;", a, b, c, out=np.int32)
    exact = (a.view(np.int8).reshape(-1, 4).astype(np.int64) * b.view(np.uint8).reshape(-1, 4)).sum(axis=1) + c
    np.testing.assert_array_equal(got, exact.astype(np.int32))
    np.testing.assert_array_equal(per_thread("neg.s32 d, a0;", a, out=np.int32), (-a.astype(np.int64)).astype(np.int32))
    np.testing.assert_array_equal(
        per_thread("abs.s32 d, a0;", a, out=np.int32), np.abs(a.astype(np.int64)).astype(np.int32)
    )


@pytest.mark.parametrize("b_type", ["u32", "s32"])
@pytest.mark.parametrize("a_type", ["u32", "s32"])
def test_dp4a_and_dp2a_multiply_parts_of_either_sign(a_type: str, b_type: str) -> None:
    a, b, c = (numbers(32, 300, s) for s in (45, 46, 47))

    def parts(row: np.ndarray[Any, Any], type_name: str, size: int) -> np.ndarray[Any, Any]:
        kind = "i" if type_name == "s32" else "u"
        return np.ascontiguousarray(row).view(f"{kind}{size}").reshape(len(row), -1).astype(np.int64)

    by_4, by_2, bytes_b = parts(a, a_type, 1), parts(a, a_type, 2), parts(b, b_type, 1)
    wanted = {
        "dp4a": (by_4 * bytes_b).sum(axis=1),
        "dp2a.lo": (by_2 * bytes_b[:, :2]).sum(axis=1),
        "dp2a.hi": (by_2 * bytes_b[:, 2:]).sum(axis=1),
    }
    for name, exact in wanted.items():
        got = per_thread(f"{name}.{a_type}.{b_type} d, a0, a1, a2;", a, b, c, out=np.uint32)
        np.testing.assert_array_equal(got, (exact + c).astype(np.uint32), err_msg=name)


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_logic(bits: int) -> None:
    a, b = numbers(bits, 200, 18), numbers(bits, 200, 19)
    for name, wanted in (("and", a & b), ("or", a | b), ("xor", a ^ b)):
        np.testing.assert_array_equal(per_thread(f"{name}.b{bits} d, a0, a1;", a, b, out=a.dtype), wanted)
    np.testing.assert_array_equal(per_thread(f"not.b{bits} d, a0;", a, out=a.dtype), ~a)
    np.testing.assert_array_equal(per_thread(f"cnot.b{bits} d, a0;", a, out=a.dtype), a == 0)


@pytest.mark.parametrize("type_name", ["b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64"])
@pytest.mark.parametrize("name", ["shl", "shr"])
def test_shifts_clamp_their_count(name: str, type_name: str) -> None:
    bits = int(type_name[1:])
    if name == "shl" and type_name[0] != "b":
        type_name = f"b{bits}"
    a = numbers(bits, 300, 20)
    n = np.resize(np.array([0, 1, 5, bits - 1, bits, bits + 1, 255, 1 << 31, 0xFFFFFFFF], np.uint32), len(a))
    got = per_thread(f"{name}.{type_name} d, a0, a1;", a, n, out=a.dtype)
    mask = (1 << bits) - 1
    for x, count, d in zip(a.tolist(), n.tolist(), got.tolist(), strict=True):
        value = signed(x, bits) if type_name[0] == "s" else x
        wanted = value << min(count, 200) if name == "shl" else value >> min(count, 200)
        assert d == wanted & mask, (x, count)
    literal = per_thread(f"{name}.{type_name} d, a0, {bits + 3};", a, out=a.dtype)
    minus = np.where(a >> np.array(bits - 1, a.dtype) != 0, np.array(mask, a.dtype), np.array(0, a.dtype))
    np.testing.assert_array_equal(literal, minus if name == "shr" and type_name[0] == "s" else np.zeros_like(a))


@pytest.mark.parametrize("direction", ["l", "r"])
@pytest.mark.parametrize("mode", ["wrap", "clamp"])
def test_funnel_shift(direction: str, mode: str) -> None:
    a, b, n = numbers(32, 300, 21), numbers(32, 300, 22), numbers(32, 300, 23) % np.uint32(70)
    got = per_thread(f"shf.{direction}.{mode}.b32 d, a0, a1, a2;", a, b, n, out=np.uint32)
    for low, high, count, d in zip(*(r.tolist() for r in (a, b, n, got)), strict=True):
        c = count & 31 if mode == "wrap" else min(count, 32)
        both = high << 32 | low
        assert d == ((both << c) >> 32 if direction == "l" else both >> c) & 0xFFFFFFFF


def test_lop3_computes_every_table() -> None:
    a, b, c = (numbers(32, 50, s) for s in (24, 25, 26))
    for table in (0x00, 0x01, 0x80, 0x96, 0xE8, 0xCA, 0x3C, 0xFF):
        got = per_thread(f"lop3.b32 d, a0, a1, a2, {table:#x};", a, b, c, out=np.uint32)
        wanted = np.zeros_like(a)
        for bit in range(32):
            at = np.uint32(bit)
            index = (a >> at & 1) << 2 | (b >> at & 1) << 1 | (c >> at & 1)
            wanted |= (np.uint32(table) >> index & np.uint32(1)) << at
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("type_name", ["u32", "s32", "u64", "s64"])
def test_bfe_follows_the_manual(type_name: str) -> None:
    bits = int(type_name[1:])
    a = numbers(bits, 600, 27)
    rng = np.random.default_rng(28)
    position, length = (rng.integers(0, 80, len(a)).astype(np.uint32) for _ in range(2))
    got = per_thread(f"bfe.{type_name} d, a0, a1, a2;", a, position, length, out=a.dtype)
    msb = bits - 1
    for x, pos, size, d in zip(*(r.tolist() for r in (a, position, length, got)), strict=True):
        sign = 0 if type_name[0] == "u" or size == 0 else x >> min(pos + size - 1, msb) & 1
        wanted = 0
        for i in range(bits):
            wanted |= ((x >> pos + i & 1) if i < size and pos + i <= msb else sign) << i
        assert d == wanted, (x, pos, size)


@pytest.mark.parametrize("bits", [32, 64])
def test_bfi_follows_the_manual(bits: int) -> None:
    a, b = numbers(bits, 600, 29), numbers(bits, 600, 30)
    rng = np.random.default_rng(31)
    position, length = (rng.integers(0, 80, len(a)).astype(np.uint32) for _ in range(2))
    got = per_thread(f"bfi.b{bits} d, a0, a1, a2, a3;", a, b, position, length, out=a.dtype)
    for x, y, pos, size, d in zip(*(r.tolist() for r in (a, b, position, length, got)), strict=True):
        wanted = y
        for i in range(size):
            if pos + i < bits:
                wanted = wanted & ~(1 << pos + i) | (x >> i & 1) << pos + i
        assert d == wanted, (x, y, pos, size)


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_counts(bits: int) -> None:
    a = numbers(bits, 300, 32)
    values = a.tolist()
    got = per_thread(f"popc.b{bits} d0, a0; clz.b{bits} d1, a0;", a, out=np.uint32, outs=2)
    assert got[0].tolist() == [v.bit_count() for v in values]
    assert got[1].tolist() == [bits - v.bit_length() for v in values]
    got = per_thread(f"bfind.u{bits} d0, a0; bfind.s{bits} d1, a0;", a, out=np.uint32, outs=2)
    assert got[0].tolist() == [(v.bit_length() - 1) & 0xFFFFFFFF for v in values]
    flipped = [~signed(v, bits) if signed(v, bits) < 0 else v for v in values]
    assert got[1].tolist() == [(v.bit_length() - 1) & 0xFFFFFFFF for v in flipped]
    amount = per_thread(f"bfind.shiftamt.u{bits} d, a0;", a, out=np.uint32)
    assert amount.tolist() == [bits - v.bit_length() if v else 0xFFFFFFFF for v in values]
    reversed_bits = per_thread(f"brev.b{bits} d, a0;", a, out=a.dtype)
    assert reversed_bits.tolist() == [int(f"{v:0{bits}b}"[::-1], 2) for v in values]


def nth_set(mask: int, base: int, offset: int) -> int:
    """Return the bit that fns finds: its text in PTX ISA, in Python."""
    order = range(base, 32) if offset > 0 else range(base, -1, -1) if offset < 0 else (base,)
    result = [position for position in order if mask >> position & 1]
    rank = max(abs(offset), 1) - 1
    return result[rank] if rank < len(result) else 0xFFFFFFFF


def test_fns() -> None:
    mask, base = numbers(32, 2000, 36), numbers(32, 2000, 37) % np.uint32(32)
    offset = np.random.default_rng(38).integers(-20, 20, len(mask)).astype(np.int32)
    got = per_thread("fns.b32 d, a0, a1, a2;", mask, base, offset, out=np.uint32)
    assert got.tolist() == [nth_set(*x) for x in zip(mask.tolist(), base.tolist(), offset.tolist(), strict=True)]


def test_prmt() -> None:
    a, b, s = (numbers(32, 300, n) for n in (33, 34, 35))
    got = per_thread("prmt.b32 d, a0, a1, a2;", a, b, s, out=np.uint32)
    for x, y, selector, d in zip(*(r.tolist() for r in (a, b, s, got)), strict=True):
        data = (y << 32 | x).to_bytes(8, "little")
        chosen = [data[selector >> 4 * i & 7] for i in range(4)]
        spread = [(0xFF if v & 0x80 else 0) if selector >> 4 * i & 8 else v for i, v in enumerate(chosen)]
        assert d == int.from_bytes(bytes(spread), "little")
    modes = {
        "f4e": [2, 3, 4, 5],
        "b4e": [2, 1, 0, 7],
        "rc8": [2] * 4,
        "ecl": [2, 2, 2, 3],
        "ecr": [0, 1, 2, 2],
        "rc16": [0, 1] * 2,
    }
    for mode, chosen in modes.items():
        got = per_thread(f"prmt.b32.{mode} d, a0, a1, 2;", a, b, out=np.uint32)
        both = np.stack([a, b], axis=1).view(np.uint8)
        np.testing.assert_array_equal(got.view(np.uint8).reshape(-1, 4), both[:, chosen], err_msg=mode)


COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


@pytest.mark.parametrize("type_name", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_comparisons(type_name: str) -> None:
    bits = int(type_name[1:])
    a, b = numbers(bits, 200, 36), numbers(bits, 200, 37)
    b[::7] = a[::7]
    for name, compare in COMPARISONS.items():
        code = f"""setp.{name}.{type_name} p|q, a0, a1; selp.b32 d0, 1, 0, p; selp.b32 d1, 1, 0, q;
        setp.{name}.and.{type_name} p, a0, a1, q; selp.b32 d2, 1, 0, p;
        set.{name}.u32.{type_name} d3, a0, a1;"""
        got = per_thread(code, a, b, out=np.uint32, outs=4)
        wanted = [
            compare(as_type(x, type_name), as_type(y, type_name)) for x, y in zip(a.tolist(), b.tolist(), strict=True)
        ]
        assert got[0].tolist() == wanted
        assert got[1].tolist() == [not w for w in wanted]
        assert not got[2].any()
        assert got[3].tolist() == [0xFFFFFFFF if w else 0 for w in wanted]


def test_unsigned_comparison_names_and_predicate_logic() -> None:
    a, b = numbers(32, 200, 38), numbers(32, 200, 39)
    code = """setp.lo.u32 p, a0, a1; setp.hs.or.u32 q, a0, a1, !p; selp.b32 d0, 1, 0, p; selp.b32 d1, 1, 0, q;
    xor.pred p, p, q; not.pred q, p; selp.b32 d2, 1, 0, p; selp.b32 d3, 1, 0, q; """
    got = per_thread(code, a, b, out=np.uint32, outs=4)
    np.testing.assert_array_equal(got[0], a < b)
    np.testing.assert_array_equal(got[1], a >= b)
    assert got[2].all()
    assert not got[3].any()


def test_selection_by_sign() -> None:
    a, b, c = (numbers(32, 100, s) for s in (40, 41, 42))
    got = per_thread("slct.b32.s32 d, a0, a1, a2;", a, b, c, out=np.uint32)
    np.testing.assert_array_equal(got, np.where(c.view(np.int32) >= 0, a, b))


def test_packing_and_unpacking() -> None:
    a, b = numbers(64, 100, 43), numbers(32, 100, 44)
    code = """.reg .b16 h<4>; mov.b64 {h0, h1, h2, h3}, a0; mov.b64 d0, {h3, h2, h1, h0};
    .reg .b32 lo, hi; mov.b64 {lo, hi}, a0; mov.b64 d1, {hi, a1}; mov.b64 {_, hi}, a0; cvt.u64.u32 d2, hi;"""
    got = per_thread(code, a, b, out=np.uint64, outs=3)
    np.testing.assert_array_equal(got[0], a.view(np.uint16).reshape(-1, 4)[:, ::-1].copy().view(np.uint64)[:, 0])
    high = a >> np.uint64(32)
    np.testing.assert_array_equal(got[1], high | b.astype(np.uint64) << np.uint64(32))
    np.testing.assert_array_equal(got[2], high)
