"""Values that nothing has set: registers that no instruction on the way has written, and local memory without a store.

The compiler leaves such a register undefined only where the program uses a variable before it sets it, or on ways whose
value the program never uses. So reads alone are no mistake: marks follow the values through registers and memory, and
an instruction on which something depends is reported (``unset_flow``).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Mask
from matmill.emulator.engine.lanes import Lanes
from matmill.emulator.frontend.syntax import Instruction, Negated, PtxOperand, Register
from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.register_rows import file_of
from matmill.emulator.program.translate import EmulatedProgram
from matmill.emulator.report.hazards import HazardLog

#: For each lane the bits that nothing has set, and the number of the origin of such a value.
Marks = tuple[NDArray[np.uint64], NDArray[np.uint16]]
#: A register file and a row in it.
Slot = tuple[str, int]
#: What written memory has for a byte of a value that nothing has set.
UNSET = 2
ALL = np.uint64(2**64 - 1)


class UnsetValues:
    """The marks of one batch's registers; ``live`` are the rows that have any, with their warps as bits.

    ``stores`` counts stores of marked values to memory, whose bytes are then marked there.
    """

    def __init__(self, program: EmulatedProgram, columns: int, kernel: str, hazards: HazardLog) -> None:
        self._layout, self._reached = program.layout, program.reached
        self.live: dict[Slot, int] = {}
        self.stores = 0
        self._kernel, self._hazards, self._columns = kernel, hazards, columns
        self._rows: dict[Slot, Marks] = {}
        self._nothing: Marks = np.zeros(columns, np.uint64), np.zeros(columns, np.uint16)
        self._numbers: dict[object, int] = {}
        # The kind of a finding and the text for each origin.
        self._origins: list[tuple[str, str]] = [("", "")]
        self._first = {
            (file_of(register), program.layout.rows[register]): self.origin(
                register, "uninitialised-register", f"a variable that was given no value (register {register.name})"
            )
            for register in program.layout.unset
        }

    def slot(self, operand: PtxOperand) -> Slot | None:
        """Return the row of an operand that may have marks, or None."""
        register = operand.register if isinstance(operand, Negated) else operand
        if not isinstance(register, Register) or (self._reached is not None and register not in self._reached):
            return None
        return file_of(register), self._layout.rows[register]

    def begin(self) -> None:
        """Start a batch: only the registers that the entry reads unset are marked."""
        self.live.clear()
        self._rows.clear()
        for slot, origin in self._first.items():
            self._rows[slot] = np.full(self._columns, ALL), np.full(self._columns, origin, np.uint16)
            self.live[slot] = (1 << self._columns // LANES) - 1

    def marked(self, slots: Iterable[Slot], lanes: Lanes) -> bool:
        """Tell whether any of some registers has marks in the warps of some lanes."""
        live = self.live
        if live.keys().isdisjoint(slots):
            return False
        warps = sum(1 << warp for warp in lanes.warps.tolist())
        return any(live.get(slot, 0) & warps for slot in slots)

    def of(self, slot: Slot | None, columns: NDArray[np.int64]) -> Marks:
        """Return the marks of some threads' register; None stands for an operand that is none."""
        if slot is None or slot not in self.live:
            return self._nothing[0][: len(columns)], self._nothing[1][: len(columns)]
        bits, origins = self._rows[slot]
        return bits[columns], origins[columns]

    def set(self, slot: Slot, columns: NDArray[np.int64], marks: Marks) -> None:
        """Replace the marks of some threads' register."""
        if slot not in self.live and not marks[0].any():
            return
        if slot not in self._rows:
            self._rows[slot] = np.zeros(self._columns, np.uint64), np.zeros(self._columns, np.uint16)
        bits, origins = self._rows[slot]
        bits[columns], origins[columns] = marks
        warps = int.from_bytes(np.packbits(bits.reshape(-1, LANES).any(axis=1), bitorder="little").tobytes(), "little")
        if warps:
            self.live[slot] = warps
        else:
            self.live.pop(slot, None)

    def origin(self, key: object, kind: str, text: str) -> int:
        """Return the number of an origin, with the kind of its findings and the text that describes it."""
        if key not in self._numbers:
            self._numbers[key] = len(self._origins)
            self._origins.append((kind, text))
        return self._numbers[key]

    def report(self, lanes: Lanes, marks: Marks, active: Mask, did: str, i: Instruction) -> None:
        """Report the first of the ``active`` lanes that has marked bits in a value that an instruction uses."""
        used = np.flatnonzero(active & (marks[0] != 0))
        if len(used):
            kind, origin = self._origins[int(marks[1][used[0]])]
            thread = lanes.thread_name(int(used[0]))
            message = f"{self._kernel}: {thread} {did} what nothing has set: {origin}, in {i.text!r}"
            self._hazards.add(kind, i, message, i)
