"""The parts of pages: the document with its style, tables, bars, and plots on logarithmic axes.

A page has no script, only links, ``details`` and style, so that it works from the keyboard, in print and in a mail.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from math import log10

#: The colours of pages and pictures, by light and dark.
PALETTE = """
:root { color-scheme: light dark; --ink: #1b1f24; --quiet: #57606a; --paper: #fff; --stripe: #f3f5f7; --edge: #d0d7de;
  --bar: #0072b2; --second: #8a5a00; --error: #b3261e; --warning: #8a5a00; --note: #0072b2; --mark: #fff3c4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --quiet: #9aa4af; --paper: #0f1318; --stripe: #1a2027; --edge: #39424d; --bar: #56b4e9;
    --second: #e69f00; --error: #ff8a80; --warning: #e69f00; --note: #56b4e9; --mark: #463b10; } }
"""
_STYLE = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main, nav { max-width: 76rem; margin: 0 auto; padding: 0 1rem; }
nav { padding-top: .5rem; } nav a { margin-right: 1rem; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin-top: 2rem; }
a { color: var(--bar); } :focus-visible { outline: 3px solid var(--second); outline-offset: 1px; }
.skip { position: absolute; left: -99rem; } .skip:focus { left: 1rem; background: var(--paper); }
.scroll { overflow-x: auto; border: 1px solid var(--edge); border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .6rem; text-align: left; vertical-align: top; } thead th { background: var(--stripe); }
td.n, th.n { text-align: right; white-space: nowrap; } tbody tr:nth-child(even) { background: var(--stripe); }
code, pre, .code { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { margin: 0; white-space: pre; } .code td.src { white-space: pre-wrap;
  overflow-wrap: anywhere; min-width: 32ch; tab-size: 4; }
.bar { display: inline-block; height: .7em; min-width: 1px; background: var(--bar); border-radius: 2px;
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.bar.over { background: var(--second); }
tr:target, tr.hit { background: var(--mark) !important; } .quiet { color: var(--quiet); }
.error { color: var(--error); } .warning { color: var(--warning); } .note { color: var(--note); }
.hazard { border-left: 4px solid currentColor; padding-left: .8rem; margin: 1rem 0; }
.hazard table, .hazard code { color: var(--ink); }
.hazard p { color: var(--ink); margin: .2rem 0; overflow-wrap: anywhere; }
.banks { display: grid; grid-template-columns: repeat(32, minmax(1.15rem, 1fr)); gap: 2px; min-width: 44rem;
  padding: .5rem; } .banks span { font-size: 10px; text-align: center; border-radius: 2px; background: var(--stripe); }
.banks .used { background: var(--bar); color: var(--paper); } .banks .clash { background: var(--second);
  color: var(--paper); } .banks .head { background: none; color: var(--quiet); }
svg { max-width: 100%; height: auto; } svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
ins, .ok { color: #116329; text-decoration: none; } del { color: var(--error); text-decoration: none; }
@media (prefers-color-scheme: dark) { ins, .ok { color: #7ee787; } }
@media (max-width: 40rem) { body { font-size: 15px; } th, td { padding: .15rem .35rem; } }
@media print { nav, .skip { display: none; } .scroll { overflow: visible; }
  section { break-inside: avoid-page; } a { color: inherit; } }
"""


def document(title: str, sections: Iterable[tuple[str, str, str]], lead: str = "") -> str:
    """Return a whole page of ``sections``: (identity, heading, HTML). Those without HTML are omitted."""
    given = [(key, heading, body) for key, heading, body in sections if body]
    links = " ".join(f'<a href="#{key}">{escape(heading)}</a>' for key, heading, _ in given)
    parts = "\n".join(
        f'<section id="{key}" aria-labelledby="{key}-title">'
        f'<h2 id="{key}-title">{escape(heading)}</h2>\n{body}</section>'
        for key, heading, body in given
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<style>{PALETTE}{_STYLE}</style></head>\n'
        f'<body><a class="skip" href="#content">Skip to the content</a><nav aria-label="Sections">{links}</nav>\n'
        f'<main id="content"><h1>{escape(title)}</h1>\n{lead}\n{parts}\n</main></body></html>\n'
    )


def table(headings: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]], classes: str = "") -> str:
    """Return a table whose cells are HTML; ``headings`` are (text, whether the column has numbers)."""
    numeric = [' class="n"' if right else "" for _, right in headings]
    head = "".join(f'<th scope="col"{n}>{escape(text)}</th>' for (text, _), n in zip(headings, numeric, strict=True))
    body = "\n".join(
        "<tr>" + "".join(f"<td{n}>{cell}</td>" for cell, n in zip(row, numeric, strict=True)) + "</tr>" for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="table"><table class="{classes}">'
        f"<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
    )


def bar(value: float, most: float, label: str, *, width: float = 12, over: bool = False) -> str:
    """Return a bar, ``width`` em long for ``value == most``, with ``label`` for screen readers."""
    if most <= 0 or value <= 0:
        return ""
    share = min(1.0, value / most)
    kind = "bar over" if over else "bar"
    return f'<span class="{kind}" style="width:{share * width:.2f}em" role="img" aria-label="{escape(label)}"></span>'


def roofline(points: Sequence[tuple[str, float, float]], peak: float, bandwidth: float, memory: str) -> str:
    """Return a roofline as SVG with logarithmic axes; ``points`` are (name, FLOP per byte, attainable FLOP/s)."""
    wide, high, left, bottom = 560, 300, 60, 40
    balance = peak / bandwidth
    intensities = [x for _, x, _ in points if x > 0]
    low_x = min([balance / 100, *(x / 2 for x in intensities)])
    high_x = max([balance * 100, *(x * 2 for x in intensities)])
    low_y, high_y = low_x * bandwidth, peak * 3

    def at(x: float, y: float) -> tuple[float, float]:
        across = left + (wide - left - 10) * (log10(x) - log10(low_x)) / (log10(high_x) - log10(low_x))
        up = high - bottom - (high - bottom - 10) * (log10(y) - log10(low_y)) / (log10(high_y) - log10(low_y))
        return across, up

    corners = [at(low_x, low_y), at(balance, peak), at(high_x, peak)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    marks = []
    for name, x, y in points:
        px, py = at(x, max(y, low_y))
        anchor = "end" if px > wide / 2 else "start"
        marks.append(
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="6" fill="var(--second)"/>'
            f'<text x="{px + (-10 if anchor == "end" else 10):.1f}" y="{py + 18:.1f}" text-anchor="{anchor}">'
            f"{escape(name)}</text>"
        )
    ticks = "".join(
        f'<text x="{at(10.0**n, low_y)[0]:.1f}" y="{high - 20}" text-anchor="middle">{10.0**n:g}</text>'
        for n in range(-6, 7)
        if low_x <= 10.0**n <= high_x
    )
    title = f"Roofline: {peak / 1e12:.1f} TFLOP/s and {bandwidth / 1e12:.2f} TB/s of {memory}"
    return (
        f'<svg viewBox="0 0 {wide} {high}" width="{wide}" role="img" aria-label="{escape(title)}">'
        f'<polyline points="{line}" fill="none" stroke="var(--bar)" stroke-width="2"/>{"".join(marks)}{ticks}'
        f'<text x="{wide / 2}" y="{high - 4}" text-anchor="middle">FLOP per byte of {escape(memory)}</text>'
        f'<text x="{left}" y="14">{escape(title)}</text></svg>'
    )
