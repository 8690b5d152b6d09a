"""The documentation pages of the ladders: descriptors and recorded results, put together as Markdown.

The pages are committed; a test makes them anew and compares, so that neither prose nor figures can go stale.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from lab.findings import conflicts
from lab.markdown import markdown
from lab.page_parts import (
    UNMEASURED,
    Record,
    Step,
    environment_of,
    family,
    head,
    needs,
    overview,
    shared,
    size_of,
    transactions,
)
from lab.pictures import shown
from lab.transpose_add import report
from matmill.bench import units
from matmill.ladders.runner.traffic import read_over_least, sectors_in_words, sectors_per_load

#: 2 * 8192^3 operations over the times that S0 prints.
_FORUM_MS = {"naive": 292, "shared": 324, "volkov": 144, "register-tile": 54, "conflict-free": 42, "CUTLASS": 24}
_FORUM_PRINTED = {
    "naive": 1.88,
    "shared": 1.70,
    "volkov": 3.82,
    "register-tile": 10.2,
    "conflict-free": 13.1,
    "CUTLASS": 22.9,
}


_INNER_UNITS = (
    "Rates are the least bytes that must move, every input read once and every output written once, over the time;\n"
    "percentages refer to the memory bandwidth of the GPU's data sheet. The last row, `production`, is no rung: it is\n"
    "what `matmill.inner` runs, as the cost model chooses it for the product. A run has the kernels of its date:\n"
    "[all measured inner products](inner-results.md) are of runs of their own.\n"
)
_SUM_UNITS = (
    "Sizes are those of x; y and the result have its columns as rows. Rates are the least bytes that must move, x and\n"
    "y read once and the result written once, over the time; percentages refer to a copy in the same interleaved run.\n"
    "Every element is compared bit by bit. The last row, `production`, is no rung: it is what `matmill.transpose_add`\n"
    "runs, as the cost model chooses it.\n"
)


def recorded(folder: Path, ladder: str) -> list[Record]:
    """Give the results of ``ladder`` recorded in ``folder``, the emulated one first, then by size, type and layout."""
    result: list[Record] = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob(f"{ladder}_*.json")]
    runs = [record for record in result if record.get("ladder") == ladder]
    return sorted(runs, key=lambda r: (r["on"] != "emulator", *_order(r["problem"])))


def _order(problem: Record) -> tuple[int, int, str, str]:
    return problem["m"], problem.get("k", problem["n"]), problem.get("dtype", ""), problem.get("layout", "")


def remarks(folder: Path, ladder: str) -> str:
    """Return the remarks on the results of ``ladder``, from ``<ladder>_remarks.md``; empty where there are none."""
    path = folder / f"{ladder}_remarks.md"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def sgemm_page(rungs: Sequence[Step], records: Sequence[Record], remarked: str = "") -> str:
    """Return ``docs/ladder-sgemm.md``; ``remarked`` is Markdown to follow the measured figures, see :func:`remarks`."""
    emulated = next((r for r in records if r["on"] == "emulator"), None)
    measured = [r for r in records if r["on"] == "gpu"]
    parts = [
        head("sgemm", "C = alpha * A @ B + beta * C in float32, from three nested loops to the library's level."),
        *overview(rungs, measured),
        *shown("sgemm"),
        *([remarked] if remarked else []),
        *([_counters(emulated)] if emulated else []),
        "## The rungs\n",
        *(family(list(group), measured, emulated) for _, group in groupby(rungs, key=lambda rung: rung.name)),
        *([conflicts(emulated)] if emulated else []),
        _errata(),
    ]
    return "\n".join(parts).rstrip() + "\n"


def memory_page(rungs: Sequence[Step], records: Sequence[Record]) -> str:
    """Return ``docs/ladder-memory.md``."""
    measured = [r for r in records if r["on"] == "gpu"]
    parts = [
        head("memory", "One product behind three ways of moving its matrices between host and device."),
        *(_phases(record) for record in measured),
        *shown("memory"),
        *([] if measured else [UNMEASURED]),
        "## The rungs\n",
        *(family([rung], [], None) for rung in rungs),
    ]
    return "\n".join(parts).rstrip() + "\n"


def inner_page(rungs: Sequence[Step], records: Sequence[Record]) -> str:
    """Return ``docs/ladder-inner.md``."""
    emulated = next((r for r in records if r["on"] == "emulator"), None)
    measured = [r for r in records if r["on"] == "gpu"]
    parts = [
        head("inner", "D = alpha * E @ F + beta * C with few outputs and a long k, from a paper's PHVM to one pass."),
        _INNER_UNITS,
        *([_traffic(measured)] if measured else [UNMEASURED]),
        *shown("inner"),
        *([_reads(emulated)] if emulated else []),
        "## The rungs\n",
        *(family([rung], measured, emulated) for rung in rungs),
    ]
    return "\n".join(parts).rstrip() + "\n"


def transpose_add_page(
    rungs: Sequence[Step], records: Sequence[Record], comparisons: Mapping[str, Record], remarked: str = ""
) -> str:
    """Return ``docs/ladder-transpose_add.md``; ``comparisons`` are records of :mod:`lab.transpose_add.report`.

    ``remarked`` is Markdown to follow them, see :func:`remarks`.
    """
    emulated = [r for r in records if r["on"] == "emulator"]
    measured = [r for r in records if r["on"] == "gpu"]
    parts = [
        head("transpose_add", "x transposed plus y in one pass, from an article's two kernels to any pitch."),
        _SUM_UNITS,
        *([_traffic(measured, "x")] if measured else [UNMEASURED]),
        *shown("transpose_add"),
        *([report.page_part(comparisons)] if comparisons else []),
        *([remarked] if remarked else []),
        *([_warps(emulated)] if emulated else []),
        "## The rungs\n",
        *(family([rung], measured, emulated[0] if emulated else None) for rung in rungs),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _warps(emulated: Sequence[Record]) -> str:
    """Return what the emulator counted of the accesses of warps, a table per record."""
    headings = ["rung", "registers", "shared bytes", "occupancy", "loads", "sectors/load", "stores", "sectors/store"]
    headings += ["shared loads, ideal/actual", "shared stores, ideal/actual", "barriers", "hazards"]
    tables = []
    for record in emulated:
        rows = [[*needs(row), *transactions(row)] for row in record["rows"]]
        tables.append(f"x {size_of(record)}:\n\n{markdown(headings, rows)}")
    return (
        f"## Counted\n\nBy the emulator, from the PTX for {emulated[0]['target']}: requests of warps to global memory "
        "and the 32-byte sectors\nthat each touches, wavefronts of shared memory beside the fewest that would do, "
        "barriers once\nper warp. Tiles are those for matrices as small as these.\n\n" + "\n".join(tables)
    )


def _traffic(measured: Sequence[Record], sizes: str = "m x n x k") -> str:
    """Return TB/s and the fraction of bandwidth of every rung and library, a line per problem."""
    names = list(dict.fromkeys(row["rung"] for record in measured for row in record["rows"]))
    others = list(dict.fromkeys(base["name"] for record in measured for base in record["baselines"]))
    rows = []
    for record in measured:
        result = {row["rung"]: row for row in record["rows"]} | {base["name"]: base for base in record["baselines"]}
        rates = [_bandwidth(result.get(name)) for name in (*names, *others)]
        rows.append([size_of(record), *rates])
    return f"## Measured\n\n{environment_of(measured[-1])}\n\n" + markdown([sizes, *names, *others], rows)


def _bandwidth(row: Record | None) -> str:
    if row is None or not row["tbytes_per_second"]:
        return "-"
    return f"{units.digits(row['tbytes_per_second'])} TB/s, {units.percent(row['bandwidth_fraction'])}"


def _reads(emulated: Record) -> str:
    """Return what the emulator counted of global memory, one line per rung."""
    headings = ["rung", "registers", "shared bytes", "occupancy", "read/least", "sectors/load", "atomics", "barriers"]
    rows = [
        [
            *needs(row),
            units.digits(read_over_least(row["counters"], row["bytes"])),
            sectors_in_words(sectors_per_load(row["counters"])),
            str(row["counters"]["atomics"]),
            str(row["counters"]["barriers"]),
            str(len(row["hazards"])),
        ]
        for row in emulated["rows"]
    ]
    return (
        f"## Counted\n\nBy the emulator at {size_of(emulated)}, from the PTX for {emulated['target']},\n"
        "all launches of a rung together: bytes that threads read over the least, 32-byte sectors per global load "
        "request,\natomic operations of threads, barriers once per warp. "
        f"{' '.join(_launches(emulated))}\n\n" + markdown([*headings, "hazards"], rows)
    )


def _launches(record: Record) -> list[str]:
    """Say how the paper's rungs were launched, as whole sentences."""
    return [f"Launches: {note.replace(': launched', '')}." for note in record["notes"] if "launched with" in note]


def _counters(emulated: Record) -> str:
    """Return what the emulator counted, one line per rung."""
    p = emulated["problem"]
    headings = [
        "rung",
        "registers",
        "shared bytes",
        "occupancy",
        "FFMA",
        "sectors/load",
        "sectors/store",
        "shared loads, ideal/actual",
        "shared stores, ideal/actual",
        "barriers",
        "hazards",
    ]
    rows = []
    for row in emulated["rows"]:
        c = row["counters"]
        rows.append(
            [
                *needs(row),
                str(c["ffma"]),
                sectors_in_words(sectors_per_load(c)),
                units.ratio(c["global_store_sectors"], c["global_store_requests"]),
                *shared(c),
                str(c["barriers"]),
                str(len(row["hazards"])),
            ]
        )
    return (
        f"## Counted\n\nBy the emulator at m={p['m']} n={p['n']} k={p['k']}, from the PTX for {emulated['target']}; "
        f"registers and occupancy as the\nassembler reports them for that target. Sectors are 32 bytes, a wavefront is "
        "one pass over the banks of shared memory,\nbarriers are counted once per warp. Copies that bypass the "
        f"registers (cp.async) count as loads.\n\n{markdown(headings, rows)}"
    )


def _phases(record: Record) -> str:
    """Return the walls of the memory ladder's phases."""
    names = list(record["rows"][0]["phases"])
    rows = []
    for row in record["rows"]:
        if not row.get("phases"):
            rows.append([row["rung"], row["note"], *("" for _ in names)])
            continue
        cells = []
        for name in names:
            phase = row["phases"][name]
            rate = f", {units.quantity(phase['bytes'] / phase['seconds'], 'B/s')}" if phase["bytes"] else ""
            cells.append(units.seconds(phase["seconds"]) + rate)
        rows.append([row["rung"], units.seconds(row["seconds"]), *cells])
    return f"## Measured at {size_of(record)}\n\n{environment_of(record)}\n\n{markdown(['rung', 'wall', *names], rows)}"


def _errata() -> str:
    """Return what is wrong with the figures of the sources."""
    flops = 2 * 8192**3
    rows = [
        [name, f"{ms} ms", str(_FORUM_PRINTED[name]), units.digits(flops / (ms * 1e-3) / 1e12)]
        for name, ms in _FORUM_MS.items()
    ]
    share = _FORUM_MS["CUTLASS"] / _FORUM_MS["conflict-free"]
    return (
        "## Errata of the sources\n\n"
        '**S0** prints "TFlops" that count an FMA once, and compares them with a peak that counts it '
        "twice.\nIn the usual unit, 2·M·N·K operations over its own times:\n\n"
        + markdown(["rung", "time", "printed", "TFLOP/s"], rows)
        + f'\nIts "over 70% of CUTLASS" is {units.percent(share)} by its own times. Its 32-way bank conflict on the '
        "`shared` rung's A tile is\nnot there: see above.\n\n"
        "**S1** divides by 2^30 where it says GFLOPS: multiply its rates by 1.0737 for decimal ones. Its 3373 GFLOPS "
        f"for cuBLAS at\n1024 do not match its 530.28 us, which are {2 * 1024**3 / 530.28e-6 / 1e9:.0f} decimal "
        "GFLOP/s.\n"
    )
