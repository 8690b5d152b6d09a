"""Matrix multiply-accumulate of a warp: mma.sync on floats of 8 to 64 bits, integers and bits.

PTX ISA, "Warp-level matrix instructions: mma" and its sections on matrix fragments. All dense fragments follow one
rule. With ``e`` elements per register (one, two halves, four bytes, eight of 4 bits, 32 bits), lane ``4 g + t`` has

- of A (M x K, by rows): in register ``r`` row ``g + 8 (r mod 2)``, columns ``4 e (r div 2) + e t`` and on; where M is 8
  there are no lower rows and ``r`` counts columns alone;
- of B (K x N, by columns): in register ``r`` column ``g``, rows ``4 e r + e t`` and on;
- of C and D (M x N): row ``g``, columns ``2 t`` and ``2 t + 1``, then the same of row ``g + 8``.

So a register of all lanes, viewed as [8, 4 e], is a block of A or of the transpose of B, and no lane maps are needed.

Sums of f16, bf16 and tf32 are those of the target's tensor cores, bit for bit: see ``arith.tensor_core``. Hopper
converts 8-bit floats to f16, and only ``wgmma`` multiplies them in 8 bits; other targets have an instruction for them,
which is emulated with the sums of Hopper's ``wgmma``. The lower 13 bits of tf32 operands are ignored. float64 is a
chain of FMAs in the order of k, each rounded to nearest. Integers are exact and wrap, or are clamped with .satfinite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from matmill.emulator.arith.fma64 import fma64
from matmill.emulator.arith.row import Row
from matmill.emulator.arith.tensor_core import BYTES, NAN, Factor, TensorCore, rule_of
from matmill.emulator.engine.bind.bound_block import BoundBlock, Prepared
from matmill.emulator.families.mma_forms import INPUTS, SHAPES, Input, MmaForm, N, Sum, go_together, shape_of
from matmill.emulator.frontend.syntax import TYPE_BYTES, Instruction, PtxOperand, Register, Vector
from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.table import Action, Modifiers, Value, instructions

# Fragments kept decoded for later instructions: kernels multiply one fragment of A by all of B, or the reverse.
_SLOTS = {"a": 1, "b": 16}


_TALLY = {"f64": "dmma", "s32": "imma"}


@instructions("mma")
def multiply_add(i: Instruction) -> Action:
    """Bind ``mma.sync.aligned``: D = A B + C, one product of small matrices per warp."""
    m = Modifiers(i, "sync", "aligned")
    if m.flag("sp") or any(x.startswith("sp::") for x in m.left):
        raise i.unsupported("a sparse matrix")
    size = shape_of(m.left.pop(0)) if m.left else (0, 0, 0)
    layouts = (m.pick(("row", "col")), m.pick(("row", "col")))
    saturating = m.flag("satfinite")
    combined = m.pick(("xor", "and")) if m.flag("popc") else ""
    d_type, a_type, b_type, c_type = m.left if len(m.left) == 4 else ("",) * 4
    known = SHAPES.get(size, set())
    if {(a_type, d_type), (b_type, c_type)} - known or d_type != c_type or not go_together(a_type, b_type):
        raise i.unsupported("its shape and types")
    if layouts != ("row", "col") or (saturating and d_type != "s32") or (combined != "") != (a_type == "b1"):
        raise i.unsupported("its modifiers")
    form = MmaForm(size[0], size[2], a_type, b_type, d_type, saturating, combined == "xor")
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
        bind=lambda bound: _bound(bound, form)(bound, i, form, parts),
        tally=_TALLY.get(d_type, "hmma"),
        in_place=True,
        flops=2 * size[0] * N * size[2] // LANES,
    )


def _items(operand: PtxOperand) -> tuple[PtxOperand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def _by_warp(row: Row, form: Input | Sum) -> Row:
    """Return a register of all lanes as [warps, 8, columns], or an immediate as [1, 1, columns]."""
    elements = np.atleast_1d(row).view(form.element)
    return np.tile(elements, (1, 1, 4)) if len(elements) == form.packed else elements.reshape(-1, 8, 4 * form.packed)


class Fragment:
    """A or B of all warps: ``values`` [k, rows, warps], decoded from the lanes' registers.

    The warps come last because NumPy is fast for a long last axis.
    """

    def __init__(self, bound: BoundBlock, name: str, form: Input, operands: Sequence[PtxOperand], rows: int) -> None:
        width, parts = 4 * form.packed, rows // 8
        shape = (width * len(operands) // parts, rows, bound.lanes.warp_count)
        self.form = form
        self.name = name
        self.bits = bound.machine.buffers.take(f"{name} {form.element}", form.element, prod(shape)).reshape(shape)
        self.copies: list[tuple[Row, Row]] = []
        for index, operand in enumerate(operands):
            k, first = width * (index // parts), 8 * (index % parts)
            lanes = _by_warp(bound.source(Value(operand, form.kind)), form)
            self.copies.append((self.bits[k : k + width, first : first + 8], lanes.T))

    def refresh(self) -> None:
        """Read the registers."""
        for target, lanes in self.copies:
            target[...] = lanes
        self.values = self.form.values(self.bits)


class TensorFragment:
    """A or B for tensor cores: ``factor`` [k, rows of A, columns of B times warps], of which B has only one row.

    A is stored once for each column of B, so that NumPy multiplies long rows.
    """

    def __init__(self, fragment: Fragment, core: TensorCore, *, repeated: bool) -> None:
        self.fragment = fragment
        self.core = core
        k, rows, warps = fragment.bits.shape
        values, exponents = (
            core.buffers.take(f"{fragment.name} repeated {dtype}", dtype, k * rows * N * warps)
            for dtype in ("f4", "i2")
        )
        shape = (k, rows, N, warps)
        self.repeated = Factor(values.reshape(shape), exponents.reshape(shape)) if repeated else None

    def refresh(self) -> None:
        """Read the registers."""
        self.fragment.refresh()
        factor = self.core.factor(self.fragment.values)
        if self.repeated is not None:
            np.copyto(self.repeated.values, factor.values[:, :, None])
            np.copyto(self.repeated.exponents, factor.exponents[:, :, None])
            factor = self.repeated
        k, _, warps = self.fragment.bits.shape
        shape = (k, -1, N * warps)
        self.factor = Factor(factor.values.reshape(shape), factor.exponents.reshape(shape))


class MultiplyAdd:
    """A bound mma for all warps at once. ``sums`` [m, n, warps] is C, and becomes D."""

    def __init__(self, bound: BoundBlock, i: Instruction, form: MmaForm, parts: Sequence[Sequence[PtxOperand]]) -> None:
        self.bound = bound
        self.form = form
        self.factors = parts[:2]
        self.whole = bound.whole_warps(i)
        element, shape = form.sums.element, (form.m, N, bound.lanes.warp_count)
        self.sums = bound.machine.buffers.take(f"mma c {element}", element, prod(shape)).reshape(shape)
        # The sums in each register, as [warps, 8, columns].
        by_warp = np.moveaxis(self.sums, 2, 0)
        self.by_register = [
            by_warp[:, 8 * index : 8 * index + 8]
            if form.sums.packed == 2
            else by_warp[:, 8 * (index // 2) : 8 * (index // 2) + 8, index % 2 :: 2]
            for index in range(len(parts[2]))
        ]

    def fragments(self, prepare: Callable[[Fragment, str], Prepared]) -> tuple[Prepared, Prepared]:
        """Return A and B, each decoded once for all instructions that read it from the same registers.

        ``prepare`` takes a fragment and its type.
        """

        def one(name: str, kind: str, operands: Sequence[PtxOperand], rows: int) -> Prepared:
            def make(slot: int) -> Prepared:
                return prepare(Fragment(self.bound, f"mma {name} {slot}", INPUTS[kind], operands, rows), kind)

            return self.bound.prepared((f"mma {name}", kind, *operands), _SLOTS[name], make)

        a, b = self.factors
        return one("a", self.form.a_type, a, self.form.m), one("b", self.form.b_type, b, N)

    def __call__(self, *rows: Row) -> None:
        """Multiply and add; all operands are read before a result is written."""
        if self.whole is not None:
            self.whole()
        count, form = len(self.by_register), self.form.sums
        for part, row in zip(self.by_register, rows[-2 * count : -count], strict=True):
            part[...] = _by_warp(row, form)
        self.add()
        for part, row in zip(self.by_register, rows[-count:], strict=True):
            _by_warp(row, form)[...] = part

    def add(self) -> None:
        """Add A B to the sums."""
        raise NotImplementedError


class TensorCores(MultiplyAdd):
    """f16, bf16, tf32 and 8-bit floats."""

    def __init__(self, bound: BoundBlock, i: Instruction, form: MmaForm, parts: Sequence[Sequence[PtxOperand]]) -> None:
        super().__init__(bound, i, form, parts)
        machine = bound.machine
        # A and B are decoded by their own formats; only 8-bit floats may have two.
        cores = {
            kind: TensorCore(rule_of(machine.program.target, kind, form.d_type), machine.buffers)
            for kind in (form.a_type, form.b_type)
        }
        self.core = cores[form.a_type]
        self.a, self.b = self.fragments(lambda f, kind: TensorFragment(f, cores[kind], repeated=f.bits.shape[1] > N))

    def add(self) -> None:
        """Add as the target's tensor cores do."""
        self.core.add(self.a.factor, self.b.factor, self.sums.reshape(self.form.m, -1))


class HalvesOfBytes(MultiplyAdd):
    """8-bit floats on Hopper: ptxas converts A and B to f16.

    One HMMA.16816 multiplies the lower two bytes of each register, starting from zero, and another adds the upper two:
    of every four consecutive k these are the first two, then the last two. An FADD (HADD2 for f16 sums) then adds C,
    rounding to nearest. (tests/golden/h100_fp8_mma.npz; k of 16, which was not recorded, is one HMMA here.)
    """

    def __init__(self, bound: BoundBlock, i: Instruction, form: MmaForm, parts: Sequence[Sequence[PtxOperand]]) -> None:
        super().__init__(bound, i, form, parts)
        machine = bound.machine
        self.core = TensorCore(rule_of(machine.program.target, "f16", form.d_type), machine.buffers)
        self.a, self.b = self.fragments(lambda f, _: TensorFragment(f, self.core, repeated=f.bits.shape[1] > N))
        k = np.arange(form.k)
        self.order = np.concatenate([k[k % 4 < 2], k[k % 4 >= 2]])

    def add(self) -> None:
        """Add the converted product."""
        sums = self.sums.reshape(self.form.m, -1)
        product = np.zeros_like(sums)
        a, b = (Factor(x.values[self.order], x.exponents[self.order]) for x in (self.a.factor, self.b.factor))
        self.core.add(a, b, product)
        with np.errstate(all="ignore"):
            np.add(product, sums, out=sums)
        sums[np.isnan(sums)] = NAN[sums.dtype.type]


class Integers(MultiplyAdd):
    """Integers of 8 and 4 bits, and bits, in float64: sums of their products are far below 2**53."""

    def __init__(self, bound: BoundBlock, i: Instruction, form: MmaForm, parts: Sequence[Sequence[PtxOperand]]) -> None:
        super().__init__(bound, i, form, parts)
        self.a, self.b = self.fragments(lambda f, _: f)

    def add(self) -> None:
        """Add exactly; sums wrap or are clamped."""
        left, right = (np.ascontiguousarray(x.values.T) for x in (self.a, self.b))
        products = np.matmul(left, right.swapaxes(1, 2))
        if self.form.xor:
            # The number of differing bits is the sum of both sides' bits minus twice the common ones.
            products = left.sum(axis=2)[:, :, None] + right.sum(axis=2)[:, None] - 2 * products
        whole = np.moveaxis(products, 0, 2) + self.sums
        limits = np.iinfo(np.int32)
        self.sums[...] = (np.clip(whole, limits.min, limits.max) if self.form.saturating else whole).astype(np.int64)


class Doubles(MultiplyAdd):
    """float64."""

    def __init__(self, bound: BoundBlock, i: Instruction, form: MmaForm, parts: Sequence[Sequence[PtxOperand]]) -> None:
        super().__init__(bound, i, form, parts)
        self.a, self.b = self.fragments(lambda f, _: f)

    def add(self) -> None:
        """Add by one FMA after another."""
        shape, sums = self.sums.shape, self.sums.reshape(-1)
        for x, y in zip(self.a.values[:, :, None], self.b.values[:, None], strict=True):
            fma64(np.broadcast_to(x, shape).reshape(-1), np.broadcast_to(y, shape).reshape(-1), sums, sums)


_BOUND: dict[str, type[MultiplyAdd]] = {"f64": Doubles, "s32": Integers}


def _bound(bound: BoundBlock, form: MmaForm) -> type[MultiplyAdd]:
    """Return the class that multiplies as the target does."""
    if form.a_type in BYTES and bound.machine.program.target.startswith("sm_90"):
        return HalvesOfBytes
    return _BOUND.get(form.d_type, TensorCores)
