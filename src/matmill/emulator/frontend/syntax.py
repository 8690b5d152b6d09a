"""The parts of a PTX module. The parser makes them; the translator reads them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeAlias

from matmill.emulator.frontend.names import readable
from matmill.errors import EmulationError

# Bytes of each PTX fundamental type; predicates have none, since no memory holds them.
TYPE_BYTES = {
    **dict.fromkeys(("b8", "u8", "s8", "e4m3", "e5m2", "e2m1x2"), 1),
    **dict.fromkeys(("b16", "u16", "s16", "f16", "bf16", "e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2", "ue8m0x2"), 2),
    **dict.fromkeys(("b32", "u32", "s32", "f32", "f16x2", "bf16x2", "tf32"), 4),
    **dict.fromkeys(("b64", "u64", "s64", "f64"), 8),
    "b128": 16,
    "pred": 0,
}
# The space of what a function's address is of.
CODE = "code"


@dataclass(frozen=True, slots=True, eq=False)
class Register:
    """A virtual register of one function; two registers are the same only if they are the same object."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal. ``form`` is "int", "f32" (0f…: ``value`` holds the bits), "f64" (0d…: bits) or "real"."""

    value: int | float
    form: str


@dataclass(frozen=True, slots=True)
class Special:
    """A special register such as ``%tid.x``."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """A named piece of memory. ``size`` is in bytes; 0 for an extern array whose size the launch gives.

    ``element`` is the type it was declared with, "f32" for instance; C++ structs are arrays of bytes. A function whose
    address is taken is a variable in the space ``CODE``, which no access reaches.
    ``relocations`` are (byte offset, variable, addend): addresses to be filled in once they are known.
    """

    name: str
    space: str
    size: int
    align: int
    initial: bytes = b""
    relocations: tuple[tuple[int, Variable, int], ...] = ()
    extern: bool = False
    element: str = ""

    @property
    def spelled(self) -> str:
        """Its name in C++."""
        return readable(self.name)


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable, plus a byte offset."""

    variable: Variable
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Name:
    """An identifier that is no variable: a label, a function, or a list of branch targets."""

    text: str


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]``; ``extra`` holds the other items in the brackets (tensor coordinates)."""

    base: Register | Symbol | Immediate
    offset: int = 0
    extra: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b, …}``."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """``(a, b, …)``: the argument lists of a call."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """``a|b``: a result and its companion predicate."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Negated:
    """``!p``."""

    register: Register


@dataclass(frozen=True, slots=True)
class Sink:
    """``_``: a result that is discarded."""


Operand: TypeAlias = "Register | Immediate | Special | Symbol | Name | Address | Vector | Group | Pair | Negated | Sink"


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """One instruction: ``@guard opcode.modifiers operands;``.

    ``line`` counts PTX lines from 1; ``where`` is "file:line" of the CUDA C++ source, or "" where the PTX does not say.
    ``within`` is the line of a header of CUDA's that was inlined there, or "". ``callers`` are the lines of the calls
    that inlined ``where``, the innermost first.
    """

    name: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None
    negated: bool
    line: int
    where: str
    text: str
    within: str = ""
    callers: tuple[str, ...] = ()

    @property
    def opcode(self) -> str:
        """The opcode with all its modifiers."""
        return ".".join((self.name, *self.modifiers))

    @property
    def location(self) -> str:
        """The source line if the PTX names one, else the PTX line."""
        return self.where or f"PTX line {self.line}"

    def unsupported(self, why: str) -> EmulationError:
        """Return the error for an instruction that the emulator cannot run, because of ``why``."""
        return EmulationError(
            argument=f"PTX line {self.line}" + (f" ({self.where})" if self.where else ""),
            got=f"{self.text!r} ({why})",
            wanted="an instruction that the emulator implements",
            fix="Write the kernel without it, or add it to the instruction tables in matmill/emulator.",
        )


@dataclass(frozen=True, slots=True)
class Label:
    """A position in a body that branches can name."""

    name: str


Statement: TypeAlias = "Instruction | Label"


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """An entry or a device function: parameters, memory it declares, and its statements in order.

    ``targets`` are the named lists of labels that ``brx.idx`` chooses from. ``limit`` is the most threads per block
    that the kernel was compiled for (``.maxntid``), 0 where it does not say. ``required`` is the one shape of a block
    that it takes (``.reqntid``) and ``cluster`` that of a cluster (``.reqnctapercluster``), if it says so.
    ``registers`` are those per thread that follow from its limits, 0 where none do.
    """

    name: str
    entry: bool
    params: tuple[Variable, ...]
    returns: tuple[Variable, ...]
    variables: tuple[Variable, ...]
    body: tuple[Statement, ...]
    targets: dict[str, tuple[str, ...]]
    limit: int = 0
    cluster: tuple[int, int, int] | None = None
    required: tuple[int, int, int] | None = None
    registers: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """A parsed PTX module."""

    entries: dict[str, Function]
    functions: dict[str, Function]
    variables: tuple[Variable, ...]
    target: str
    # All functions that it declares, also those without a body, as what their addresses are of.
    code: dict[str, Variable] = field(default_factory=dict)
    # Filled by the translator: one program per entry, so that a second launch need not translate again.
    programs: dict[str, object] = field(default_factory=dict)
    # By the names of variables: bytes of an element and extents, for those whose declaration somebody has read.
    shapes: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability that the module is for: (9, 0) of "sm_90a"."""
        match = re.match(r"sm_(\d+)", self.target)
        major, minor = divmod(int(match[1]), 10) if match is not None else (0, 0)
        return major, minor

    @property
    def shared(self) -> tuple[Variable, ...]:
        """Shared variables declared at module level (extern dynamic arrays above all)."""
        return tuple(v for v in self.variables if v.space == "shared")
