"""Warpgroups: four warps that execute wgmma and setmaxnreg together, with the same operands.

Here each warp executes them in its own time, and the instructions of a warpgroup's warps are compared. The warps meet
where one waits for products.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.engine.lanes import BatchGeometry
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.report.hazards import KernelFault, fault

WARPS = 4


@dataclass
class _WarpgroupInstruction:
    """The instruction that the first warp executed at this point, and how many warps of the warpgroup executed it."""

    instruction: Instruction
    operands: str
    warp: int
    warps: int = 0


class Warpgroups:
    """The instructions that warpgroups of one batch execute together; ``members`` has their warps: int64[warps, 4]."""

    def __init__(self, geometry: BatchGeometry, kernel: str) -> None:
        self._geometry = geometry
        self._kernel = kernel
        self._group = geometry.warp_in_block // WARPS * geometry.blocks + geometry.block_of_warp
        # For each warp the warps of its warpgroup; a warp outside of a whole warpgroup is alone.
        roles = geometry.warp_in_block // WARPS * WARPS
        whole = (roles + WARPS <= geometry.warps)[:, None]
        four = (roles[:, None] + np.arange(WARPS)) * geometry.blocks + geometry.block_of_warp[:, None]
        self.members = np.where(whole, four, np.arange(geometry.warp_count)[:, None])
        self._position = [0] * geometry.warp_count
        self._first: dict[int, int] = {}
        self._steps: dict[int, deque[_WarpgroupInstruction]] = {}

    def executed(self, warps: NDArray[np.int64], i: Instruction, operands: Sequence[str] = ()) -> None:
        """Record that whole ``warps`` execute ``i``, each with its ``operands`` in words.

        Raises ``KernelFault`` if another warp of the warpgroup executed something else at this point.
        """
        each = operands or ("",) * len(warps)
        for warp, mine in zip(warps.tolist(), each, strict=True):
            group = int(self._group[warp])
            if self._geometry.warp_in_block[warp] // WARPS * WARPS + WARPS > self._geometry.warps:
                raise self._fault(
                    warp, i, f"the block has {self._geometry.warps} warps, so it is in no whole warpgroup"
                )
            steps = self._steps.setdefault(group, deque())
            at = self._position[warp] - self._first.get(group, 0)
            self._position[warp] += 1
            if at == len(steps):
                steps.append(_WarpgroupInstruction(i, mine, warp))
            step = steps[at]
            if step.instruction is not i or step.operands != mine:
                raise self._fault(warp, i, self._difference(step, i, mine))
            step.warps += 1
            if step.warps == WARPS:
                steps.popleft()
                self._first[group] = self._first.get(group, 0) + 1

    def finish(self) -> None:
        """Raise if a warp never executed an instruction that others of its warpgroup did: the batch has ended."""
        for group, steps in self._steps.items():
            if steps:
                step = steps[0]
                reached = self._first.get(group, 0)
                roles = np.flatnonzero(self._group == group)
                missing = next(int(w) for w in roles if self._position[w] == reached)
                name = f"warp {int(self._geometry.warp_in_block[missing])}"
                raise self._fault(step.warp, step.instruction, f"{name} of its warpgroup never does")
        self._steps.clear()
        self._first.clear()
        self._position = [0] * self._geometry.warp_count

    def _difference(self, step: _WarpgroupInstruction, i: Instruction, operands: str) -> str:
        other = f"warp {int(self._geometry.warp_in_block[step.warp])} of its warpgroup"
        if step.instruction is i:
            return f"with {operands}, where {other} has {step.operands}"
        return f"where {other} executes {step.instruction.text!r} ({step.instruction.location})"

    def _fault(self, warp: int, i: Instruction, problem: str) -> KernelFault:
        geometry = self._geometry
        name = geometry.warp_name(warp)
        return fault("warpgroup", f"{self._kernel}: {name} executes {i.text!r}; {problem}", i)
