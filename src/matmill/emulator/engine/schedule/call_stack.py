"""Calls that are not inlined: the return address of each lane, and its callers' saved registers.

A lane's part is a stack of 64-bit words: for each call that it is in, the saved registers and the block of code after
the call. Lanes that call different functions diverge, and converge after the call.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.engine.bind.interpreter import Interpreter
from matmill.emulator.engine.schedule.lane_polls import columns_of
from matmill.emulator.engine.schedule.thread_names import end_instruction
from matmill.emulator.engine.state.program_counters import Flags, Ints
from matmill.emulator.frontend.names import readable
from matmill.emulator.frontend.syntax import Register
from matmill.emulator.program.basic_blocks import CallSite, Terminator
from matmill.emulator.program.register_rows import file_of
from matmill.emulator.program.table import Value
from matmill.emulator.report.hazards import fault


class CallStack:
    """The calls in progress of the lanes of one machine."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self._machine = interpreter.machine
        self._stack = interpreter.program.stack
        self._sites = {b.end.next: b.end.detail for b in interpreter.program.blocks if b.end.kind == "call"}
        columns = interpreter.geometry.columns
        self._height = np.zeros(columns, np.int64)
        self._words = np.zeros((0, columns), np.uint64)

    def begin(self) -> None:
        """Start a batch, without calls."""
        self._height[...] = 0

    def enter(self, end: Terminator, warps: Ints, lanes: Flags) -> Ints:
        """Push a call of some ``lanes`` (bool[n, 32]) of ``warps``; return the next block of code of each, in order.

        Raises ``KernelFault`` for pointers to none of the functions, and at the end of the stack.
        """
        site: CallSite = end.detail
        columns = columns_of(warps, lanes)
        if end.selector is None:
            functions = np.full(len(columns), next(iter(site.functions)))
        else:
            functions = self._interpreter.operand_row(Value(end.selector, "u8"), warps)[lanes].astype(np.int64)
        following = np.empty(len(columns), np.int64)
        frames = self._row(self._stack.register)[columns].astype(np.int64)
        last = self._machine.address_of(self._stack.variable) + self._stack.variable.size
        for address in np.unique(functions).tolist():
            here = functions == address
            if address not in site.functions:
                raise self._fault("call-target", end, int(columns[here][0]), self._wrong(address))
            block, size = site.functions[address]
            over = here & (frames + size > last)
            if over.any():
                problem = f"which needs more than is left of its {self._stack.variable.size} bytes of stack"
                raise self._fault("stack-overflow", end, int(columns[over][0]), problem)
            following[here] = block
        self._push(end.next, site, columns)
        return following

    def leave(self, warps: Ints, lanes: Flags) -> Ints:
        """Pop a call of some ``lanes`` (bool[n, 32]) of ``warps``; return the next block of code of each, in order."""
        columns = columns_of(warps, lanes)
        following = self._words[self._height[columns] - 1, columns].astype(np.int64)
        for block in np.unique(following).tolist():
            self._pop(self._sites[block], columns[following == block])
        return following

    def _row(self, register: Register) -> NDArray[np.generic]:
        row: NDArray[np.generic] = self._machine.files[file_of(register)][self._machine.program.layout.rows[register]]
        return row

    def _push(self, following: int, site: CallSite, columns: Ints) -> None:
        height = self._height[columns]
        self._height[columns] += len(site.kept) + 1
        highest = int(self._height.max())
        if highest > len(self._words):
            more = np.zeros((highest, self._words.shape[1]), np.uint64)
            self._words = np.concatenate((self._words, more))
        for register in site.kept:
            self._words[height, columns] = self._row(register)[columns]
            height = height + 1
        self._words[height, columns] = following

    def _pop(self, site: CallSite, columns: Ints) -> None:
        height = self._height[columns] - len(site.kept) - 1
        self._height[columns] = height
        for register in site.kept:
            self._row(register)[columns] = self._words[height, columns]
            height = height + 1

    def _wrong(self, address: int) -> str:
        """Return why a pointer cannot be called."""
        names = [name for name, at in self._stack.addresses.items() if at == address]
        if names:
            return f"whose pointer is to {readable(names[0])}, which takes other arguments or has no body"
        return f"whose pointer is {'null' if not address else f'{address:#x}, where no function is'}"

    def _fault(self, kind: str, end: Terminator, column: int, problem: str) -> Exception:
        machine, instruction = self._machine, end_instruction(end)
        thread = machine.geometry.thread_name(column)
        message = f"{machine.launch.kernel}: {thread} executes {instruction.text!r}, {problem}"
        return fault(kind, message, instruction)
