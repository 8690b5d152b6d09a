"""Special registers: the values of %tid, %ctaid and their kin over the lanes of a batch."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.lanes import LANES, Geometry
from matmill.launch import Launch

Row: TypeAlias = "NDArray[Any]"
# Shared memory is given out in units, and a block has some that is the system's (PTX ISA, "%total_smem_size").
_SHARED_UNIT, _RESERVED_SHARED = 128, 1024
CLOCKS = {"%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"}
# One multiprocessor that holds everything, and no clusters.
_CONSTANTS = {
    "%nsmid": 1, "%smid": 0, "%gridid": 0, "%nwarpid": 64, "%clusterid": 0, "%nclusterid": 1, "%cluster_ctaid": 0,
    "%cluster_ctarank": 0, "%cluster_nctaid": 1, "%cluster_nctarank": 1,
}  # fmt: skip
_VARYING = {
    "%tid", "%ctaid", "%ntid", "%nctaid", "%laneid", "%warpid", "%lanemask_eq", "%lanemask_lt", "%lanemask_le",
    "%lanemask_gt", "%lanemask_ge", "%dynamic_smem_size", "%total_smem_size", "%aggr_smem_size",
}  # fmt: skip


def is_known(name: str) -> bool:
    """Whether the emulator has a special register of this name."""
    base, _, axis = name.partition(".")
    return name in CLOCKS or (base in _VARYING | set(_CONSTANTS) and axis in {"", "x", "y", "z"})


def special_row(name: str, geometry: Geometry, launch: Launch, static_shared: int) -> Row | int:
    """The values of a special register for all lanes of a batch, or the one value that they share."""
    base, _, axis = name.partition(".")
    n = "xyz".find(axis) if axis else 0
    thread = geometry.thread
    lane = (thread % LANES).astype(np.uint64)
    below = (np.uint64(1) << lane) - np.uint64(1)
    own = np.uint64(1) << lane
    block = np.repeat(geometry.block_ids[geometry.block_of_warp], LANES)
    total = -(-(launch.dynamic_shared + static_shared) // _SHARED_UNIT) * _SHARED_UNIT
    values: dict[str, Row | int] = {
        **_CONSTANTS,
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
        "%dynamic_smem_size": launch.dynamic_shared,
        "%total_smem_size": total,
        "%aggr_smem_size": total + _RESERVED_SHARED,
    }
    return values[base]


def coordinates(number: Row, shape: tuple[int, int, int]) -> tuple[Row, Row, Row]:
    """Linear numbers as x, y, z in a grid or block of ``shape``."""
    x, y, _ = shape
    return number % x, number // x % y, number // (x * y)
