"""The registers of a block that its warpgroups release and request: setmaxnreg.

PTX ISA, "Miscellaneous Instructions: setmaxnreg". On a GPU an increase waits until the block's pool has enough
registers. Here it never waits: at the end, all warps of a block together may hold no more than the launch gave the
block.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.engine.lanes import BatchGeometry
from matmill.emulator.frontend.syntax import Immediate, Instruction
from matmill.emulator.memory.banks import LANES
from matmill.emulator.report.hazards import KernelFault, fault


def registers_at_launch(limit: int, instructions: Iterable[Instruction]) -> int:
    """Return the registers per thread of a launch: as many as the limits allow, but no more than the largest increase.

    So ptxas 13.0 compiles kernels with ``setmaxnreg``. Without limits, which is 0, it ignores the instruction.
    """
    increases = [
        int(i.operands[0].value)
        for i in instructions
        if i.name == "setmaxnreg" and "inc" in i.modifiers and isinstance(i.operands[0], Immediate)
    ]
    return min(limit, max(increases, default=limit))


class RegisterPool:
    """Registers per thread of the warps of one batch; ``at_launch`` is 0 if the kernel's PTX does not fix them."""

    def __init__(self, geometry: BatchGeometry, kernel: str, at_launch: int) -> None:
        self._geometry, self._kernel, self._at_launch = geometry, kernel, at_launch
        self._held = np.full(geometry.warp_count, at_launch, np.int64)
        self._raised: dict[int, Instruction] = {}

    def change(self, warps: NDArray[np.int64], i: Instruction, count: int, *, grows: bool) -> None:
        """Set the registers per thread of ``warps`` to ``count``.

        Raises ``KernelFault`` for an increase to fewer than they hold, or a decrease to more.
        """
        held = self._held[warps]
        wrong = (held > 0) & (held > count if grows else held < count)
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            raise self._fault("register-pool", int(warps[at]), i, f"it holds {int(held[at])} per thread")
        self._held[warps] = count
        if grows:
            self._raised.update(dict.fromkeys(warps.tolist(), i))

    def finish(self) -> None:
        """Raise if a block's warps hold more than the launch gave, so that one waits for ever: the batch has ended."""
        if self._at_launch and self._raised:
            geometry = self._geometry
            held = self._held.reshape(geometry.warps, geometry.blocks).sum(axis=0)
            for warp, i in self._raised.items():
                total = int(held[geometry.block_of_warp[warp]])
                if total > self._at_launch * geometry.warps:
                    problem = (
                        f"it waits for ever: the warps of its block ask for {total * LANES} registers together, and "
                        f"the launch gave the block {self._at_launch * geometry.warps * LANES}"
                    )
                    raise self._fault("deadlock", warp, i, problem)
        self._held[...] = self._at_launch
        self._raised.clear()

    def _fault(self, kind: str, warp: int, i: Instruction, problem: str) -> KernelFault:
        geometry = self._geometry
        name = geometry.warp_name(warp)
        return fault(kind, f"{self._kernel}: {name} executes {i.text!r}; {problem}", i)
