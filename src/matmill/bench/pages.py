"""The documentation pages of the ladders: descriptors and recorded results, put together as Markdown.

The pages are committed; a test makes them anew and compares, so that neither prose nor figures can go stale.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from matmill.bench import sum_report, units
from matmill.bench.findings import conflicts
from matmill.bench.markdown import markdown
from matmill.bench.subject import subject_of
from matmill.bench.traffic import read_over_least, said, sectors_per_load
from matmill.kernel import Document

Record = Mapping[str, Any]

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
    "percentages refer to the memory bandwidth of the GPU's data sheet. Last in the tables stands `production`, which\n"
    "is no rung: what `matmill.inner` runs, as the cost model chooses it for the product.\n"
)
_SUM_UNITS = (
    "Sizes are those of x; y and the result have its columns as rows. Rates are the least bytes that must move, x and\n"
    "y read once and the result written once, over the time; percentages refer to a copy timed in turns with them.\n"
    "Every element is compared bit by bit. Last in the tables stands `production`, which is no rung: what\n"
    "`matmill.transpose_add` runs, as the cost model chooses it for the sum.\n"
)
_UNMEASURED = "No run on a GPU is recorded yet.\n"


class Step(Protocol):
    """What a page tells of every rung, whichever its ladder."""

    @property
    def name(self) -> str:
        """The rung's name without its parameter."""

    @property
    def label(self) -> str:
        """The rung's name with its parameter, where it has one."""

    @property
    def source(self) -> Document:
        """Where it comes from."""

    @property
    def changes(self) -> str:
        """What is new in it."""

    @property
    def predicts(self) -> str:
        """The gain expected before measuring."""

    @property
    def claim(self) -> str:
        """What its source reports."""


def recorded(folder: Path, ladder: str) -> list[Record]:
    """The results of ``ladder`` recorded in ``folder``, the emulated one first, then by size, type and layout."""
    found: list[Record] = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob(f"{ladder}_*.json")]
    runs = [record for record in found if record.get("ladder") == ladder]
    return sorted(runs, key=lambda r: (r["on"] != "emulator", *_order(r["problem"])))


def _order(problem: Record) -> tuple[int, int, str, str]:
    return problem["m"], problem.get("k", problem["n"]), problem.get("dtype", ""), problem.get("layout", "")


def remarks(folder: Path, ladder: str) -> str:
    """What whoever measured wrote beside the results of ``ladder``, in ``<ladder>_remarks.md``; empty where nothing."""
    path = folder / f"{ladder}_remarks.md"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def sgemm_page(rungs: Sequence[Step], records: Sequence[Record], remarked: str = "") -> str:
    """``docs/ladder-sgemm.md``; ``remarked`` is Markdown to follow the measured figures, see :func:`remarks`."""
    emulated = next((r for r in records if r["on"] == "emulator"), None)
    measured = [r for r in records if r["on"] == "gpu"]
    parts = [
        _head("sgemm", "C = alpha * A @ B + beta * C in float32, from three nested loops to the library's level."),
        *_overview(rungs, measured),
        *([remarked] if remarked else []),
        *([_counters(emulated)] if emulated else []),
        "## The rungs\n",
        *(_family(list(group), measured, emulated) for _, group in groupby(rungs, key=lambda rung: rung.name)),
        *([conflicts(emulated)] if emulated else []),
        _errata(),
    ]
    return "\n".join(parts).rstrip() + "\n"


def memory_page(rungs: Sequence[Step], records: Sequence[Record]) -> str:
    """``docs/ladder-memory.md``."""
    measured = [r for r in records if r["on"] == "gpu"]
    parts = [
        _head("memory", "One product behind three ways of moving its matrices between host and device."),
        *(_phases(record) for record in measured),
        *([] if measured else [_UNMEASURED]),
        "## The rungs\n",
        *(_family([rung], [], None) for rung in rungs),
    ]
    return "\n".join(parts).rstrip() + "\n"


def inner_page(rungs: Sequence[Step], records: Sequence[Record]) -> str:
    """``docs/ladder-inner.md``."""
    emulated = next((r for r in records if r["on"] == "emulator"), None)
    measured = [r for r in records if r["on"] == "gpu"]
    parts = [
        _head("inner", "D = alpha * E @ F + beta * C with few outputs and a long k, from a paper's PHVM to one pass."),
        _INNER_UNITS,
        *([_traffic(measured)] if measured else [_UNMEASURED]),
        *([_reads(emulated)] if emulated else []),
        "## The rungs\n",
        *(_family([rung], measured, emulated) for rung in rungs),
    ]
    return "\n".join(parts).rstrip() + "\n"


def transpose_add_page(rungs: Sequence[Step], records: Sequence[Record], comparisons: Sequence[Record]) -> str:
    """``docs/ladder-transpose_add.md``; ``comparisons`` are records of :mod:`matmill.bench.sum_report`."""
    emulated = [r for r in records if r["on"] == "emulator"]
    measured = [r for r in records if r["on"] == "gpu"]
    parts = [
        _head("transpose_add", "x transposed plus y in one pass, from an article's two kernels to any pitch."),
        _SUM_UNITS,
        *([_traffic(measured, "x")] if measured else [_UNMEASURED]),
        *([sum_report.page_part(comparisons)] if comparisons else []),
        *([_warps(emulated)] if emulated else []),
        "## The rungs\n",
        *(_family([rung], measured, emulated[0] if emulated else None) for rung in rungs),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _warps(emulated: Sequence[Record]) -> str:
    """What the emulator counted of the accesses of warps, a table per record."""
    headings = ["rung", "registers", "shared bytes", "occupancy", "loads", "sectors/load", "stores", "sectors/store"]
    headings += ["shared loads, ideal/actual", "shared stores, ideal/actual", "barriers", "hazards"]
    tables = []
    for record in emulated:
        rows = []
        for row in record["rows"]:
            c = row["counters"]
            rows.append(
                [
                    *_needs(row),
                    str(c["global_load_requests"]),
                    said(sectors_per_load(c)),
                    str(c["global_store_requests"]),
                    units.ratio(c["global_store_sectors"], c["global_store_requests"]),
                    *_shared(c),
                    str(c["barriers"]),
                    str(len(row["hazards"])),
                ]
            )
        tables.append(f"x {_size(record)}:\n\n{markdown(headings, rows)}")
    return (
        f"## Counted\n\nBy the emulator, from the PTX for {emulated[0]['target']}: requests of warps to global memory "
        "and the 32-byte sectors\nthat each touches, passes over the banks of shared memory (wavefronts) beside the "
        "fewest that would do, barriers once\nper warp. Tiles are those for matrices as small as these.\n\n"
        + "\n".join(tables)
    )


def _needs(row: Record) -> list[str]:
    return [row["rung"], str(row["registers"]), str(row["shared_bytes"]), units.percent(row["occupancy"])]


def _shared(counters: Mapping[str, int]) -> list[str]:
    """Wavefronts of loads and stores, the fewest beside those there were."""
    pairs = [
        (counters[f"{name}_ideal"], counters[name]) for name in ("shared_load_wavefronts", "shared_store_wavefronts")
    ]
    return [f"{ideal}/{actual}" for ideal, actual in pairs]


def _traffic(measured: Sequence[Record], sizes: str = "m x n x k") -> str:
    """TB/s and the fraction of bandwidth of every rung and library, a line per problem."""
    names = list(dict.fromkeys(row["rung"] for record in measured for row in record["rows"]))
    others = list(dict.fromkeys(base["name"] for record in measured for base in record["baselines"]))
    rows = []
    for record in measured:
        found = {row["rung"]: row for row in record["rows"]} | {base["name"]: base for base in record["baselines"]}
        rates = [_bandwidth(found.get(name)) for name in (*names, *others)]
        rows.append([_size(record), *rates])
    return f"## Measured\n\n{_where(measured)}\n\n" + markdown([sizes, *names, *others], rows)


def _bandwidth(row: Record | None) -> str:
    if row is None or not row["tbytes_per_second"]:
        return "-"
    return f"{units.digits(row['tbytes_per_second'])} TB/s, {units.percent(row['bandwidth_fraction'])}"


def _reads(emulated: Record) -> str:
    """What the emulator counted of global memory, one line per rung."""
    headings = ["rung", "registers", "shared bytes", "occupancy", "read/least", "sectors/load", "atomics", "barriers"]
    rows = [
        [
            *_needs(row),
            units.digits(read_over_least(row["counters"], row["bytes"])),
            said(sectors_per_load(row["counters"])),
            str(row["counters"]["atomics"]),
            str(row["counters"]["barriers"]),
            str(len(row["hazards"])),
        ]
        for row in emulated["rows"]
    ]
    return (
        f"## Counted\n\nBy the emulator at {_size(emulated)}, from the PTX for {emulated['target']},\n"
        "all launches of a rung together: bytes that threads read over the least, 32-byte sectors per global load "
        "request,\natomic operations of threads, barriers once per warp. "
        f"{' '.join(_launches(emulated))}\n\n" + markdown([*headings, "hazards"], rows)
    )


def _launches(record: Record) -> list[str]:
    """How the paper's rungs were launched, as whole sentences."""
    return [f"Launches: {note.replace(': launched', '')}." for note in record["notes"] if "launched with" in note]


def _head(ladder: str, what: str) -> str:
    return (
        f"# The `{ladder}` ladder\n\n{what}\n\n"
        "This page is generated by `make docs` from the rungs' descriptors and the results recorded in\n"
        "[`benchmarks/results/`](../benchmarks/results/); a test compares. Run it yourself:\n\n"
        f"    matmill ladder {ladder}\n"
    )


def _overview(rungs: Sequence[Step], measured: Sequence[Record]) -> Iterable[str]:
    """TFLOP/s and the fraction of cuBLAS at every size measured."""
    if not measured:
        yield _UNMEASURED
        return
    yield f"## Measured\n\n{_where(measured)}\n"
    headings = ["rung", *(_size(r) for r in measured), *(f"of cuBLAS, {_size(r)}" for r in measured)]
    rows = []
    for rung in rungs:
        found = [_row(record, rung.label) for record in measured]
        rates = [units.digits(row["tflops"]) if row and row["tflops"] else "-" for row in found]
        parts = [units.percent(row["library_fraction"]) if row and row["library_fraction"] else "-" for row in found]
        rows.append([rung.label, *rates, *parts])
    for name in dict.fromkeys(base["name"] for record in measured for base in record["baselines"]):
        found = [next((b for b in record["baselines"] if b["name"] == name), None) for record in measured]
        rows.append([name, *(units.digits(base["tflops"]) if base else "-" for base in found), *("" for _ in measured)])
    yield "TFLOP/s, and the fraction of cuBLAS's rate in the same run:\n\n" + markdown(headings, rows)


def _where(measured: Sequence[Record]) -> str:
    return environment_of(measured[-1])


def environment_of(record: Record) -> str:
    """Where and when a run on a GPU was recorded, as a sentence."""
    environment = record["environment"]
    gpus = environment.get("gpus") or [{}]
    driver = gpus[0].get("driver_version", "unknown")
    others = ", ".join(f"{name} {found}" for name, found in environment["packages"].items() if name in _NAMED)
    date = environment["date"][:10]
    gpu = gpus[0].get("name", record["arch"])
    return f"On one {gpu}, {date}: driver {driver}, NVRTC {environment['nvrtc']}, {others}."


_NAMED = ("torch", "cupy-cuda13x", "cupy-cuda12x", "numpy")


def _size(record: Record) -> str:
    p = record["problem"]
    if "k" not in p:
        return f"{p['m']}x{p['n']} {p['dtype']}"
    sizes = str(p["m"]) if p["m"] == p["n"] == p["k"] else f"{p['m']}x{p['n']}x{p['k']}"
    return f"{sizes} {p['dtype']}, F {p['layout']}-major" if "dtype" in p else sizes


def _row(record: Record, label: str) -> Record | None:
    return next((row for row in record["rows"] if row["rung"] == label), None)


def _counters(emulated: Record) -> str:
    """What the emulator counted, one line per rung."""
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
                *_needs(row),
                str(c["ffma"]),
                said(sectors_per_load(c)),
                units.ratio(c["global_store_sectors"], c["global_store_requests"]),
                *_shared(c),
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


def _family(rungs: Sequence[Step], measured: Sequence[Record], emulated: Record | None) -> str:
    """One section: the rungs that share a name."""
    first = rungs[0]
    parts = [f"### {first.name}\n\nFrom {first.source.key}: {first.source.title}.\n"]
    for rung in rungs:
        title = f"**{rung.label}.** " if len(rungs) > 1 else ""
        claim = f" *Claimed:* {rung.claim}" if rung.claim else ""
        parts.append(f"{title}{rung.changes} *Predicted:* {rung.predicts}{claim}{_found(rung, measured, emulated)}\n")
    return "\n".join(parts)


def _found(rung: Step, measured: Sequence[Record], emulated: Record | None) -> str:
    """The rung's own figures: its rate at the largest size measured, and any remark of the runs."""
    said = ""
    if measured:
        record = measured[-1]
        row, subject, copied = _row(record, rung.label), subject_of(record["ladder"]), record.get("copy_bytes_per_s")
        if row and row[subject.rate]:
            of = "a copy's bandwidth in that run" if copied else f"the {record['arch']}'s {subject.limit_name}"
            part = f"{units.percent(row[subject.fraction])} of {of}"
            said += (
                f" *Measured* at {_size(record)}: {units.seconds(row['seconds'])}, {units.digits(row[subject.rate])} "
                f"{subject.unit}, {part}."
            )
    row = _row(emulated, rung.label) if emulated else None
    if row and row["note"]:
        said += f" *Emulated* {row['note']}."
    return said


def _phases(record: Record) -> str:
    """The walls of the memory ladder's phases."""
    names = list(record["rows"][0]["phases"])
    rows = []
    for row in record["rows"]:
        if not row.get("phases"):
            rows.append([row["rung"], row["note"], *("" for _ in names)])
            continue
        cells = []
        for name in names:
            phase = row["phases"][name]
            rate = f", {units.count(phase['bytes'] / phase['seconds'])}B/s" if phase["bytes"] else ""
            cells.append(units.seconds(phase["seconds"]) + rate)
        rows.append([row["rung"], units.seconds(row["seconds"]), *cells])
    return f"## Measured at {_size(record)}\n\n{_where([record])}\n\n{markdown(['rung', 'wall', *names], rows)}"


def _errata() -> str:
    """What is wrong with the figures of the sources."""
    flops = 2 * 8192**3
    rows = [
        [name, f"{ms} ms", str(_FORUM_PRINTED[name]), units.digits(flops / (ms * 1e-3) / 1e12)]
        for name, ms in _FORUM_MS.items()
    ]
    share = _FORUM_MS["CUTLASS"] / _FORUM_MS["conflict-free"]
    return (
        "## Errata of the sources\n\n"
        '**S0** prints "TFlops" that count a fused multiply-add once, and compares them with a peak that counts it '
        "twice.\nIn the usual unit, 2·M·N·K operations over its own times:\n\n"
        + markdown(["rung", "time", "printed", "TFLOP/s"], rows)
        + f'\nIts "over 70% of CUTLASS" is {units.percent(share)} by its own times. Its 32-way bank conflict on the '
        "`shared` rung's A tile is\nnot there: see above.\n\n"
        "**S1** divides by 2^30 where it says GFLOPS: multiply its rates by 1.0737 for decimal ones. Its 3373 GFLOPS "
        f"for cuBLAS at\n1024 do not match its 530.28 us, which are {2 * 1024**3 / 530.28e-6 / 1e9:.0f} decimal "
        "GFLOP/s.\n"
    )
