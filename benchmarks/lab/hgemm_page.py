"""``docs/ladder-hgemm.md``: rungs, what the emulator counted of them, and their rates over the size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from lab.markdown import markdown
from lab.page_parts import (
    UNMEASURED,
    Record,
    Step,
    environment_of,
    family,
    head,
    needs,
    row_of,
    shared,
    size_of,
    transactions,
)
from lab.pictures import shown
from matmill.bench import units
from matmill.ladders.runner.traffic import async_units

_UNITS = (
    "Matrices are packed row-major. Of float16, the rungs below `float32-sums` sum in float16, as S2 does; of\n"
    "bfloat16, all in float32. Every element is compared with the product in float64, within a bound for the type of\n"
    "its sums.\n"
    "The peak that the pictures show is the data sheet's of the tensor cores with float32 sums: with float16 sums,\n"
    "GeForce multiplies at up to twice that. The last row, `production`, is no rung: it is what\n"
    "`matmill.matmul` runs, as the cost model chooses it, with float32 sums.\n\n"
    "From `wgmma` on, rungs run on Hopper alone. Their order follows Shankhdhar's\n"
    "[fast.cu](https://github.com/pranjalssh/fast.cu) (2024); their predictions name what its steps made on one H200.\n"
)


def hgemm_page(rungs: Sequence[Step], records: Sequence[Record], remarked: str = "") -> str:
    """Return ``docs/ladder-hgemm.md``.

    ``remarked`` is Markdown that follows the counters, see :func:`lab.pages.remarks`.
    """
    # float16 before bfloat16.
    emulated, measured = (
        [r for r in sorted(records, key=lambda r: r["problem"]["dtype"], reverse=True) if r["on"] == on]
        for on in ("emulator", "gpu")
    )
    parts = [
        head("hgemm", "C = alpha * A @ B + beta * C of 16-bit floats on the tensor cores, from tiles to any size."),
        _UNITS,
        *(_measured(measured, [rung.label for rung in rungs]) if measured else [UNMEASURED]),
        *shown("hgemm"),
        *([_counted(emulated[0])] if emulated else []),
        *([remarked] if remarked else []),
        "## The rungs\n",
        *(family([rung], _largest(measured), emulated[0] if emulated else None) for rung in rungs),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _largest(measured: Sequence[Record]) -> list[Record]:
    """Return the largest product of the first element type."""
    first = [r for r in measured if r["problem"]["dtype"] == measured[0]["problem"]["dtype"]]
    return first[-1:]


def _measured(measured: Sequence[Record], labels: Sequence[str]) -> Iterator[str]:
    """Yield the rates at every size, a table for each element type."""
    missing = [label for label in labels if not any(row_of(record, label) for record in measured)]
    unmeasured = f"\nNot measured yet: {', '.join(f'`{label}`' for label in missing)}." if missing else ""
    yield (
        f"## Measured\n\n{environment_of(measured[-1])} A rung marked * ran at the nearest size that it takes."
        f"{unmeasured}\n"
    )
    for dtype, group in groupby(measured, key=lambda record: record["problem"]["dtype"]):
        runs = list(group)
        yield f"TFLOP/s in {dtype}:\n\n{_table(runs, labels)}"


def _table(runs: Sequence[Record], labels: Sequence[str]) -> str:
    """Return a row for each rung of ``labels`` and of the runs, and for each library; a column for each size."""
    result = [{**{row["rung"]: row for row in r["rows"]}, **{b["name"]: b for b in r["baselines"]}} for r in runs]
    names = dict.fromkeys([*labels, *(name for at_size in result for name in at_size)])
    # Libraries after the rungs, which may be more at a larger size.
    libraries = {base["name"] for run in runs for base in run["baselines"]}
    rows = [
        [name, *(_rate(at_size[name]) if name in at_size else "-" for at_size in result)]
        for name in sorted(names, key=libraries.__contains__)
    ]
    return markdown(["rung", *(size_of(run).removesuffix(f" {run['problem']['dtype']}") for run in runs)], rows)


def _rate(row: Record) -> str:
    if not row["tflops"]:
        return "-"
    return units.digits(row["tflops"]) + (" *" if row.get("note") else "")


def _counted(record: Record) -> str:
    """Return what the emulator counted of one element type."""
    headings = ["rung", "registers", "shared bytes", "occupancy", "HMMA", "ldmatrix", "loads", "sectors/load", "stores"]
    headings += ["sectors/store", "shared loads, ideal/actual", "shared stores, ideal/actual", "barriers", "hazards"]
    rows = []
    for row in record["rows"]:
        c = row["counters"]
        tensor_cores = str(c["hmma"]), str(c["ldmatrix_requests"])
        rows.append([*needs(row), *tensor_cores, *transactions(row, async_copies=True)])
    table = f"{size_of(record)}:\n\n{markdown(headings, rows)}"
    return (
        f"## Counted\n\nBy the emulator, from the PTX for {record['target']}: instructions of warps to the tensor "
        "cores (HMMA) and loads of their\nfragments (ldmatrix), requests to global memory and the 32-byte sectors that "
        "each touches, cp.async among the loads, and\nwavefronts of shared memory beside the "
        "fewest that would do, without what cp.async writes there.\nBarriers count once per warp.\n\n"
        + "\n".join([table, *_counted_async(record)])
    )


def _counted_async(record: Record) -> Iterator[str]:
    """Yield what the emulator counted of wgmma, TMA and mbarriers, where a rung uses them."""
    headings = ["rung", "wgmma", "operand bytes", "TMA loads", "bytes loaded", "sectors", "TMA stores", "bytes stored"]
    headings += ["epilogue's shared stores, ideal/actual", "mbarrier waits", "mbarrier arrivals"]
    names = ("gmma", "wgmma_shared_bytes", "bulk_loads", "bulk_load_bytes", "bulk_load_sectors", "bulk_stores")
    text = (
        "Of rows that use them: wgmma, once per warp, and the operands that it reads from shared memory; copies of "
        "TMA, their\nbytes, and the sectors of global memory that loads touch; wavefronts of the epilogue's stores to "
        "shared memory; waits of\nwarps for mbarriers, and arrivals of threads. A multicast counts once.\n\n"
    )
    rows = [
        [
            row["rung"],
            *(str(row["counters"][name]) for name in (*names, "bulk_store_bytes")),
            shared(row["counters"])[1],
            *(str(row["counters"][name]) for name in ("mbarrier_waits", "mbarrier_arrivals")),
        ]
        for row in record["rows"]
        if async_units(row["counters"])
    ]
    if rows:
        yield f"{text}{size_of(record)}:\n\n{markdown(headings, rows)}"
