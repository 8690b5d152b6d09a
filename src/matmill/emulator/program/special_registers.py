"""The special registers that the emulator has: %tid, %ctaid and the like, and the clocks."""

from __future__ import annotations

CLOCKS = {"%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"}
# One SM that holds everything.
CONSTANTS = {
    "%nsmid": 1, "%smid": 0, "%gridid": 0, "%nwarpid": 64,
}  # fmt: skip
# Where the bytes begin that the system keeps for cooperative_groups in each block's shared memory, and how many of them
# its tiles of several warps use (cooperative_groups/details/memory.h).
RESERVED_OFFSET, RESERVED_BYTES = "%reserved_smem_offset_1", 288
_VARYING = {
    RESERVED_OFFSET,
    "%tid", "%ctaid", "%ntid", "%nctaid", "%laneid", "%warpid", "%lanemask_eq", "%lanemask_lt", "%lanemask_le",
    "%lanemask_gt", "%lanemask_ge", "%dynamic_smem_size", "%total_smem_size", "%aggr_smem_size",
    "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_ctarank", "%cluster_nctaid", "%cluster_nctarank",
    "%is_explicit_cluster", "%envreg1", "%envreg2",
}  # fmt: skip


def is_known(name: str) -> bool:
    """Whether the emulator has a special register of this name."""
    base, _, axis = name.partition(".")
    return name in CLOCKS or (base in _VARYING | set(CONSTANTS) and axis in {"", "x", "y", "z"})
