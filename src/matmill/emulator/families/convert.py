"""Conversions between number types: cvt.

PTX ISA, "Data Movement and Conversion Instructions: cvt". Integers to integers truncate or extend; floats to integers
round as the modifier says and clamp; floats to floats round once in the given direction.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from matmill.emulator.arith import exact
from matmill.emulator.arith.bfloat16 import bf16_to_f32, f32_to_bf16, f64_odd_to_bf16
from matmill.emulator.arith.row import Row
from matmill.emulator.arith.tf32 import to_tf32
from matmill.emulator.families.convert_small import SMALL, convert_small
from matmill.emulator.frontend.syntax import Instruction, Register
from matmill.emulator.program.table import KIND_OF_TYPE, Action, Modifiers, computed, instructions, register_kind

_INTEGRAL: dict[str, Callable[[Row], Row]] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_FLOAT_TYPES = ("f16", "bf16", "f32", "f64")
_RANGES = {"f2": np.float16, "f4": np.float32, "f8": np.float64}


@instructions("cvt")
def convert(i: Instruction) -> Action:
    """Bind ``cvt`` in all forms that NVRTC emits for integers, f16, bf16, f32 and f64."""
    m = Modifiers(i)
    if m.flag("pack"):
        raise i.unsupported("cvt.pack")
    rounding = m.pick(("rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi"))
    ftz, sat, relu, satfinite = m.flag("ftz"), m.flag("sat"), m.flag("relu"), m.flag("satfinite")
    to, source = m.type(), m.type()
    m.done()
    if to in {"f16x2", "bf16x2"} and source == "f32":
        return _pack_halves(i, to, rounding, relu=relu, satfinite=satfinite)
    if {to, source} & SMALL:
        return convert_small(i, to, source, rounding, relu=relu, satfinite=satfinite)
    if to == "tf32" and source == "f32":
        return _to_tf32(i, rounding, relu=relu, satfinite=satfinite)
    if rounding == "rna" or to not in KIND_OF_TYPE or source not in KIND_OF_TYPE or "x2" in to + source:
        raise i.unsupported("these types")
    d, a = i.operands
    # In the PTX ISA .ftz flushes float32 on either side; the GPU's instruction for f16 results flushes nothing.
    read = _reader(source, ftz=ftz and to != "f16")
    write = _writer(to, rounding, source, sat=sat, relu=relu, satfinite=satfinite, ftz=ftz)

    def call(a: Row, out: Row) -> None:
        out[...] = write(read(a))

    kind = KIND_OF_TYPE[to]
    target = kind if to in _FLOAT_TYPES else register_kind(d, kind)
    if to in _FLOAT_TYPES and isinstance(d, Register) and register_kind(d, "u" + kind[1]) != "u" + kind[1]:
        raise i.unsupported("a float in a wider register")
    narrow_first = kind if target != kind else ""

    def call_narrow(a: Row, out: Row) -> None:
        out[...] = np.asarray(write(read(a))).astype(narrow_first)

    source_kind = KIND_OF_TYPE[source]
    action = call_narrow if narrow_first else call
    return computed(i, action, [(a, source_kind)], [(d, target)], tally="convert")


def _reader(source: str, *, ftz: bool) -> Callable[[Row], Row]:
    if source == "bf16":
        return bf16_to_f32
    if source == "f32" and ftz:
        return exact.flush
    return lambda row: row


def _writer(
    to: str, rounding: str, source: str, *, sat: bool, relu: bool, satfinite: bool, ftz: bool
) -> Callable[[Row], Row]:
    """Return the conversion from the source type to the target type."""
    if to not in _FLOAT_TYPES:
        if source in _FLOAT_TYPES:
            return _float_to_integer(KIND_OF_TYPE[to], rounding or "rzi")
        return _integer_to_integer(KIND_OF_TYPE[to], sat=sat)
    if source not in _FLOAT_TYPES:
        return _integer_to_float(to, rounding or "rn", sat=sat)
    return _float_to_float(to, rounding, sat=sat, relu=relu, satfinite=satfinite, ftz=ftz)


def _integer_to_integer(kind: str, *, sat: bool) -> Callable[[Row], Row]:
    target = np.dtype(kind)

    def call(row: Row) -> Row:
        if sat:
            limits = np.iinfo(target)
            own = np.iinfo(row.dtype)
            low, high = max(limits.min, own.min), min(limits.max, own.max)
            row = np.clip(row, row.dtype.type(low), row.dtype.type(high))
        return row.astype(target)

    return call


def _float_to_integer(kind: str, rounding: str) -> Callable[[Row], Row]:
    target = np.dtype(kind)
    limits = np.iinfo(target)
    integral = _INTEGRAL[rounding]

    def call(row: Row) -> Row:
        wide = integral(row.astype(np.float64))
        # Clamped to float64's range of exact integers, then to the type: 2**63 - 1 is not a float64.
        result = np.where(wide >= float(limits.max), target.type(limits.max), target.type(0))
        inside = (wide > float(limits.min)) & (wide < float(limits.max))
        result = np.where(inside, np.where(inside, wide, 0.0).astype(target), result)
        result = np.where(wide <= float(limits.min), target.type(limits.min), result)
        # NaN converts to 0, except that 64-bit sources and targets give only the highest bit.
        if row.dtype == np.float64 or target.itemsize == 8:
            highest = np.array(1 << (8 * target.itemsize - 1), np.uint64).astype(f"u{target.itemsize}").view(target)
            result = np.where(np.isnan(wide), highest, result)
        return np.asarray(result)

    return call


def _integer_to_float(to: str, rounding: str, *, sat: bool) -> Callable[[Row], Row]:
    kind = "f4" if to == "bf16" else KIND_OF_TYPE[to]
    target = np.dtype(kind)

    def call(row: Row) -> Row:
        if sat:
            row = np.clip(row, row.dtype.type(0), row.dtype.type(1))
        if to == "bf16":
            return f64_odd_to_bf16(_integer_as_odd(row), rounding)
        if to == "f16" or rounding != "rn":
            if to == "f64":
                near = row.astype(np.float64)
                return exact.directed(near, _integer_error(row, near), rounding)
            return exact.narrow(_integer_as_odd(row), target.type, rounding)
        return row.astype(target)

    return call


def _integer_error(row: Row, near: Row) -> Row:
    """Return the difference between an integer and its float64 rounding, as a small float64."""
    if row.dtype.itemsize < 8:
        return np.zeros(row.shape)
    # If the rounding reached 2**64 (2**63), which the type cannot represent, the difference wraps.
    top = near >= (2.0**64 if row.dtype.kind == "u" else 2.0**63)
    back = np.where(top, 0.0, near).astype(row.dtype)
    wrapped = row if row.dtype.kind == "u" else row ^ np.int64(-(1 << 63))
    return np.where(top, wrapped.astype(np.int64), (row - back).astype(np.int64)).astype(np.float64)


def _integer_as_odd(row: Row) -> Row:
    """Return an integer as float64 rounded to odd."""
    near = np.atleast_1d(row.astype(np.float64))
    return exact.to_odd(near, _integer_error(np.atleast_1d(row), near))


def _float_to_float(
    to: str, rounding: str, *, sat: bool, relu: bool, satfinite: bool, ftz: bool
) -> Callable[[Row], Row]:
    integral = _INTEGRAL.get(rounding)
    kind = "f4" if to == "bf16" else KIND_OF_TYPE[to]
    target = np.dtype(kind)

    def call(row: Row) -> Row:
        if integral is not None:
            row = integral(row)
        if relu:
            row = exact.not_negative(row)
        if sat:
            row = exact.unit(row)
        if to == "bf16":
            return _bf16(row, rounding if rounding in {"rz", "rm", "rp"} else "rn", satfinite=satfinite)
        if target.itemsize < row.dtype.itemsize:
            result = exact.narrow(
                row.astype(np.float64), target.type, rounding if rounding in {"rz", "rm", "rp"} else "rn"
            )
        else:
            result = row.astype(target)
        if satfinite:
            largest = np.finfo(target).max
            result = np.clip(result, -largest, largest)
        if ftz and to == "f32":
            return exact.flush_rounded(result, lambda: row.astype(np.float64), rounding or "rn")
        return result

    return call


def _bf16(row: Row, rounding: str, *, satfinite: bool) -> Row:
    if rounding == "rn" and row.dtype != np.float64:
        bits = f32_to_bf16(row.astype(np.float32))
    else:
        bits = f64_odd_to_bf16(row.astype(np.float64), rounding)
    # Infinity's bits are those of the largest number plus one.
    return np.where(bits & np.uint16(0x7FFF) == np.uint16(0x7F80), bits - np.uint16(1), bits) if satfinite else bits


def _pack_halves(i: Instruction, to: str, rounding: str, *, relu: bool, satfinite: bool) -> Action:
    """Bind cvt.f16x2.f32 d, a, b: a in the upper half, b in the lower."""
    half = to.removesuffix("x2")
    write = _float_to_float(half, rounding, sat=False, relu=relu, satfinite=satfinite, ftz=False)

    def call(a: Row, b: Row, out: Row) -> None:
        low, high = write(b), write(a)
        out[::2] = low
        out[1::2] = high

    d, a, b = i.operands
    return computed(i, call, [(a, "f4"), (b, "f4")], [(d, KIND_OF_TYPE[to])], tally="convert")


def _to_tf32(i: Instruction, rounding: str, *, relu: bool, satfinite: bool) -> Action:
    """Bind cvt.rna.tf32.f32 (ties away from zero) and cvt.rn.tf32.f32 (ties to even)."""

    def call(a: Row, out: Row) -> None:
        value = exact.not_negative(a) if relu else np.array(a)
        result = to_tf32(value, rounding)
        infinite = satfinite & (result & np.uint32(0x7FFFFFFF) == np.uint32(0x7F800000))
        out[...] = np.where(infinite, result - np.uint32(0x2000), result)

    d, a = i.operands
    return computed(i, call, [(a, "f4")], [(d, "u4")], tally="convert")
