"""Where threads wait: block barriers, warps whose lanes have to meet, groups of wgmma."""

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
    """A wait of the lanes of one warp for each other. ``members`` is the mask operand, None for all that are left."""

    members: Operand | None
    barrier: bool = False


@dataclass(frozen=True, slots=True)
class GroupWait:
    """``wgmma.wait_group``: whole warps wait until at most the ``allowed`` newest groups of products are in flight."""

    allowed: int
