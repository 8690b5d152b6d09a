"""The instruction table: the operation of each PTX instruction on rows of lanes.

A *row* is one register over many lanes. A family of instructions is a file that decorates its decoders with
:func:`instructions`; a decoder turns an :class:`Instruction` into an :class:`Action`, or raises.

An action's ``call`` takes the source rows and then the result rows. Sources may be NumPy scalars (immediates). Rows
have the NumPy types that the action names (``kind``): "u4", "i4", "f4", …, "p" for predicates, and "f2x2" or "u2x2" for
registers that hold two halves, whose rows are then twice as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from matmill.emulator.frontend.syntax import TYPE_BYTES, Instruction, Negated, PtxOperand, Register, Vector

Call: TypeAlias = "Callable[..., object]"

KIND_OF_TYPE = {
    "b8": "u1", "u8": "u1", "s8": "i1", "b16": "u2", "u16": "u2", "s16": "i2", "f16": "f2", "bf16": "u2",
    "b32": "u4", "u32": "u4", "s32": "i4", "f32": "f4", "f16x2": "f2x2", "bf16x2": "u2x2", "tf32": "u4",
    "b64": "u8", "u64": "u8", "s64": "i8", "f64": "f8", "pred": "p",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Value:
    """An operand, viewed as rows of ``kind``."""

    operand: PtxOperand
    kind: str


@dataclass(frozen=True)
class Action:
    """The operation of one instruction.

    ``call`` is for instructions that only compute: ``call(*sources, *results)`` on whole rows, inactive lanes too.
    ``bind`` is for instructions that access memory or other lanes: it takes a ``BoundBlock`` of the engine and returns
    such a call for the lanes of that block. ``in_place`` says that a result may share its row with a source that dies
    here. ``ends_block`` is for instructions at which a warp may have to wait, as ``detail`` describes. ``uses`` and
    ``writes`` are additional registers that the bound call reads and writes. A ``collective`` instruction is for whole
    warps: a guard becomes a branch around it. ``flight`` is the operation that it starts or ends and that uses
    registers meanwhile (``in_flight``). ``group`` names computations that the translator may batch. ``flops`` are the
    additions and multiplications of a matrix instruction, divided by the 32 lanes that share them.
    """

    instruction: Instruction
    sources: tuple[Value, ...] = ()
    results: tuple[Value, ...] = ()
    call: Call | None = None
    bind: Callable[[Any], Call] | None = None
    tally: str = "other"
    in_place: bool = False
    ends_block: bool = False
    masks_itself: bool = False
    uses: tuple[Register, ...] = ()
    writes: tuple[Register, ...] = ()
    collective: bool = False
    flight: Any = None
    group: str = ""
    detail: Any = None
    flops: int = 0

    @cached_property
    def read(self) -> tuple[Register, ...]:
        """The registers that it reads; results under a guard count, since their old value may remain."""
        names = registers(v.operand for v in self.sources)
        names += [v.operand.register for v in self.sources if isinstance(v.operand, Negated)]
        names += self.uses
        if self.instruction.guard is not None:
            names.append(self.instruction.guard)
            names += registers(v.operand for v in self.results)
        return tuple(names)

    @cached_property
    def written(self) -> tuple[Register, ...]:
        """The registers that it writes."""
        return (*registers(v.operand for v in self.results), *self.writes)


Decoder: TypeAlias = "Callable[[Instruction], Action]"
TABLE: dict[str, Decoder] = {}
_WIDEST = 8
# The numbers of operands of instructions whose decoder takes any number.
_OPERANDS: dict[str, tuple[int, ...]] = {}


def instructions(*names: str, operands: tuple[int, ...] = ()) -> Callable[[Decoder], Decoder]:
    """Register a decoder for opcodes whose first part is one of ``names``, with one of these counts of operands.

    Without ``operands`` the decoder checks their number.
    """

    def register(decoder: Decoder) -> Decoder:
        for name in names:
            if name in TABLE:
                message = f"two decoders for {name}"
                raise ValueError(message)
            TABLE[name] = decoder
            if operands:
                _OPERANDS[name] = operands
        return decoder

    return register


def decode(instruction: Instruction) -> Action:
    """Return the action of an instruction. Raises ``EmulationError``, naming the instruction, if there is none."""
    decoder = TABLE.get(instruction.name)
    if decoder is None:
        raise instruction.unsupported("unknown opcode")
    count = len(instruction.operands)
    if count not in _OPERANDS.get(instruction.name, (count,)):
        raise instruction.unsupported("the number of its operands")
    try:
        return decoder(instruction)
    except (ValueError, IndexError, KeyError, TypeError) as problem:
        # Decoders unpack operands and look up types without checking each; mismatches are reported here.
        raise instruction.unsupported("operands or modifiers that do not fit it") from problem


class Modifiers:
    """The modifiers of one instruction, taken one after another; :meth:`done` checks that none remains."""

    def __init__(self, instruction: Instruction, *ignored: str) -> None:
        self.instruction = instruction
        self.left = [m for m in instruction.modifiers if m not in ignored]

    def flag(self, name: str) -> bool:
        """Take ``name`` if it is there, and return whether it was."""
        if name in self.left:
            self.left.remove(name)
            return True
        return False

    def pick(self, names: Iterable[str], default: str = "") -> str:
        """Take the first modifier that is one of ``names``."""
        for modifier in self.left:
            if modifier in names:
                self.left.remove(modifier)
                return modifier
        return default

    def need(self, *names: str) -> str:
        """Take the first modifier that is one of ``names``, which must be there."""
        choice = self.pick(names)
        if not choice:
            raise self.instruction.unsupported("none of ." + ", .".join(names))
        return choice

    def type(self, *allowed: str) -> str:
        """Take the first modifier that is a type (and one of ``allowed``, if there are any)."""
        for modifier in self.left:
            if modifier in TYPE_BYTES:
                if allowed and modifier not in allowed:
                    break
                self.left.remove(modifier)
                return modifier
        raise self.instruction.unsupported("its type")

    def done(self) -> None:
        """Raise for modifiers that were not taken."""
        if self.left:
            raise self.instruction.unsupported("modifier ." + ", .".join(self.left))


def computed(
    instruction: Instruction,
    call: Call,
    sources: Iterable[tuple[PtxOperand, str]],
    results: Iterable[tuple[PtxOperand, str]],
    *,
    tally: str = "integer",
    in_place: bool = False,
    group: str = "",
) -> Action:
    """Return an action that only computes; operands are given with their kinds."""
    return Action(
        instruction,
        tuple(Value(o, k) for o, k in sources),
        tuple(Value(o, k) for o, k in results),
        call=call,
        tally=tally,
        in_place=in_place,
        group=group,
    )


def register_kind(operand: PtxOperand, kind: str) -> str:
    """Return ``kind`` widened to the register's width: loads and conversions may fill a wider register."""
    size = TYPE_BYTES[operand.type] if isinstance(operand, Register) else 0
    if int(kind[1]) < size <= _WIDEST:
        return f"{kind[0] if kind[0] in 'iu' else 'u'}{size}"
    return kind


def scalars(operand: PtxOperand) -> tuple[PtxOperand, ...]:
    """Return the items of a vector operand, or the operand itself."""
    return operand.items if isinstance(operand, Vector) else (operand,)


def registers(operands: Iterable[PtxOperand]) -> list[Register]:
    """Return the plain registers among operands."""
    return [o for o in operands if isinstance(o, Register)]
