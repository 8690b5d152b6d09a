"""Where threads wait for others: block barriers, and warps whose lanes have to meet."""

from __future__ import annotations

from dataclasses import dataclass

from matmill.emulator.frontend.syntax import Operand


@dataclass(frozen=True, slots=True)
class Barrier:
    """A wait of warps for others of their block. ``mode`` is "sync", "arrive" or a reduction: "popc", "and", "or".

    ``number`` and ``threads`` are operands; without ``threads`` the whole block takes part. ``source`` and ``negated``
    are the predicate of a reduction.
    """

    mode: str
    number: Operand
    threads: Operand | None
    source: Operand | None = None
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Converge:
    """A wait of the lanes of one warp that name the same mask for each other. ``members`` is the mask operand.

    At a ``barrier`` (bar.warp.sync) they may wait at different instructions.
    """

    members: Operand
    barrier: bool = False
