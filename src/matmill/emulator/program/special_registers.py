"""The special registers of the emulator: %tid, %ctaid and the like, and the clocks.

PTX ISA, "Special Registers".
"""

from __future__ import annotations

from collections.abc import Iterable

CLOCKS = {"%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"}
PREDICATES = {"%is_explicit_cluster"}
# Bytes of shared memory that the system reserves in each block. cooperative_groups has barriers in its second half.
RESERVED_SHARED = 1024
_RESERVED = {
    "%reserved_smem_offset_begin", "%reserved_smem_offset_end", "%reserved_smem_offset_cap",
    "%reserved_smem_offset_0", "%reserved_smem_offset_1",
}  # fmt: skip
# One SM that holds everything; performance counters that were never set up; no graph.
CONSTANTS = {
    "%nsmid": 1, "%smid": 0, "%gridid": 0, "%nwarpid": 64, "%current_graph_exec": 0,
    **{f"%pm{n}{wide}": 0 for n in range(8) for wide in ("", "_64")},
    **{f"%envreg{n}": 0 for n in range(32)},
}  # fmt: skip
_VARYING = {
    "%tid", "%ctaid", "%ntid", "%nctaid", "%laneid", "%warpid", "%lanemask_eq", "%lanemask_lt", "%lanemask_le",
    "%lanemask_gt", "%lanemask_ge", "%dynamic_smem_size", "%total_smem_size", "%aggr_smem_size",
    "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_ctarank", "%cluster_nctaid", "%cluster_nctarank",
    *PREDICATES,
}  # fmt: skip


_KNOWN = _VARYING | _RESERVED | set(CONSTANTS)


def is_known(name: str) -> bool:
    """Tell whether the emulator has a special register of this name."""
    base, _, axis = name.partition(".")
    return name in CLOCKS or (base in _KNOWN and axis in {"", "x", "y", "z"})


def reserved_bytes(names: Iterable[str]) -> int:
    """Return the bytes of shared memory that the system reserves in each block, if code reads any of ``names``."""
    return 0 if _RESERVED.isdisjoint(names) else RESERVED_SHARED
