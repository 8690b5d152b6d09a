"""Cases: integer arithmetic, logic, shifts, bit fields, comparisons and selections."""

from __future__ import annotations

from agreement.case import Case, Op, table
from agreement.values import words

UNSIGNED, SIGNED = ("u16", "u32", "u64"), ("s16", "s32", "s64")


def kind(type_name: str) -> str:
    """Return the table's name for registers of a PTX type."""
    return f"u{int(type_name[1:]) // 8}"


def _arithmetic(bits: int) -> Case:
    ops = []
    for sign in "us":
        t, out = f"{sign}{bits}", f"u{bits // 8}"
        ops += [Op(f"{name}.{t} %0, %1, %2;", out) for name in ("add", "sub", "mul.lo", "mul.hi", "min", "max")]
        ops += [Op(f"{name}.{t} %0, %1, %2, %3;", out) for name in ("mad.lo", "mad.hi", "sad")]
        ops += [Op(f"{name}.{t} %0, %1, %2;", out) for name in ("div", "rem")]
        if bits < 64:
            wide = f"u{bits // 4}"
            ops += [Op(f"mul.wide.{t} %0, %1, %2;", wide), Op(f"mad.wide.{t} %0, %1, %2, %4;", wide)]
    ops += [Op(f"{name}.s{bits} %0, %1;", f"u{bits // 8}") for name in ("neg", "abs")]
    ops += [Op(f"cnot.b{bits} %0, %1;", f"u{bits // 8}"), Op(f"not.b{bits} %0, %1;", f"u{bits // 8}")]
    ops += [Op(f"{name}.b{bits} %0, %1, %2;", f"u{bits // 8}") for name in ("and", "or", "xor")]
    operands = [(f"u{bits // 8}", x) for x in words(bits)]
    operands += [(f"u{bits // 4}", words(2 * bits, seed=16)[2])] if bits < 64 else []
    return table(f"arithmetic {bits}", operands, ops)


def _arithmetic_32() -> Case:
    """Return what only 32-bit integers have, and sums of several words."""
    ops = [Op(f"{name}.sat.s32 %0, %1, %2;", "u4") for name in ("add", "sub")]
    for t in ("u32", "s32"):
        ops += [Op(f"mul24.{part}.{t} %0, %1, %2;", "u4") for part in ("lo", "hi")]
        ops += [Op(f"mad24.{part}.{t} %0, %1, %2, %3;", "u4") for part in ("lo", "hi")]
        ops += [Op(f"dp4a.{t}.{other} %0, %1, %2, %3;", "u4") for other in ("u32", "s32")]
        ops += [
            Op(f"dp2a.{part}.{t}.{other} %0, %1, %2, %3;", "u4") for part in ("lo", "hi") for other in ("u32", "s32")
        ]
        ops += [Op(f"mul.wide.{t} %0, %1, -7;", "u8")] if t == "s32" else []
    sums = (
        "{{.reg .u32 lo, hi; {0}.cc.u32 lo, %1, %2; {0}c.cc.u32 hi, %2, %3; {0}c.u32 %0, %3, %1; {1}.u32 %0, %0, {2};}}"
    )
    for name in ("add", "sub"):
        ops += [
            Op(sums.format(name, other, part), "u4")
            for other in ("add", "xor.b32 %0, %0, hi; add")
            for part in ("lo", "hi")
        ]
    # Where a difference leaves what a sum reads, and the reverse.
    mixed = "{{.reg .u32 lo; {0}.cc.u32 lo, %1, %2; {1}c.u32 %0, %3, lo;}}"
    ops += [Op(mixed.format(*names), "u4") for names in (("sub", "add"), ("add", "sub"))]
    ops += [Op(f"add.{t} %0, %1, %2;", "u4") for t in ("u16x2", "s16x2")]
    ops += [Op(f"v{name}.u32.u32.u32 %0, %1, %2, %3;", "u4") for name in ("add4", "sub2", "absdiff4", "min2", "max4")]
    ops += [Op(f"v{name}.s32.s32.s32.sat %0, %1, %2, %3;", "u4") for name in ("add2", "sub4", "absdiff2")]
    ops += [Op(f"v{name}.u32.u32.u32.add %0, %1, %2, %3;", "u4") for name in ("absdiff2", "absdiff4", "add4")]
    mixed_parts = (
        "sub2.u32.u32.u32.sat", "absdiff2.u32.s32.s32", "min4.s32.s32.s32", "max2.s32.u32.s32.sat",
        "add4.s32.s32.s32.sat", "add4.s32.s32.u32.add",
    )  # fmt: skip
    ops += [Op(f"v{name} %0, %1, %2, %3;", "u4") for name in mixed_parts]
    wide = "{{.reg .u64 lo; {0}.cc.u64 lo, %4, %4; {0}c.u64 %0, %4, lo;}}"
    ops += [Op(wide.format(name), "u8") for name in ("add", "sub")]
    a, b, c = words(32, seed=1)
    return table("arithmetic of 32-bit words", [("u4", a), ("u4", b), ("u4", c), ("u8", words(64, seed=2)[0])], ops)


def _bits(bits: int) -> Case:
    """Return shifts and bit fields of one width, with counts and lengths far beyond it."""
    word = f"u{bits // 8}"
    ops = [Op(f"shl.b{bits} %0, %1, %2;", word)]
    ops += [Op(f"shr.{t}{bits} %0, %1, {count};", word) for t in "usb" for count in ("%2", bits + 3)]
    if bits > 16:
        ops += [Op(f"bfe.{t}{bits} %0, %1, %2, %3;", word) for t in "us"]
        ops += [Op(f"bfi.b{bits} %0, %4, %1, %2, %3;", word), Op(f"brev.b{bits} %0, %1;", word)]
        ops += [Op(f"{name}.b{bits} %0, %1;", "u4") for name in ("popc", "clz")]
        ops += [Op(f"bfind{m}.{t}{bits} %0, %1;", "u4") for m in ("", ".shiftamt") for t in "us"]
    if bits == 32:
        # An H200 gives 0 for an offset of -2**31, where PTX promises nothing.
        ops.append(Op("{.reg .u32 b, n; and.b32 b, %2, 31; shr.s32 n, %3, 25; fns.b32 %0, %1, b, n;}", "u4"))
    value = words(bits, seed=3)
    counts = words(32, seed=4)
    return table(f"bits {bits}", [(word, value[0]), ("u4", counts[1]), ("u4", counts[2]), (word, value[1])], ops)


def _three_words() -> Case:
    """Return lop3, prmt in all modes, funnel shifts, and 16-bit pairs."""
    ops = [
        Op(f"lop3.b32 %0, %1, %2, %3, {n};", "u4") for n in (0, 0x01, 0x1B, 0x3C, 0x6C, 0x80, 0x96, 0xCA, 0xE8, 0xFE)
    ]
    ops += [
        Op(f"prmt.b32{mode} %0, %1, %2, {selector};", "u4")
        for mode in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16")
        for selector in ("%3", 2)
    ]
    ops += [Op(f"shf.{side}.{m}.b32 %0, %1, %2, %3;", "u4") for side in "lr" for m in ("wrap", "clamp")]
    ops += [Op(f"{name}.{t}16x2 %0, %1, %2;", "u4") for name in ("min", "max") for t in "us"]
    ops += [Op(f"{name}.relu.s32 %0, %1, %2;", "u4") for name in ("min", "max")]
    ops.append(Op("{.reg .b16 x, y; mov.b32 {x, y}, %1; mov.b32 %0, {y, x};}", "u4"))
    ops.append(Op("{.reg .b32 x, y; mov.b64 {x, y}, %4; xor.b32 %0, x, y;}", "u4"))
    ops.append(Op("mov.b64 %0, {%1, %2};", "u8"))
    return table("three words", [*(("u4", x) for x in words(32, seed=5)), ("u8", words(64, seed=6)[2])], ops)


def _comparisons(bits: int) -> Case:
    word = f"u{bits // 8}"
    ops = []
    for t, names in (("s", "eq ne lt le gt ge"), ("u", "eq ne lo ls hi hs lt le gt ge"), ("b", "eq ne")):
        compare = "{{.reg .pred p, q; setp.{0}.{1}{2} p|q, %1, %2; selp.u32 %0, 1, 2, p; @q add.u32 %0, %0, 4;}}"
        ops += [Op(compare.format(name, t, bits), "u4") for name in names.split()]
    both = "{{.reg .pred p, q, c; setp.lt.s{0} c, %2, %3; setp.le.{1}.s{0} p|q, %1, %2, {2}; selp.u32 %0, 7, 9, {3};}}"
    ops += [
        Op(both.format(bits, join, other, result), "u4")
        for join in ("and", "or", "xor")
        for result in "pq"
        for other in ("c", "!c")
    ]
    joined = "{{.reg .pred p, c; setp.lt.s{0} c, %2, %3; setp.{2}.and.{1}{0} p, %1, %2, c; selp.u32 %0, 7, 9, p;}}"
    for t in "su":
        for name in ("eq", "ne", "lt", "le", "gt", "ge"):
            ops.append(Op(f"set.{name}.u32.{t}{bits} %0, %1, %2;", "u4"))
            ops.append(Op(joined.format(bits, t, name), "u4"))
    ops.append(
        Op(
            f"{{.reg .pred p, q; setp.lo.u{bits} p, %1, %2; setp.hs.or.u{bits} q, %2, %3, !p; xor.pred p, p, q; "
            "not.pred q, p; selp.b32 %0, 1, 0, q;}",
            "u4",
        )
    )
    ops += [Op(f"set.{name}.f32.u{bits} %0, %1, %2;", "f4") for name in ("ge", "eq")]
    ops.append(Op(f"slct.b{bits}.s32 %0, %1, %2, %4;", word))
    ops.append(Op(f"{{.reg .pred p; setp.gt.u{bits} p, %1, %2; selp.b{bits} %0, %2, %3, p;}}", word))
    operands = [*((word, x) for x in words(bits, seed=7)), ("u4", words(32, seed=8)[2])]
    return table(f"comparisons {bits}", operands, ops)


def _between_integers() -> Case:
    """Return cvt from every integer type to every other, with and without saturation."""
    registers = {8: "%3", 16: "%1", 32: "%3", 64: "%2"}
    ops = []
    for a in (8, 16, 32, 64):
        for b in (8, 16, 32, 64):
            for s in "us":
                for d in "us":
                    out = {8: "u4", 16: "u2", 32: "u4", 64: "u8"}[b]
                    ops.append(Op(f"cvt.{d}{b}.{s}{a} %0, {registers[a]};", out))
                    # .sat is legal only where a value may not fit.
                    if (d == "u" and s == "s") or a - (s == "s") > b - (d == "s"):
                        ops.append(Op(f"cvt.sat.{d}{b}.{s}{a} %0, {registers[a]};", out))
    operands = [("u2", words(16, seed=9)[0]), ("u8", words(64, seed=10)[0]), ("u4", words(32, seed=11)[0])]
    return table("conversions between integers", operands, ops)


CASES = (
    *(_arithmetic(bits) for bits in (16, 32, 64)),
    _arithmetic_32(),
    *(_bits(bits) for bits in (16, 32, 64)),
    _three_words(),
    *(_comparisons(bits) for bits in (16, 32, 64)),
    _between_integers(),
)
