"""Translates an entry: basic blocks, rows of registers, layout of its variables. Independent of any launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.frontend.frames import Stack
from matmill.emulator.frontend.inline import flatten
from matmill.emulator.frontend.names import element_at
from matmill.emulator.frontend.syntax import Function, Instruction, Module, Register, Special, Variable
from matmill.emulator.memory.address_space import SHARED_BASE
from matmill.emulator.program.basic_blocks import Block, blocks_of
from matmill.emulator.program.fma_batches import Batch, find_batches
from matmill.emulator.program.in_flight import Finding, find_misuses
from matmill.emulator.program.liveness import keep_registers, reached_by
from matmill.emulator.program.ordering import access_ordering, compared_loads, orders_memory
from matmill.emulator.program.origins import arrays_of_accesses
from matmill.emulator.program.polled import flag_accesses
from matmill.emulator.program.register_rows import RegisterLayout, file_of, lay_out
from matmill.emulator.program.special_registers import reserved_bytes
from matmill.emulator.program.waits import Barrier
from matmill.emulator.report.counters import CLASSES
from matmill.errors import ArgumentError

RowIndex: TypeAlias = "NDArray[np.int64]"


@dataclass
class EmulatedProgram:
    """A translated entry.

    ``target`` is the PTX's GPU, such as "sm_90a". ``offsets`` are byte offsets of shared variables (in the block's
    window) and of local ones (in a thread's memory); extern shared arrays begin at ``dynamic_start``. Before the shared
    variables are ``reserved_shared`` bytes of the system (0 if no code reads them). ``arrays`` are the variables that
    memory instructions are meant to access, where known. ``tallies`` count, per block, unguarded instructions by class,
    and their ``matrix_flops`` per lane. ``misuses`` are registers of wgmma that are used too early or without a fence.
    ``shapes`` are the module's. ``stack`` is for calls that are not inlined. ``compared`` are loads whose value a
    compare-and-swap compares. ``has_constant_loads`` tells of loads through the read-only cache, ``has_calls`` of
    calls that are not inlined. ``sees_convergence`` says that the program reads which lanes of a warp run together, and
    has no instruction for which they must. ``flags`` are accesses of flags in shared memory, and
    ``reached`` the registers to which values may come that nothing has set (None: any).
    """

    entry: Function
    target: str
    blocks: list[Block]
    batches: dict[int, list[Batch]]
    layout: RegisterLayout
    offsets: dict[Variable, int]
    arrays: dict[Instruction, Variable]
    reserved_shared: int
    static_shared: int
    dynamic_start: int
    local_bytes: int
    parameters: dict[Variable, int]
    parameter_bytes: int
    tallies: list[list[tuple[str, int]]]
    instruction_counts: list[int]
    instructions: list[Instruction]
    numbers: dict[Instruction, int]
    has_atomics: bool
    has_partial_barriers: bool
    has_releases: bool
    misuses: list[Finding]
    has_async_units: bool
    shapes: dict[str, tuple[int, tuple[int, ...]]]
    stack: Stack
    compared: frozenset[Instruction]
    has_constant_loads: bool
    has_calls: bool
    sees_convergence: bool
    flags: frozenset[Instruction]
    reached: set[Register] | None

    @property
    def has_unset_values(self) -> bool:
        """True if a register may be read unset, or local memory; calls save registers that nobody follows."""
        return not self.has_calls and bool(self.layout.unset or self.local_bytes)

    def shared_end(self, dynamic: int) -> int:
        """Return the end of a block's shared window, with ``dynamic`` bytes of dynamic shared memory."""
        return self.dynamic_start + dynamic if dynamic else SHARED_BASE + self.reserved_shared + self.static_shared

    def bounds(self, variable: Variable, dynamic: int) -> tuple[int, int]:
        """Return where a shared or local variable begins and ends in its state space."""
        start = self.offsets[variable]
        return start, self.shared_end(dynamic) if variable.extern else start + variable.size

    def describe(self, space: str, address: int, dynamic: int) -> str:
        """Describe an address in shared, local or parameter memory for messages."""
        end = {"shared": self.shared_end(dynamic), "local": self.local_bytes, "param": self.parameter_bytes}[space]
        for variable, offset in (self.parameters if space == "param" else self.offsets).items():
            if variable.space == space and offset <= address < min(offset + variable.size or end, end):
                return f"{self.element(variable, address - offset)} in {space} memory"
        base = SHARED_BASE if space == "shared" else 0
        return f"byte {address - base} of {end - base} B of {space} memory{self._beside(space, address, end)}"

    def shared_array(self, address: int, dynamic: int) -> tuple[str, int, int, tuple[int, ...]]:
        """Return the array at an address of shared memory: its name, first byte, bytes of an element, and extents."""
        for variable in self.offsets:
            if variable.space == "shared":
                begin, end = self.bounds(variable, dynamic)
                if begin <= address < end:
                    return variable.spelled, begin - SHARED_BASE, *self.shapes.get(variable.name, (0, ()))
        return "", 0, 0, ()

    def _beside(self, space: str, address: int, end: int) -> str:
        """Describe an address by the array before it: the dynamic one that it is in, or one that ends there."""
        before = [(offset, v) for v, offset in self.offsets.items() if v.space == space and offset <= address]
        if not before:
            return ""
        offset, variable = max(before, key=lambda each: each[0])
        size = variable.size or end - offset
        if address < offset + size:
            return f", {variable.spelled} + {address - offset} B"
        return f", {address - offset - size} B behind the end of {variable.spelled} ({size} B)"

    def element(self, variable: Variable, offset: int) -> str:
        """Return the element of a variable at a byte offset if its extents are known, else the offset itself."""
        itemsize, shape = self.shapes.get(variable.name, (0, ()))
        if itemsize:
            return element_at(variable.spelled, offset, itemsize, shape)
        return f"{variable.spelled} + {offset} B"

    def touched_rows(self, block: int) -> tuple[dict[str, RowIndex], dict[str, RowIndex]]:
        """Return the rows of each register file that a block needs, and those that it changes."""
        needs: dict[str, set[int]] = {}
        changes: dict[str, set[int]] = {}
        for action in self.blocks[block].actions:
            for register in action.read:
                needs.setdefault(file_of(register), set()).add(self.layout.rows[register])
            for register in action.written:
                changes.setdefault(file_of(register), set()).add(self.layout.rows[register])
            for value in action.sources:
                if isinstance(value.operand, Special):
                    needs.setdefault("32", set()).add(self.layout.specials[value.operand.name])

        def arrays(sets: dict[str, set[int]]) -> dict[str, RowIndex]:
            return {name: np.array(sorted(rows), np.int64) for name, rows in sets.items()}

        return arrays(needs), arrays(changes)

    def index_of(self, instruction: Instruction) -> int:
        """Return the number of an instruction of this program."""
        return self.numbers[instruction]


def translate(module: Module, name: str) -> EmulatedProgram:
    """Return the program of the entry ``name``, cached in the module for later launches.

    Raises ``ArgumentError`` for an unknown entry and ``EmulationError`` for instructions that are not emulated.
    """
    known = module.programs.get(name)
    if isinstance(known, EmulatedProgram):
        return known
    if name not in module.entries:
        raise ArgumentError(
            argument="entry",
            got=repr(name),
            wanted="one of " + (", ".join(module.entries) or "no entries at all"),
            fix='Declare the kernel extern "C" so that its name is not mangled.',
        )
    program = _translate(module, module.entries[name])
    module.programs[name] = program
    return program


def _translate(module: Module, entry: Function) -> EmulatedProgram:
    flat = flatten(module, entry)
    blocks = blocks_of(flat)
    if any(block.end.kind == "call" for block in blocks):
        keep_registers(blocks, flat.stack.register)
    batches = {b.number: of_block for b in blocks if (of_block := find_batches(b.actions))}
    instructions = _instructions(blocks)
    layout = lay_out(blocks, batches)
    shared = list(dict.fromkeys(v for v in (*module.variables, *flat.variables) if v.space == "shared"))
    offsets: dict[Variable, int] = {}
    reserved = reserved_bytes(layout.specials)
    static = _assign_offsets([v for v in shared if not v.extern], offsets, SHARED_BASE + reserved)
    # Dynamic shared memory follows the static part; the hardware aligns it to 16 bytes, kernels may need more.
    align = max([16, *(v.align for v in shared if v.extern)])
    dynamic = -(-static // align) * align
    offsets.update({v: dynamic for v in shared if v.extern})
    local = _assign_offsets([v for v in flat.variables if v.space in {"local", "param"}], offsets, 0)
    parameters: dict[Variable, int] = {}
    parameter_bytes = _assign_offsets(list(entry.params), parameters, 0)
    return EmulatedProgram(
        entry=entry,
        target=module.target,
        blocks=blocks,
        batches=batches,
        layout=layout,
        offsets=offsets,
        # An access beyond the only array is outside its state space.
        arrays=arrays_of_accesses(blocks) if len(offsets) > 1 or local % 16 else {},
        reserved_shared=reserved,
        static_shared=static - SHARED_BASE - reserved,
        dynamic_start=dynamic,
        local_bytes=-(-local // 16) * 16,
        parameters=parameters,
        parameter_bytes=parameter_bytes,
        tallies=[_tally(b) for b in blocks],
        instruction_counts=[_count(b) for b in blocks],
        instructions=instructions,
        numbers={i: n for n, i in enumerate(instructions)},
        has_atomics=any(_may_depend_on_order(i) for i in instructions),
        has_partial_barriers=any(
            isinstance(b.end.detail, Barrier) and (b.end.detail.threads is not None or b.end.detail.mode == "arrive")
            for b in blocks
        ),
        has_releases=any(orders_memory(i) for i in instructions),
        misuses=find_misuses(blocks),
        has_async_units=any(_is_asynchronous(i) for i in instructions),
        shapes=module.shapes,
        stack=flat.stack,
        compared=compared_loads(instructions),
        has_calls=any(block.end.kind == "call" for block in blocks),
        reached=None if local else reached_by(blocks, layout.unset),
        flags=flag_accesses(blocks, arrays_of_accesses(blocks)) if _has_volatile(instructions) else frozenset(),
        sees_convergence=any(i.name == "activemask" for i in instructions)
        and not any("aligned" in i.modifiers and i.name not in {"bar", "barrier"} for i in instructions),
        has_constant_loads=any(i.name == "ld" and "nc" in i.modifiers for i in instructions),
    )


def _has_volatile(instructions: list[Instruction]) -> bool:
    return any("volatile" in i.modifiers and "shared" in i.modifiers for i in instructions)


def _may_depend_on_order(i: Instruction) -> bool:
    """Tell whether an instruction may depend on the order of blocks: strong accesses, and malloc."""
    return i.name == "malloc" or (i.name in {"ld", "st", "atom", "red"} and access_ordering(i) is not None)


def _is_asynchronous(i: Instruction) -> bool:
    """Tell whether an instruction uses mbarriers, clusters or asynchronous units."""
    if i.name in {"mbarrier", "wgmma", "mapa"}:
        return True
    return i.name in {"cp", "barrier"} and not {"bulk", "cluster", "mbarrier"}.isdisjoint(i.modifiers)


def _assign_offsets(variables: list[Variable], offsets: dict[Variable, int], start: int) -> int:
    """Assign consecutive offsets to variables; return the end."""
    for variable in variables:
        start = -(-start // variable.align) * variable.align
        offsets[variable] = start
        start += variable.size
    return start


def _instructions(blocks: list[Block]) -> list[Instruction]:
    result: dict[Instruction, None] = {}
    for block in blocks:
        for action in block.actions:
            result[action.instruction] = None
        if block.end.instruction is not None:
            result[block.end.instruction] = None
    return list(result)


def _tally(block: Block) -> list[tuple[str, int]]:
    counts = dict.fromkeys((*CLASSES, "matrix_flops"), 0)
    for action in block.actions:
        if action.instruction.guard is None:
            counts[action.tally] += 1
            counts["matrix_flops"] += action.flops
    if block.end.instruction is not None and block.end.guard is None and _executes_at_end(block):
        counts["control"] += 1
    return [(name, count) for name, count in counts.items() if count]


def _executes_at_end(block: Block) -> bool:
    """Tell whether the end of a block is an instruction, not a wait for an instruction of the next block."""
    return block.end.kind != "wait" or block.end.action is not None


def _count(block: Block) -> int:
    return len(block.actions) + (block.end.instruction is not None and _executes_at_end(block))
