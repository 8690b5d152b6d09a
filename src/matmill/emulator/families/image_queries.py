"""Queries of textures and surfaces: txq, suq.

PTX ISA, "txq" and "suq".
"""

from __future__ import annotations

from matmill.emulator.arith.row import Row
from matmill.emulator.engine.bind.bound_block import BoundBlock
from matmill.emulator.engine.bind.texel_access import ViewAccess
from matmill.emulator.families.addresses import handle_of
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.program.table import Action, Call, Modifiers, Value, instructions
from matmill.textures import Surface, Texture

# The numbers of levels and samples are 0: emulated textures have one level and no samples.
_ATTRIBUTES = ("width", "height", "depth", "array_size", "num_mipmap_levels", "num_samples", "normalized_coords")


@instructions("txq", "suq")
def query(i: Instruction) -> Action:
    """Bind ``txq`` and ``suq`` of extents and counts.

    The numbers of channel types and modes are undocumented.
    """
    m = Modifiers(i, "b32", "level")
    name = m.need(*_ATTRIBUTES)
    m.done()
    d, source, *_ = i.operands
    address = handle_of(i, source)

    def bind(bound: BoundBlock) -> Call:
        access: ViewAccess[Texture] | ViewAccess[Surface]
        access = (
            ViewAccess(bound, i, Texture, "", "query")
            if i.name == "txq"
            else ViewAccess(bound, i, Surface, "", "query")
        )

        def call(handles: Row, out: Row) -> None:
            for _, image, chosen in access.images(handles):
                out[chosen] = _attribute(image, name)

        return call

    return Action(i, (Value(address.base, "u8"),), (Value(d, "u4"),), bind=bind, tally="memory")


def _attribute(image: Texture | Surface, name: str) -> int:
    width, height, depth = (*image.extents, 0, 0)[:3]
    known = {"width": width, "height": height, "depth": depth, "array_size": image.layers[0] if image.layered else 0}
    if name == "normalized_coords":
        return int(isinstance(image, Texture) and image.normalized)
    return known.get(name, 0)
