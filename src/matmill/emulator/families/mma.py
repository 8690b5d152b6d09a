"""Matrix multiply-accumulate of a warp: mma.sync on f16, bf16, tf32, f64 and 8-bit integers.

PTX ISA, "Warp-level matrix instructions: mma" and its sections on matrix fragments. All dense fragments follow one
rule. Lane ``4 g + t`` holds, with ``e`` elements per register (two halves, four bytes, or one),

- of A (M x K, by rows): in register ``r`` row ``g + 8 (r mod 2)``, columns ``4 e (r div 2) + e t`` and on; where M is 8
  there are no lower rows and ``r`` counts columns alone;
- of B (K x N, by columns): in register ``r`` column ``g``, rows ``4 e r + e t`` and on;
- of C and D (M x N): row ``g``, columns ``2 t`` and ``2 t + 1``, then the same of row ``g + 8``.

So a register of all lanes, seen as [8, 4 e], is a block of A or of the transpose of B as it is, and no lane maps
are needed.

What a tensor core does to the last bits is not documented: it aligns the products and C to the largest, drops low
bits, and truncates the sum. Here products are exact and are summed with C in float64, which for halves is nearly always
exact, and the sum is rounded once, to nearest, to the type of D. So results differ from a GPU's in the last bits, are
never less precise than its, and are equal where every sum is exact. Of tf32 operands the lower 13 bits are ignored.
float64 is a chain of FMAs in the order of k, each rounded to nearest. Integers are exact and wrap,
or are clamped with .satfinite.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from matmill.emulator.arith.bfloat16 import bf16_to_f32
from matmill.emulator.arith.fma64 import fma64
from matmill.emulator.arith.row import Row
from matmill.emulator.engine.site import Site
from matmill.emulator.frontend.syntax import TYPE_BYTES, Instruction, Operand, Register, Vector
from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.table import Action, Modifiers, Value, instructions

_TF32_BITS = np.uint32(0xFFFFE000)
_N = 8


@dataclass(frozen=True)
class _Input:
    """The format of A and B: kind of the register rows, elements per register, and the values of a row."""

    kind: str
    packed: int
    values: Callable[[Row], Row]


@dataclass(frozen=True)
class _Sum:
    """The format of C and D: kind of the register rows, elements per register and their NumPy type."""

    kind: str
    packed: int
    element: str


_INPUTS = {
    "f16": _Input("u4", 2, lambda row: row.view(np.float16)),
    "bf16": _Input("u4", 2, lambda row: bf16_to_f32(row.view(np.uint16))),
    "tf32": _Input("u4", 1, lambda row: (row & _TF32_BITS).view(np.float32)),
    "f64": _Input("f8", 1, lambda row: row),
    "s8": _Input("u4", 4, lambda row: row.view(np.int8)),
    "u8": _Input("u4", 4, lambda row: row.view(np.uint8)),
}
_SUMS = {
    "f16": _Sum("u4", 2, "f2"), "f32": _Sum("f4", 1, "f4"), "f64": _Sum("f8", 1, "f8"), "s32": _Sum("i4", 1, "i4"),
}  # fmt: skip
# What each shape takes: types of A and B, and of C and D.
_FLOATS = {("f16", "f16"), ("f16", "f32"), ("bf16", "f32"), ("tf32", "f32"), ("f64", "f64")}
_BYTES = {("s8", "s32"), ("u8", "s32")}
_SHAPES = {
    (8, 8, 4): {("f64", "f64")},
    (16, 8, 4): {("tf32", "f32"), ("f64", "f64")},
    (16, 8, 8): _FLOATS,
    (16, 8, 16): (_FLOATS - {("tf32", "f32")}) | _BYTES,
    (8, 8, 16): _BYTES,
    (16, 8, 32): _BYTES,
}
_TALLY = {"f64": "dmma", "s32": "imma"}


@dataclass(frozen=True)
class _Form:
    """One mma instruction: its shape, the types of A, B and of C and D, and whether integers are clamped."""

    m: int
    k: int
    a: _Input
    b: _Input
    sums: _Sum
    saturating: bool

    @property
    def counts(self) -> tuple[int, int, int]:
        """Registers per lane of A, B and C."""
        return (
            self.m * self.k // LANES // self.a.packed,
            _N * self.k // LANES // self.b.packed,
            self.m * _N // LANES // self.sums.packed,
        )


@instructions("mma")
def multiply_add(i: Instruction) -> Action:
    """``mma.sync.aligned``: D = A B + C, one product of small matrices per warp."""
    m = Modifiers(i, "sync", "aligned")
    if m.flag("sp") or any(x.startswith("sp::") for x in m.left):
        raise i.unsupported("a sparse matrix")
    size = _size(m.left.pop(0)) if m.left else (0, 0, 0)
    layouts = (m.pick(("row", "col")), m.pick(("row", "col")))
    saturating = m.flag("satfinite")
    d_type, a_type, b_type, c_type = m.left if len(m.left) == 4 else ("",) * 4
    known = _SHAPES.get(size, set())
    if {(a_type, d_type), (b_type, c_type)} - known or d_type != c_type or not _go_together(a_type, b_type):
        raise i.unsupported("its shape and types")
    if layouts != ("row", "col") or (saturating and d_type != "s32"):
        raise i.unsupported("its modifiers")
    form = _Form(size[0], size[2], _INPUTS[a_type], _INPUTS[b_type], _SUMS[d_type], saturating)
    d, *factors = i.operands
    parts = [_items(x) for x in (*factors, d)]
    a_count, b_count, c_count = form.counts
    if [len(x) for x in parts] != [a_count, b_count, c_count, c_count]:
        raise i.unsupported("the number of its registers")
    kinds = (form.a.kind, form.b.kind, form.sums.kind)
    for part, kind in zip(parts, (*kinds, form.sums.kind), strict=True):
        if any(isinstance(o, Register) and TYPE_BYTES[o.type] != int(kind[1]) for o in part):
            raise i.unsupported("the width of its registers")
    return Action(
        i,
        tuple(Value(o, kind) for part, kind in zip(parts[:3], kinds, strict=True) for o in part),
        tuple(Value(o, form.sums.kind) for o in parts[3]),
        bind=lambda site: MultiplyAdd(site, i, form),
        tally=_TALLY.get(d_type, "hmma"),
        in_place=True,
        flops=2 * size[0] * _N * size[2] // LANES,
    )


def _size(text: str) -> tuple[int, int, int]:
    """m16n8k8 as (16, 8, 8)."""
    found = re.fullmatch(r"m(\d+)n(\d+)k(\d+)", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else (0, 0, 0)


def _go_together(a: str, b: str) -> bool:
    return a == b or {a, b} == {"s8", "u8"}


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


class MultiplyAdd:
    """An mma bound to a site: all warps at once, in scratch arrays of one matrix per warp."""

    def __init__(self, site: Site, i: Instruction, form: _Form) -> None:
        self.form = form
        self.whole = site.whole_warps(i)
        self.warps = warps = site.lanes.warp_count
        take = site.machine.buffers.take
        m, k = form.m, form.k
        self.a = take("mma a", "f8", warps * m * k).reshape(warps, m, k)
        self.b = take("mma b", "f8", warps * _N * k).reshape(warps, _N, k)
        self.c = take("mma c", "f8", warps * m * _N).reshape(warps, m, _N)
        self.d = take("mma d", "f8", warps * m * _N).reshape(warps, m, _N)

    def __call__(self, *rows: Row) -> None:
        """Multiply and add; all operands are read before a result is written."""
        if self.whole is not None:
            self.whole()
        form = self.form
        a_count, b_count, c_count = form.counts
        a, b, c = rows[:a_count], rows[a_count : a_count + b_count], rows[a_count + b_count : -c_count]
        lower = form.m // 8
        for index, row in enumerate(a):
            self._put(self.a, 8 * (index % lower), index // lower, form.a, row)
        for index, row in enumerate(b):
            self._put(self.b, 0, index, form.b, row)
        for index, row in enumerate(c):
            self._sums(self.c, index)[...] = self._elements(row)
        if form.sums.element == "f8":
            self._chain()
        else:
            np.matmul(self.a, self.b.swapaxes(1, 2), out=self.d)
            np.add(self.d, self.c, out=self.d)
        for index, row in enumerate(rows[-c_count:]):
            row.view(form.sums.element)[...] = self._rounded(self._sums(self.d, index)).reshape(-1)

    def _put(self, target: Row, first: int, index: int, form: _Input, row: Row) -> None:
        """Copy one register of all lanes to its elements of the matrices."""
        width = 4 * form.packed
        values = form.values(self._flat(row)).reshape(self.warps, 8, width)
        target[:, first : first + 8, index * width : (index + 1) * width] = values

    def _flat(self, row: Row) -> Row:
        """A row, also where the operand is one value for all lanes."""
        count = self.warps * LANES
        return row if np.ndim(row) and row.flags.c_contiguous else np.ascontiguousarray(np.broadcast_to(row, count))

    def _elements(self, row: Row) -> Row:
        """A register of C as [warps, 8, columns]."""
        return self._flat(row).view(self.form.sums.element).reshape(self.warps, 8, -1)

    def _sums(self, matrices: Row, index: int) -> Row:
        """The part of C or D that one register holds: [warps, 8, 8] where it packs two elements, else [warps, 8, 4]."""
        if self.form.sums.packed == 2:
            return matrices[:, 8 * index : 8 * index + 8]
        first = 8 * (index // 2)
        return matrices[:, first : first + 8, index % 2 :: 2]

    def _rounded(self, sums: Row) -> Row:
        """Sums in the type of D."""
        element = self.form.sums.element
        if element != "i4":
            return sums.astype(element)
        # Far below 2**53, so float64 has held them exactly.
        whole = sums.astype(np.int64)
        limits = np.iinfo(np.int32)
        return (np.clip(whole, limits.min, limits.max) if self.form.saturating else whole).astype(np.int32)

    def _chain(self) -> None:
        """float64: one FMA after another."""
        left = np.ascontiguousarray(self.a.transpose(2, 0, 1))[..., None]
        right = np.ascontiguousarray(self.b.transpose(2, 0, 1))[:, :, None, :]
        shape, sums = self.d.shape, self.d.reshape(-1)
        sums[...] = self.c.reshape(-1)
        for x, y in zip(left, right, strict=True):
            fma64(np.broadcast_to(x, shape).reshape(-1), np.broadcast_to(y, shape).reshape(-1), sums, sums)
