"""Logic, shifts, bit fields: and, or, xor, not, cnot, lop3, shl, shr, shf, bfe, bfi, bfind, fns, popc, clz, brev, prmt.

PTX ISA, "Logic and Shift Instructions" and the bit-field part of "Integer Arithmetic Instructions".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from matmill.emulator.arith.row import Row
from matmill.emulator.frontend.syntax import Immediate, Instruction
from matmill.emulator.program.table import KIND_OF_TYPE, Action, Modifiers, computed, instructions

_LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@instructions("and", "or", "xor")
def logic(i: Instruction) -> Action:
    """Bind and, or, xor of bits or predicates."""
    m = Modifiers(i)
    kind = KIND_OF_TYPE[m.type("b16", "b32", "b64", "pred")]
    m.done()
    d, a, b = i.operands
    return computed(i, _LOGIC[i.name], [(a, kind), (b, kind)], [(d, kind)], in_place=True)


@instructions("not")
def invert(i: Instruction) -> Action:
    """Bind ``not``."""
    m = Modifiers(i)
    kind = KIND_OF_TYPE[m.type("b16", "b32", "b64", "pred")]
    m.done()
    d, a = i.operands
    return computed(i, np.invert, [(a, kind)], [(d, kind)], in_place=True)


def is_zero(a: Row, out: Row) -> None:
    """Compute cnot: 1 if the source is 0, else 0."""
    out[...] = a == 0


@instructions("cnot")
def logical_not(i: Instruction) -> Action:
    """Bind ``cnot``."""
    m = Modifiers(i)
    kind = KIND_OF_TYPE[m.type("b16", "b32", "b64")]
    m.done()
    d, a = i.operands
    return computed(i, is_zero, [(a, kind)], [(d, kind)], in_place=True)


@instructions("lop3")
def three_way_logic(i: Instruction) -> Action:
    """Bind lop3: any function of three bits, as a table of eight."""
    m = Modifiers(i)
    m.type("b32")
    m.done()
    d, a, b, c, table, *more = i.operands
    if more or not isinstance(table, Immediate):
        raise i.unsupported("lop3 with a predicate")
    lut = int(table.value) & 0xFF

    def call(a: Row, b: Row, c: Row, out: Row) -> None:
        result = np.zeros(out.shape, np.uint32)
        for case in range(8):
            if lut >> case & 1:
                term = (a if case & 4 else ~a) & (b if case & 2 else ~b) & (c if case & 1 else ~c)
                result |= term
        out[...] = result

    return computed(i, call, [(a, "u4"), (b, "u4"), (c, "u4")], [(d, "u4")], in_place=True)


def shift_left(a: Row, n: Row, out: Row) -> None:
    """Compute shl: counts of at least the width give 0."""
    bits = 8 * out.dtype.itemsize
    moved = np.left_shift(a, np.minimum(n, np.uint32(bits - 1)).astype(out.dtype))
    out[...] = np.where(n < bits, moved, out.dtype.type(0))


def shift_right(a: Row, n: Row, out: Row) -> None:
    """Compute shr: counts of at least the width give the sign, or 0."""
    bits = 8 * out.dtype.itemsize
    moved = np.right_shift(a, np.minimum(n, np.uint32(bits - 1)).astype(out.dtype))
    if out.dtype.kind == "u":
        moved = np.where(n < bits, moved, out.dtype.type(0))
    out[...] = moved


@instructions("shl", "shr")
def shift(i: Instruction) -> Action:
    """Bind ``shl`` and shr."""
    m = Modifiers(i)
    kind = KIND_OF_TYPE[m.type("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64")]
    m.done()
    d, a, n = i.operands
    bits = 8 * int(kind[1])
    if isinstance(n, Immediate) and 0 <= n.value < bits:
        # A count within the width needs no clamping, and most are literals.
        ufunc = np.left_shift if i.name == "shl" else np.right_shift
        return computed(i, ufunc, [(a, kind), (n, kind)], [(d, kind)], in_place=True)
    return computed(
        i, shift_left if i.name == "shl" else shift_right, [(a, kind), (n, "u4")], [(d, kind)], in_place=True
    )


@instructions("shf")
def funnel_shift(i: Instruction) -> Action:
    """Bind shf: one half of a 64-bit shift."""
    m = Modifiers(i)
    left = m.need("l", "r") == "l"
    wrap = m.need("wrap", "clamp") == "wrap"
    m.type("b32")
    m.done()

    def call(low: Row, high: Row, n: Row, out: Row) -> None:
        both = (high.astype(np.uint64) << np.uint64(32)) | low
        count = (n & np.uint32(31)) if wrap else np.minimum(n, np.uint32(32))
        count = count.astype(np.uint64)
        result = (both << count) >> np.uint64(32) if left else both >> count
        out[...] = result.astype(np.uint32)

    d, a, b, n = i.operands
    return computed(i, call, [(a, "u4"), (b, "u4"), (n, "u4")], [(d, "u4")], in_place=True)


def _field(position: Row, length: Row, bits: int) -> tuple[Row, Row]:
    """Return a field's position and length as the GPU reads them, at most 255.

    PTX ISA has both operands "restricted to 0..255", and 32-bit instructions take their lowest byte. For 64-bit ones
    ptxas emits shifts, which take all 32 bits: 256 is then outside the word (measured on an H200).
    """
    top = np.uint32(0xFF)
    return (position & top, length & top) if bits == 32 else (np.minimum(position, top), np.minimum(length, top))


def _masks(length: Row, word: type[np.unsignedinteger[Any]]) -> Row:
    """Return a mask of the lowest ``length`` bits (0 to 255, limited to the width)."""
    bits = 8 * np.dtype(word).itemsize
    clipped = np.minimum(length, bits).astype(word)
    full = ~word(0)
    return np.where(clipped == 0, word(0), full >> (word(bits) - np.maximum(clipped, word(1))))


@instructions("bfe")
def extract_field(i: Instruction) -> Action:
    """Bind bfe: a bit field, zero- or sign-extended."""
    m = Modifiers(i)
    kind = KIND_OF_TYPE[m.type("u32", "u64", "s32", "s64")]
    m.done()
    word = np.dtype("u" + kind[1]).type
    bits = 8 * int(kind[1])

    def call(a: Row, position: Row, length: Row, out: Row) -> None:
        position, length = _field(position, length, bits)
        ones = _masks(length, word)
        ua = a.view(word)
        start = np.minimum(position, np.uint32(bits - 1)).astype(word)
        moved = np.where(position < bits, ua >> start, word(0))
        field = moved & ones
        if kind[0] == "i":
            last = np.minimum(position.astype(np.int64) + length - 1, bits - 1)
            negative = (length > 0) & ((ua >> np.maximum(last, 0).astype(word)) & word(1) == 1)
            inside = _masks(np.clip(bits - position.astype(np.int64), 0, 255), word) & ones
            field = np.where(negative, (moved & inside) | ~inside, field)
        out[...] = field.view(out.dtype)

    d, a, b, c = i.operands
    return computed(i, call, [(a, kind), (b, "u4"), (c, "u4")], [(d, kind)], in_place=True)


@instructions("bfi")
def insert_field(i: Instruction) -> Action:
    """Bind bfi: the low bits of one word are inserted into another."""
    m = Modifiers(i)
    kind = KIND_OF_TYPE[m.type("b32", "b64")]
    m.done()
    word = np.dtype(kind).type
    bits = 8 * int(kind[1])

    def call(a: Row, b: Row, position: Row, length: Row, out: Row) -> None:
        position, length = _field(position, length, bits)
        start = np.minimum(position, np.uint32(bits - 1)).astype(word)
        field = np.where(position < bits, _masks(length, word) << start, word(0))
        out[...] = (b & ~field) | ((a << start) & field)

    d, a, b, c, e = i.operands
    return computed(i, call, [(a, kind), (b, kind), (c, "u4"), (e, "u4")], [(d, kind)], in_place=True)


def bit_length(a: Row) -> Row:
    """Return the number of bits up to the highest set bit, as uint32."""
    if a.dtype.itemsize == 8:
        high = (a >> np.uint64(32)).astype(np.uint32)
        low = a.astype(np.uint32)
        return np.where(high != 0, bit_length(high) + np.uint32(32), bit_length(low))
    return np.asarray(np.frexp(a.astype(np.float64))[1], np.uint32)


def count_ones(a: Row, out: Row) -> None:
    """Compute ``popc``."""
    out[...] = np.bitwise_count(a)


def leading_zeros(a: Row, out: Row) -> None:
    """Compute ``clz``."""
    out[...] = np.uint32(8 * a.dtype.itemsize) - bit_length(a)


@instructions("popc", "clz")
def count_bits(i: Instruction) -> Action:
    """Bind ``popc`` and clz; the result has 32 bits."""
    m = Modifiers(i)
    kind = KIND_OF_TYPE[m.type("b32", "b64")]
    m.done()
    d, a = i.operands
    return computed(
        i, count_ones if i.name == "popc" else leading_zeros, [(a, kind)], [(d, "u4")], in_place=kind == "u4"
    )


@instructions("bmsk", operands=(3,))
def bit_mask(i: Instruction) -> Action:
    """Bind bmsk: a mask with as many bits as the second operand, from the position in the first one."""
    m = Modifiers(i)
    clamp = m.need("clamp", "wrap") == "clamp"
    m.type("b32")
    m.done()

    def call(position: Row, width: Row, out: Row) -> None:
        start, count = (np.asarray(x, np.uint64) for x in (position, width))
        if clamp:
            start, count = np.minimum(start, np.uint64(32)), np.minimum(count, np.uint64(32))
        else:
            start, count = start & np.uint64(31), count & np.uint64(31)
        one = np.uint64(1)
        out[...] = (((one << count) - one) << start).astype(np.uint32)

    d, position, width = i.operands
    return computed(i, call, [(position, "u4"), (width, "u4")], [(d, "u4")])


@instructions("bfind")
def find_bit(i: Instruction) -> Action:
    """Bind bfind: the index of the highest set bit (clear bit for negative numbers), or all ones."""
    m = Modifiers(i)
    as_shift = m.flag("shiftamt")
    kind = KIND_OF_TYPE[m.type("u32", "u64", "s32", "s64")]
    m.done()
    word = np.dtype("u" + kind[1]).type
    bits = np.uint32(8 * int(kind[1]))

    def call(a: Row, out: Row) -> None:
        magnitude = np.where(a < 0, ~a, a) if kind[0] == "i" else a
        length = bit_length(magnitude.view(word))
        position = bits - length if as_shift else length - np.uint32(1)
        out[...] = np.where(length == 0, np.uint32(0xFFFFFFFF), position)

    d, a = i.operands
    return computed(i, call, [(a, kind)], [(d, "u4")], in_place=kind[1] == "4")


def reverse_bits(a: Row, out: Row) -> None:
    """Compute ``brev``."""
    swapped = np.array(a.byteswap(), ndmin=1)
    word = swapped.dtype.type
    for step, pattern in ((1, 0x55), (2, 0x33), (4, 0x0F)):
        mask = word(int.from_bytes(bytes([pattern]) * swapped.dtype.itemsize, "little"))
        swapped = ((swapped >> word(step)) & mask) | ((swapped & mask) << word(step))
    out[...] = swapped


_POSITION = np.arange(32, dtype=np.int64)


def nth_set(mask: Row, base: Row, offset: Row, out: Row) -> None:
    """Compute fns: the position of the ``offset``-th set bit from bit ``base`` on, upwards or downwards.

    The result is all ones if there is none.
    """
    bits, start, n = np.asarray(mask)[..., None], np.asarray(base)[..., None], np.asarray(offset, np.int64)[..., None]
    beyond = np.where(n < 0, start - _POSITION, _POSITION - start)
    counted = (bits >> _POSITION.astype(np.uint32) & 1 != 0) & (beyond >= 0) & ((n != 0) | (beyond == 0))
    total, upto = counted.sum(axis=-1, keepdims=True), counted.cumsum(axis=-1)
    rank = np.where(n < 0, total - upto + 1, upto)
    hit = counted & (rank == np.maximum(np.abs(n), 1))
    out[...] = np.where(hit.any(axis=-1), hit.argmax(axis=-1), 0xFFFFFFFF)


@instructions("fns", operands=(4,))
def find_nth_set(i: Instruction) -> Action:
    """Bind ``fns``."""
    m = Modifiers(i)
    m.type("b32")
    m.done()
    d, mask, base, offset = i.operands
    return computed(i, nth_set, [(mask, "u4"), (base, "u4"), (offset, "i4")], [(d, "u4")])


@instructions("brev")
def bit_reverse(i: Instruction) -> Action:
    """Bind ``brev``."""
    m = Modifiers(i)
    kind = KIND_OF_TYPE[m.type("b32", "b64")]
    m.done()
    d, a = i.operands
    return computed(i, reverse_bits, [(a, kind)], [(d, kind)], in_place=True)


# prmt's named modes: for each value of the selector's low two bits, the chosen bytes, highest first.
_PERMUTE_MODES = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


@instructions("prmt")
def permute_bytes(i: Instruction) -> Action:
    """Bind prmt: four bytes selected from eight."""
    m = Modifiers(i)
    m.type("b32")
    mode = m.pick(_PERMUTE_MODES)
    m.done()
    selectors = np.array(_PERMUTE_MODES[mode], np.uint64) if mode else None

    def call(a: Row, b: Row, selector: Row, out: Row) -> None:
        both = (np.asarray(b, np.uint64) << np.uint64(32)) | a
        chosen = np.asarray(selector, np.uint64)
        if selectors is not None:
            chosen = selectors[chosen & np.uint64(3)]
        result = np.zeros(out.shape, np.uint64)
        for byte in range(4):
            nibble = chosen >> np.uint64(4 * byte)
            value = (both >> (np.uint64(8) * (nibble & np.uint64(7)))) & np.uint64(0xFF)
            spread = np.where(value & np.uint64(0x80) != 0, np.uint64(0xFF), np.uint64(0))
            result |= np.where(nibble & np.uint64(8) != 0, spread, value) << np.uint64(8 * byte)
        out[...] = result.astype(np.uint32)

    d, a, b, c = i.operands
    return computed(i, call, [(a, "u4"), (b, "u4"), (c, "u4")], [(d, "u4")], in_place=True)
