"""Operations on the bytes or halves of 32-bit registers: vadd2, vabsdiff4 and the like.

PTX ISA, "Video Instructions". All parts are written; selectors and masks are not supported.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Row
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.program.table import Action, Modifiers, computed, instructions

_Parts = NDArray[np.int64]
_OPERATIONS: dict[str, Callable[[_Parts, _Parts], _Parts]] = {
    "vadd": np.add, "vsub": np.subtract, "vabsdiff": lambda a, b: np.abs(a - b), "vmin": np.minimum,
    "vmax": np.maximum,
}  # fmt: skip


@instructions(*(f"{name}{parts}" for name in _OPERATIONS for parts in (2, 4)), operands=(4,))
def on_parts(i: Instruction) -> Action:
    """Bind an operation on 2 halves or 4 bytes, or with ``.add`` the sum of its results plus a 32-bit number."""
    m = Modifiers(i)
    saturating, adding = m.flag("sat"), m.flag("add")
    signs = ["i" if m.type("u32", "s32") == "s32" else "u" for _ in range(3)]
    m.done()
    if saturating and adding:
        raise i.unsupported("its modifiers")
    operation, size = _OPERATIONS[i.name[:-1]], 4 // int(i.name[-1])
    limits = np.iinfo(f"{signs[0]}{size}")

    def call(a: Row, b: Row, c: Row, out: Row) -> None:
        left, right = (
            np.array(np.broadcast_to(x, out.shape)).view(f"{sign}{size}").reshape(len(out), -1).astype(np.int64)
            for x, sign in zip((a, b), signs[1:], strict=True)
        )
        parts = operation(left, right)
        if adding:
            out[...] = (parts.sum(axis=1) + c.astype(np.int64)).astype(np.uint32)
        else:
            parts = np.clip(parts, limits.min, limits.max) if saturating else parts
            out[...] = parts.astype(f"u{size}").view(np.uint32)[:, 0]

    d, *sources = i.operands
    return computed(i, call, [(s, "u4") for s in sources], [(d, "u4")])
