"""What the emulator's counters say of global memory: bytes asked for, and the sectors that each request touches."""

from __future__ import annotations

from collections.abc import Mapping

from matmill.bench import units


def read_over_least(counters: Mapping[str, int], least: int | None) -> float:
    """Bytes that all threads asked global memory for, over the least that the product must move.

    >>> read_over_least({"global_load_bytes": 300, "cp_async_bytes": 0}, 100)
    3.0
    """
    return (counters["global_load_bytes"] + counters["cp_async_bytes"]) / least if least else 0.0


def sectors_per_load(counters: Mapping[str, int]) -> str:
    """32-byte sectors per global load request of a warp, or a dash where there was none.

    >>> loads = {"global_load_sectors": 12, "global_load_requests": 3, "cp_async_sectors": 0, "cp_async_requests": 0}
    >>> sectors_per_load(loads)
    '4.00'
    """
    # Copies past the registers (cp.async) are loads too, under counters of their own.
    return units.ratio(
        counters["global_load_sectors"] + counters["cp_async_sectors"],
        counters["global_load_requests"] + counters["cp_async_requests"],
    )
