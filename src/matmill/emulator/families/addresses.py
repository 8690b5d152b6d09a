"""The part that instructions on memory share: their state spaces, cache hints and address operands."""

from __future__ import annotations

from matmill.emulator.frontend.syntax import TYPE_BYTES, Address, Immediate, Instruction, PtxOperand, Register, Symbol
from matmill.emulator.program.table import Modifiers, registers, scalars

SPACES = (
    "global",
    "shared",
    "local",
    "param",
    "const",
    "shared::cta",
    "shared::cluster",
    "param::entry",
    "param::func",
)
HINTS = (
    "weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "mmio", "cta", "gpu", "sys", "cluster", "nc",
    "ca", "cg", "cs", "lu", "cv", "wb", "wt", "unified", "noftz",
)  # fmt: skip


def memory_modifiers(i: Instruction) -> tuple[Modifiers, str]:
    """Return the modifiers without hints, and the state space ("generic" by default)."""
    hints = [m for m in i.modifiers if m.startswith(("L1::", "L2::", "level::"))]
    m = Modifiers(i, *HINTS, *hints)
    return m, m.pick(SPACES, "generic").split("::", maxsplit=1)[0]


def address_of(i: Instruction, operand: PtxOperand) -> Address:
    """Return the operand as an address."""
    if not isinstance(operand, Address) or operand.extra:
        raise i.unsupported("its address")
    if isinstance(operand.base, Register) and TYPE_BYTES[operand.base.type] not in {4, 8}:
        raise i.unsupported("an address of neither 32 nor 64 bits")
    return operand


def handle_of(i: Instruction, operand: PtxOperand) -> Address:
    """Return the operand ``[handle, {coordinates}]`` of an instruction on textures or surfaces."""
    if not isinstance(operand, Address) or operand.offset:
        raise i.unsupported("its operand")
    if isinstance(operand.base, Symbol):
        raise i.unsupported("a texture or surface reference: CUDA 12 knows objects alone")
    return operand


def coordinates_of(i: Instruction, address: Address, geometry: str, count: int) -> list[PtxOperand]:
    """Return the layer, 0 for a geometry ("2d", "a2d") without one, and the ``count`` coordinates after it."""
    if len(address.extra) != 1:
        raise i.unsupported("a sampler of its own")
    rows, layers = scalars(address.extra[0]), int(geometry.startswith("a"))
    # Three elements are padded to four.
    if len(rows) - count - layers not in ((0, 1) if count + layers == 3 else (0,)):
        raise i.unsupported("the number of its coordinates")
    return [*(rows[:layers] or [Immediate(0, "int")]), *rows[layers : layers + count]]


def base_registers(*addresses: Address) -> tuple[Register, ...]:
    """Return the registers in addresses."""
    return tuple(registers(a.base for a in addresses))
