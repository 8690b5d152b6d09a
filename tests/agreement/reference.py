"""The results of a table's rows: PTX ISA in Python's integers, a value at a time.

A row is a few instructions without branches. ``evaluate`` reads them as text and knows nothing of the emulator.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import Any

import numpy as np

from agreement import exact
from agreement.case import Op
from agreement.exact import E4M3, E5M2, FORMATS, NAN, Format, Number, round_to

Function = Callable[..., Any]
MODES = ("rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi")
WIDTHS = {"u2": 16, "u4": 32, "u8": 64, "f4": 32, "f8": 64, "f2": 16, "bf": 16, "f2x2": 32, "bfx2": 32, "tf": 32}
_TEXT = re.compile(r"(?:@(!?\w+)\s+)?([\w.:]+)\s+(.*)", re.DOTALL)
_OPERAND = re.compile(r"\{[^}]*\}|[^\s,|]+")
#: Functions of which PTX bounds the error, in float64.
_APPROXIMATE: dict[str, Callable[..., Any]] = {
    "rcp": lambda x: 1 / x, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "ex2": np.exp2, "lg2": np.log2,
    "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "div": lambda x, y: x / y,
}  # fmt: skip


def evaluate(op: Op, inputs: Sequence[Sequence[int]]) -> list[int]:
    """Return the result of a row for each value of its operands, all of them as bits."""
    registers: dict[str, Sequence[int]] = {f"%{n + 1}": values for n, values in enumerate(inputs)}
    widths, count = {"%0": WIDTHS[op.out]}, len(inputs[0])
    text = op.ptx.strip()
    text = text[1:-1] if text.startswith("{.") else text
    for statement in filter(None, map(str.strip, text.split(";"))):
        if statement.startswith(".reg"):
            _, kind, *names = re.split(r"[\s,]+", statement)
            widths |= dict.fromkeys(names, 1 if kind == ".pred" else int(kind[2:]))
            continue
        match = _TEXT.fullmatch(statement)
        assert match, statement
        guard, opcode, rest = match.groups()
        operands = _OPERAND.findall(rest)
        results = 2 if "|" in rest else 1
        targets = [name for o in operands[:results] for name in _names(o)]
        sources = [_values(name, registers, count) for o in operands[results:] for name in _names(o)]
        carries = "cc" in opcode or opcode.startswith(("addc", "subc"))
        if carries:
            targets, sources = [*targets, "carry"], [*sources, registers.get("carry", [0] * count)]
        if operands[0].startswith("{"):
            size = widths[targets[0]]
            rows = [[x >> n * size for x in sources[0]] for n in range(len(targets))]
        elif operands[-1].startswith("{"):
            size = widths[targets[0]] // len(sources)
            rows = [[sum(x << n * size for n, x in enumerate(parts)) for parts in zip(*sources, strict=True)]]
        else:
            answers = list(map(function_of(opcode), *sources))
            several = carries or opcode.startswith("setp")
            rows = [list(row) for row in zip(*answers, strict=True)] if several else [answers]
        kept = _values(guard, registers, count) if guard else [1] * count
        for target, row in zip(targets, rows, strict=False):
            mask = (1 << widths.get(target, 1)) - 1
            old = registers.get(target, [0] * count)
            registers[target] = [int(x) & mask if k else o for x, k, o in zip(row, kept, old, strict=True)]
    return list(registers["%0"])


def atomic(opcode: str, *, shared: bool) -> Callable[[int, int, int], int]:
    """Return what an atomic leaves of an old value and its operands; float32 sums flush in global memory alone."""
    name, *more = opcode.split(".")
    if name in {"exch", "cas"}:
        return (lambda _old, b, _c: b) if name == "exch" else (lambda old, b, c: c if old == b else old)
    if name in {"inc", "dec"}:
        return lambda old, b, _: (0 if old >= b else old + 1) if name == "inc" else (b if not 0 < old <= b else old - 1)
    flush = ".ftz" if more == ["f32"] and not shared else ""
    function = function_of(f"{name}{flush}.{more[-1]}")
    return lambda old, b, _c: function(old, b)


def _names(operand: str) -> list[str]:
    """Return the parts of a vector, or the operand itself."""
    return operand.strip("{}").replace(" ", "").split(",")


def _values(operand: str, registers: dict[str, Sequence[int]], count: int) -> Sequence[int]:
    """Return an operand's bits: a register, a negated predicate or a literal."""
    if operand in registers:
        return registers[operand]
    if operand.startswith("!"):
        return [1 - x for x in registers[operand[1:]]]
    return [int(operand.replace("0f", "0x"), 0)] * count


@cache
def function_of(opcode: str) -> Function:
    """Return what an opcode with its modifiers computes of bits."""
    name, *more = opcode.split(".")
    types = [m for m in more if re.fullmatch(r"[usbf]\d+(x2)?|b?f16(x2)?|bf16(x2)?|tf32|e[45]m[32]x2|pred", m)]
    if name == "mov":
        return lambda a: a
    if name in {"cvt", "setp", "set", "selp", "slct", "testp", "copysign"}:
        return {
            "cvt": _convert, "setp": _setp, "set": _set, "selp": _selp, "slct": _slct, "testp": _testp,
            "copysign": _copysign,
        }[name](more, types)  # fmt: skip
    if name.startswith("v") and name[-1] in "24":
        return _video(name, more, types)
    if "approx" in more or "full" in more:
        return _approximation(name, more, types[-1])
    if types[-1].removesuffix("x2") in FORMATS:
        return _float(name, more, types[-1])
    return _integer(name, more, types)


def signed(value: int, bits: int) -> int:
    """Return the two's complement number of the lowest bits."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def reader(kind: str) -> Callable[[int], int]:
    """Return how bits become a number of an integer type."""
    bits = int(kind[1:])
    mask = (1 << bits) - 1
    return (lambda v: signed(v, bits)) if kind[0] == "s" else (lambda v: v & mask)


def limits(kind: str) -> tuple[int, int]:
    """Return the least and the largest number of an integer type."""
    bits = int(kind[1:])
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def clamp(value: int, kind: str) -> int:
    """Return the nearest number that the type has."""
    low, high = limits(kind)
    return min(max(value, low), high)


def on_numbers(kind: str, function: Callable[..., int], more: Sequence[str] = ()) -> Function:
    """Return a function of numbers of one integer type as one of bits."""
    read = reader(kind)
    if "sat" in more:
        return lambda *v: clamp(function(*map(read, v)), kind)
    if "relu" in more:
        return lambda *v: max(function(*map(read, v)), 0)
    return lambda *v: function(*map(read, v))


def on_halves(function: Function) -> Function:
    """Return a function of 16 bits as one of two of them in a word."""
    return lambda *v: function(*(x & 0xFFFF for x in v)) & 0xFFFF | (function(*(x >> 16 for x in v)) & 0xFFFF) << 16


def quotient(a: int, b: int) -> int:
    """Return the quotient rounded toward zero; by 0 all ones, as compiled code for sm_75 to sm_90 has it."""
    return (abs(a) // abs(b)) * (-1 if (a < 0) != (b < 0) else 1) if b else -1


_PLAIN: dict[str, Callable[..., int]] = {
    "add": operator.add, "sub": operator.sub, "min": min, "max": max, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor, "not": operator.invert, "neg": operator.neg, "abs": abs,
    "div": quotient, "rem": lambda a, b: a - quotient(a, b) * b if b else -1,
    "sad": lambda a, b, c: abs(a - b) + c,
    "popc": int.bit_count,
}  # fmt: skip


def _integer(name: str, more: list[str], types: list[str]) -> Function:
    kind = types[0]
    if kind == "pred":
        return operator.xor if name == "xor" else operator.not_
    if kind.endswith("x2"):
        return on_halves(_integer(name, more, [kind.removesuffix("x2")]))
    bits = int(kind[1:])
    special: dict[str, Function] = {
        "shl": lambda a, n: a << min(n, bits), "shr": lambda a, n: reader(kind)(a) >> min(n, bits),
        "clz": lambda a: bits - a.bit_length(), "brev": lambda a: int(f"{a:0{bits}b}"[::-1], 2),
        "bfe": lambda a, b, c: _extract(a, b, c, kind), "bfi": lambda a, b, c, d: _insert(a, b, c, d, bits),
        "bfind": lambda a: _highest(a, kind, amount="shiftamt" in more), "fns": _nth_set, "prmt": _permute(more),
        "shf": _funnel(more), "lop3": _table, "cnot": operator.not_, "addc": _carrying(name, bits),
        "subc": _carrying(name, bits),
    }  # fmt: skip
    if "cc" in more:
        return _carrying(name, bits)
    if name in special:
        return special[name]
    return _product(name, more, types) or on_numbers(kind, _PLAIN[name], more)


def _carrying(name: str, bits: int) -> Function:
    """Return a sum and its carry: a difference is a sum with the complement, which carries where it borrows nothing."""
    plus, mask = name.startswith("add"), (1 << bits) - 1
    first, reads = int(name == "sub"), name.endswith("c")
    return lambda a, b, c: ((t := a + (b if plus else ~b & mask) + (c if reads else first)), t >> bits)


def _product(name: str, more: list[str], types: list[str]) -> Function | None:
    kind, bits = types[0], int(types[0][1:])
    part = next((m for m in more if m in {"lo", "hi", "wide"}), "")
    if name in {"mul", "mad"}:
        read, wide = reader(kind), reader(kind[0] + str(bits * (1 + (part == "wide"))))
        shift = bits if part == "hi" else 0
        return lambda a, b, c=0: (read(a) * read(b) >> shift) + wide(c)
    if name in {"mul24", "mad24"}:
        read = reader(f"{kind[0]}24")
        return lambda a, b, c=0: (read(a) * read(b) >> (16 if part == "hi" else 0)) + c
    if name in {"dp4a", "dp2a"}:
        size, start = (8, 0) if name == "dp4a" else (16, 2 * (part == "hi"))
        left, right = reader(f"{types[0][0]}{size}"), reader(f"{types[1][0]}8")
        count = 32 // size
        return lambda a, b, c: c + sum(left(a >> size * n) * right(b >> 8 * (n + start)) for n in range(count))
    return None


def _field(bits: int, position: int, length: int) -> tuple[int, int]:
    """Return where a bit field is: of 32-bit words 8 bits of each count, of 64-bit ones all (measured on an H200)."""
    return (position & 255, length & 255) if bits == 32 else (min(position, 64), min(length, 64))


def _extract(a: int, position: int, length: int, kind: str) -> int:
    bits = int(kind[1:])
    position, length = _field(bits, position, length)
    sign = 0 if kind[0] == "u" or not length else a >> min(position + length - 1, bits - 1) & 1
    kept = max(min(length, bits - position), 0)
    low = a >> position & (1 << kept) - 1
    return low | (-1 << kept if sign else 0)


def _insert(a: int, b: int, position: int, length: int, bits: int) -> int:
    position, length = _field(bits, position, length)
    mask = (1 << length) - 1 << position & (1 << bits) - 1
    return b & ~mask | a << position & mask


def _highest(a: int, kind: str, *, amount: bool) -> int:
    bits, value = int(kind[1:]), reader(kind)(a)
    place = (~value if value < 0 else value).bit_length() - 1
    return bits - 1 - place if amount and place >= 0 else place


def _nth_set(mask: int, base: int, offset: int) -> int:
    offset = signed(offset, 32)
    order = range(base, 32) if offset > 0 else range(base, -1, -1) if offset < 0 else (base,)
    positions = [p for p in order if mask >> p & 1]
    rank = max(abs(offset), 1) - 1
    return positions[rank] if rank < len(positions) else -1


def _permute(more: list[str]) -> Function:
    modes: dict[str, Callable[[int], Sequence[int]]] = {
        "f4e": lambda s: range(s, s + 4), "b4e": lambda s: range(s, s - 4, -1), "rc8": lambda s: [s] * 4,
        "ecl": lambda s: [max(s, n) for n in range(4)], "ecr": lambda s: [min(s, n) for n in range(4)],
        "rc16": lambda s: [s & 1 and 2, (s & 1 and 2) + 1] * 2,
    }  # fmt: skip
    mode = next((m for m in more if m in modes), "")

    def call(a: int, b: int, s: int) -> int:
        data = (b << 32 | a).to_bytes(8, "little")
        if mode:
            return int.from_bytes(bytes(data[n % 8] for n in modes[mode](s & 3)), "little")
        nibbles = [s >> 4 * n & 15 for n in range(4)]
        parts = [255 * (data[n & 7] >> 7) if n & 8 else data[n & 7] for n in nibbles]
        return int.from_bytes(bytes(parts), "little")

    return call


def _funnel(more: list[str]) -> Function:
    left, wraps = "l" in more, "wrap" in more

    def call(a: int, b: int, c: int) -> int:
        count = c & 31 if wraps else min(c, 32)
        both = b << 32 | a
        return (both << count) >> 32 if left else both >> count

    return call


def _table(a: int, b: int, c: int, table: int) -> int:
    rows = [n for n in range(8) if table >> n & 1]
    parts = [(a if n & 4 else ~a) & (b if n & 2 else ~b) & (c if n & 1 else ~c) for n in rows]
    return reduce(operator.or_, parts, 0)


def _video(name: str, more: list[str], types: list[str]) -> Function:
    functions: dict[str, Callable[[int, int], int]] = {
        "add": operator.add, "sub": operator.sub, "absdiff": lambda a, b: abs(a - b), "min": min, "max": max,
    }  # fmt: skip
    function, bits = functions[name[1:-1]], 32 // int(name[-1])
    out, left, right = (f"{t[0]}{bits}" for t in types[:3])
    places, mask = range(0, 32, bits), (1 << bits) - 1

    def call(a: int, b: int, c: int) -> int:
        parts = [function(reader(left)(a >> n), reader(right)(b >> n)) for n in places]
        if more[-1] == "add":
            return sum(parts) + c
        parts = [clamp(p, out) for p in parts] if more[-1] == "sat" else parts
        return sum((p & mask) << n for p, n in zip(parts, places, strict=True))

    return call


def _order(fmt: Format, *, ftz: bool, zeros: bool) -> Callable[[int], int | None]:
    """Return a key that orders a format's numbers, None for NaN; ``zeros`` puts -0 before +0."""

    def key(bits: int) -> int | None:
        sign, size = bits >> fmt.bits - 1, bits & (1 << fmt.bits - 1) - 1
        size = 0 if ftz and size < 1 << fmt.fraction else size
        return None if size > fmt.infinity else -size - zeros if sign else size

    return key


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge,
}  # fmt: skip


def _comparison(more: list[str], kind: str) -> Callable[[int, int], bool]:
    name = more[0]
    if kind not in FORMATS:
        return on_numbers(kind, _COMPARE[name])
    key = _order(FORMATS[kind], ftz="ftz" in more, zeros=False)

    def call(a: int, b: int) -> bool:
        x, y = key(a), key(b)
        if x is None or y is None:
            return name == "nan" or name.endswith("u")
        return name == "num" or (name != "nan" and _COMPARE[name.removesuffix("u")](x, y))

    return call


def _setp(more: list[str], types: list[str]) -> Function:
    compare = _comparison(more, types[-1])
    joins = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
    join = next((joins[m] for m in more if m in joins), None)

    def call(a: int, b: int, c: int = 1) -> tuple[int, int]:
        result = int(compare(a, b))
        return (join(result, c), join(1 - result, c)) if join else (result, 1 - result)

    return call


def _set(more: list[str], types: list[str]) -> Function:
    compare = _comparison(more, types[1])
    true = {"u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF, "f32": 0x3F800000, "f16": 0x3C00}[types[0]]
    return lambda a, b: true * compare(a, b)


def _selp(_more: list[str], _types: list[str]) -> Function:
    return lambda a, b, p: a if p else b


def _slct(more: list[str], types: list[str]) -> Function:
    if types[1] == "s32":
        return lambda a, b, c: a if signed(c, 32) >= 0 else b
    key = _order(FORMATS["f32"], ftz="ftz" in more, zeros=False)
    return lambda a, b, c: a if (size := key(c)) is not None and size >= 0 else b


def _testp(more: list[str], types: list[str]) -> Function:
    fmt = FORMATS[types[0]]
    size, least = (1 << fmt.bits - 1) - 1, 1 << fmt.fraction
    return {
        "finite": lambda a: a & size < fmt.infinity, "infinite": lambda a: a & size == fmt.infinity,
        "number": lambda a: a & size <= fmt.infinity, "notanumber": lambda a: a & size > fmt.infinity,
        # PTX ISA, "testp": zero counts as normal.
        "normal": lambda a: a & size < fmt.infinity and (a & size >= least or not a & size),
        "subnormal": lambda a: 0 < a & size < least,
    }[more[0]]  # fmt: skip


def _copysign(_more: list[str], types: list[str]) -> Function:
    top = 1 << FORMATS[types[0]].bits - 1
    return lambda a, b: a & top | b & ~top


def finish(fmt: Format, number: Number, mode: str, more: Sequence[str]) -> int:
    """Return the bits of an exact result: rounded, flushed, clamped to 0 and 1 (NaN to 0) or to no less than 0."""
    if "sat" in more and (number[1] <= 0 or number[0]):
        return 0
    if "relu" in more and number[1] >= 0 and number[0]:
        return 0
    bits = fmt.encode(number, mode, ftz="ftz" in more)
    if "sat" in more:
        return min(bits, fmt.encode((0, 1, 0)))
    if "satfinite" in more and number[1] >= 0:
        top = bits & 1 << fmt.bits - 1
        return top | min(bits ^ top, fmt.infinity - 1)
    return bits


def _float(name: str, more: list[str], kind: str) -> Function:
    """Return arithmetic of floating-point numbers."""
    if kind.endswith("x2"):
        return on_halves(_float(name, more, kind.removesuffix("x2")))
    fmt, mode, ftz = FORMATS[kind], next((m for m in more if m in MODES), "rn"), "ftz" in more
    if name in {"min", "max"}:
        return _extremum(fmt, more, least=name == "min")
    if name in {"neg", "abs"}:
        top = 1 << fmt.bits - 1

        def sign(a: int) -> int:
            a = a & top if ftz and a & ~top < 1 << fmt.fraction else a
            return a ^ top if name == "neg" else a & ~top

        return sign
    arithmetic: dict[str, Callable[..., Number]] = {
        "add": lambda a, b: exact.add(a, b, mode), "sub": lambda a, b: exact.add(a, exact.negative(b), mode),
        "mul": exact.multiply, "fma": lambda a, b, c: exact.add(exact.multiply(a, b), c, mode),
        "div": exact.divide, "sqrt": exact.root, "rcp": lambda a: exact.divide((0, 1, 0), a),
    }  # fmt: skip
    function = arithmetic[name]
    return lambda *v: finish(fmt, function(*(fmt.decode(x, ftz=ftz) for x in v)), mode, more)


def _extremum(fmt: Format, more: list[str], *, least: bool) -> Function:
    key, top = _order(fmt, ftz="ftz" in more, zeros=True), 1 << fmt.bits - 1

    def call(a: int, b: int) -> int:
        keys = [(k, x) for x in (a, b) if (k := key(x)) is not None]
        if not keys or ("NaN" in more and len(keys) < 2):
            return fmt.encode(NAN)
        chosen = (min if least else max)(keys)[1]
        return chosen & top if "ftz" in more and chosen & ~top < 1 << fmt.fraction else chosen

    return call


def _approximation(name: str, more: list[str], kind: str) -> Function:
    """Return a function rounded once from float64, where PTX allows an error."""
    fmt, function = FORMATS[kind], _APPROXIMATE[name]

    def call(*values: int) -> int:
        numbers = [np.float64(exact.to_float(fmt.decode(v, ftz="ftz" in more))) for v in values]
        with np.errstate(all="ignore"):
            if "2pi" in more:
                numbers = [2 * math.pi * (x - np.rint(x)) for x in numbers]
            if name == "div" and "approx" in more and abs(numbers[1]) > 2.0**126:
                # The divisor's reciprocal is subnormal, for which 0 is taken.
                numbers[1] = np.copysign(np.inf, numbers[1])
                numbers[0] = np.float64(np.nan) if np.isinf(numbers[0]) else numbers[0]
            result = float(function(*numbers))
        return finish(fmt, exact.of_float(result), "rn", more)

    return call


def _convert(more: list[str], types: list[str]) -> Function:
    to, source = types
    mode = next((m for m in more if m in MODES), "rn")
    if "x2" in to + source:
        return _convert_pair(to, source, mode, more)
    if source in FORMATS:
        fmt = FORMATS[source]
        flush = "ftz" in more and source == "f32" and to != "f16"
        if to in FORMATS:
            return _between_floats(fmt, to, mode, more, flush=flush)
        return _to_integer(fmt, to, mode, flush=flush)
    read = reader(source)
    if to in FORMATS:
        target = FORMATS[to]
        return lambda a: finish(target, (int(read(a) < 0), abs(read(a)), 0), mode, more)
    write = reader(to)
    return lambda a: write(clamp(read(a), to) if "sat" in more else read(a))


def _to_integer(fmt: Format, to: str, mode: str, *, flush: bool) -> Function:
    (low, high), bits = limits(to), int(to[1:])
    # NaN gives 0, except that 64-bit sources and targets give the highest bit alone.
    nan = 1 << bits - 1 if fmt.bits == 64 or bits == 64 else 0

    def call(a: int) -> int:
        sign, size, unit = fmt.decode(a, ftz=flush)
        if size < 0:
            return reader(to)(nan)
        if size == math.inf:
            return low if sign else high
        whole = round_to(sign, int(size), unit, 0, mode[:2])
        return clamp(-whole if sign else whole, to)

    return call


def _between_floats(fmt: Format, to: str, mode: str, more: list[str], *, flush: bool) -> Function:
    target, shift = FORMATS[to], 13 if to == "tf32" else 0
    kept = [m for m in more if m != "ftz" or to == "f32"]

    def call(a: int) -> int:
        number = fmt.decode(a, ftz=flush)
        if mode == "rna" and number[1] < 0:
            return a & ~0x1FFF  # ptxas adds and masks on sm_90: NaN loses low bits like any number
        if mode.endswith("i") and 0 <= number[1] < math.inf:
            number = (number[0], round_to(number[0], int(number[1]), number[2], 0, mode[:2]), 0)
        return finish(target, number, mode[:2] if mode.endswith("i") else mode, kept) << shift

    return call


def _convert_pair(to: str, source: str, mode: str, more: list[str]) -> Function:
    """Return the conversions of two numbers that become or are the halves of a register."""
    small = {"e4m3": E4M3, "e5m2": E5M2}
    half, origin = to.removesuffix("x2"), source.removesuffix("x2")
    target, width = 8 if half in small else 16, 8 if origin in small else FORMATS[origin].bits

    def single(a: int) -> int:
        if half in small:
            return _to_byte(small[half], FORMATS[origin].decode(a), more)
        if origin in small:
            return finish(FORMATS[half], _of_byte(small[origin], a), "rn", more)
        return finish(FORMATS[half], FORMATS[origin].decode(a), mode, more)

    if source.endswith("x2"):
        mask = (1 << width) - 1
        return lambda a: single(a & mask) | single(a >> width & mask) << target
    return lambda a, b: single(b) | single(a) << target


def _to_byte(fmt: Format, number: Number, more: list[str]) -> int:
    """Return an 8-bit float: infinities and what is larger become the largest number; e4m3 has no infinity."""
    sign, size, unit = number
    largest = 0x7E if fmt is E4M3 else 0x7B
    if size < 0:
        return 0x7F
    if "relu" in more and sign:
        return 0
    return sign << 7 | min(fmt.encode((0, size, unit)), largest)


def _of_byte(fmt: Format, bits: int) -> Number:
    return NAN if fmt is E4M3 and bits & 0x7F == 0x7F else fmt.decode(bits)
