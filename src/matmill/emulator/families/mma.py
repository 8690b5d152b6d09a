"""Matrix multiply-accumulate of a warp: mma.sync on f16, bf16, tf32, f64 and 8-bit integers.

PTX ISA, "Warp-level matrix instructions: mma" and its sections on matrix fragments. All dense fragments follow one
rule. Lane ``4 g + t`` holds, with ``e`` elements per register (two halves, four bytes, or one),

- of A (M x K, by rows): in register ``r`` row ``g + 8 (r mod 2)``, columns ``4 e (r div 2) + e t`` and on; where M is 8
  there are no lower rows and ``r`` counts columns alone;
- of B (K x N, by columns): in register ``r`` column ``g``, rows ``4 e r + e t`` and on;
- of C and D (M x N): row ``g``, columns ``2 t`` and ``2 t + 1``, then the same of row ``g + 8``.

So a register of all lanes, seen as [8, 4 e], is a block of A or of the transpose of B as it is, and no lane maps
are needed.

Sums of f16, bf16 and tf32 are those of the target's tensor cores, bit for bit: see ``arith.tensor_core``. Of tf32
operands the lower 13 bits are ignored. float64 is a chain of FMAs in the order of k, each rounded to nearest. Integers
are exact and wrap, or are clamped with .satfinite.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from matmill.emulator.arith import exact
from matmill.emulator.arith.bfloat16 import bf16_to_f32
from matmill.emulator.arith.row import Row
from matmill.emulator.arith.tensor_core import Factor, Rule, add_products, factor, rule_of
from matmill.emulator.engine.site import Site
from matmill.emulator.frontend.syntax import TYPE_BYTES, Instruction, Operand, Register, Vector
from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.table import Action, Modifiers, Value, instructions

_TF32_BITS = np.uint32(0xFFFFE000)
_N = 8
# Fragments kept decoded for the instructions that follow: kernels multiply one of A by all of B, or the reverse.
_PLACES = {"a": 1, "b": 16}


@dataclass(frozen=True)
class _Input:
    """The format of A and B: kind of the register rows, elements per register, their NumPy type, and their values."""

    kind: str
    packed: int
    element: str
    values: Callable[[Row], Row]


@dataclass(frozen=True)
class _Sum:
    """The format of C and D: kind of the register rows, elements per register and their NumPy type."""

    kind: str
    packed: int
    element: str


_INPUTS = {
    "f16": _Input("u4", 2, "f2", lambda bits: bits.astype(np.float32)),
    "bf16": _Input("u4", 2, "u2", bf16_to_f32),
    "tf32": _Input("u4", 1, "u4", lambda bits: (bits & _TF32_BITS).view(np.float32)),
    "f64": _Input("f8", 1, "f8", lambda values: values),
    "s8": _Input("u4", 4, "i1", lambda values: values.astype(np.float64)),
    "u8": _Input("u4", 4, "u1", lambda values: values.astype(np.float64)),
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
_TENSOR_CORE_SUMS = {"f16", "f32"}
_TALLY = {"f64": "dmma", "s32": "imma"}


@dataclass(frozen=True)
class _Form:
    """One mma instruction: its shape, its types, and whether integers are clamped."""

    m: int
    k: int
    a_type: str
    b_type: str
    d_type: str
    saturating: bool

    @property
    def a(self) -> _Input:
        """The format of A."""
        return _INPUTS[self.a_type]

    @property
    def b(self) -> _Input:
        """The format of B."""
        return _INPUTS[self.b_type]

    @property
    def sums(self) -> _Sum:
        """The format of C and D."""
        return _SUMS[self.d_type]

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
    form = _Form(size[0], size[2], a_type, b_type, d_type, saturating)
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
        bind=lambda site: MultiplyAdd(site, i, form, parts),
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


class Fragment:
    """A or B of all warps: ``values`` [k, rows, warps], decoded from the registers that lanes hold.

    The warps come last because NumPy is fast where the last axis is long.
    """

    def __init__(self, site: Site, name: str, form: _Input, operands: Sequence[Operand], rows: int) -> None:
        self.form = form
        self.warps, width, parts = site.lanes.warp_count, 4 * form.packed, rows // 8
        shape = (width * len(operands) // parts, rows, self.warps)
        self.bits = site.machine.buffers.take(f"{name} {form.element}", form.element, prod(shape)).reshape(shape)
        self.copies: list[tuple[Row, Row]] = []
        for index, operand in enumerate(operands):
            lanes = np.atleast_1d(site.source(Value(operand, form.kind))).view(form.element)
            k, first = width * (index // parts), 8 * (index % parts)
            # One value for all lanes where the operand is no register.
            shaped = lanes.reshape(self.warps, 8, width) if len(lanes) > form.packed else np.tile(lanes, (1, 1, 4))
            self.copies.append((self.bits[k : k + width, first : first + 8], shaped.T))

    def refresh(self) -> None:
        """Read the registers."""
        for target, lanes in self.copies:
            target[...] = lanes
        self.values = self.form.values(self.bits)


class TensorFragment(Fragment):
    """A or B for a tensor core: ``factor`` [k, rows of A, columns of B times warps]; B has one such row.

    A is repeated for the columns of B in memory, so that NumPy multiplies long rows.
    """

    def __init__(
        self, site: Site, name: str, form: _Input, operands: Sequence[Operand], rows: int, rule: Rule, *, left: bool
    ) -> None:
        super().__init__(site, name, form, operands, rows)
        self.rule = rule
        k = len(self.bits)
        shape = (k, rows, _N, self.warps)
        self.wide = (
            [
                site.machine.buffers.take(f"{name} wide {kind}", kind, prod(shape)).reshape(shape)
                for kind in ("f4", "i2")
            ]
            if left
            else []
        )

    def refresh(self) -> None:
        """Read the registers."""
        super().refresh()
        found = factor(self.values, self.rule)
        for wide, narrow in zip(self.wide, found, strict=False):
            wide[...] = narrow[:, :, None]
        self.factor = Factor(*(x.reshape(len(x), -1, _N * self.warps) for x in self.wide or found))


class MultiplyAdd:
    """An mma bound to a site: all warps at once."""

    def __init__(self, site: Site, i: Instruction, form: _Form, parts: Sequence[Sequence[Operand]]) -> None:
        self.form = form
        self.whole = site.whole_warps(i)
        self.buffers = site.machine.buffers
        tensor = form.d_type in _TENSOR_CORE_SUMS
        self.rule = rule_of(site.machine.program.target, form.a_type, form.d_type) if tensor else None
        self.a = self._fragment(site, "a", form.a_type, parts[0], form.m)
        self.b = self._fragment(site, "b", form.b_type, parts[1], _N)
        self.add = {"f64": self._chain, "s32": self._integers}.get(form.d_type, self._tensor_core)
        # C, and D in its place; and by register what it holds of them, as [warps, 8, columns].
        element, shape = form.sums.element, (form.m, _N, site.lanes.warp_count)
        self.sums = self.buffers.take(f"mma c {element}", element, prod(shape)).reshape(shape)
        by_warp = np.moveaxis(self.sums, 2, 0)
        self.by_register = [
            by_warp[:, 8 * index : 8 * index + 8]
            if form.sums.packed == 2
            else by_warp[:, 8 * (index // 2) : 8 * (index // 2) + 8, index % 2 :: 2]
            for index in range(len(parts[2]))
        ]

    def _fragment(self, site: Site, name: str, type_name: str, operands: Sequence[Operand], rows: int) -> Any:
        def make(place: int) -> Fragment:
            what = (site, f"mma {name} {place}", _INPUTS[type_name], operands, rows)
            return Fragment(*what) if self.rule is None else TensorFragment(*what, self.rule, left=name == "a")

        return site.prepared((f"mma {name}", type_name, self.rule, *operands), _PLACES[name], make)

    def __call__(self, *rows: Row) -> None:
        """Multiply and add; all operands are read before a result is written."""
        if self.whole is not None:
            self.whole()
        count, element = len(self.by_register), self.form.sums.element
        for part, row in zip(self.by_register, rows[-2 * count : -count], strict=True):
            part[...] = row.view(element).reshape(part.shape) if np.ndim(row) else row.view(element)
        self.add()
        for part, row in zip(self.by_register, rows[-count:], strict=True):
            row.view(element).reshape(part.shape)[...] = part

    def _tensor_core(self) -> None:
        """f16, bf16 and tf32."""
        sums = self.sums.reshape(self.form.m, -1)
        add_products(self.a.factor, self.b.factor, sums, sums, self.rule, self.buffers)

    def _integers(self) -> None:
        """Integers, through float64: sums of products are far below 2**53."""
        left, right = (np.ascontiguousarray(x.values.T) for x in (self.a, self.b))
        whole = np.moveaxis(np.matmul(left, right.swapaxes(1, 2)), 0, 2) + self.sums
        limits = np.iinfo(np.int32)
        self.sums[...] = (np.clip(whole, limits.min, limits.max) if self.form.saturating else whole).astype(np.int64)

    def _chain(self) -> None:
        """float64: one FMA after another."""
        shape, sums = self.sums.shape, self.sums.reshape(-1)
        for x, y in zip(self.a.values[:, :, None], self.b.values[:, None], strict=True):
            exact.fma64(np.broadcast_to(x, shape).reshape(-1), np.broadcast_to(y, shape).reshape(-1), sums, sums)
