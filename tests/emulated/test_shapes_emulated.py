"""What the kernels chosen for products of every shape ask of memory: the record is today's, and close to the least."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.gemm.shapes_emulated import Entry, described, emulate, entries, over_least, sectors
from lab.shapes_page import recorded_shapes

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
RECORDS: list[dict[str, Any]] = recorded_shapes(RESULTS)[0]["records"]
ENTRIES = list(entries())
AGAIN = "python benchmarks/shapes_emulated.py --out benchmarks/results/shapes_emulated.json"


def found(entry: Entry) -> dict[str, Any]:
    """Return the record of an entry."""
    return RECORDS[ENTRIES.index(entry)]


def name(entry: Entry) -> str:
    """Return an entry in a word."""
    return f"{entry.kind.replace(' ', '-')}-{entry.m}x{entry.n}x{entry.k}-{entry.dtype.name}"


def test_the_record_has_the_kernels_that_are_chosen_today() -> None:
    recorded = [{key: value for key, value in one.items() if key != "launches"} for one in RECORDS]
    assert recorded == [described(entry) for entry in ENTRIES], AGAIN


@pytest.mark.parametrize(
    "entry", [one for one in ENTRIES if (one.kind, one.n) in {("batched", 17), ("tall", 4)}], ids=name
)
def test_a_fresh_run_counts_what_is_recorded(entry: Entry) -> None:
    fresh, recorded = emulate(entry), found(entry)
    names = ("global_load_bytes", "cp_async_bytes", "global_store_bytes", "shared_load_wavefronts")
    assert sectors(fresh) == sectors(recorded), AGAIN
    for one, other in zip(fresh["launches"], recorded["launches"], strict=True):
        assert one["entry"] == other["entry"]
        assert {key: one["counters"].get(key) for key in names} == {key: other["counters"].get(key) for key in names}


@pytest.mark.parametrize("entry", [one for one in ENTRIES if one.kind in {"batched", "tall"}], ids=name)
def test_batches_and_tall_products_move_about_the_least(entry: Entry) -> None:
    record = found(entry)
    read, written, both = over_least(record)
    if "D_STAGED=0" in record["kernel"] and entry.n < 16:
        # Threads store 16 bytes each straight from registers: of rows this short, the halves of a sector apart.
        assert read <= 1.1
        assert written <= 2
    else:
        assert both <= 1.1
