"""Registers of 128 bits as two of 64, in the only instructions that have them: moves, loads, stores and atomics."""

from __future__ import annotations

from dataclasses import replace

from matmill.emulator.frontend.syntax import Address, Instruction, PtxOperand, Register, Vector


class WideRegisters:
    """The halves of the 128-bit registers of a program, the lower one first."""

    def __init__(self) -> None:
        self._halves: dict[Register, Vector] = {}

    def split(self, s: Instruction) -> list[Instruction]:
        """Return the instructions on halves that replace one on ``.b128``, or the instruction itself."""
        if s.modifiers[-1:] != ("b128",):
            return [s]
        operands = tuple(o if isinstance(o, Address) else self._pair(s, o) for o in s.operands)
        if s.name == "mov":
            target, source = operands
            if not isinstance(target, Vector) or not isinstance(source, Vector):
                raise s.unsupported("its operands")
            # Either side may contain the other's registers in another order: NumPy copies both at once.
            return [replace(s, modifiers=("b64",), operands=operands)]
        if s.name in {"ld", "st"}:
            return [replace(s, modifiers=(*s.modifiers[:-1], "v2", "b64"), operands=operands)]
        return [replace(s, operands=operands)]

    def _pair(self, s: Instruction, operand: PtxOperand) -> PtxOperand:
        if isinstance(operand, Vector) and len(operand.items) == 2:
            return operand
        if not isinstance(operand, Register) or operand.type != "b128":
            raise s.unsupported("its operands")
        if operand not in self._halves:
            self._halves[operand] = Vector(tuple(Register(f"{operand.name}.{n}", "b64") for n in ("lo", "hi")))
        return self._halves[operand]
