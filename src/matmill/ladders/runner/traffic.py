"""Ratios of the emulator's memory counters: bytes requested, sectors per request, and asynchronous units in use."""

from __future__ import annotations

from collections.abc import Mapping

from matmill.bench import units

#: Bytes of a sector.
_SECTOR = 32


def read_over_least(counters: Mapping[str, int], least: int | None) -> float:
    """Return the bytes that all threads request from global memory, relative to the least that the product must move.

    >>> read_over_least({"global_load_bytes": 300, "cp_async_bytes": 0}, 100)
    3.0
    """
    return (counters["global_load_bytes"] + counters["cp_async_bytes"]) / least if least else 0.0


def sectors_per_load(counters: Mapping[str, int]) -> float | None:
    """Return the 32-byte sectors per global load request of a warp, or None without requests.

    Copies that bypass the registers (cp.async) are loads too, with separate counters. As in the hardware's counters, a
    copy whose lanes all fill with zeros is not a request.

    >>> loads = {"global_load_sectors": 12, "global_load_requests": 3}
    >>> sectors_per_load({**loads, "cp_async_sectors": 8, "cp_async_global_requests": 1})
    5.0
    """
    requests = counters["global_load_requests"] + counters["cp_async_global_requests"]
    return (counters["global_load_sectors"] + counters["cp_async_sectors"]) / requests if requests else None


def used_over_moved(counters: Mapping[str, int]) -> float | None:
    """Return the bytes that threads request from global memory over those of the sectors moved, or None without any.

    At 1 all bytes of the sectors are used, whatever the width of the loads. More than 1 is reuse within a warp: threads
    that request the same bytes get them from one sector.

    >>> loads = {"global_load_bytes": 64, "cp_async_bytes": 64, "global_load_sectors": 4, "cp_async_sectors": 4}
    >>> used_over_moved(loads)
    0.5
    """
    sectors = counters["global_load_sectors"] + counters["cp_async_sectors"]
    used = counters["global_load_bytes"] + counters["cp_async_bytes"]
    return used / (_SECTOR * sectors) if sectors else None


def sectors_in_words(sectors: float | None) -> str:
    """Format :func:`sectors_per_load` for a table, with a dash for None.

    >>> sectors_in_words(4.0), sectors_in_words(None)
    ('4.00', '-')
    """
    return "-" if sectors is None else units.digits(sectors)


def async_units(counters: Mapping[str, int]) -> bool:
    """Tell whether the kernel uses asynchronous units: TMA, wgmma, mbarriers.

    >>> async_units({"gmma": 0, "bulk_loads": 4, "bulk_stores": 0, "mbarrier_waits": 0})
    True
    """
    return any(counters[name] for name in ("gmma", "bulk_loads", "bulk_stores", "mbarrier_waits"))
