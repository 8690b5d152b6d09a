"""Programmatic dependent launch (PDL): a grid may start while the one before it on the stream still runs.

PTX ISA, "Parallel Synchronization and Communication Instructions: griddepcontrol". The emulator runs launches one after
another, so a missing wait gives the right results here, and nearly always on a GPU. This module reports it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Mask
from matmill.emulator.engine.lanes import BatchGeometry, Lanes
from matmill.emulator.frontend.syntax import Instruction, Module
from matmill.emulator.report.hazards import HazardLog
from matmill.launch import HOPPER, Launch


def is_dependent(launch: Launch, module: Module) -> bool:
    """Tell whether ``launch`` must wait for the grid before it, on the GPUs that ``module`` is compiled for."""
    return launch.pdl and module.capability >= HOPPER


Ints = NDArray[np.int64]


class GridWaits:
    """Records whether any thread of a launch has executed ``griddepcontrol.wait``.

    One thread is enough for later launches: the grid does not end before that thread does.
    """

    def __init__(self) -> None:
        self.anybody = False


class GridDependency:
    """The threads of a batch that come after a ``griddepcontrol.wait``; ``left`` counts those that do not.

    It is their own, or one that barriers, mbarriers or copies have passed on. ``writes`` are the arrays that the grid
    before may write, by their names: others may be read at any time. None means any array.
    """

    def __init__(
        self, launch: Launch, geometry: BatchGeometry, hazards: HazardLog, waits: GridWaits,
        writes: Collection[str] | None,
    ) -> None:  # fmt: skip
        self.left = 0
        self._writes = writes
        self._passed_on: set[object] = set()
        self._launch, self._geometry, self._hazards, self._waits = launch, geometry, hazards, waits
        self._waited = np.zeros(geometry.columns, np.bool_)

    def begin(self) -> None:
        """Start a batch, in which nobody has waited."""
        np.logical_not(self._geometry.exists, out=self._waited)
        self.left = int(self._geometry.exists.sum())
        self._passed_on.clear()

    def concerns(self, array: str, *, reads: bool) -> bool:
        """Tell whether accesses of an array must wait."""
        return self._writes is None or not reads or array in self._writes

    def wait(self, lanes: Lanes, active: Mask) -> None:
        """Record that the ``active`` lanes (bool[warps, 32]) of ``lanes`` have waited."""
        self._come_after(lanes.columns[active.reshape(-1)])
        self._waits.anybody = self._waits.anybody or bool(active.any())

    def _come_after(self, columns: Ints) -> None:
        self._waited[columns] = True
        self.left = int((~self._waited).sum())

    def _some(self, columns: Ints) -> bool:
        return bool((self._waited & self._geometry.exists)[columns].any())

    def meet(self, columns: Ints) -> None:
        """Record that threads of the batch have met at a barrier."""
        if self.left and self._some(columns):
            self._come_after(columns)

    def release(self, key: object, columns: Ints) -> None:
        """Record that threads have passed on what they know to those who wait for ``key``."""
        if self.left and self._some(columns):
            self._passed_on.add(key)

    def release_each(self, keys: Sequence[Sequence[object]], columns: Ints) -> None:
        """Record that each thread has passed on what it knows to those who wait for any of its ``keys``."""
        for some, column in zip(keys, columns.tolist(), strict=True):
            for key in some:
                self.release(key, np.array([column]))

    def acquire(self, key: object, columns: Ints) -> None:
        """Record that threads have waited for ``key``."""
        if self.left and key in self._passed_on:
            self._come_after(columns)

    def first_unmet(self, lanes: Lanes, active: Mask) -> int | None:
        """Return the first of the ``active`` lanes (bool[lanes]) that has not waited, or None."""
        positions = np.flatnonzero(active & ~self._waited[lanes.columns])
        return int(positions[0]) if len(positions) else None

    def unmet(self, columns: Ints) -> int | None:
        """Return the first of some threads of the batch that has not waited, or None."""
        result = columns[~self._waited[columns]]
        return int(result[0]) if len(result) else None

    def add(self, where: int, thread: str, did: str, instruction: Instruction) -> None:
        """Report a ``thread`` that accessed global memory before it waited; ``did`` describes the access."""
        message = (
            f"{self._launch.kernel}: {thread} {did} before griddepcontrol.wait, while the launch before "
            f"this dependent one may still work there, in {instruction.text!r}"
        )
        self._hazards.add("dependent-launch", where, message, instruction)


def never_waited(launch: Launch, last: Instruction, hazards: HazardLog) -> None:
    """Report a dependent launch in which no thread has waited."""
    message = (
        f"{launch.kernel}: no thread executes griddepcontrol.wait: the launch behind this dependent one may start "
        "while the one before still runs"
    )
    hazards.add("dependent-launch", "end", message, last)
