"""Products of warpgroups, wgmma: of f16, bf16, tf32, e4m3, e5m2, 8-bit integers and bits; their fence and groups.

PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". D (64 x N) is A (64 x K) times B (K x N), plus D unless
scale-d is false; warp ``w`` of the warpgroup has rows ``16 w`` to ``16 w + 15``. K is 32 bytes of elements.
Lane ``4 g + t`` of a warp has

- of A from registers: in register ``r`` row ``g + 8 (r mod 2)``, bytes ``4 t + 16 (r div 2)`` and on of its 32;
- of D: rows ``g`` and ``g + 8`` in turn, of each columns ``2 t`` and ``2 t + 1`` of every 8.

Floating-point sums are those of the tensor cores (``arith.tensor_core``). The lower 13 bits of tf32 operands are
ignored. Integers are exact and wrap, or are clamped with .satfinite.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.bfloat16 import bf16_to_f32
from matmill.emulator.arith.row import Row
from matmill.emulator.arith.small_floats import e4m3_to_f32, e5m2_to_f32
from matmill.emulator.arith.tensor_core import Factor, TensorCore, rule_of
from matmill.emulator.engine.async_units.warpgroup_products import Issued, RowIndex
from matmill.emulator.engine.async_units.warpgroups import WARPS
from matmill.emulator.engine.bind.bound_block import BoundBlock
from matmill.emulator.engine.state.machine import Machine
from matmill.emulator.frontend.syntax import TYPE_BYTES, Immediate, Instruction, PtxOperand, Register, Vector
from matmill.emulator.memory.banks import LANES
from matmill.emulator.memory.matrix_descriptors import CHUNK, DescriptorError, chunks, decode
from matmill.emulator.program.in_flight import Commit, Fence, WgmmaProduct
from matmill.emulator.program.table import Action, Call, Modifiers, Value, instructions, registers
from matmill.emulator.program.waits import GroupWait
from matmill.emulator.report.hazards import KernelFault, fault

_M, _MOST_N = 16, 256
# wgmma exists only for this target.
_TARGET = "sm_90a"
_K_BYTES = 32
_TF32_BITS = np.uint32(0xFFFFE000)

# The values of each type's bytes; the last axis of ``bytes`` is K.
_VALUES: dict[str, Callable[[Row], Row]] = {
    "f16": lambda row: row.view(np.float16).astype(np.float32),
    "bf16": lambda row: bf16_to_f32(row.view(np.uint16)),
    "tf32": lambda row: (row.view(np.uint32) & _TF32_BITS).view(np.float32),
    "e4m3": e4m3_to_f32,
    "e5m2": e5m2_to_f32,
    "s8": lambda row: row.view(np.int8),
    "u8": lambda row: row,
    "b1": lambda row: np.unpackbits(row, axis=-1),
}
_K = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32, "b1": 256}
_BYTE_FLOATS, _BYTES = {"e4m3", "e5m2"}, {"s8", "u8"}
# Types of D, and the views of its registers as elements.
_SUMS = {"f32": "f4", "f16": "f2", "s32": "i4"}


@dataclass(frozen=True)
class _WgmmaForm:
    """One wgmma.mma_async: N, its types, whether A and B are MN-major and negated, and whether integers are clamped."""

    n: int
    a: str
    b: str
    d: str
    mn_major: tuple[bool, bool] = (False, False)
    negated: tuple[bool, bool] = (False, False)
    saturating: bool = False

    @property
    def registers(self) -> int:
        """Registers of D per lane."""
        return self.n // 4 if self.d == "f16" else self.n // 2


def _takes(a: str, b: str, d: str) -> bool:
    """Tell whether wgmma has a product of these types."""
    if d == "s32":
        return {a, b} <= _BYTES or (a, b) == ("b1", "b1")
    if {a, b} <= _BYTE_FLOATS:
        return d in {"f16", "f32"}
    return a == b and a in {"f16", "bf16", "tf32"} and (d == "f32" or (d, a) == ("f16", "f16"))


def _has_n(n: int, d: str) -> bool:
    """Tell whether products may have N columns: multiples of 8, for integers beyond 32 multiples of 16."""
    return 0 < n <= _MOST_N and n % (16 if d == "s32" and n > 24 else 8) == 0


@instructions("wgmma")
def warpgroup_instruction(i: Instruction) -> Action:
    """Bind wgmma.mma_async, .fence, .commit_group and .wait_group."""
    m = Modifiers(i, "sync", "aligned")
    kind = m.need("mma_async", "fence", "commit_group", "wait_group")
    if kind == "mma_async":
        return _product(i, m)
    m.done()
    if kind == "wait_group":
        allowed = _literal(i, i.operands[0])
        if allowed < 0:
            raise i.unsupported("a negative count of groups")
        return Action(i, tally="control", ends_block=True, detail=GroupWait(allowed))
    if i.operands:
        raise i.unsupported("the number of its operands")
    commits = kind == "commit_group"
    return Action(
        i,
        bind=lambda bound: _bind_mark(bound, i, commits=commits),
        tally="control",
        collective=True,
        flight=Commit() if commits else Fence(),
    )


def _bind_mark(bound: BoundBlock, i: Instruction, *, commits: bool) -> Call:
    """Bind wgmma.fence and wgmma.commit_group to warps."""
    whole, lanes, products = bound.whole_warps(i), bound.lanes, bound.machine.products

    def call() -> None:
        if whole is not None:
            whole()
        products.warpgroups.executed(lanes.warps, i)
        if commits:
            products.commit(lanes.warps)

    return call


def _literal(i: Instruction, operand: PtxOperand) -> int:
    if not isinstance(operand, Immediate):
        raise i.unsupported("an operand that is no literal")
    return int(operand.value)


def _product(i: Instruction, m: Modifiers) -> Action:
    if any(x.split("::")[0] == "sp" for x in m.left):
        raise i.unsupported("a sparse matrix")
    shape = re.fullmatch(r"m64n(\d+)k(\d+)", m.left.pop(0)) if m.left else None
    saturating = m.flag("satfinite")
    d_type, a_type, b_type = m.left[:3]
    if b_type == "b1" and m.left[3:] != ["and", "popc"]:
        raise i.unsupported("an operation other than .and.popc")
    extra = [] if b_type == "b1" else m.left[3:]
    n, k = (int(shape[1]), int(shape[2])) if shape else (0, 0)
    if not _takes(a_type, b_type, d_type) or not _has_n(n, d_type) or k != _K[a_type] or extra:
        raise i.unsupported("its shape and types")
    if saturating and b_type not in _BYTES:
        raise i.unsupported(".satfinite")
    sums, a, b, scale, *immediates = i.operands
    from_registers = isinstance(a, Vector)
    form = _WgmmaForm(
        n, a_type, b_type, d_type, *_signs_and_majors(i, a_type, immediates, from_registers=from_registers), saturating
    )
    d = _held(i, sums, form.registers)
    factors = _held(i, a, 4) if from_registers else ()
    shared = (b,) if from_registers else (a, b)
    return Action(
        i,
        (*(Value(o, "u8") for o in shared), Value(scale, "p")),
        bind=lambda bound: _WgmmaIssue(bound, i, form, d, factors),
        tally="gmma",
        uses=(*d, *factors),
        writes=d,
        collective=True,
        flight=WgmmaProduct(d, factors),
        flops=2 * WARPS * _M * n * k // (WARPS * LANES),
    )


def _held(i: Instruction, operand: PtxOperand, count: int) -> tuple[Register, ...]:
    """Return the registers of D or A: ``count`` different 32-bit registers."""
    result = tuple(registers(operand.items)) if isinstance(operand, Vector) else ()
    if len(result) != count or len(set(result)) != count or any(TYPE_BYTES[r.type] != 4 for r in result):
        raise i.unsupported(f"other registers than {count} different ones of 32 bits")
    return result


def _signs_and_majors(
    i: Instruction, a_type: str, immediates: list[PtxOperand], *, from_registers: bool
) -> tuple[tuple[bool, bool], tuple[bool, bool]]:
    """Return the immediates after scale-d: which of A and B are MN-major, and which are negated."""
    signs = 0 if a_type in _BYTES | {"b1"} else 2
    majors = (1 if from_registers else 2) if a_type in {"f16", "bf16"} else 0
    values = [_literal(i, o) for o in immediates]
    if len(values) != signs + majors or any(abs(v) != 1 for v in values[:signs]):
        raise i.unsupported("its immediates")
    if any(v not in {0, 1} for v in values[signs:]):
        raise i.unsupported("its immediates")
    transposed = [bool(v) for v in values[signs:]]
    a_major, b_major = [False, False, *transposed][-2:]
    negated = [v < 0 for v in values[:signs]] or [False, False]
    return (a_major, b_major), (negated[0], negated[1])


class _WgmmaIssue:
    """A bound wgmma.mma_async."""

    def __init__(
        self,
        bound: BoundBlock,
        i: Instruction,
        form: _WgmmaForm,
        sums: tuple[Register, ...],
        factors: tuple[Register, ...],
    ) -> None:
        self.instruction = i
        self.form = form
        self.machine = machine = bound.machine
        self.lanes = bound.lanes
        self.file = bound.files["32"]
        self.whole = bound.whole_warps(i)
        # A and B are decoded by their own formats; only 8-bit floats may have two.
        self.cores = [
            TensorCore(rule_of(_TARGET, x, form.d), machine.buffers) for x in (form.a, form.b) if form.d != "s32"
        ]
        self.sums = _rows(bound, sums)
        self.factors = _rows(bound, factors) if factors else None
        self.where = machine.program.index_of(i)
        self.traffic = machine.tally.traffic(self.where, "shared", "wgmma")
        per_warp = form.n * _K_BYTES // WARPS + (0 if factors else _M * _K_BYTES)
        self.bytes = per_warp * bound.lanes.warp_count if machine.counting else 0
        self.operands = [_SharedOperand(machine, i, "B", form.n, mn_major=form.mn_major[1])]
        if not factors:
            self.operands.insert(0, _SharedOperand(machine, i, "A", WARPS * _M, mn_major=form.mn_major[0]))

    def __call__(self, *operands: Row) -> None:
        """Issue the product of every warp."""
        if self.whole is not None:
            self.whole()
        warps, products = self.lanes.warps, self.machine.products
        each = [np.broadcast_to(row, self.lanes.count).reshape(-1, LANES) for row in operands]
        for row in each:
            if (row != row[:, :1]).any():
                raise self._differ(row)
        descriptors, adds = np.stack([row[:, 0] for row in each[:-1]]), each[-1][:, 0].copy()
        products.warpgroups.executed(warps, self.instruction, _in_words(descriptors, adds))
        self.traffic[3] += self.bytes
        self.machine.progress += 1
        products.issue(
            Issued(
                self.instruction,
                warps,
                descriptors,
                adds,
                self.sums,
                self.factors,
                self.multiply,
                products.open_groups(warps),
                self._agents(descriptors),
            ),
            self.file,
        )

    def _agents(self, descriptors: NDArray[np.uint64]) -> tuple[int, ...]:
        """Return the race detector's numbers of the warps' products, and report what these read."""
        machine, warps = self.machine, self.lanes.warps
        events = machine.events
        if events is None:
            return ()
        whole, lenient = np.ones(LANES, np.bool_), not machine.products.own_waits
        agents = tuple(events.issue(warp, whole, fenced=lenient) for warp in self.lanes.warp_ids.tolist())
        for operand, each in zip(self.operands, descriptors, strict=True):
            blocks = machine.geometry.block_ids[machine.geometry.block_of_warp[warps]].tolist()
            for agent, block, offsets in zip(agents, blocks, operand.offsets(warps, each), strict=True):
                events.agent_access(agent, "read", block=block, offsets=offsets, width=CHUNK, where=self.where)
        return agents

    def _differ(self, row: Row) -> KernelFault:
        lane = int(np.flatnonzero((row != row[:, :1]).reshape(-1))[0])
        first = self.lanes.thread_name(lane // LANES * LANES)
        message = (
            f"{self.machine.launch.kernel}: {self.lanes.thread_name(lane)} and {first}, of one warp, give different "
            f"descriptors or scale-d to {self.instruction.text!r}"
        )
        return fault("warpgroup", message, self.instruction)

    def multiply(self, issued: Issued, sums: Row, factors: Row | None) -> Row:
        """Return D of each warp, from its old registers and A's (uint32[registers, 32 warps]) or A in shared memory."""
        form, warps = self.form, issued.warps
        if factors is None:
            a = self.operands[0].read(warps, issued.descriptors[0])
        else:
            quads = np.ascontiguousarray(factors).view(np.uint8).reshape(2, 2, len(warps), 8, 4, 4)
            a = np.ascontiguousarray(quads.transpose(2, 1, 3, 0, 4, 5)).reshape(len(warps), _M, _K_BYTES)
        b = self.operands[-1].read(warps, issued.descriptors[-1])
        left, right = _VALUES[form.a](a), _VALUES[form.b](b)
        if form.negated[0] != form.negated[1]:
            left = -left
        element = np.dtype(_SUMS[form.d])
        c = _matrices(sums, element, len(warps))
        c = np.where(issued.adds[:, None, None], c, element.type(0))
        d = _integers(left, right, c, saturating=form.saturating) if form.d == "s32" else self._floats(left, right, c)
        out = np.empty(sums.shape, np.uint32)
        _fragments(out, element, len(warps))[...] = d.reshape(len(warps), 2, 8, -1, 4, 2)
        return out

    def _floats(self, a: Row, b: Row, c: Row) -> Row:
        """Return A times B plus C, in float32, or in float16 if C and D are float16."""
        left, right = (
            core.factor(np.ascontiguousarray(np.moveaxis(x, -1, 0))) for core, x in zip(self.cores, (a, b), strict=True)
        )
        self.cores[0].add(_spread(left, 3), _spread(right, 2), c)
        return c


def _spread(factor: Factor, axis: int) -> Factor:
    """Return a factor [k, warps, rows] with one more axis, along which it is broadcast."""
    return Factor(np.expand_dims(factor.values, axis), np.expand_dims(factor.exponents, axis))


def _rows(bound: BoundBlock, held: tuple[Register, ...]) -> RowIndex:
    """Return the rows of some registers, as a slice if they are consecutive."""
    rows = np.array([bound.machine.program.layout.rows[r] for r in held])
    first = int(rows[0])
    return slice(first, first + len(rows)) if (rows == first + np.arange(len(rows))).all() else rows


def _in_words(descriptors: NDArray[np.uint64], adds: NDArray[np.bool_]) -> list[str]:
    """Format the operands of each warp, for messages about warps that differ."""
    return [
        f"descriptors {', '.join(map(hex, each))} and scale-d {bool(add)}"
        for each, add in zip(descriptors.T.tolist(), adds, strict=True)
    ]


def _fragments(registers_of_d: Row, element: np.dtype[np.generic], warps: int) -> Row:
    """Return D in its registers, as [warps, 2, 8, N / 8, 4, 2]: lower half, row, 8 columns, two columns, column."""
    if element.itemsize == 2:
        return np.transpose(registers_of_d.view(element).reshape(-1, 2, warps, 8, 4, 2), (2, 1, 3, 0, 4, 5))
    return np.transpose(registers_of_d.view(element).reshape(-1, 2, 2, warps, 8, 4), (3, 1, 4, 0, 5, 2))


def _matrices(registers_of_d: Row, element: np.dtype[np.generic], warps: int) -> Row:
    """Return D as [warps, 16, N]."""
    matrices: Row = np.ascontiguousarray(_fragments(registers_of_d, element, warps)).reshape(warps, _M, -1)
    return matrices


def _integers(a: Row, b: Row, c: Row, *, saturating: bool) -> Row:
    """Return A times B plus C of integers, in float64: all sums are far below 2**53."""
    products = np.matmul(a.astype(np.float64), b.astype(np.float64).swapaxes(1, 2)).astype(np.int64)
    total = products + c
    limits = np.iinfo(np.int32)
    return np.asarray(np.clip(total, limits.min, limits.max) if saturating else total).astype(np.int32)


class _SharedOperand:
    """A or B in shared memory: ``rows`` rows of M or N. Each warp reads its own rows of A, and all of B."""

    def __init__(self, machine: Machine, i: Instruction, name: str, rows: int, *, mn_major: bool) -> None:
        self.machine = machine
        self.instruction = i
        self.name = name
        self.rows = rows
        self.mn_major = mn_major

    def read(self, warps: NDArray[np.int64], descriptors: NDArray[np.uint64]) -> Row:
        """Return the bytes that each warp reads through its descriptor: uint8[warps, rows, 32]; K is the last axis."""
        machine = self.machine
        region, geometry = machine.shared, machine.geometry
        index = self._chunks(warps, descriptors)
        index += (geometry.bases["shared"][warps * LANES] - region.start)[:, None, None] // CHUNK
        if region.written is not None:
            written = region.written[CHUNK][index].view(np.uint64) == _WRITTEN
            if not written.all():
                self._unwritten(warps, descriptors, written)
        if machine.swizzles.used:
            self._check_swizzles(warps, descriptors, index)
        read = region.words[CHUNK][index]
        if not self.mn_major:
            return read.view(np.uint8)
        return np.ascontiguousarray(read.view(np.uint16).swapaxes(1, 2)).view(np.uint8)

    def _check_swizzles(
        self, warps: NDArray[np.int64], descriptors: NDArray[np.uint64], index: NDArray[np.int64]
    ) -> None:
        """Report chunks that TMA has swizzled differently from the descriptor."""
        machine = self.machine
        for bits in np.unique(descriptors).tolist():
            mine, swizzle = np.flatnonzero(descriptors == bits), decode(bits).swizzle
            difference = machine.swizzles.differs(index[mine].reshape(-1), swizzle)
            if difference is None:
                continue
            at, load, other = difference
            warp = int(warps[mine[at // index[0].size]])
            offset = int(index[mine].reshape(-1)[at]) * CHUNK % machine.geometry.shared_stride + machine.shared.start
            problem = (
                f"it reads {CHUNK} bytes at {machine.describe('shared', offset)} as swizzled by {swizzle} B, which "
                f"{load.text!r} ({load.location}) has swizzled by {other} B"
            )
            machine.hazards.add("swizzle", self.instruction, self._message(warp, bits, problem), self.instruction)

    def offsets(self, warps: NDArray[np.int64], descriptors: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the bytes in its block's window at which each warp reads 16: int64[warps, n]."""
        return self._chunks(warps, descriptors).reshape(len(warps), -1) * CHUNK

    def _chunks(self, warps: NDArray[np.int64], descriptors: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the chunks that each warp reads: K-major [warps, rows, 2], MN-major [warps, 16, rows / 8]."""
        own = self.machine.geometry.warp_in_block[warps] % WARPS
        result: NDArray[np.int64] | None = None
        for bits in np.unique(descriptors).tolist():
            mine = np.flatnonzero(descriptors == bits)
            every = self._decoded(bits, int(warps[mine[0]]))
            if self.name == "B":
                each = np.broadcast_to(every, (len(mine), *every.shape))
            elif self.mn_major:
                each = every.reshape(len(every), WARPS, -1).swapaxes(0, 1)[own[mine]]
            else:
                each = every.reshape(WARPS, -1, every.shape[1])[own[mine]]
            if result is None:
                result = np.empty((len(warps), *each.shape[1:]), np.int64)
            result[mine] = each
        return result if result is not None else np.empty((0, 0, 0), np.int64)

    def _decoded(self, bits: int, warp: int) -> NDArray[np.int64]:
        """Return all chunks of the operand, checked to be inside the block's shared memory."""
        try:
            descriptor = decode(bits)
        except DescriptorError as problem:
            raise self._fault("matrix-descriptor", warp, bits, str(problem)) from problem
        offsets = chunks(descriptor, self.rows, mn_major=self.mn_major)
        region = self.machine.shared
        low, high = int(offsets.min()) * CHUNK, int(offsets.max() + 1) * CHUNK
        if low < region.start or high > region.end:
            at = low if low < region.start else high - CHUNK
            where = self.machine.describe("shared", at)
            raise self._fault("out-of-bounds", warp, bits, f"it reads {CHUNK} bytes at {where} ({descriptor})")
        return offsets

    def _fault(self, kind: str, warp: int, bits: int, problem: str) -> KernelFault:
        return fault(kind, self._message(warp, bits, problem), self.instruction)

    def _message(self, warp: int, bits: int, problem: str) -> str:
        name = self.machine.geometry.warp_name(warp)
        return (
            f"{self.machine.launch.kernel}: {name} describes {self.name} as {bits:#x} in {self.instruction.text!r}: "
            f"{problem}"
        )

    def _unwritten(self, warps: NDArray[np.int64], descriptors: NDArray[np.uint64], written: NDArray[np.bool_]) -> None:
        """Report the first chunk that was never stored to."""
        at = int(np.flatnonzero(~written.reshape(len(warps), -1).all(axis=1))[0])
        index = self._chunks(warps[at : at + 1], descriptors[at : at + 1])[0]
        chunk = int(index.reshape(-1)[np.flatnonzero(~written[at].reshape(-1, 2).all(axis=1))[0]])
        where = self.machine.describe("shared", chunk * CHUNK)
        problem = f"it reads {CHUNK} bytes at {where} that nothing was stored to"
        message = self._message(int(warps[at]), int(descriptors[at]), problem)
        self.machine.hazards.add(
            "uninitialised-shared", self.machine.program.index_of(self.instruction), message, self.instruction
        )


_WRITTEN = np.uint64(0x0101010101010101)
