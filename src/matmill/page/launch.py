"""The page of one emulated launch: verdict, hazards, source with counts, bank conflicts, instruction mix, roofline."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html import escape
from math import prod
from pathlib import Path

from matmill.analysis.roofline import roofs
from matmill.emulator import Hazard
from matmill.emulator.report.counters import CLASSES, LineCounts
from matmill.page.document import bar, document, roofline, table
from matmill.page.timeline import timeline_figure
from matmill.testing.report import LaunchReport, count_hazards, counted, grouped
from matmill.testing.verdict import arch_of

_WORD_BYTES, _BANKS, _SECTOR = 4, 32, 32
_WORDS = {
    "ffma": "float32 FMA", "fmul": "float32 multiply", "fadd": "float32 add", "dfma": "float64 FMA",
    "dmul": "float64 multiply", "dadd": "float64 add", "hfma": "16-bit FMA", "hmul": "16-bit multiply",
    "hadd": "16-bit add", "hmma": "tensor cores (per warp)", "imma": "tensor cores, integer (per warp)",
    "dmma": "tensor cores, float64 (per warp)", "gmma": "warpgroup products (per warp)",
}  # fmt: skip


def page(report: LaunchReport) -> str:
    """Return a page without external resources."""
    first = [("verdict", "Verdict", _verdict(report)), ("hazards", "Hazards", _hazards(report))]
    sections = (
        *(first if report.ok else reversed(first)),
        ("source", "Source, with counts per line", _source(report)),
        ("timeline", "Timeline of the first block", timeline_figure(report.launch.kernel, report.timeline)),
        ("printed", "What it printed", f"<pre>{escape(report.printed)}</pre>" if report.printed else ""),
        ("banks", "Bank conflicts: the worst access", _banks(report)),
        ("sectors", "Global memory: bytes used of sectors fetched", _sectors(report)),
        ("mix", "Instruction mix", _mix(report)),
        ("roofline", "Occupancy and roofline", _limits(report)),
        ("counts", "All counts", _counts(report)),
    )
    things = len(report.verdict)
    advice = f"{things} thing{'s' if things > 1 else ''} to improve" if things else "fine"
    kind = "error" if not report.ok else "warning" if report.verdict else "note"
    items = "".join(f"<li>left out: {escape(each)}</li>" for each in report.left_out)
    lead = (
        f'<p>Emulated, not run on a GPU. <strong class="{kind}">{advice if report.ok else "errors"}</strong>: '
        f"{escape(count_hazards(report.hazards))}.</p>" + (f'<ul class="quiet">{items}</ul>' if items else "")
    )
    return document(str(report.launch), sections, lead)


def _anchor(location: str) -> str:
    """Return the HTML identity of a source line."""
    return "L-" + re.sub(r"[^\w.-]", "_", location)


def _link(report: LaunchReport, location: str) -> str:
    """Return a source line as a link, if the page shows it."""
    shown = escape(location)
    return f'<a href="#{_anchor(location)}">{shown}</a>' if location in report.source else shown


def _linked(report: LaunchReport, text: str) -> str:
    """Return a message as HTML, with its source lines as links."""
    parts, at = [], 0
    for match in re.finditer(r"PTX line \d+|[^\s():'\"]+:\d+", text):
        if match[0] in report.source:
            parts += [escape(text[at : match.start()]), _link(report, match[0])]
            at = match.end()
    return "".join([*parts, escape(text[at:])])


def _verdict(report: LaunchReport) -> str:
    """Return what to improve, each with its cause, its line, its remedy and the bound of the gain."""
    items = []
    for advice in report.verdict:
        where = f"{_link(report, advice.where)}: " if advice.where else ""
        line = report.source.get(advice.where, "").strip()
        code = f"<p><code>{escape(line)}</code></p>" if line else ""
        items.append(
            f'<article class="hazard warning"><strong>{escape(advice.rule)}</strong><p>{where}{escape(advice.cause)}.'
            f"</p>{code}<p>{escape(advice.remedy)}: <strong>{escape(advice.gain)}</strong></p></article>"
        )
    return "".join(items)


def _hazards(report: LaunchReport) -> str:
    items = []
    for number, (group, locations) in enumerate(grouped(report.hazards), 1):
        first: Hazard = group[0]
        lines = "".join(
            f"<tr><td>{_link(report, location)}</td>"
            f"<td><code>{escape(report.source[location].strip())}</code></td></tr>"
            for location in locations
            if location in report.source
        )
        more = f"<p>and {len(group) - 1} more in copies of the same lines</p>" if len(group) > 1 else ""
        items.append(
            f'<article class="hazard {first.severity}" id="hazard-{number}"><strong>{first.severity}: {first.kind}'
            f"</strong><p>{_linked(report, first.message)}</p>{more}<table>{lines}</table></article>"
        )
    for hazard, reason in report.suppressed:
        items.append(
            f'<p class="quiet">suppressed: {escape(hazard.kind)} at {escape(hazard.where)}: {escape(reason)}</p>'
        )
    return "".join(items) or "<p>none</p>"


def _named(report: LaunchReport) -> list[str]:
    """Return the files with anything to show, with all their lines in order."""
    used = {location.rpartition(":")[0] for location in report.by_line}
    used |= {where.rpartition(":")[0] for _, locations in grouped(report.hazards) for where in locations}
    if all(location.startswith("PTX line") for location in report.source):
        return list(report.source)
    return [location for location in report.source if location.rpartition(":")[0] in used]


def _source(report: LaunchReport) -> str:
    hits: dict[str, list[int]] = {}
    for number, (_, locations) in enumerate(grouped(report.hazards), 1):
        for location in locations:
            hits.setdefault(location, []).append(number)
    shown = _named(report)
    most = max((counts.instructions for counts in report.by_line.values()), default=0)
    rows, file = [], ""
    for location in shown:
        name, _, line = location.rpartition(":") if ":" in location else ("PTX", "", location.split()[-1])
        if name != file:
            file = name
            rows.append(f'<tr><th colspan="6" scope="colgroup">{escape(name)}</th></tr>')
        counts = report.by_line.get(location, LineCounts())
        links = " ".join(f'<a href="#hazard-{n}">hazard {n}</a>' for n in hits.get(location, ()))
        cells = (
            f'<td class="n quiet">{line}</td>',
            f'<td class="src">{escape(report.source[location])}{" " + links if links else ""}</td>',
            f"<td>{bar(counts.instructions, most, f'{counts.instructions} warp instructions', width=6)}</td>",
            f'<td class="n">{_or(counts.instructions)}</td>',
            f'<td class="n">{_or(counts.global_load_sectors + counts.global_store_sectors)}</td>',
            f'<td class="n">{_conflicts(counts)}</td>',
        )
        kind = ' class="hit"' if links else ""
        rows.append(f'<tr id="{_anchor(location)}"{kind}>{"".join(cells)}</tr>')
    head = "".join(
        f'<th scope="col"{" class=n" if n else ""}>{text}</th>'
        for text, n in (("", 1), ("source", 0), ("", 0), ("instructions", 1), ("sectors", 1), ("wavefronts", 1))
    )
    return (
        '<p class="quiet">Per line: warp instructions as a bar and a number, 32-byte sectors of global memory, passes '
        "over shared memory (and those beyond the fewest possible).</p>"
        '<div class="scroll" tabindex="0" role="region" aria-label="source"><table class="code"><thead><tr>'
        f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        if rows
        else ""
    )


def _or(count: int) -> str:
    return f"{count:,}" if count else ""


def _conflicts(counts: LineCounts) -> str:
    actual = counts.shared_load_wavefronts + counts.shared_store_wavefronts
    extra = counts.bank_conflicts
    return f'{actual:,} <span class="warning">(+{extra:,})</span>' if extra else _or(actual)


def _banks(report: LaunchReport) -> str:
    worst = report.worst
    if worst is None:
        return "<p>No access to shared memory takes more passes than its width needs.</p>"
    words: dict[int, list[int]] = {}
    for lane, offset in enumerate(worst.offsets):
        if offset is not None:
            for byte in range(offset, offset + max(worst.width, _WORD_BYTES), _WORD_BYTES):
                words.setdefault(byte // _WORD_BYTES, []).append(lane)
    by_bank: dict[int, list[int]] = {}
    for word in sorted(words):
        by_bank.setdefault(word % _BANKS, []).append(word)
    deep = max(len(each) for each in by_bank.values())
    cells = [f'<span class="head">{bank}</span>' for bank in range(_BANKS)]
    for depth in range(deep):
        for bank in range(_BANKS):
            held = by_bank.get(bank, [])
            if depth >= len(held):
                cells.append("<span></span>")
                continue
            lanes = words[held[depth]]
            text = f"bank {bank}, word {held[depth] // _BANKS}: lanes {', '.join(map(str, lanes))}"
            kind = "clash" if len(held) > 1 else "used"
            shown = str(lanes[0]) if len(lanes) == 1 else f"{lanes[0]}+"
            cells.append(f'<span class="{kind}" title="{text}">{shown}</span>')
    return (
        f"<p>{_link(report, worst.where)}: <code>{escape(worst.instruction)}</code> takes {worst.wavefronts} "
        f"passes where {worst.ideal} "
        "would do. Columns are the 32 banks, each cell a 4-byte word with the lane that accesses it; words of one "
        "bank are served one after another.</p>"
        '<div class="scroll" tabindex="0" role="img" aria-label="lanes by bank"><div class="banks">'
        f"{''.join(cells)}</div></div>"
    )


def _sectors(report: LaunchReport) -> str:
    rows = []
    for location, counts in report.by_line.items():
        for what, requests, sectors in (
            ("load", counts.global_load_bytes, counts.global_load_sectors),
            ("store", counts.global_store_bytes, counts.global_store_sectors),
            ("cp.async", counts.cp_async_bytes, counts.cp_async_sectors),
        ):
            if sectors:
                fetched = sectors * _SECTOR
                share = requests / fetched
                rows.append(
                    (
                        _link(report, location),
                        what,
                        f"{requests:,}",
                        f"{fetched:,}",
                        bar(min(share, 1), 1, f"{share:.0%} used", over=share < 0.5),
                        f"{share:.0%}",
                    )
                )
    heads = (
        ("line", False),
        ("", False),
        ("bytes used", True),
        ("bytes of sectors", True),
        ("", False),
        ("used", True),
    )
    note = '<p class="quiet">More than 100%: lanes of a warp read the same bytes.</p>'
    return table(heads, rows) + note if rows else ""


def _mix(report: LaunchReport) -> str:
    counts = counted({name: getattr(report.counters, name) for name in (*CLASSES, "barriers")})
    most = max(counts.values(), default=0)
    rows = [
        (escape(_WORDS.get(name, name)), bar(count, most, f"{count}"), f"{count:,}")
        for name, count in sorted(counts.items(), key=lambda item: -item[1])
    ]
    return table((("class", False), ("", False), ("thread instructions", True)), rows) if rows else ""


def _limits(report: LaunchReport) -> str:
    """Return the occupancy that threads and shared memory allow, and the point under the roofline."""
    arch, launch = arch_of(report), report.launch
    threads, shared = prod(launch.block), launch.dynamic_shared + report.static_shared
    blocks, limits = arch.resident(threads, 1, shared)
    occupancy = arch.occupancy(threads, 1, shared)
    waves = launch.blocks / (max(blocks, 1) * arch.sms)
    text = (
        f"<p>On {escape(arch.title)}: {threads} threads and {shared:,} bytes of shared memory per block allow {blocks} "
        f"blocks per SM (limited by {escape(' and '.join(limits))}), an occupancy of {occupancy:.0%} at the most; "
        f"registers, which the assembler decides, may allow fewer. The grid has {launch.blocks:,} "
        f"block{'s' if launch.blocks > 1 else ''}, {waves:.2f} of what the GPU holds at once.</p>"
    )
    counts = report.counters
    single = 2 * (counts.ffma + counts.hfma) + counts.fmul + counts.fadd + counts.hmul + counts.hadd
    double = 2 * counts.dfma + counts.dmul + counts.dadd
    flops = single + double + counts.matrix_flops
    sectors = counts.global_load_sectors + counts.global_store_sectors + counts.cp_async_sectors
    moved = _SECTOR * (sectors + counts.bulk_load_sectors + counts.bulk_store_sectors)
    if not flops or not moved:
        return text
    known = roofs(arch)
    unit = "hmma" if counts.matrix_flops > single + double else "dfma" if double > single else "ffma"
    peak, dram = known.peaks.get(unit), known.levels["dram"]
    if peak is None:
        return text
    intensity = flops / moved
    attainable = min(peak.value, intensity * dram.value)
    point = (f"{intensity:.2f} FLOP/B", intensity, attainable)
    return (
        f"{text}{roofline([point], peak.value, dram.value, 'DRAM')}<p>{flops:,} operations and {moved:,} bytes of "
        f"sectors between L1 and L2: at most {attainable / 1e12:.2f} TFLOP/s where no cache serves them.</p>"
    )


def _counts(report: LaunchReport) -> str:
    rows = [(escape(name), f"{count:,}") for name, count in counted(report.counters.as_dict()).items()]
    inner = table((("count", False), ("", True)), rows)
    return f"<details><summary>{len(rows)} counts that are not 0</summary>{inner}</details>" if rows else ""


#: The last line of a launch's page in a folder of tests: a comment, with what the folder's index says of the launch.
_NOTE = re.compile(r"<!-- matmill (.*) -->\n\Z")


def write_pages(folder: Path, test: str, reports: Iterable[LaunchReport], *, failed: bool = False) -> None:
    """Write a page for each launch of a test into a folder, and rewrite the folder's index.

    Launches of a test that ``failed`` are red in the index and stand first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^\w.-]+", "_", test)
    for number, report in enumerate(reports, 1):
        note = {"launch": f"{test} {number}", "failed": failed, "hazards": count_hazards(report.hazards)}
        text = json.dumps(note).replace("-->", "--\\u003e")
        (folder / f"{stem}-{number}.html").write_text(f"{page(report)}<!-- matmill {text} -->\n", encoding="utf-8")
    temporary = folder / f".index-{stem}"
    temporary.write_text(_index(folder), encoding="utf-8")
    temporary.replace(folder / "index.html")


def _index(folder: Path) -> str:
    """Return the index of a folder's pages, those of failures first."""
    rows = []
    for path in sorted(folder.glob("*.html")):
        note = _NOTE.search(path.read_text(encoding="utf-8"))
        if note is not None:
            rows.append((path.name, json.loads(note[1])))
    rows.sort(key=lambda row: not row[1]["failed"])
    cells = [
        [
            '<strong class="error">failed</strong>' if note["failed"] else '<span class="ok">passed</span>',
            f'<a href="{name}">{escape(note["launch"])}</a>',
            escape(note["hazards"]),
        ]
        for name, note in rows
    ]
    count = sum(note["failed"] for _, note in rows)
    words = f"{count} of {len(rows)} launches are of failed tests"
    lead = f'<p><strong class="{"error" if count else "ok"}">{words}</strong>.</p>'
    headings = (("test", False), ("launch", False), ("hazards", False))
    return document("Emulated launches", (("launches", "Launches", table(headings, cells)),), lead)
