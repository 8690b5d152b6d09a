"""Accesses through textures and surfaces: handles resolved, memory checked, counted, and reported to the race detector.

CUDA C++ programming guide, "Texture and Surface Memory". Their memory is global memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Mask, Row
from matmill.emulator.engine.bind.bound_block import BoundBlock
from matmill.emulator.engine.bind.initialised import note_store, ones
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.memory.address_space import Allocation, ImageView
from matmill.emulator.memory.banks import LANES
from matmill.emulator.races.detector import Stores
from matmill.emulator.report.hazards import KernelFault, fault
from matmill.textures import GEOMETRIES, Surface, Texture

Ints = NDArray[np.int64]
Kind = TypeVar("Kind", bound=Texture | Surface)
_VERBS = {"read": "reads", "write": "writes"}


class ViewAccess(Generic[Kind]):
    """An instruction on textures or surfaces, bound to lanes.

    ``image`` is the class that its handles must refer to, ``geometry`` their kind in PTX (any, if empty), ``kind``
    "read" or "write".
    """

    def __init__(self, bound: BoundBlock, i: Instruction, image: type[Kind], geometry: str, kind: str) -> None:
        self.machine = bound.machine
        self.lanes = bound.lanes
        self.i = i
        self.image = image
        self.geometry = geometry
        self.kind = kind
        self.where = bound.machine.program.index_of(i)
        self._participants = bound.participants()
        self._requests = bound.machine.tally.traffic(self.where, image.__name__.lower(), kind)

    def images(self, handles: Row) -> Iterator[tuple[ImageView, Kind, Mask]]:
        """Yield the textures or surfaces of the handles, and the lanes (bool[lanes]) that use each; count the request.

        Raises ``KernelFault`` for an invalid handle, or one of another kind.
        """
        warps = self._participants()
        active = warps.reshape(-1)
        if self.machine.counting:
            self._requests[0] += int(warps.any(axis=1).sum())
        handles = np.broadcast_to(handles, self.lanes.count)
        for handle in np.unique(handles[active]).tolist():
            chosen = active & (handles == handle)
            view, image = self._view(handle, chosen)
            yield view, image, chosen

    def _view(self, handle: int, chosen: Mask) -> tuple[ImageView, Kind]:
        wanted = f"{GEOMETRIES.get(self.geometry, '')} {self.image.__name__.lower()}".strip()
        view = self.machine.space.images.get(handle)
        if view is None:
            there = self.machine.describe("generic", handle)
            known = "no handle of this launch" if there.startswith("no buffer") else there
            raise self.fault("texture", self.first(chosen), f"uses {handle:#x}, {known}, as a {wanted}")
        if not isinstance(view.image, self.image):
            raise self.fault("texture", self.first(chosen), f"uses {view} as a {wanted}")
        if self.geometry not in {"", view.image.geometry}:
            shape = GEOMETRIES[view.image.geometry]
            raise self.fault("texture", self.first(chosen), f"uses {view}, which is {shape}, as a {wanted}")
        return view, view.image

    def first(self, chosen: Mask) -> int:
        """Return the first of some lanes."""
        return int(np.flatnonzero(chosen)[0])

    def fault(self, kind: str, lane: int, did: str) -> KernelFault:
        """Return the error that ends the run; ``did`` describes the lane's access."""
        return fault(kind, self._message(lane, did), self.i)

    def report(self, kind: str, lane: int, did: str) -> None:
        """Report a hazard; ``did`` describes the lane's access."""
        if not self.machine.hazards.has(kind, self.where):
            self.machine.hazards.add(kind, self.where, self._message(lane, did), self.i)

    def _message(self, lane: int, did: str) -> str:
        return f"{self.machine.launch.kernel}: {self.lanes.thread_name(lane)} {did}, in {self.i.text!r}"

    # Memory

    def check(self, view: ImageView, offset: Ints, width: int, chosen: Mask, values: tuple[Row, ...] = ()) -> None:
        """Check an access of ``width`` bytes by the ``chosen`` lanes, and report hazards.

        Each lane accesses ``offset`` bytes into the allocation. ``values`` are the stored values, of equal widths.
        """
        if not chosen.any():
            return
        memory = view.allocation
        step = int(np.bitwise_or.reduce(offset[chosen])) | width
        step &= -step
        # Inactive lanes may have any offset.
        offset = np.where(chosen, offset, offset[self.first(chosen)])
        self._check_dependency(view, offset, width, chosen)
        if self.kind == "read":
            self._check_contents(view, offset, step, width, chosen)
        if self.kind == "write":
            note_store(memory, self.i)
        for marks in memory.marks if self.kind == "write" else ():
            for start in range(0, width, step):
                marks[step][(offset[chosen] + start) // step] = ones(step)
        if self.machine.detector is None or not memory.writable:
            return
        stored = in_bytes(values, self.lanes.count) if values else None
        for start in range(0, width, step):
            stores = None
            if stored is not None:
                contents = partial(_contents, memory, offset + start, stored[:, start : start + step])
                stores = Stores(self.lanes.warp_ids, contents)
            self.machine.detector.access(
                "global",
                warp=self.lanes.warp_ids,
                addresses=(memory.start + offset + start).reshape(-1, LANES),
                active=chosen.reshape(-1, LANES),
                width=step,
                kind=self.kind,
                where=self.where,
                stores=stores,
            )

    def _check_dependency(self, view: ImageView, offset: Ints, width: int, chosen: Mask) -> None:
        dependency = self.machine.dependency
        if dependency is None or not dependency.left:
            return
        if not dependency.concerns(view.allocation.name, reads=self.kind == "read"):
            return
        lane = dependency.first_unmet(self.lanes, chosen)
        if lane is not None:
            did = f"{_VERBS[self.kind]} {width} bytes at {self._describe(view, int(offset[lane]))}"
            dependency.add(self.where, self.lanes.thread_name(lane), did, self.i)

    def _check_contents(self, view: ImageView, offset: Ints, step: int, width: int, chosen: Mask) -> None:
        """Report bytes that were never written, and bytes that this launch has written."""
        memory = view.allocation
        for start in range(0, width, step):
            index = (offset + start) // step
            if memory.written is not None:
                lanes = np.flatnonzero(chosen & (memory.written[step][index] != ones(step)))
                if len(lanes):
                    at = self._describe(view, int(offset[lanes[0]]))
                    did = f"reads {width} bytes at {at} that nothing was stored to"
                    self.report("uninitialised-global", int(lanes[0]), did)
            if memory.stored is not None:
                lanes = np.flatnonzero(chosen & (memory.stored[step][index] != 0))
                if len(lanes):
                    at = self._describe(view, int(offset[lanes[0]]))
                    did = f"reads {width} bytes at {at}, which this launch has stored to, through {view}"
                    self.report("texture-written", int(lanes[0]), did)

    def _describe(self, view: ImageView, offset: int) -> str:
        return self.machine.space.describe(view.allocation.start + offset)


def in_bytes(values: tuple[Row, ...], lanes: int) -> NDArray[np.uint8]:
    """Return the bytes that each lane stores: uint8[lanes, bytes]."""
    return np.stack([np.broadcast_to(value, lanes) for value in values], axis=1).view(np.uint8)


def _contents(
    memory: Allocation, offset: Ints, stored: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the bytes that lanes store at offsets of an allocation, and those before: uint8[warps, 32, width] each."""
    shape = (-1, LANES, stored.shape[1])
    there = memory.data[offset[:, None] + np.arange(stored.shape[1])]
    return stored.reshape(shape), there.reshape(shape)
