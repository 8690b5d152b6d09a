"""Conversions of pairs of floats of 8 bits and fewer.

PTX ISA, "Data Movement and Conversion Instructions: cvt": from two of f32 (the first is the upper one), f16x2 or
bf16x2, and to f16x2 or bf16x2.
"""

from __future__ import annotations

import numpy as np

from matmill.emulator.arith import exact
from matmill.emulator.arith.bfloat16 import bf16_to_f32, f32_to_bf16
from matmill.emulator.arith.row import Row
from matmill.emulator.arith.small_floats import SMALL_FLOATS, e8m0_to_f32, f32_to_e8m0
from matmill.emulator.frontend.syntax import TYPE_BYTES, Instruction
from matmill.emulator.program.table import KIND_OF_TYPE, Action, computed

SMALL = {f"{name}x2" for name in (*SMALL_FLOATS, "ue8m0")}
_NAN16 = np.uint16(0x7FFF)


def convert_small(i: Instruction, to: str, source: str, rounding: str, *, relu: bool, satfinite: bool) -> Action:
    """Bind ``cvt`` with a pair of small floats on one side."""
    if to in SMALL:
        return _narrow(i, to, source, rounding, relu=relu, satfinite=satfinite)
    name = source.removesuffix("x2")
    if to not in {"f16x2", "bf16x2"} or rounding != "rn" or satfinite or (name == "ue8m0" and (relu or to == "f16x2")):
        raise i.unsupported("these types")
    d, a = i.operands

    def call(a: Row, out: Row) -> None:
        patterns = _apart(a, source)
        values = e8m0_to_f32(patterns) if name == "ue8m0" else SMALL_FLOATS[name].values[patterns]
        if relu:
            values = exact.not_negative(values)
        if to == "bf16x2":
            out[...] = f32_to_bf16(values)
        else:
            out[...] = values
            out.view(np.uint16)[np.isnan(values)] = _NAN16

    return computed(i, call, [(a, f"u{TYPE_BYTES[source]}")], [(d, KIND_OF_TYPE[to])], tally="convert")


def _narrow(i: Instruction, to: str, source: str, rounding: str, *, relu: bool, satfinite: bool) -> Action:
    """Bind a conversion of two numbers to a pair."""
    name = to.removesuffix("x2")
    exponents, bytes_ = name == "ue8m0", name in {"e4m3", "e5m2"}
    modes = {"rz", "rp"} if exponents else {"rn"} if bytes_ else {"rn", "rz"}
    if source not in {"f32", "f16x2", "bf16x2"} or rounding not in modes:
        raise i.unsupported("these types")
    if (exponents and (relu or source == "f16x2")) or (not exponents and not satfinite):
        raise i.unsupported("its modifiers")

    def patterns_of(values: Row) -> Row:
        """Return the bit patterns of float32 numbers."""
        if exponents:
            return f32_to_e8m0(values, rounding, satfinite=satfinite)
        return SMALL_FLOATS[name].narrowed(values, rounding, relu=relu)

    def from_two(a: Row, b: Row, out: Row) -> None:
        out[...] = _together(patterns_of(np.atleast_1d(b)), patterns_of(np.atleast_1d(a)), to)

    def from_pair(a: Row, out: Row) -> None:
        patterns = patterns_of(bf16_to_f32(a) if source == "bf16x2" else a.astype(np.float32))
        out[...] = _together(patterns[::2], patterns[1::2], to)

    d, *sources = i.operands
    if len(sources) != (2 if source == "f32" else 1):
        raise i.unsupported("the number of its operands")
    kind = KIND_OF_TYPE[source]
    call = from_two if source == "f32" else from_pair
    return computed(i, call, [(s, kind) for s in sources], [(d, f"u{TYPE_BYTES[to]}")], tally="convert")


def _shift(pair: str) -> int:
    """Return the position of the upper one of a pair: two of 4 bits share a byte, all others have one byte each."""
    return 4 * TYPE_BYTES[pair]


def _together(lower: Row, upper: Row, pair: str) -> Row:
    kind = np.dtype(f"u{TYPE_BYTES[pair]}")
    return np.asarray(lower.astype(kind) | upper.astype(kind) << kind.type(_shift(pair)))


def _apart(row: Row, pair: str) -> Row:
    """Return the bit patterns of pairs one after another, the lower one first."""
    row, shift = np.atleast_1d(row), _shift(pair)
    mask = row.dtype.type((1 << shift) - 1)
    return np.stack([row & mask, row >> row.dtype.type(shift) & mask], axis=1).reshape(-1)
