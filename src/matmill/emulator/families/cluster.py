"""Thread block clusters: barrier.cluster, mapa, getctarank.

PTX ISA, "barrier.cluster", "mapa", "getctarank". A mapped address has the rank in separate bits (see
``memory.address_space``), which distinguish it from an address of the own block.
"""

from __future__ import annotations

import numpy as np

from matmill.emulator.arith.row import Row
from matmill.emulator.engine.bind.bound_block import BoundBlock
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.memory.address_space import MAPPED, OFFSET_MASK, RANK_SHIFT, RANKS, SHARED_WINDOW
from matmill.emulator.program.table import KIND_OF_TYPE, Action, Call, Modifiers, Value, computed, instructions
from matmill.emulator.program.waits import ClusterWait


def cluster_barrier(i: Instruction) -> Action:
    """Bind barrier.cluster.arrive and barrier.cluster.wait."""
    m = Modifiers(i, "cluster", "aligned", "release", "relaxed", "acquire")
    waits = m.need("arrive", "wait") == "wait"
    m.done()
    if waits:
        return Action(i, tally="control", ends_block=True, detail=ClusterWait())
    return Action(i, bind=lambda bound: _bind_arrive(bound, i), tally="control", masks_itself=True)


def _bind_arrive(bound: BoundBlock, i: Instruction) -> Call:
    lanes, machine, participants = bound.lanes, bound.machine, bound.participants()

    def call() -> None:
        active = participants()
        if machine.events is not None:
            machine.events.cluster_arrive(lanes.warp_ids, active, releases="relaxed" not in i.modifiers)
        columns = lanes.columns[active.reshape(-1)]
        if machine.dependency is not None:
            machine.dependency.release("cluster", columns)
        twice = machine.cluster.arrive(columns)
        machine.progress += 1
        if twice is not None:
            thread = machine.geometry.thread_name(twice)
            message = f"{machine.launch.kernel}: {thread} arrives again before it has waited, in {i.text!r}"
            machine.hazards.add("divergent-barrier", i, message, i)

    return call


@instructions("mapa")
def map_address(i: Instruction) -> Action:
    """Bind mapa: the address of the same shared memory in another block of the cluster."""
    m = Modifiers(i)
    shared = m.flag("shared::cluster")
    kind = KIND_OF_TYPE[m.type("u32", "u64")]
    m.done()
    d, a, rank = i.operands

    def call(a: Row, rank: Row, out: Row) -> None:
        address = np.asarray(a, np.uint64)
        offset = address & np.uint64(OFFSET_MASK)
        window = np.uint64(0 if shared else SHARED_WINDOW)
        ranks = np.asarray(rank, np.uint64) & np.uint64(RANKS)
        out[...] = window | np.uint64(MAPPED) | ranks << np.uint64(RANK_SHIFT) | offset

    return computed(i, call, [(a, kind), (rank, "u4")], [(d, kind)], tally="other")


@instructions("getctarank")
def rank_of_address(i: Instruction) -> Action:
    """Bind getctarank: the cluster rank of the block whose shared memory an address refers to."""
    m = Modifiers(i, "shared::cluster")
    kind = KIND_OF_TYPE[m.type("u32", "u64")]
    m.done()
    d, a = i.operands

    def bind(bound: BoundBlock) -> Call:
        lanes, machine = bound.lanes, bound.machine

        def call(a: Row, out: Row) -> None:
            addresses = np.broadcast_to(a, lanes.count).astype(np.int64)
            out[...] = machine.shared_targets(addresses, lanes.columns)[0] % machine.cluster.size

        return call

    return Action(i, (Value(a, kind),), (Value(d, "u4"),), bind=bind)
