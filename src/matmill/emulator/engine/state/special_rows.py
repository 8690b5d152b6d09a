"""The values of special registers over the lanes of a batch of thread blocks."""

from __future__ import annotations

import numpy as np

from matmill.emulator.arith.row import Row
from matmill.emulator.engine.lanes import BatchGeometry
from matmill.emulator.memory.address_space import SHARED_BASE
from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.special_registers import CONSTANTS, RESERVED_SHARED
from matmill.emulator.program.translate import EmulatedProgram
from matmill.launch import Launch, coordinates

# Shared memory is allocated in units (PTX ISA, "%total_smem_size").
_SHARED_UNIT = 128


def special_row(
    name: str, geometry: BatchGeometry, launch: Launch, program: EmulatedProgram, workspace: int
) -> Row | int:
    """Return the values of a special register for all lanes of a batch, or the one value that they share.

    ``workspace`` is the address of the memory with which a cooperative launch synchronizes its grid, 0 in other
    launches.
    """
    base, _, axis = name.partition(".")
    n = "xyz".find(axis) if axis else 0
    thread = geometry.thread
    lane = (thread % LANES).astype(np.uint64)
    below = (np.uint64(1) << lane) - np.uint64(1)
    own = np.uint64(1) << lane
    block = np.repeat(geometry.block_ids[geometry.block_of_warp], LANES)
    cluster = launch.cluster
    within = [c % side for c, side in zip(coordinates(block, launch.grid), cluster, strict=True)]
    total = -(-(launch.dynamic_shared + program.static_shared) // _SHARED_UNIT) * _SHARED_UNIT
    values: dict[str, Row | int] = {
        **CONSTANTS,
        "%tid": coordinates(thread, launch.block)[n],
        "%ctaid": coordinates(block, launch.grid)[n],
        "%ntid": launch.block[n],
        "%nctaid": launch.grid[n],
        "%laneid": thread % LANES,
        "%warpid": thread // LANES,
        "%lanemask_eq": own,
        "%lanemask_lt": below,
        "%lanemask_le": below | own,
        "%lanemask_gt": ~(below | own),
        "%lanemask_ge": ~below,
        "%clusterid": coordinates(block, launch.grid)[n] // cluster[n],
        "%nclusterid": launch.grid[n] // cluster[n],
        "%cluster_ctaid": within[n],
        "%cluster_ctarank": within[0] + cluster[0] * (within[1] + cluster[1] * within[2]),
        "%cluster_nctaid": cluster[n],
        "%cluster_nctarank": cluster[0] * cluster[1] * cluster[2],
        "%is_explicit_cluster": int(cluster != (1, 1, 1)),
        # cooperative_groups looks for the workspace here (details/driver_abi.h).
        "%envreg1": workspace >> 32,
        "%envreg2": workspace & 0xFFFFFFFF,
        "%dynamic_smem_size": launch.dynamic_shared,
        "%total_smem_size": total,
        "%aggr_smem_size": total + RESERVED_SHARED,
        "%reserved_smem_offset_begin": SHARED_BASE,
        "%reserved_smem_offset_end": SHARED_BASE + RESERVED_SHARED,
        "%reserved_smem_offset_cap": RESERVED_SHARED,
        "%reserved_smem_offset_0": SHARED_BASE,
        "%reserved_smem_offset_1": SHARED_BASE + RESERVED_SHARED // 2,
    }
    return values[base]
