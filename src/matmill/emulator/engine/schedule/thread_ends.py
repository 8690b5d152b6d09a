"""The ends of threads, thread blocks and batches, for operations in flight and for the race detector."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.engine.state.machine import Machine
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.memory.banks import LANES


def tell_of_exits(machine: Machine, warps: NDArray[np.int64], instruction: Instruction) -> None:
    """Report blocks that have ended to the race detector: threads of ``warps`` exited, maybe the last of a block."""
    if machine.events is None:
        return
    geometry = machine.geometry
    blocks = np.unique(geometry.block_of_warp[warps])
    left = machine.live.reshape(geometry.warps, geometry.blocks, LANES)[:, blocks].any(axis=(0, 2))
    where = machine.program.numbers.get(instruction, 0)
    for block in geometry.block_ids[blocks[~left]].tolist():
        machine.events.exited(block, where)


def finish_batch(machine: Machine) -> None:
    """Complete all operations in flight and report those that nobody waited for: the batch has ended."""
    machine.copies.finish()
    machine.queue.finish()
    for (block, offset), i in machine.mbarriers.unwaited():
        message = (
            f"{machine.launch.kernel}: {machine.geometry.block_name(block)} ends without a wait at the mbarrier "
            f"at byte {offset} of its shared memory for {i.text!r}, which may still write there"
        )
        machine.hazards.add("unwaited", i, message, i)
    for store in machine.bulk.finish():
        thread = machine.geometry.thread_name(store.column)
        message = (
            f"{machine.launch.kernel}: {thread} ends without cp.async.bulk.wait_group.read for "
            f"{store.instruction.text!r}, which may still read the shared memory of its block"
        )
        machine.hazards.add("unwaited", store.instruction, message, store.instruction)
    machine.products.finish()
    machine.registers.finish()
    if machine.detector is not None:
        machine.detector.release(machine.geometry.block_ids)
