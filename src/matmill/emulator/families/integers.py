"""Integer arithmetic: add, sub, mul, mad, div, rem, min, max, neg, abs, sad, dp4a, dp2a and the like.

PTX ISA, "Integer Arithmetic Instructions" and "Extended-Precision Integer Arithmetic Instructions". The
floating-point forms of the same opcodes are in ``floats``.
"""

from __future__ import annotations

import numpy as np

from matmill.emulator.arith.row import Row
from matmill.emulator.families import floats
from matmill.emulator.frontend.syntax import Instruction, Register
from matmill.emulator.program.table import KIND_OF_TYPE, Action, Call, Modifiers, computed, instructions

INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64", "b32", "b64", "b16")
_WIDER = {"u2": "u4", "i2": "i4", "u4": "u8", "i4": "i8"}
# The condition code CC.CF, a predicate that add.cc sets and addc reads. Each lane has its own, like any register.
# Subtractions are additions of the complement, so sub.cc sets it if there is no borrow. (In the PTX ISA it is the
# borrow, which only matters for code that mixes both: compiled divisions of 128 bits read it with addc.)
CARRY = Register("%cc", "pred")


def is_integer(instruction: Instruction) -> bool:
    """Tell whether the instruction has an integer type."""
    return any(m in INTEGERS or m in {"u16x2", "s16x2"} for m in instruction.modifiers)


def unsigned(kind: str) -> str:
    """Return the unsigned kind of the same width: wrap-around arithmetic is the same for both."""
    return "u" + kind[1:]


def add_saturated(a: Row, b: Row, out: Row) -> None:
    """Compute add.sat.s32."""
    out[...] = np.clip(a.astype(np.int64) + b, -(1 << 31), (1 << 31) - 1)


def sub_saturated(a: Row, b: Row, out: Row) -> None:
    """Compute sub.sat.s32."""
    out[...] = np.clip(a.astype(np.int64) - b, -(1 << 31), (1 << 31) - 1)


def add_carry_out(a: Row, b: Row, out: Row, carry: Row) -> None:
    """Compute add.cc."""
    total = a + b
    carry[...] = total < a
    out[...] = total


def add_carry_in(a: Row, b: Row, carry_in: Row, out: Row, carry: Row | None = None) -> None:
    """Compute ``addc`` and addc.cc."""
    partial = a + b
    total = partial + carry_in
    if carry is not None:
        carry[...] = (partial < a) | (total < partial)
    out[...] = total


def sub_borrow_out(a: Row, b: Row, out: Row, carry: Row) -> None:
    """Compute sub.cc."""
    enough = a >= b
    out[...] = a - b
    carry[...] = enough


def sub_borrow_in(a: Row, b: Row, carry_in: Row, out: Row, carry: Row | None = None) -> None:
    """Compute ``subc`` and subc.cc."""
    partial, borrow_in = a - b, ~carry_in
    enough = (a >= b) & (partial >= borrow_in)
    out[...] = partial - borrow_in
    if carry is not None:
        carry[...] = enough


@instructions("add", "sub")
def add_sub(i: Instruction) -> Action:
    """Bind ``add`` and sub of all types."""
    if not is_integer(i):
        return floats.add_sub(i)
    m = Modifiers(i)
    saturate, carry = m.flag("sat"), m.flag("cc")
    packed = m.pick(("u16x2", "s16x2"))
    kind = "u2x2" if packed else KIND_OF_TYPE[m.type(*INTEGERS)]
    m.done()
    d, a, b = i.operands
    add = i.name == "add"
    if packed and (not add or saturate or carry):
        raise i.unsupported("its modifiers")
    if saturate:
        if kind != "i4":
            raise i.unsupported(".sat with another type than .s32")
        return computed(i, add_saturated if add else sub_saturated, [(a, kind), (b, kind)], [(d, kind)], in_place=True)
    kind = unsigned(kind)
    if carry:
        call = add_carry_out if add else sub_borrow_out
        return computed(i, call, [(a, kind), (b, kind)], [(d, kind), (CARRY, "p")])
    return computed(i, np.add if add else np.subtract, [(a, kind), (b, kind)], [(d, kind)], in_place=True)


@instructions("addc", "subc")
def add_sub_carry(i: Instruction) -> Action:
    """Bind ``addc`` and subc: the higher words of a long sum."""
    m = Modifiers(i)
    carry = m.flag("cc")
    kind = unsigned(KIND_OF_TYPE[m.type(*INTEGERS)])
    m.done()
    d, a, b = i.operands
    results = [(d, kind), (CARRY, "p")] if carry else [(d, kind)]
    return computed(
        i, add_carry_in if i.name == "addc" else sub_borrow_in, [(a, kind), (b, kind), (CARRY, "p")], results
    )


def multiply_wide(a: Row, b: Row, out: Row) -> None:
    """Compute the whole product, twice as wide as the factors."""
    np.multiply(a, b, out=out, dtype=out.dtype)


def high_product(a: Row, b: Row) -> Row:
    """Return the upper half of the product."""
    if a.dtype.itemsize < 8:
        wide = np.dtype(_WIDER[a.dtype.str[1:]])
        return np.asarray((np.multiply(a, b, dtype=wide) >> wide.type(8 * a.dtype.itemsize)).astype(a.dtype))
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    x, y = a.astype(np.uint64), b.astype(np.uint64)
    x0, x1, y0, y1 = x & low, x >> half, y & low, y >> half
    middle = x1 * y0 + (x0 * y0 >> half)
    other = x0 * y1 + (middle & low)
    high = x1 * y1 + (middle >> half) + (other >> half)
    if a.dtype.kind == "i":
        zero = np.uint64(0)
        high = high - np.where(a < 0, y, zero) - np.where(b < 0, x, zero)
    return np.asarray(high.astype(a.dtype))


def multiply_high(a: Row, b: Row, out: Row) -> None:
    """Compute mul.hi."""
    out[...] = high_product(a, b)


def mad_low(a: Row, b: Row, c: Row, out: Row) -> None:
    """Compute mad.lo."""
    np.add(a * b, c, out=out)


def mad_wide(a: Row, b: Row, c: Row, out: Row) -> None:
    """Compute mad.wide."""
    np.add(np.multiply(a, b, dtype=out.dtype), c, out=out)


def mad_high(a: Row, b: Row, c: Row, out: Row) -> None:
    """Compute mad.hi."""
    np.add(high_product(a, b), c, out=out)


@instructions("mul", operands=(3,))
@instructions("mad", operands=(4,))
def multiply(i: Instruction) -> Action:
    """Bind ``mul`` and mad, lower half, upper half or whole product."""
    if not is_integer(i):
        return floats.multiply(i) if i.name == "mul" else floats.fused(i)
    if "cc" in i.modifiers:
        return multiply_add_carry(i)
    m = Modifiers(i)
    part = m.pick(("lo", "hi", "wide"))
    kind = KIND_OF_TYPE[m.type(*INTEGERS)]
    m.done()
    if part == "lo":
        kind = unsigned(kind)
    wide = _WIDER[kind] if part == "wide" else kind
    d, a, b, *rest = i.operands
    sources = [(a, kind), (b, kind), *((c, wide) for c in rest)]
    calls: dict[str, Call] = {"lo": mad_low, "hi": mad_high, "wide": mad_wide}
    if i.name == "mul":
        calls = {"lo": np.multiply, "hi": multiply_high, "wide": multiply_wide}
    call = calls[part]
    return computed(i, call, sources, [(d, wide)], in_place=part != "wide")


@instructions("madc", operands=(4,))
def multiply_add_carry(i: Instruction) -> Action:
    """Bind mad.cc, madc and madc.cc: products in long sums."""
    m = Modifiers(i)
    upper = m.need("lo", "hi") == "hi"
    carry = m.flag("cc")
    kind = KIND_OF_TYPE[m.type("u32", "s32", "u64", "s64")]
    m.done()
    word = np.dtype(unsigned(kind))
    add = add_carry_in if i.name == "madc" else add_carry_out

    def call(a: Row, b: Row, c: Row, *rest: Row) -> None:
        product = high_product(a, b) if upper else np.asarray(a * b)
        add(product.view(word), c, *rest)

    d, a, b, c = i.operands
    sources = [(a, kind), (b, kind), (c, unsigned(kind))]
    if i.name == "madc":
        sources.append((CARRY, "p"))
    results = [(d, unsigned(kind)), (CARRY, "p")] if carry else [(d, unsigned(kind))]
    return computed(i, call, sources, results)


def multiply24(a: Row, b: Row, out: Row) -> None:
    """Compute the lower 32 bits of the product of two 24-bit numbers."""
    out[...] = _low24(a) * _low24(b)


def multiply24_high(a: Row, b: Row, out: Row) -> None:
    """Compute bits 16 to 47 of the product of two 24-bit numbers."""
    product = np.multiply(_low24(a), _low24(b), dtype=_WIDER[a.dtype.str[1:]])
    out[...] = (product >> product.dtype.type(16)).astype(out.dtype)


def _low24(row: Row) -> Row:
    shift = row.dtype.type(8)
    return np.asarray((row << shift) >> shift)


@instructions("mul24", operands=(3,))
@instructions("mad24", operands=(4,))
def multiply_24_bits(i: Instruction) -> Action:
    """Bind mul24 and mad24."""
    m = Modifiers(i)
    part = m.pick(("lo", "hi"))
    kind = KIND_OF_TYPE[m.type("u32", "s32")]
    m.done()
    base = {"lo": multiply24, "hi": multiply24_high}[part]
    d, *sources = i.operands

    def mad24(a: Row, b: Row, c: Row, out: Row) -> None:
        product = np.empty_like(out)
        base(a, b, product)
        np.add(product, c, out=out)

    return computed(i, base if i.name == "mul24" else mad24, [(s, kind) for s in sources], [(d, kind)], in_place=True)


def quotient(a: Row, b: Row) -> Row:
    """Return ``a`` / b rounded toward zero; all ones where b is 0."""
    if a.dtype.kind == "u":
        safe = np.where(b == 0, b.dtype.type(1), b)
        return np.where(b == 0, ~a.dtype.type(0), a // safe)
    word = np.dtype("u" + a.dtype.str[2:])
    ua, ub = np.abs(a).astype(word), np.abs(b).astype(word)
    q = quotient(ua, ub)
    return np.where(((a < 0) != (b < 0)) & (b != 0), ~q + word.type(1), q).astype(a.dtype)


def divide(a: Row, b: Row, out: Row) -> None:
    """Compute ``div`` of integers."""
    out[...] = quotient(a, b)


def remainder(a: Row, b: Row, out: Row) -> None:
    """Compute ``rem`` of integers, with the sign of the dividend.

    A remainder by 0 is unspecified; code for sm_75 to sm_90 gives all ones.
    """
    out[...] = np.where(b == 0, ~a.dtype.type(0), a - quotient(a, b) * b)


@instructions("div", "rem")
def division(i: Instruction) -> Action:
    """Bind ``div`` and rem."""
    if not is_integer(i):
        return floats.division(i)
    m = Modifiers(i)
    kind = KIND_OF_TYPE[m.type(*INTEGERS)]
    m.done()
    d, a, b = i.operands
    return computed(i, divide if i.name == "div" else remainder, [(a, kind), (b, kind)], [(d, kind)], in_place=True)


@instructions("min", "max")
def extremum(i: Instruction) -> Action:
    """Bind ``min`` and ``max``."""
    if not is_integer(i):
        return floats.extremum(i)
    m = Modifiers(i)
    relu = m.flag("relu")
    packed = m.pick(("u16x2", "s16x2"))
    kind = {"u16x2": "u2x2", "s16x2": "i2x2"}[packed] if packed else KIND_OF_TYPE[m.type(*INTEGERS)]
    m.done()
    pick = np.minimum if i.name == "min" else np.maximum

    def plain(a: Row, b: Row, out: Row) -> None:
        pick(a, b, out=out)

    def with_relu(a: Row, b: Row, out: Row) -> None:
        np.maximum(pick(a, b), out.dtype.type(0), out=out)

    d, a, b = i.operands
    return computed(i, with_relu if relu else plain, [(a, kind), (b, kind)], [(d, kind)], in_place=True)


@instructions("neg", "abs")
def sign(i: Instruction) -> Action:
    """Bind ``neg`` and abs."""
    if not is_integer(i):
        return floats.sign(i)
    m = Modifiers(i)
    kind = KIND_OF_TYPE[m.type(*INTEGERS)]
    m.done()
    d, a = i.operands
    return computed(i, np.negative if i.name == "neg" else np.absolute, [(a, kind)], [(d, kind)], in_place=True)


def absolute_difference_sum(a: Row, b: Row, c: Row, out: Row) -> None:
    """Compute sad: c + |a - b|."""
    out[...] = c + np.where(a < b, b - a, a - b)


@instructions("sad", operands=(4,))
def sad(i: Instruction) -> Action:
    """Bind ``sad``."""
    m = Modifiers(i)
    kind = KIND_OF_TYPE[m.type(*INTEGERS)]
    m.done()
    d, *sources = i.operands
    return computed(i, absolute_difference_sum, [(s, kind) for s in sources], [(d, kind)], in_place=True)


@instructions("dp4a", operands=(4,))
def dot4(i: Instruction) -> Action:
    """Bind dp4a: four products of bytes are added to a 32-bit number."""
    m = Modifiers(i)
    return _dot(i, m, slice(None))


@instructions("dp2a", operands=(4,))
def dot2(i: Instruction) -> Action:
    """Bind dp2a: two products of 16-bit numbers and the lower or upper two bytes are added to a 32-bit number."""
    m = Modifiers(i)
    return _dot(i, m, {"lo": slice(0, 2), "hi": slice(2, 4)}[m.pick(("lo", "hi"))])


def _dot(i: Instruction, m: Modifiers, which: slice) -> Action:
    """Bind the sum of products of a's parts with the bytes ``which`` of b."""
    types = [m.type("u32", "s32"), m.type("u32", "s32")]
    m.done()
    signs = ["i" if t == "s32" else "u" for t in types]

    def call(a: Row, b: Row, c: Row, out: Row) -> None:
        a, b = np.broadcast_to(a, out.shape), np.broadcast_to(b, out.shape)  # either may be a literal
        wide_b = np.ascontiguousarray(b).reshape(-1).view(f"{signs[1]}1").reshape(-1, 4)[:, which].astype(np.int64)
        size = 4 // wide_b.shape[1]
        wide_a = np.ascontiguousarray(a).reshape(-1).view(f"{signs[0]}{size}").reshape(wide_b.shape).astype(np.int64)
        out[...] = ((wide_a * wide_b).sum(axis=1) + c.astype(np.int64)).astype(np.uint32)

    d, *sources = i.operands
    return computed(i, call, [(s, "u4") for s in sources], [(d, "u4")], in_place=True)
