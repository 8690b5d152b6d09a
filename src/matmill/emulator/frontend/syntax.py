"""The parts of a PTX module. The parser creates them; the translator reads them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeAlias

from matmill.emulator.frontend.names import readable
from matmill.errors import EmulationError

# Bytes of each PTX fundamental type; predicates have none, because they are never in memory.
TYPE_BYTES = {
    **dict.fromkeys(("b8", "u8", "s8", "e4m3", "e5m2", "e2m1x2"), 1),
    **dict.fromkeys(("b16", "u16", "s16", "f16", "bf16", "e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2", "ue8m0x2"), 2),
    **dict.fromkeys(("b32", "u32", "s32", "f32", "f16x2", "bf16x2", "tf32"), 4),
    **dict.fromkeys(("b64", "u64", "s64", "f64"), 8),
    "b128": 16,
    "pred": 0,
}
# The space of variables that stand for functions.
CODE = "code"


@dataclass(frozen=True, slots=True, eq=False)
class Register:
    """A virtual register of one function; two registers are the same only if they are the same object."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal. ``form`` is "int", "f32" (0f…: ``value`` has the bits), "f64" (0d…: bits) or "real"."""

    value: int | float
    form: str


@dataclass(frozen=True, slots=True)
class Special:
    """A special register such as ``%tid.x``."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """A named piece of memory. ``size`` is in bytes; 0 for an extern array whose size the launch determines.

    ``element`` is the type it was declared with, "f32" for instance; C++ structs are arrays of bytes. A function whose
    address is taken is a variable in the space ``CODE``, which no access reaches. ``relocations`` are (byte offset,
    variable, addend): addresses to be filled in later.
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
        """Its name in C++; the compiler puts all local arrays of a function into one variable without a name."""
        if self.name.rpartition(":")[2].startswith("__local_depot"):
            return "the local arrays"
        return readable(self.name)


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable, plus a byte offset."""

    variable: Variable
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Name:
    """An identifier that is not a variable: a label, a function, or a list of branch targets."""

    text: str


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]``; ``extra`` has the other items in the brackets (tensor coordinates)."""

    base: Register | Symbol | Immediate
    offset: int = 0
    extra: tuple[PtxOperand, ...] = ()


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b, …}``."""

    items: tuple[PtxOperand, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """``(a, b, …)``: the argument lists of a call."""

    items: tuple[PtxOperand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """``a|b``: a result and its companion predicate."""

    first: PtxOperand
    second: PtxOperand


@dataclass(frozen=True, slots=True)
class Negated:
    """``!p``."""

    register: Register


@dataclass(frozen=True, slots=True)
class Sink:
    """``_``: a result that is discarded."""


PtxOperand: TypeAlias = (
    "Register | Immediate | Special | Symbol | Name | Address | Vector | Group | Pair | Negated | Sink"
)


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """One instruction: ``@guard opcode.modifiers operands;``.

    ``line`` counts PTX lines from 1; ``where`` is "file:line" of the CUDA C++ source, or "" if the PTX has none.
    ``within`` is the line of a CUDA header that was inlined there, or "". ``callers`` are the lines of the calls that
    inline ``where``, the innermost first. ``moved`` says that the compiler merged or moved it, so that these lines are
    of its neighbours.
    """

    name: str
    modifiers: tuple[str, ...]
    operands: tuple[PtxOperand, ...]
    guard: Register | None
    negated: bool
    line: int
    where: str
    text: str
    within: str = ""
    callers: tuple[str, ...] = ()
    moved: bool = False

    @property
    def lines(self) -> tuple[str, ...]:
        """Its source line and those of the calls that inline it, innermost first; empty if they are not known."""
        return (self.where, *self.callers) if self.where and not self.moved else ()

    @property
    def opcode(self) -> str:
        """The opcode with all its modifiers."""
        return ".".join((self.name, *self.modifiers))

    @property
    def location(self) -> str:
        """The source line if the PTX has one, else the PTX line."""
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
    that the kernel was compiled for (``.maxntid``), or 0. ``required`` is the only shape of a block that it takes
    (``.reqntid``) and ``cluster`` that of a cluster (``.reqnctapercluster``), if there is one. ``registers`` is the
    number per thread that follows from its limits, or 0.
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
    # Functions declared so far, each as the variable to which its address refers.
    code: dict[str, Variable] = field(default_factory=dict)
    # Filled by the translator: one program per entry, so that later launches need not translate again.
    programs: dict[str, object] = field(default_factory=dict)
    # By variable name: bytes of an element and extents, if the declaration was read.
    shapes: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability of the target: (9, 0) for "sm_90a"."""
        match = re.match(r"sm_(\d+)", self.target)
        major, minor = divmod(int(match[1]), 10) if match is not None else (0, 0)
        return major, minor

    @property
    def shared(self) -> tuple[Variable, ...]:
        """Shared variables at module level (mainly extern dynamic arrays)."""
        return tuple(v for v in self.variables if v.space == "shared")
