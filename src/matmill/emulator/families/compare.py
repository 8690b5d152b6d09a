"""Comparisons and selections: setp, set, selp, slct.

PTX ISA, "Comparison and Selection Instructions" and "Half Precision Comparison Instructions".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from matmill.emulator.arith import exact
from matmill.emulator.arith.bfloat16 import bf16_to_f32
from matmill.emulator.arith.row import Row
from matmill.emulator.frontend.syntax import Instruction, Pair
from matmill.emulator.program.table import KIND_OF_TYPE, Action, Modifiers, computed, instructions

Comparison: TypeAlias = "Callable[..., Any]"


def _unordered(ufunc: Comparison) -> Comparison:
    def call(a: Row, b: Row, out: Row | None = None) -> Row:
        result = ufunc(a, b) | np.isnan(a) | np.isnan(b)
        if out is not None:
            out[...] = result
        return np.asarray(result)

    return call


def _ordered_not_equal(a: Row, b: Row, out: Row | None = None) -> Row:
    result = (a < b) | (a > b)
    if out is not None:
        out[...] = result
    return np.asarray(result)


def _numbers(a: Row, b: Row, out: Row | None = None) -> Row:
    result = ~(np.isnan(a) | np.isnan(b))
    if out is not None:
        out[...] = result
    return np.asarray(result)


def _never(a: Row, b: Row) -> Row:
    return np.zeros(np.broadcast_shapes(np.shape(a), np.shape(b)), np.bool_)


_PLAIN: dict[str, Comparison] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_FLOAT: dict[str, Comparison] = {
    **_PLAIN,
    "ne": _ordered_not_equal,
    **{name + "u": _unordered(_PLAIN[name]) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "num": _numbers,
    "nan": _unordered(_never),
}
_COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _comparison(i: Instruction, m: Modifiers, type_name: str, name: str) -> Comparison:
    floating = "f" in type_name
    compare = (_FLOAT if floating else _PLAIN).get(name)
    if compare is None:
        raise i.unsupported("its comparison")
    if type_name.startswith("bf16"):
        inner = compare

        def widened(a: Row, b: Row, out: Row | None = None) -> Row:
            result = np.asarray(inner(bf16_to_f32(a), bf16_to_f32(b)))
            if out is not None:
                out[...] = result
            return result

        compare = widened
    if m.flag("ftz"):
        plain = compare

        def flushed(a: Row, b: Row, out: Row | None = None) -> Row:
            result = np.asarray(plain(exact.flush(a), exact.flush(b)))
            if out is not None:
                out[...] = result
            return result

        compare = flushed
    return compare


@instructions("setp")
def set_predicate(i: Instruction) -> Action:
    """Bind setp: p = (a ? b) op c, and q = not (a ? b) op c."""
    m = Modifiers(i)
    combine = _COMBINE.get(m.pick(_COMBINE))
    name = m.pick(_FLOAT)
    type_name = m.type()
    compare = _comparison(i, m, type_name, name)
    m.done()
    d, a, b, *rest = i.operands
    if len(rest) != (combine is not None):
        raise i.unsupported("the number of its operands")
    kind = KIND_OF_TYPE[type_name]
    sources = [(a, kind), (b, kind), *((c, "p") for c in rest)]
    packed = kind.endswith("x2")
    if not isinstance(d, Pair):
        if packed:
            raise i.unsupported("a packed comparison with one predicate")
        if combine is None:
            return computed(i, compare, sources, [(d, "p")])

        def single(a: Row, b: Row, c: Row, out: Row) -> None:
            combine(compare(a, b), c, out=out)

        return computed(i, single, sources, [(d, "p")])

    def both(*rows: Row) -> None:
        *values, p, q = rows
        result = np.asarray(compare(values[0], values[1]))
        first, second = (result[::2], result[1::2]) if packed else (result, ~result)
        if combine is not None:
            first, second = combine(first, values[2]), combine(second, values[2])
        p[...] = first
        q[...] = second

    return computed(i, both, sources, [(d.first, "p"), (d.second, "p")])


@instructions("set")
def set_value(i: Instruction) -> Action:
    """Bind set: all ones (or 1.0) if the comparison holds, else 0."""
    m = Modifiers(i)
    combine = _COMBINE.get(m.pick(_COMBINE))
    name = m.pick(_FLOAT)
    result_type = m.type("u16", "s16", "u32", "s32", "f32", "f16", "bf16", "f16x2", "bf16x2")
    type_name = m.type()
    compare = _comparison(i, m, type_name, name)
    m.done()
    kind = KIND_OF_TYPE[result_type]
    true = {"f": 1.0, "i": -1}.get(kind[0], 0x3F80 if result_type.startswith("bf16") else (1 << 8 * int(kind[1])) - 1)

    def call(*rows: Row) -> None:
        *values, out = rows
        holds = compare(values[0], values[1])
        holds = combine(holds, values[2]) if combine is not None else holds
        out[...] = np.where(holds, np.array(true, out.dtype), out.dtype.type(0))

    d, a, b, *rest = i.operands
    if len(rest) != (combine is not None):
        raise i.unsupported("the number of its operands")
    source = KIND_OF_TYPE[type_name]
    return computed(i, call, [(a, source), (b, source), *((c, "p") for c in rest)], [(d, kind)])


def choose(a: Row, b: Row, p: Row, out: Row) -> None:
    """Compute ``selp``."""
    out[...] = np.where(p, a, b)


@instructions("selp")
def select(i: Instruction) -> Action:
    """Bind selp: a if the predicate holds, else b."""
    m = Modifiers(i)
    kind = KIND_OF_TYPE[m.type()]
    m.done()
    if kind.endswith("x2"):
        raise i.unsupported("its type")
    kind = "u" + kind[1] if kind[0] == "i" else kind
    d, a, b, p = i.operands
    return computed(i, choose, [(a, kind), (b, kind), (p, "p")], [(d, kind)], in_place=True)


def choose_by_sign(a: Row, b: Row, c: Row, out: Row) -> None:
    """Compute ``slct``."""
    out[...] = np.where(c >= 0, a, b)


def choose_by_flushed_sign(a: Row, b: Row, c: Row, out: Row) -> None:
    """Compute slct.ftz: a subnormal counts as 0, whatever its sign."""
    out[...] = np.where(exact.flush(c) >= 0, a, b)


@instructions("slct")
def select_by_sign(i: Instruction) -> Action:
    """Bind slct: a if c is not negative, else b."""
    m = Modifiers(i)
    call = choose_by_flushed_sign if m.flag("ftz") else choose_by_sign
    kind = KIND_OF_TYPE[m.type()]
    sign = KIND_OF_TYPE[m.type("s32", "f32")]
    m.done()
    d, a, b, c = i.operands
    return computed(i, call, [(a, kind), (b, kind), (c, sign)], [(d, kind)], in_place=kind[1] == "4")
