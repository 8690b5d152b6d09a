"""Textures: tex, tld4.

PTX ISA, "Texture Instructions", in unified mode with handles in registers, as compilers emit them for texture objects.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from matmill.emulator.arith.row import Mask, Row
from matmill.emulator.engine.bind.bound_block import BoundBlock
from matmill.emulator.engine.bind.texel_access import ViewAccess
from matmill.emulator.families.addresses import coordinates_of, handle_of
from matmill.emulator.frontend.syntax import Instruction, Pair
from matmill.emulator.memory.address_space import ImageView
from matmill.emulator.memory.texels import Tap, converted, element, gathered, taps, undefined
from matmill.emulator.program.table import Action, Call, Modifiers, Value, instructions, scalars
from matmill.textures import GEOMETRIES, Texture

#: Coordinates by geometry, without the layer.
_COORDINATES = {"1d": 1, "2d": 2, "3d": 3, "a1d": 1, "a2d": 2, "cube": 3, "acube": 3}
_COMPONENTS = "rgba"
# The value of channels that a texture lacks, which are undefined.
_POISON = 0xFFFFFFFF


@instructions("tex")
def fetch(i: Instruction) -> Action:
    """Bind ``tex`` of one level: the level of ``.level`` and ``.grad`` is always the only one."""
    m = Modifiers(i, "v4")
    level = m.pick(("base", "level", "grad"))
    geometry = m.need(*GEOMETRIES)
    dtype, ctype = m.type("f32", "u32", "s32"), m.type("f32", "s32")
    m.done()
    if len(i.operands) != 2 + {"level": 1, "grad": 2}.get(level, 0):
        raise i.unsupported("an offset or a comparison")
    if ctype == "s32" and geometry != "1d":
        raise i.unsupported("integer coordinates of other textures than 1-D ones, which no compiler makes")
    return _fetched(i, geometry, dtype, "i4" if ctype == "s32" else "f4")


@instructions("tld4", operands=(2,))
def gather(i: Instruction) -> Action:
    """Bind ``tld4``: one channel of the four texels that linear filtering would read."""
    m = Modifiers(i, "v4")
    channel = _COMPONENTS.index(m.need(*_COMPONENTS))
    geometry = m.need("2d", "a2d")
    dtype, _ = m.type("f32", "u32", "s32"), m.type("f32")
    m.done()
    return _fetched(i, geometry, dtype, "f4", channel)


def _fetched(i: Instruction, geometry: str, dtype: str, coordinate: str, channel: int | None = None) -> Action:
    d, source, *_ = i.operands
    address = handle_of(i, source)
    layer, *rows = coordinates_of(i, address, geometry, _COORDINATES[geometry])
    vector, predicate = (d.first, (d.second,)) if isinstance(d, Pair) else (d, ())
    kind = "f4" if dtype == "f32" else "u4"

    def bind(bound: BoundBlock) -> Call:
        access = ViewAccess(bound, i, Texture, geometry, "read")
        return Fetch(access, channel, resident=bool(predicate))

    return Action(
        i,
        (Value(address.base, "u8"), Value(layer, "u4"), *(Value(row, coordinate) for row in rows)),
        (*(Value(o, kind) for o in scalars(vector)), *(Value(p, "p") for p in predicate)),
        bind=bind,
        tally="memory",
    )


class Fetch:
    """A bound fetch; ``channel`` is a gather's, else None."""

    def __init__(self, access: ViewAccess[Texture], channel: int | None, *, resident: bool) -> None:
        self.access = access
        self.channel = channel
        self.resident = resident
        self.coordinates = _COORDINATES[access.geometry]

    def __call__(self, handles: Row, layer: Row, *rows: Row) -> None:
        """Store the texels in the result rows."""
        lanes = self.access.lanes.count
        sources = [np.broadcast_to(row, lanes) for row in rows[: self.coordinates]]
        outs = list(rows[self.coordinates :])
        if self.resident:
            outs.pop()[...] = True
        for view, texture, chosen in self.access.images(handles):
            self._check_type(view, texture, outs[0].dtype.kind, chosen)
            taps = self._taps(view, texture, sources, np.broadcast_to(layer, lanes), chosen)
            texels = [Texels(self.access, view, texture, tap, chosen) for tap in taps]
            for number, out in enumerate(outs):
                np.copyto(out, self._result(texture, texels, number).view(out.dtype), where=chosen)

    def _taps(self, view: ImageView, texture: Texture, rows: list[Row], layer: Row, chosen: Mask) -> list[Tap]:
        if rows[0].dtype.kind == "i":
            return [element(texture, rows[0].astype(np.int64))]
        coordinates = [row.astype(np.float64) for row in rows]
        wrong = undefined(texture, coordinates)
        if wrong.any():
            self._report_coordinate(view, coordinates, wrong & chosen)
            for row in coordinates:
                row[wrong] = 0
        result = gathered if self.channel is not None else taps
        return list(result(texture, coordinates, layer))

    def _report_coordinate(self, view: ImageView, coordinates: list[Row], wrong: Mask) -> None:
        if wrong.any():
            lane = self.access.first(wrong)
            position = ", ".join(f"{row[lane]:g}" for row in coordinates)
            self.access.report("texture-coordinate", lane, f"fetches from {view} at ({position})")

    def _check_type(self, view: ImageView, texture: Texture, kind: str, chosen: Mask) -> None:
        if texture.floats != (kind == "f"):
            contents = "floats" if texture.floats else f"{texture.array.dtype} as they are"
            did = f"reads {'floats' if kind == 'f' else 'integers'} from {view}, which gives {contents}"
            self.access.report("texture-type", self.access.first(chosen), did)

    def _result(self, texture: Texture, texels: list[Texels], number: int) -> Row:
        """Return the row of a result: a channel, or for a gather a texel."""
        channel = number if self.channel is None else self.channel
        if channel >= texture.channels:
            return np.full(self.access.lanes.count, _POISON, np.uint32)
        if self.channel is not None:
            return texels[number].channel(channel)
        if texels[0].tap.weight is None:
            return texels[0].channel(channel)
        total = np.zeros(self.access.lanes.count)
        for each in texels:
            # A texel of weight 0 is not read: even a NaN in it does not matter.
            total += np.where(each.tap.weight == 0, 0, each.tap.weight * each.channel(channel))
        return total.astype(np.float32)


class Texels:
    """The texels of one tap, checked as they are read."""

    def __init__(self, access: ViewAccess[Texture], view: ImageView, texture: Texture, tap: Tap, chosen: Mask) -> None:
        self.texture = texture
        self.tap = tap
        self.offset = tap.offset + view.first
        dtype: np.dtype[Any] = texture.array.dtype
        self.elements = view.allocation.words[dtype.itemsize].view(dtype)
        reads = chosen if tap.inside is None else chosen & tap.inside
        reads = reads if tap.weight is None else reads & (tap.weight != 0)
        access.check(view, self.offset, texture.texel_bytes, reads)

    def channel(self, number: int) -> Row:
        """Return one channel of the fetch; the border's value outside."""
        values = converted(self.texture, self.elements[self.offset // self.elements.itemsize + number])
        if self.tap.inside is None:
            return values
        return np.where(self.tap.inside, values, values.dtype.type(self.texture.border_color[number]))
