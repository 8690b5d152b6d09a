"""The waits of threads: at barriers, for lanes of their warp, for phases of mbarriers, for clusters, for wgmma."""

from __future__ import annotations

from dataclasses import dataclass

from matmill.emulator.frontend.syntax import Address, PtxOperand


@dataclass(frozen=True, slots=True)
class Barrier:
    """A wait of warps for others of their block. ``mode`` is "sync", "arrive" or a reduction: "popc", "and", "or".

    ``number`` and ``threads`` are operands; without ``threads`` it is the whole block. ``source`` and ``negated`` are
    the predicate of a reduction.
    """

    mode: str
    number: PtxOperand
    threads: PtxOperand | None
    source: PtxOperand | None = None
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Converge:
    """A wait of the lanes of one warp with the same mask for each other. ``members`` is the mask operand.

    At a ``barrier`` (bar.warp.sync) they may wait at different instructions.
    """

    members: PtxOperand
    barrier: bool = False


class Poll:
    """A wait of single lanes, which proceed as soon as their condition holds."""


@dataclass(frozen=True)
class PhaseWait(Poll):
    """``mbarrier.try_wait``: each lane waits for a phase of the mbarrier at ``address`` to complete.

    ``phase`` is its parity, or the state that an arrive returned. The wait may fail after the hardware's time limit.
    """

    address: Address
    phase: PtxOperand
    parity: bool


@dataclass(frozen=True)
class ClusterWait(Poll):
    """``barrier.cluster.wait``: each lane waits until all threads of its cluster have arrived."""


@dataclass(frozen=True, slots=True)
class GroupWait:
    """``wgmma.wait_group``: whole warps wait until at most the ``allowed`` newest groups of products are in flight."""

    allowed: int
