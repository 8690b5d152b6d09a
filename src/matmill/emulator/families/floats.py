"""Floating-point arithmetic: add, sub, mul, fma, div, min, max, neg, abs in f16, bf16, f32 and f64.

PTX ISA, "Floating-Point Instructions" and "Half Precision Floating-Point Instructions". bf16 has no NumPy type, so its
rows are 16-bit integers, widened to float32 and rounded back. NaN results carry NumPy's payload, not CUDA's 0x7fffffff.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from matmill.emulator.arith import directed, exact
from matmill.emulator.arith.bfloat16 import bf16_to_f32, f32_to_bf16, f64_odd_to_bf16, is_bf16, through_f32
from matmill.emulator.arith.fma64 import fma64, fma64_directed
from matmill.emulator.arith.row import Row
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.program.table import KIND_OF_TYPE, Action, Modifiers, Value, computed, instructions

FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
ROUNDINGS = ("rn", "rz", "rm", "rp")
_TALLY = {"f4": "f", "f8": "d"}
_LARGEST_APPROXIMATE = np.float32(2.0**126)


class _FloatForm:
    """The modifiers that floating-point instructions share."""

    def __init__(self, i: Instruction) -> None:
        self.m = Modifiers(i)
        self.rounding = self.m.pick(ROUNDINGS, "rn")
        self.ftz = self.m.flag("ftz")
        self.sat = self.m.flag("sat")
        self.relu = self.m.flag("relu")
        self.type = self.m.type(*FLOATS)
        self.kind = KIND_OF_TYPE[self.type]

    @property
    def plain(self) -> bool:
        """True if there is only rounding to nearest."""
        return self.rounding == "rn" and not (self.ftz or self.sat or self.relu)

    def finish(
        self, call: Callable[..., object], exactly: Callable[..., exact.F8] | None = None
    ) -> Callable[..., object]:
        """Return ``call`` with flushing, saturation and relu.

        ``exactly`` is that of :func:`exact.flushed`.
        """
        if self.ftz:
            call = exact.flushed(call, exactly, self.rounding)
        if not (self.sat or self.relu):
            return call
        inner, bf16, clamp = call, is_bf16(self.type), exact.unit if self.sat else exact.not_negative

        def wrapped(*rows: Row) -> None:
            inner(*rows)
            out = rows[-1]
            out[...] = f32_to_bf16(clamp(bf16_to_f32(out))) if bf16 else clamp(out)

        return wrapped

    def tally(self, name: str) -> str:
        """Return the class for the counters: ffma, dadd, hmul and so on."""
        return _TALLY.get(self.kind, "h") + name


def add_sub(i: Instruction) -> Action:
    """Bind ``add`` and sub."""
    form = _FloatForm(i)
    form.m.done()
    d, a, b = i.operands
    ufunc = np.add if i.name == "add" else np.subtract
    call: Callable[..., object] = ufunc
    if is_bf16(form.type):
        call = through_f32(ufunc)
    elif form.rounding != "rn":
        call = _directed_sum(form.rounding, subtract=i.name == "sub")
    kind = form.kind
    return computed(i, form.finish(call), [(a, kind), (b, kind)], [(d, kind)], tally=form.tally("add"), in_place=True)


def _directed_sum(mode: str, *, subtract: bool) -> Callable[..., object]:
    def call(a: Row, b: Row, out: Row) -> None:
        b = -b if subtract else b
        if out.dtype == np.float64:
            out[...] = directed.total(a, b, mode)
        else:
            out[...] = directed.signed_zero(exact.narrow(exact.sum_to_odd(a, b), out.dtype.type, mode), a, b, mode)

    return call


def _directed_product(mode: str) -> Callable[..., object]:
    def call(a: Row, b: Row, out: Row) -> None:
        if out.dtype == np.float64:
            out[...] = directed.product(a, b, mode)
        else:
            out[...] = exact.narrow(exact.product_wide(a, b), out.dtype.type, mode)

    return call


def multiply(i: Instruction) -> Action:
    """Bind ``mul``."""
    form = _FloatForm(i)
    form.m.done()
    d, a, b = i.operands
    call: Callable[..., object] = np.multiply
    if is_bf16(form.type):
        call = through_f32(np.multiply)
    elif form.rounding != "rn":
        call = _directed_product(form.rounding)
    kind = form.kind
    call = form.finish(call, exact.product_wide)
    return computed(i, call, [(a, kind), (b, kind)], [(d, kind)], tally=form.tally("mul"), in_place=True)


def fma_half(a: Row, b: Row, c: Row, out: Row) -> None:
    """Compute fma of f16.

    float64 holds the sum of product and addend exactly whenever both affect the rounded result.
    """
    out[...] = np.multiply(a, b, dtype=np.float64) + c


def fma_bf16(a: Row, b: Row, c: Row, out: Row) -> None:
    """Compute fma of bf16: the sum is rounded to odd twice, then once to nearest."""
    out[...] = f64_odd_to_bf16(exact.fma32_wide(bf16_to_f32(a), bf16_to_f32(b), bf16_to_f32(c)))


def _directed_fma(mode: str) -> Callable[..., object]:
    def call(a: Row, b: Row, c: Row, out: Row) -> None:
        if out.dtype == np.float64:
            out[...] = fma64_directed(a, b, c, mode)
            return
        rounded = exact.narrow(exact.fma32_wide(a, b, c), out.dtype.type, mode)
        out[...] = directed.signed_zero(rounded, np.multiply(a, b, dtype=np.float64), c, mode)

    return call


@instructions("fma", operands=(4,))
def fused(i: Instruction) -> Action:
    """Bind fma, and mad of floating-point type, which rounds once too."""
    form = _FloatForm(i)
    form.m.done()
    d, *sources = i.operands
    kind, tally = form.kind, form.tally("fma")
    results = [(d, kind)]
    values = [(s, kind) for s in sources]
    if kind == "f4" and form.plain:
        return Action(
            i,
            tuple(Value(*v) for v in values),
            tuple(Value(*r) for r in results),
            bind=lambda bound: exact.Fused32(bound.lanes.count, bound.machine.buffers, bound.machine.underflow),
            tally=tally,
            in_place=True,
            group="fma32",
        )
    call: Callable[..., object]
    if kind == "f4" or (kind == "f8" and form.rounding != "rn"):
        call = _directed_fma(form.rounding)
    elif kind == "f8":
        call = fma64
    elif is_bf16(form.type):
        call = fma_bf16
    else:
        call = fma_half
    return computed(i, form.finish(call, exact.fma32_wide), values, results, tally=tally, in_place=True)


def _directed_quotient(mode: str) -> Callable[..., object]:
    def call(a: Row, b: Row, out: Row) -> None:
        if out.dtype == np.float64:
            out[...] = directed.quotient(a, b, mode)
        else:
            out[...] = exact.narrow(exact.quotient_wide(a, b), out.dtype.type, mode)

    return call


def _approximate_quotient(a: Row, b: Row, out: Row) -> None:
    """Compute div.approx.f32.

    PTX specifies 0 (or NaN for an infinite dividend) if the divisor's reciprocal is subnormal.
    """
    np.multiply(a, np.copysign(np.float32(0), b), out=out, where=np.abs(b) > _LARGEST_APPROXIMATE)
    np.divide(a, b, out=out, where=~(np.abs(b) > _LARGEST_APPROXIMATE))


def division(i: Instruction) -> Action:
    """Bind div; its approximate forms are correctly rounded, which hardware only approximates."""
    m = Modifiers(i, "full")
    approximate = m.flag("approx")
    if i.name == "rem":
        raise i.unsupported("a remainder of floating-point numbers")
    rounding = m.pick(ROUNDINGS, "rn")
    ftz = m.flag("ftz")
    kind = KIND_OF_TYPE[m.type("f32", "f64")]
    m.done()
    call: Callable[..., object] = np.divide if rounding == "rn" else _directed_quotient(rounding)
    call = _approximate_quotient if approximate else call
    d, a, b = i.operands
    call = exact.flushed(call, None if approximate else exact.quotient_wide, rounding) if ftz else call
    return computed(i, call, [(a, kind), (b, kind)], [(d, kind)], tally="special", in_place=not approximate)


def _extremum(name: str, *, keep_nan: bool, by_size: bool) -> Callable[[Row, Row], Row]:
    pick = {("min", False): np.fmin, ("max", False): np.fmax, ("min", True): np.minimum, ("max", True): np.maximum}[
        name, keep_nan
    ]

    def call(a: Row, b: Row) -> Row:
        a, b = (np.abs(a), np.abs(b)) if by_size else (a, b)
        result = pick(a, b)
        # -0 counts as less than +0; NumPy's comparison does not distinguish them.
        equal = (a == 0) & (b == 0)
        if equal.any():
            negative = np.signbit(a) | np.signbit(b) if name == "min" else np.signbit(a) & np.signbit(b)
            result = np.where(equal, np.where(negative, -result.dtype.type(0), result.dtype.type(0)), result)
        return result

    return call


def extremum(i: Instruction) -> Action:
    """Bind ``min`` and ``max``: a number wins over NaN, except with .NaN."""
    m = Modifiers(i)
    ftz, keep_nan, by_size = m.flag("ftz"), m.flag("NaN"), m.flag("xorsign") and m.flag("abs")
    type_name = m.type(*FLOATS)
    kind = KIND_OF_TYPE[type_name]
    m.done()
    pick = _extremum(i.name, keep_nan=keep_nan, by_size=by_size)
    if by_size:
        raise i.unsupported(".xorsign.abs")
    d, *sources = i.operands

    def several(*rows: Row) -> Row:
        result = rows[0]
        for row in rows[1:]:
            result = pick(result, row)
        return result

    def plain(*rows: Row) -> None:
        rows[-1][...] = several(*rows[:-1])

    call = through_f32(several) if is_bf16(type_name) else plain
    call = exact.flushed(call) if ftz else call
    return computed(i, call, [(s, kind) for s in sources], [(d, kind)], tally="other", in_place=True)


def sign(i: Instruction) -> Action:
    """Bind ``neg`` and abs, which change only the sign bit."""
    m = Modifiers(i)
    ftz = m.flag("ftz")
    type_name = m.type(*FLOATS)
    kind = KIND_OF_TYPE[type_name]
    m.done()
    d, a = i.operands
    if kind in {"f4", "f8"}:
        call: Callable[..., object] = np.negative if i.name == "neg" else np.absolute
        call = exact.flushed(call) if ftz and kind == "f4" else call
    else:
        kind = kind.replace("f", "u")
        bit = np.uint16(0x8000)

        def flip(a: Row, out: Row) -> None:
            np.bitwise_xor(kept(a), bit, out=out)

        def clear(a: Row, out: Row) -> None:
            np.bitwise_and(kept(a), ~bit, out=out)

        def kept(a: Row) -> Row:
            return exact.flush(a.view(np.float16)).view(np.uint16) if ftz else a

        call = flip if i.name == "neg" else clear
    return computed(i, call, [(a, kind)], [(d, kind)], tally="other", in_place=True)


def copy_sign(a: Row, b: Row, out: Row) -> None:
    """Compute ``copysign`` d, a, b: the magnitude of b with the sign of a."""
    np.copysign(b, a, out=out)


@instructions("copysign")
def copysign(i: Instruction) -> Action:
    """Bind ``copysign``."""
    m = Modifiers(i)
    kind = KIND_OF_TYPE[m.type("f32", "f64")]
    m.done()
    d, a, b = i.operands
    return computed(i, copy_sign, [(a, kind), (b, kind)], [(d, kind)], tally="other", in_place=True)
