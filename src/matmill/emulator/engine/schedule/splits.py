"""The branch at which the lanes of a warp diverged, for barriers that some of them never reach."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from matmill.emulator.engine.state.program_counters import Flags, Ints
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.memory.banks import LANES


@dataclass
class _Split:
    """The latest divergence of each warp at one branch: time (0 for never), lanes that took it, other lanes."""

    instruction: Instruction
    times: Ints
    taken: Flags
    others: Flags


class Splits:
    """The latest divergences of a batch's warps, by branch."""

    def __init__(self, warps: int) -> None:
        self._warps = warps
        self._time = 0
        self._splits: dict[Instruction, _Split] = {}

    def begin(self) -> None:
        """Start a batch, whose warps are converged."""
        self._splits.clear()

    def note(self, instruction: Instruction | None, warps: Ints, taken: Flags, others: Flags) -> None:
        """Record the lanes (bool[n, 32] each) of warps that a branch sends either way."""
        divided = taken.any(axis=1) & others.any(axis=1)
        if instruction is None or not divided.any():
            return
        split = self._splits.get(instruction)
        if split is None:
            shape = (self._warps, LANES)
            times = np.zeros(self._warps, np.int64)
            split = _Split(instruction, times, np.zeros(shape, np.bool_), np.zeros(shape, np.bool_))
            self._splits[instruction] = split
        self._time += 1
        chosen = warps[divided]
        split.times[chosen] = self._time
        split.taken[chosen] = taken[divided]
        split.others[chosen] = others[divided]

    def between(self, warp: int, some: Flags, others: Flags) -> Instruction | None:
        """Return the branch that last separated some lanes (bool[32]) of a warp from others."""
        latest, instruction = 0, None
        for split in self._splits.values():
            left, right = split.taken[warp], split.others[warp]
            apart = ((left & some).any() and (right & others).any()) or ((right & some).any() and (left & others).any())
            if apart and split.times[warp] > latest:
                latest, instruction = int(split.times[warp]), split.instruction
        return instruction
