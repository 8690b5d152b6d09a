"""Textures: tex, tld4, txq.

PTX ISA, "Texture Instructions", in unified mode with handles in registers, as compilers make them of texture objects.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from matmill.emulator.arith.row import Mask, Row
from matmill.emulator.engine.site import Site
from matmill.emulator.engine.views import ViewAccess
from matmill.emulator.frontend.syntax import Address, Instruction, Operand, Pair, Symbol
from matmill.emulator.memory.address_space import View
from matmill.emulator.memory.texels import Tap, converted, element, gathered, taps, undefined
from matmill.emulator.program.table import Action, Call, Modifiers, Value, instructions, scalars
from matmill.textures import GEOMETRIES, Image, Surface, Texture

#: Floats of the coordinates by geometry; the vectors of 3-D textures and layers are padded to four elements.
_COORDINATES = {"1d": 1, "2d": 2, "3d": 3, "a1d": 1, "a2d": 2, "cube": 3, "acube": 3}
_COMPONENTS = "rgba"
# The channels that a texture does not have are undefined, and poison here.
_POISON = 0xFFFFFFFF


def handle_of(i: Instruction, operand: Operand) -> Address:
    """The operand ``[handle, {coordinates}]``; its handle is a register's, or refused."""
    if not isinstance(operand, Address) or operand.offset:
        raise i.unsupported("its operand")
    if isinstance(operand.base, Symbol):
        raise i.unsupported("a texture or surface reference: CUDA 12 knows objects alone")
    return operand


def coordinates_of(i: Instruction, address: Address, geometry: str, count: int) -> tuple[tuple[Operand, ...], bool]:
    """The layer, if the geometry has any, and the ``count`` coordinates; whether there is a layer."""
    if len(address.extra) != 1:
        raise i.unsupported("a sampler of its own")
    rows = scalars(address.extra[0])
    layered = geometry.startswith("a")
    if len(rows) < count + layered:
        raise i.unsupported("the number of its coordinates")
    return rows[: count + layered], layered


@instructions("tex")
def fetch(i: Instruction) -> Action:
    """``tex`` of one level: the level that ``.level`` and ``.grad`` ask for is always the only one."""
    m = Modifiers(i, "v4")
    level = m.pick(("base", "level", "grad"))
    geometry = m.need(*GEOMETRIES)
    dtype, ctype = m.type("f32", "u32", "s32"), m.type("f32", "s32")
    m.done()
    d, source, *more = i.operands
    if len(more) != {"level": 1, "grad": 2}.get(level, 0):
        raise i.unsupported("an offset or a comparison")
    whole = ctype == "s32"
    if whole and geometry != "1d":
        raise i.unsupported("integer coordinates of other textures than 1-D ones, which no compiler makes")
    address = handle_of(i, source)
    rows, layered = coordinates_of(i, address, geometry, _COORDINATES[geometry])
    first, predicate = (d.first, (d.second,)) if isinstance(d, Pair) else (d, ())
    kind = "f4" if dtype == "f32" else "u4"
    results = [Value(o, kind) for o in scalars(first)] + [Value(p, "p") for p in predicate]
    kinds = ["u4"] * layered + ["i4" if whole else "f4"] * _COORDINATES[geometry]

    def bind(site: Site) -> Call:
        access = ViewAccess(site, i, Texture, geometry, "read")
        return Fetch(access, None, layered=layered, resident=bool(predicate))

    return Action(
        i,
        (Value(address.base, "u8"), *(Value(o, k) for o, k in zip(rows, kinds, strict=True))),
        tuple(results),
        bind=bind,
        tally="memory",
    )


@instructions("tld4")
def gather(i: Instruction) -> Action:
    """``tld4``: one channel of the four texels that linear filtering reads."""
    m = Modifiers(i, "v4")
    channel = _COMPONENTS.index(m.need(*_COMPONENTS))
    geometry = m.need("2d", "a2d")
    kind = "f4" if m.type("f32", "u32", "s32") == "f32" else "u4"
    m.type("f32")
    m.done()
    d, source = i.operands
    address = handle_of(i, source)
    rows, layered = coordinates_of(i, address, geometry, 2)
    first, predicate = (d.first, (d.second,)) if isinstance(d, Pair) else (d, ())

    def bind(site: Site) -> Call:
        access = ViewAccess(site, i, Texture, geometry, "read")
        return Fetch(access, channel, layered=layered, resident=bool(predicate))

    return Action(
        i,
        (Value(address.base, "u8"), *(Value(o, k) for o, k in zip(rows, ["u4"] * layered + ["f4"] * 2, strict=True))),
        (*(Value(o, kind) for o in scalars(first)), *(Value(p, "p") for p in predicate)),
        bind=bind,
        tally="memory",
    )


class Fetch:
    """A fetch bound to a site; ``channel`` is that of a gather, None of others."""

    def __init__(self, access: ViewAccess, channel: int | None, *, layered: bool, resident: bool) -> None:
        self.access = access
        self.channel = channel
        self.layered = layered
        self.resident = resident
        self.count = _COORDINATES[access.geometry] + layered

    def __call__(self, handles: Row, *rows: Row) -> None:
        """Put the texels into the rows of the results."""
        lanes = self.access.lanes.count
        sources, outs = [np.broadcast_to(r, lanes) for r in rows[: self.count]], list(rows[self.count :])
        if self.resident:
            outs.pop()[...] = True
        for view, chosen in self.access.views(handles):
            texture = view.image
            assert isinstance(texture, Texture)  # noqa: S101 — views() has checked it
            self._check_type(view, texture, outs[0].dtype.kind, chosen)
            found = [Texels(self.access, view, tap, chosen) for tap in self._taps(view, texture, sources, chosen)]
            for number, out in enumerate(outs):
                np.copyto(out, self._result(texture, found, number).view(out.dtype), where=chosen)

    def _taps(self, view: View, texture: Texture, sources: list[Row], chosen: Mask) -> list[Tap]:
        layer = sources[0] if self.layered else None
        rows = sources[self.layered :]
        if rows[0].dtype.kind == "i":
            return [element(texture, rows[0].astype(np.int64))]
        coordinates = [row.astype(np.float64) for row in rows]
        wrong = undefined(texture, coordinates)
        if wrong.any():
            self._report_coordinate(view, coordinates, wrong & chosen)
            for row in coordinates:
                row[wrong] = 0
        made = gathered if self.channel is not None else taps
        return list(made(texture, coordinates, layer))

    def _report_coordinate(self, view: View, coordinates: list[Row], wrong: Mask) -> None:
        if wrong.any():
            lane = self.access.first(wrong)
            position = ", ".join(f"{row[lane]:g}" for row in coordinates)
            self.access.report("texture-coordinate", lane, f"fetches from {view} at ({position})")

    def _check_type(self, view: View, texture: Texture, kind: str, chosen: Mask) -> None:
        if texture.floats != (kind == "f"):
            made = "floats" if texture.floats else f"{texture.array.dtype} as they are"
            did = f"reads {'floats' if kind == 'f' else 'integers'} from {view}, which gives {made}"
            self.access.report("texture-type", self.access.first(chosen), did)

    def _result(self, texture: Texture, found: list[Texels], number: int) -> Row:
        """The row of a result: a channel, or of a gather a texel."""
        channel = number if self.channel is None else self.channel
        if channel >= texture.channels:
            return np.full(self.access.lanes.count, _POISON, np.uint32)
        if self.channel is not None:
            return found[number].channel(channel)
        if found[0].tap.weight is None:
            return found[0].channel(channel)
        total = np.zeros(self.access.lanes.count)
        for each in found:
            # A texel without a share is not read: what it holds, be it a NaN, does not matter.
            total += np.where(each.tap.weight == 0, 0, each.tap.weight * each.channel(channel))
        return total.astype(np.float32)


class Texels:
    """The texels of one tap, checked as they are read."""

    def __init__(self, access: ViewAccess, view: View, tap: Tap, chosen: Mask) -> None:
        self.view = view
        self.tap = tap
        self.offset = tap.offset + view.first
        reads = chosen if tap.inside is None else chosen & tap.inside
        reads = reads if tap.weight is None else reads & (tap.weight != 0)
        access.check(view, self.offset, view.image.texel_bytes, reads)

    def channel(self, number: int) -> Row:
        """One channel as a fetch gives it; the border's value outside."""
        texture = self.view.image
        assert isinstance(texture, Texture)  # noqa: S101 — as above
        dtype: np.dtype[Any] = texture.array.dtype
        elements = self.view.allocation.words[dtype.itemsize].view(dtype)
        values = converted(texture, elements[self.offset // dtype.itemsize + number])
        if self.tap.inside is None:
            return values
        return np.where(self.tap.inside, values, values.dtype.type(texture.border_color[number]))


@instructions("txq")
def query_texture(i: Instruction) -> Action:
    """``txq``: extents and the like."""
    return query(i, Texture)


def query(i: Instruction, image: type[Texture | Surface]) -> Action:
    """What a texture or surface is, as far as CUDA's description says it as PTX asks for it."""
    m = Modifiers(i, "b32", "level")
    name = m.need(*_ATTRIBUTES)
    m.done()
    d, source, *_ = i.operands
    address = handle_of(i, source)

    def bind(site: Site) -> Call:
        access = ViewAccess(site, i, image, "", "query")

        def call(handles: Row, out: Row) -> None:
            for view, chosen in access.views(handles):
                out[chosen] = _attribute(view.image, name)

        return call

    return Action(i, (Value(address.base, "u8"),), (Value(d, "u4"),), bind=bind, tally="memory")


_ATTRIBUTES = ("width", "height", "depth", "array_size", "num_mipmap_levels", "num_samples", "normalized_coords")


def _attribute(image: Image, name: str) -> int:
    extents = (*image.extents, 0, 0)
    layers, _ = image.layers
    return {
        "width": extents[0],
        "height": extents[1],
        "depth": extents[2],
        "array_size": layers if image.layered else 0,
        "normalized_coords": int(isinstance(image, Texture) and image.normalized),
    }.get(name, 0)
