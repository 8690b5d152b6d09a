"""Launches that start while the one before them on the stream still runs: what they may not do before they wait for it.

PTX ISA, "Parallel Synchronization and Communication Instructions: griddepcontrol". Launches follow each other here, so
that a forgotten wait gives the right numbers; on a GPU it gives them mostly.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.hazards import HazardLog
from matmill.emulator.lanes import Geometry, Lanes
from matmill.emulator.syntax import Instruction, Module
from matmill.launch import HOPPER, Launch


def starts_early(launch: Launch, module: Module) -> bool:
    """Whether ``launch`` is one that has to wait itself, on the GPUs that ``module`` is for."""
    found = re.match(r"sm_(\d+)", module.target)
    return launch.early and found is not None and divmod(int(found[1]), 10) >= HOPPER


class Waits:
    """Which threads of a batch have waited for the launch before theirs; ``left`` is how many have not."""

    def __init__(self, launch: Launch, geometry: Geometry, hazards: HazardLog) -> None:
        self.left = 0
        self._launch, self._geometry, self._hazards = launch, geometry, hazards
        self._waited = np.zeros(geometry.columns, np.bool_)

    def begin(self) -> None:
        """Take up a batch, of which nobody has waited."""
        np.logical_not(self._geometry.exists, out=self._waited)
        self.left = int(self._geometry.exists.sum())

    def wait(self, lanes: Lanes, active: NDArray[np.bool_]) -> None:
        """The ``active`` ones (bool[warps, 32]) of ``lanes`` have waited."""
        self._waited[lanes.columns[active.reshape(-1)]] = True
        self.left = int((~self._waited).sum())

    def early(self, lanes: Lanes, active: NDArray[np.bool_]) -> int | None:
        """The first of the ``active`` ones (bool[lanes]) that has not waited, if any."""
        found = np.flatnonzero(active & ~self._waited[lanes.columns])
        return int(found[0]) if len(found) else None

    def add(self, where: int, thread: str, did: str, instruction: Instruction) -> None:
        """Keep the hazard of a ``thread`` that did something in global memory before it waited."""
        message = (
            f"{self._launch.kernel}: {thread} {did} before griddepcontrol.wait, while the launch before this early one "
            f"may still work there, in {instruction.text!r}"
        )
        self._hazards.add("early-launch", where, message, instruction)

    def end(self, last: Instruction) -> None:
        """Keep the hazard of a thread that has ended without waiting."""
        if self.left:
            thread = self._geometry.thread_name(int(np.flatnonzero(~self._waited)[0]))
            message = (
                f"{self._launch.kernel}: {thread} ends without griddepcontrol.wait: the launch behind this early one "
                "may start while the one before still runs"
            )
            self._hazards.add("early-launch", "end", message, last)
