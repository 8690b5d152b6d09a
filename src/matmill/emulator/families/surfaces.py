"""Surfaces: suld, sust.

PTX ISA, "Surface Instructions": unformatted accesses, whose x coordinate counts bytes.
"""

from __future__ import annotations

import numpy as np

from matmill.emulator.arith.row import Mask, Row
from matmill.emulator.engine.bind.bound_block import BoundBlock
from matmill.emulator.engine.bind.texel_access import Ints, ViewAccess, in_bytes
from matmill.emulator.families.addresses import coordinates_of, handle_of
from matmill.emulator.frontend.syntax import TYPE_BYTES, Instruction
from matmill.emulator.memory.address_space import ImageView
from matmill.emulator.program.table import Action, Call, Modifiers, Value, instructions, register_kind, scalars
from matmill.textures import Surface

_COORDINATES = {"1d": 1, "2d": 2, "3d": 3, "a1d": 1, "a2d": 2}
_CACHES = ("ca", "cg", "cs", "cv", "wb", "wt")


@instructions("suld", "sust")
def access_surface(i: Instruction) -> Action:
    """Bind ``suld.b`` and ``sust.b`` of 1, 2 or 4 elements."""
    m = Modifiers(i, *_CACHES)
    if m.flag("p"):
        raise i.unsupported("a formatted access, which no compiler makes of CUDA C++")
    m.need("b")
    geometry = m.need(*_COORDINATES)
    vector = int(m.pick(("v2", "v4"))[1:] or 1)
    element = TYPE_BYTES[m.type("b8", "b16", "b32", "b64")]
    beyond = m.pick(("trap", "clamp", "zero"), "trap")
    m.done()
    loads = i.name == "suld"
    values, source = i.operands if loads else i.operands[::-1]
    address = handle_of(i, source)
    layer, *rows = coordinates_of(i, address, geometry, _COORDINATES[geometry])
    data = scalars(values)
    if len(data) != vector:
        raise i.unsupported("its vector")
    word = f"u{element}"
    sources = (Value(address.base, "u8"), Value(layer, "u4"), *(Value(row, "i4") for row in rows))

    def bind(bound: BoundBlock) -> Call:
        access = ViewAccess(bound, i, Surface, geometry, "read" if loads else "write")
        return SurfaceAccess(access, len(rows), element, vector, beyond)

    if loads:
        results = tuple(Value(o, register_kind(o, word)) for o in data)
        return Action(i, sources, results, bind=bind, tally="memory")
    stored = (Value(o, word) for o in data)
    return Action(i, (*sources, *stored), bind=bind, tally="memory", masks_itself=True)


class SurfaceAccess:
    """A bound load or store: ``beyond`` is the mode for coordinates outside, "trap", "clamp" or "zero"."""

    def __init__(self, access: ViewAccess[Surface], coordinates: int, element: int, vector: int, beyond: str) -> None:
        self.access = access
        self.coordinates = coordinates
        self.element = element
        self.width = element * vector
        self.beyond = beyond

    def __call__(self, handles: Row, layer: Row, *rows: Row) -> None:
        """Load into the result rows, or store the value rows."""
        lanes = self.access.lanes.count
        given = (*rows[: self.coordinates], layer)
        positions = [np.broadcast_to(row, lanes).astype(np.int64) for row in given]
        data = rows[self.coordinates :]
        for view, surface, chosen in self.access.images(handles):
            offset, inside = self._located(view, surface, positions, chosen)
            if self.access.kind == "read":
                self._load(view, offset, (chosen, inside), data)
            else:
                self._store(view, offset, inside, data)

    def _located(self, view: ImageView, surface: Surface, positions: list[Ints], chosen: Mask) -> tuple[Ints, Mask]:
        """Return offsets in the view's allocation, and the lanes that access memory, for x, y, z and the layer."""
        self._check_alignment(view, positions[0], chosen)
        layers, stride = surface.layers
        most = (surface.row_bytes - self.width, *(extent - 1 for extent in (*surface.extents[1:], layers)))
        inside, offset = chosen.copy(), np.full(len(chosen), view.first)
        for position, last, step in zip(positions, most, (1, *surface.strides[1:], stride), strict=True):
            inside &= (position >= 0) & (position <= last)
            offset += np.clip(position, 0, max(last, 0)) * step
        if self.beyond == "trap":
            self._check_inside(view, surface, positions, chosen & ~inside)
        # An access wider than a row is always outside.
        return offset, chosen if self.beyond == "clamp" and most[0] >= 0 else inside

    def _check_alignment(self, view: ImageView, x: Ints, chosen: Mask) -> None:
        wrong = chosen & (x % self.width != 0)
        if wrong.any():
            lane = self.access.first(wrong)
            did = f"{self._doing} {view} at x = {x[lane]} B, which is no multiple of {self.width}"
            raise self.access.fault("misaligned", lane, did)

    def _check_inside(self, view: ImageView, surface: Surface, positions: list[Ints], outside: Mask) -> None:
        if not outside.any():
            return
        lane = self.access.first(outside)
        x, *rest = (int(row[lane]) for row in positions)
        names = ("y", "z")[: len(rest) - 1]
        at = ", ".join([f"x = {x} B", *(f"{name} = {n}" for name, n in zip(names, rest, strict=False))])
        at += f", layer = {rest[-1]}" if surface.layered else ""
        extents = " x ".join([f"{surface.row_bytes} B", *map(str, surface.extents[1:])])
        layers = f", {surface.layers[0]} layers" if surface.layered else ""
        raise self.access.fault("out-of-bounds", lane, f"{self._doing} {view} at {at}, outside its {extents}{layers}")

    @property
    def _doing(self) -> str:
        return f"{'reads' if self.access.kind == 'read' else 'writes'} {self.width} bytes of"

    def _load(self, view: ImageView, offset: Ints, lanes: tuple[Mask, Mask], outs: tuple[Row, ...]) -> None:
        chosen, inside = lanes
        self.access.check(view, offset, self.width, inside)
        contents = np.zeros((len(offset), self.width), np.uint8)
        contents[inside] = view.allocation.data[offset[inside][:, None] + np.arange(self.width)]
        for n, out in enumerate(outs):
            np.copyto(out, contents.view(f"u{self.element}")[:, n], where=chosen, casting="unsafe")

    def _store(self, view: ImageView, offset: Ints, inside: Mask, values: tuple[Row, ...]) -> None:
        if not inside.any():
            return
        if not view.allocation.writable:
            lane = self.access.first(inside)
            did = f"{self._doing} {view}, which is read-only"
            raise self.access.fault("read-only", lane, did)
        self.access.check(view, offset, self.width, inside, values)
        self.access.machine.progress += 1
        contents = in_bytes(values, len(offset))
        view.allocation.data[offset[inside][:, None] + np.arange(self.width)] = contents[inside]
