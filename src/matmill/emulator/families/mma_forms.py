"""The shapes and types of mma.sync, and the contents of registers.

PTX ISA, "Warp-level matrix instructions: mma".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from matmill.emulator.arith.bfloat16 import bf16_to_f32
from matmill.emulator.arith.row import Row
from matmill.emulator.arith.small_floats import e4m3_to_f32, e5m2_to_f32
from matmill.emulator.memory.banks import LANES

#: Columns of B in all shapes.
N = 8
_TF32_BITS = np.uint32(0xFFFFE000)


@dataclass(frozen=True)
class Input:
    """The format of A and B: kind of the register rows, units per register, their NumPy type, and their values.

    A unit is one element, or a byte of ``elements``. ``values`` converts units [k, …] to all elements along that axis.
    """

    kind: str
    packed: int
    element: str
    values: Callable[[Row], Row]
    elements: int = 1


@dataclass(frozen=True)
class Sum:
    """The format of C and D: kind of the register rows, elements per register and their NumPy type."""

    kind: str
    packed: int
    element: str


def _nibbles(units: Row, kind: str) -> Row:
    """Return the two 4-bit integers of each byte, the lower one first, signed or unsigned."""
    upper = units.view(kind) >> 4
    lower = (units << np.uint8(4)).view(kind) >> 4
    return np.stack([lower, upper], axis=1).reshape(-1, *units.shape[1:]).astype(np.float64)


INPUTS = {
    "f16": Input("u4", 2, "f2", lambda bits: bits.astype(np.float32)),
    "bf16": Input("u4", 2, "u2", bf16_to_f32),
    "tf32": Input("u4", 1, "u4", lambda bits: (bits & _TF32_BITS).view(np.float32)),
    "f64": Input("f8", 1, "f8", lambda values: values),
    "s8": Input("u4", 4, "i1", lambda values: values.astype(np.float64)),
    "u8": Input("u4", 4, "u1", lambda values: values.astype(np.float64)),
    "s4": Input("u4", 4, "u1", lambda units: _nibbles(units, "i1"), elements=2),
    "u4": Input("u4", 4, "u1", lambda units: _nibbles(units, "u1"), elements=2),
    "b1": Input(
        "u4", 4, "u1", lambda units: np.unpackbits(units, axis=0, bitorder="little").astype(np.float64), elements=8
    ),
    "e4m3": Input("u4", 4, "u1", e4m3_to_f32),
    "e5m2": Input("u4", 4, "u1", e5m2_to_f32),
}
RESULTS = {
    "f16": Sum("u4", 2, "f2"), "f32": Sum("f4", 1, "f4"), "f64": Sum("f8", 1, "f8"), "s32": Sum("i4", 1, "i4"),
}  # fmt: skip
# The types of each shape: of A and B, and of C and D.
_FLOATS = {("f16", "f16"), ("f16", "f32"), ("bf16", "f32"), ("tf32", "f32"), ("f64", "f64")}
_BYTES = {("s8", "s32"), ("u8", "s32")}
_NIBBLES = {("s4", "s32"), ("u4", "s32")}
_BITS = {("b1", "s32")}
_FLOATS8 = {(a, d) for a in ("e4m3", "e5m2") for d in ("f16", "f32")}
SHAPES = {
    (8, 8, 4): {("f64", "f64")},
    (16, 8, 4): {("tf32", "f32"), ("f64", "f64")},
    (16, 8, 8): _FLOATS,
    (16, 8, 16): (_FLOATS - {("tf32", "f32")}) | _BYTES | _FLOATS8,
    (8, 8, 16): _BYTES,
    (16, 8, 32): _BYTES | _FLOATS8 | _NIBBLES,
    (8, 8, 32): _NIBBLES,
    (16, 8, 64): _NIBBLES,
    (8, 8, 128): _BITS,
    (16, 8, 128): _BITS,
    (16, 8, 256): _BITS,
}


@dataclass(frozen=True)
class MmaForm:
    """One mma instruction: its shape, its types, whether integers are clamped, and whether bits are combined by xor."""

    m: int
    k: int
    a_type: str
    b_type: str
    d_type: str
    saturating: bool
    xor: bool

    @property
    def a(self) -> Input:
        """The format of A."""
        return INPUTS[self.a_type]

    @property
    def b(self) -> Input:
        """The format of B."""
        return INPUTS[self.b_type]

    @property
    def sums(self) -> Sum:
        """The format of C and D."""
        return RESULTS[self.d_type]

    @property
    def counts(self) -> tuple[int, int, int]:
        """Registers per lane of A, B and C."""
        return (
            self.m * self.k // LANES // (self.a.packed * self.a.elements),
            N * self.k // LANES // (self.b.packed * self.b.elements),
            self.m * N // LANES // self.sums.packed,
        )


def shape_of(text: str) -> tuple[int, int, int]:
    """Parse m16n8k8 as (16, 8, 8)."""
    match = re.fullmatch(r"m(\d+)n(\d+)k(\d+)", text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else (0, 0, 0)


def go_together(a: str, b: str) -> bool:
    """Tell whether A and B may have these types."""
    return a == b or {a, b} in ({"s8", "u8"}, {"s4", "u4"}, {"e4m3", "e5m2"})
