"""The documentation pages of the ladders: descriptors and recorded results, put together as Markdown.

The pages are committed; a test makes them anew and compares, so that neither prose nor figures can go stale.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from lab.findings import conflicts
from lab.markdown import filled, markdown, table
from lab.page_parts import (
    UNMEASURED,
    Record,
    Step,
    counted,
    environment_of,
    family,
    head,
    names_of,
    result_of,
    row_of,
    size_of,
)
from lab.pictures import shown
from lab.transpose_add import report
from matmill.bench import units
from matmill.ladders.sgemm.subject import FLOAT32

#: 2 * 8192^3 operations over the times that the forum post prints.
_FORUM_MS = {"naive": 292, "shared": 324, "volkov": 144, "register-tile": 54, "conflict-free": 42, "CUTLASS": 24}
_FORUM_PRINTED = {
    "naive": 1.88,
    "shared": 1.70,
    "volkov": 3.82,
    "register-tile": 10.2,
    "conflict-free": 13.1,
    "CUTLASS": 22.9,
}


_INNER = (
    "Rates are the least bytes that must move, every input read once and every output written once, over the time; "
    "percentages refer to the memory bandwidth of the GPU's data sheet. The last row, `production`, is no rung: it is "
    "what `matmill.inner` runs, as the cost model chooses it for the product."
)
_SUMS = (
    "Sizes are those of x; y and the result have its columns as rows. Rates are the least bytes that must move, x and "
    "y read once and the result written once, over the time; percentages refer to a copy in the same interleaved run. "
    "Every element is compared bit by bit. The last row, `production`, is no rung: it is what `matmill.transpose_add` "
    "runs, as the cost model chooses it."
)
_HALVES = (
    "Matrices are packed row-major. Of float16, the rungs below `float32-sums` sum in float16, as the blog does; of "
    "bfloat16, all in float32. Every element is compared with the product in float64, within a bound for the type of "
    "its sums. The peak that the pictures show is the data sheet's of the tensor cores with float32 sums: with float16 "
    "sums, GeForce multiplies at up to twice that. The last row, `production`, is no rung: it is what `matmill.matmul` "
    "runs, as the cost model chooses it, with float32 sums.\n\n"
    "From `wgmma` on, rungs run on Hopper alone. Their order follows Shankhdhar's "
    "[fast.cu](https://github.com/pranjalssh/fast.cu) (2024); their predictions name what its steps made on one H200."
)
#: From so many steps of k on every pipeline of the hgemm ladder is full.
_FILLED = 1024
#: Sizes of the hgemm ladder in its table; a picture has all.
_IN_TABLE = (1000, 4096, 8192)


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


def _page(*parts: str) -> str:
    return "\n".join(part for part in parts if part).rstrip() + "\n"


def _split(records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Return emulated records and measured ones."""
    return [r for r in records if r["on"] == "emulator"], [r for r in records if r["on"] == "gpu"]


def sgemm_page(rungs: Sequence[Step], records: Sequence[Record], remarked: str = "") -> str:
    """Return ``docs/ladder-sgemm.md``; ``remarked`` is Markdown to follow the measured figures, see :func:`remarks`."""
    emulated, measured = _split(records)
    top, *others = shown("sgemm")
    return _page(
        head("sgemm", "C = alpha * A @ B + beta * C in float32, from three nested loops to pieces on tensor cores."),
        top,
        remarked,
        *_overview(rungs, measured),
        *others,
        *(_float32_counts(record) for record in emulated),
        "## The rungs\n",
        *(
            family(list(group), measured, emulated[0] if emulated else None)
            for _, group in groupby(rungs, key=lambda rung: rung.name)
        ),
        *(conflicts(record) for record in emulated),
        _errata(),
    )


def hgemm_page(rungs: Sequence[Step], records: Sequence[Record], remarked: str = "") -> str:
    """Return ``docs/ladder-hgemm.md``; ``remarked`` is Markdown that follows the counters, see :func:`remarks`."""
    # float16 before bfloat16.
    emulated, measured = _split(sorted(records, key=lambda r: r["problem"]["dtype"], reverse=True))
    long = [record for record in emulated if record["problem"]["k"] >= _FILLED]
    short = [record for record in emulated if record not in long]
    # The largest product of the first element type.
    first = [r for r in measured if r["problem"]["dtype"] == measured[0]["problem"]["dtype"]][-1:]
    top, *others = shown("hgemm")
    return _page(
        head(
            "hgemm",
            "C = alpha * A @ B + beta * C of 16-bit floats on the tensor cores, from tiles to any size.",
            _HALVES,
        ),
        top,
        *_rates(measured, [rung.label for rung in rungs]),
        *others,
        *(_half_counts(record) for record in short[:1]),
        *(_pipelines(record) for record in long),
        remarked,
        "## The rungs\n",
        *(family([rung], first, short[0] if short else None) for rung in rungs),
    )


def memory_page(rungs: Sequence[Step], records: Sequence[Record]) -> str:
    """Return ``docs/ladder-memory.md``."""
    _, measured = _split(records)
    return _page(
        head("memory", "One product behind three ways of moving its matrices between host and device."),
        *shown("memory"),
        *(_phases(record) for record in measured),
        "" if measured else UNMEASURED,
        "## The rungs\n",
        *(family([rung], [], None) for rung in rungs),
    )


def inner_page(rungs: Sequence[Step], records: Sequence[Record]) -> str:
    """Return ``docs/ladder-inner.md``."""
    emulated, measured = _split(records)
    top, *others = shown("inner")
    return _page(
        head(
            "inner",
            "D = alpha * E @ F + beta * C with few outputs and a long k, from a paper's PHVM to one pass.",
            _INNER,
        ),
        top,
        _traffic(measured),
        *others,
        *(_reads(record) for record in emulated[:1]),
        "## The rungs\n",
        *(family([rung], measured, emulated[0] if emulated else None) for rung in rungs),
    )


def transpose_add_page(
    rungs: Sequence[Step], records: Sequence[Record], comparisons: Mapping[str, Record], remarked: str = ""
) -> str:
    """Return ``docs/ladder-transpose_add.md``; ``comparisons`` are records of :mod:`lab.transpose_add.report`.

    ``remarked`` is Markdown to follow them, see :func:`remarks`.
    """
    emulated, measured = _split(records)
    top, *others = shown("transpose_add")
    return _page(
        head("transpose_add", "x transposed plus y in one pass, from an article's two kernels to any pitch.", _SUMS),
        top,
        _traffic(measured, "x"),
        *others,
        report.page_part(comparisons) if comparisons else "",
        remarked,
        _warps(emulated) if emulated else "",
        "## The rungs\n",
        *(family([rung], measured, emulated[0] if emulated else None) for rung in rungs),
    )


def _overview(rungs: Sequence[Step], measured: Sequence[Record]) -> Iterator[str]:
    """Yield TFLOP/s and the fraction of cuBLAS at every size measured."""
    if not measured:
        yield UNMEASURED
        return

    def rate(name: str, record: Record) -> str:
        row = result_of(record, name)
        return units.digits(row["tflops"]) if row and row["tflops"] else "-"

    def part(name: str, record: Record) -> str:
        row = row_of(record, name)
        share = row["library_fraction"] if row else None
        return units.percent(share) if share else "-" if name in labels else ""

    labels = [rung.label for rung in rungs]
    libraries = [base["name"] for record in measured for base in record["baselines"]]

    def error(name: str, record: Record) -> str:
        row = result_of(record, name)
        if row is None or row["error_ratio"] is None or FLOAT32.error_bound is None:
            return "-"
        sizes = row.get("problem") or record["problem"]
        return units.digits(row["error_ratio"] * FLOAT32.error_bound(FLOAT32.problem(sizes)))

    last = next((one for one in reversed(measured) if one["rows"][0]["error_ratio"] is not None), measured[-1])
    of_cublas = [f"of cuBLAS, {size_of(record)}" for record in measured]
    headings = ["rung", *map(size_of, measured), *of_cublas, f"error, {size_of(last)}"]
    rows = [
        [name, *(rate(name, one) for one in measured), *(part(name, one) for one in measured), error(name, last)]
        for name in dict.fromkeys((*labels, *libraries))
    ]
    yield f"## Measured\n\n{environment_of(measured[-1])}\n"
    yield filled(
        "TFLOP/s, the fraction of cuBLAS's rate in the same run, and the largest error of an element in units of 2^-24 "
        "|A||B|, of which FMA in any order may lose k:\n"
    )
    yield markdown(headings, rows)


def _rates(measured: Sequence[Record], labels: Sequence[str]) -> Iterator[str]:
    """Yield TFLOP/s of every rung and library at some sizes of each element type."""
    if not measured:
        yield UNMEASURED
        return
    missing = [label for label in labels if not any(row_of(record, label) for record in measured)]
    unmeasured = f"\nNot measured yet: {', '.join(f'`{label}`' for label in missing)}." if missing else ""
    few = [record for record in measured if record["problem"]["n"] in _IN_TABLE] or measured
    rows = [[name, *(_rate(result_of(record, name)) for record in few)] for name in names_of(measured, labels)]
    yield (
        f"## Measured\n\n{environment_of(measured[-1])} A rung marked * ran at the nearest size that it takes."
        f"{unmeasured}\n"
    )
    yield "TFLOP/s:\n\n" + markdown(["rung", *map(size_of, few)], rows)


def _rate(row: Record | None) -> str:
    if row is None or not row["tflops"]:
        return "-"
    return units.digits(row["tflops"]) + (" *" if row.get("note") else "")


def _traffic(measured: Sequence[Record], sizes: str = "m x n x k") -> str:
    """Return TB/s and the fraction of bandwidth of every rung and library, a line per problem."""
    if not measured:
        return UNMEASURED
    names = names_of(measured)
    rows = [[size_of(record), *(_bandwidth(result_of(record, name)) for name in names)] for record in measured]
    return f"## Measured\n\n{environment_of(measured[-1])}\n\n" + markdown([sizes, *names], rows)


def _bandwidth(row: Record | None) -> str:
    if row is None or not row["tbytes_per_second"]:
        return "-"
    return f"{units.digits(row['tbytes_per_second'])} TB/s, {units.percent(row['bandwidth_fraction'])}"


def _phases(record: Record) -> str:
    """Return the walls of the memory ladder's phases."""

    def wall(row: Record) -> str:
        return units.seconds(row["seconds"]) if row.get("phases") else str(row["note"])

    def phase(row: Record, name: str) -> str:
        if not row.get("phases"):
            return ""
        one = row["phases"][name]
        rate = f", {units.quantity(one['bytes'] / one['seconds'], 'B/s')}" if one["bytes"] else ""
        return units.seconds(one["seconds"]) + rate

    names = list(record["rows"][0]["phases"])
    rows = [[row["rung"], wall(row), *(phase(row, name) for name in names)] for row in record["rows"]]
    text = f"## Measured at {size_of(record)}\n\n{environment_of(record)}\n\n"
    return text + markdown(["rung", "wall", *names], rows)


def _counted(text: str, *tables: str) -> str:
    return filled(f"## Counted\n\nBy the emulator {text}") + "\n" + "\n".join(tables)


def _float32_counts(record: Record) -> str:
    """Return what the emulator counted of the sgemm ladder."""
    p = record["problem"]
    shared = ("shared loads, ideal/actual", "shared stores, ideal/actual")
    return _counted(
        f"at m={p['m']} n={p['n']} k={p['k']}, from the PTX for {record['target']}; registers and occupancy as the "
        "assembler reports them for that target. HMMA and wgmma are instructions of warps to tensor cores. Sectors are "
        "32 bytes, a wavefront is one pass over the banks of shared memory, barriers are counted once per warp. Copies "
        "that bypass the registers (cp.async) count as loads. Of several launches the counts are added up.",
        counted(record, "FFMA", "HMMA", "wgmma", "sectors/load", "sectors/store", *shared),
    )


def _half_counts(record: Record) -> str:
    """Return what the emulator counted of the hgemm ladder."""
    return _counted(
        f"at {size_of(record)}, from the PTX for {record['target']}: instructions of warps to the tensor cores (HMMA, "
        "wgmma), loads of fragments (ldmatrix), copies by TMA, requests of loads and cp.async to global memory, and "
        "wavefronts of shared memory beside the fewest that would do. Barriers count once per warp. The record has "
        "more: bytes of operands, TMA's bytes and sectors, mbarriers.",
        counted(
            record, "HMMA", "wgmma", "ldmatrix", "TMA loads", "loads", "sectors/load", "shared loads, ideal/actual"
        ),
    )


def _pipelines(record: Record) -> str:
    """Return what the emulator counted where warps wait for copies, of the rungs that do."""
    waiting = {**record, "rows": [row for row in record["rows"] if row["counters"]["copy_waits"]]}
    return (
        "## Pipelines\n\n"
        + filled(
            f"By the emulator at {size_of(record)}, where every pipeline is full. At each wait for a copy: was the "
            "data ready (had the block done 700 clocks of arithmetic since the copy could be issued), how many more "
            "bytes were on their way for each byte waited for, and how many clocks of arithmetic had passed. "
            "`prefetch` and `double-buffer` copy through registers and have no such waits: `double-buffer` halves the "
            "barriers. `wgmma` has one stage, and no wait finds its data. `tma-pipeline` has two more stages, but 512 "
            "clocks of arithmetic are too few. The larger tile and the fourth stage of `warp-specialised` make them "
            "1,920. `pingpong` has the most on their way, and needs it for its smaller tiles. What `persistent` and "
            "`pingpong` add is an order of roles: [a timeline](emulator-hopper.md#a-timeline) shows it."
        )
        + "\n\n"
        + counted(waiting, "copy waits", "data ready", "bytes ahead", "clocks a wait")
    )


def _warps(emulated: Sequence[Record]) -> str:
    """Return what the emulator counted of the accesses of warps, a table per record."""
    shared = ("shared loads, ideal/actual", "shared stores, ideal/actual")
    headings = ("loads", "sectors/load", "stores", "sectors/store", *shared)
    return _counted(
        f"with tiles for matrices as small as these, from the PTX for {emulated[0]['target']}: requests of warps to "
        "global memory and the 32-byte sectors that each touches, wavefronts of shared memory beside the fewest that "
        "would do, barriers once per warp.",
        *(f"x {size_of(record)}:\n\n{counted(record, *headings)}" for record in emulated),
    )


def _reads(record: Record) -> str:
    """Return what the emulator counted of global memory, and how the paper's rungs were launched."""
    notes = [f"Launches: {note.replace(': launched', '')}." for note in record["notes"] if "launched with" in note]
    return _counted(
        f"at {size_of(record)}, from the PTX for {record['target']}, all launches of a rung together: bytes that "
        "threads read over the least, 32-byte sectors per global load request, atomic operations of threads, barriers "
        f"once per warp. {' '.join(notes)}",
        counted(record, "read/least", "sectors/load", "atomics"),
    )


def _errata() -> str:
    """Return what is wrong with the figures of the sources."""
    flops = 2 * 8192**3
    columns: dict[str, Callable[[str], str]] = {
        "rung": str,
        "time": lambda name: f"{_FORUM_MS[name]} ms",
        "printed": lambda name: str(_FORUM_PRINTED[name]),
        "TFLOP/s": lambda name: units.digits(flops / (_FORUM_MS[name] * 1e-3) / 1e12),
    }
    share = _FORUM_MS["CUTLASS"] / _FORUM_MS["conflict-free"]
    return (
        "## Errata of the sources\n\n"
        '**The forum post** prints "TFlops" that count an FMA once, and compares them with a peak that counts it '
        "twice.\nIn the usual unit, 2·M·N·K operations over its own times:\n\n"
        + table(columns, _FORUM_MS)
        + f'\nIts "over 70% of CUTLASS" is {units.percent(share)} by its own times. Its 32-way bank conflict on the '
        "`shared` rung's A tile is\nnot there: see above.\n\n"
        "**The slides** divide by 2^30 where they say GFLOPS: multiply their rates by 1.0737 for decimal ones. Their "
        "3373 GFLOPS for cuBLAS at\n1024 do not match their 530.28 us, which are "
        f"{2 * 1024**3 / 530.28e-6 / 1e9:.0f} decimal GFLOP/s.\n"
    )
