"""What the README and the first page of the docs show of the records: a table of speeds, and a ladder's output."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab.float32_page import IN_PIECES, SGEMM, recorded_float32
from lab.gemm.shapes import ratio_of
from lab.markdown import markdown
from lab.shapes_page import grouped, mean
from matmill.bench import units
from matmill.cli.console import show
from matmill.cli.ladder_summary import summary
from matmill.cli.tables import report
from matmill.ladders.registry import LADDERS
from matmill.ladders.runner.results import Outcome

OUTPUT = ("<!-- output: written by `make docs` -->\n", "<!-- end of output -->\n")
SPEEDS = ("<!-- speeds: written by `make docs` -->\n", "<!-- end of speeds -->\n")
#: Few enough to read at a glance, far enough apart to tell a story.
RUNGS = ("naive", "shared(32)", "register-tile", "conflict-free(128)")

_MEASURED_SIZE = 4096
#: Side of the smallest float32 square that the README shows of those in pieces.
_LARGE = 1024
#: Speeds closer to 1 than this are called equal.
_EQUAL = 0.03
#: Classes of products, in words; sizes are those of the record.
_KINDS = {
    "batched": "batches of {batch} products, {m} x {n} x {k}",
    "tall": "tall times small: {m} x n x {k}, n from {n}",
    "outer": "outer: {m} x {n} x k, k from {k}",
    "short k": "a short k, from {k}",
    "small": "one small product, k from {k}",
    "few rows": "few rows: {m} x n x k, n from {n}",
    "ragged": "sizes off the tile grid, m from {m}",
    "squares": "float32 squares of {m}",
}
#: The rows of the README, by words of each: three gains and a loss.
_SHOWN = ("`inner`", "odd sizes", 'precision="', "off the tile grid")
#: Programs of the table by their names in the record.
_PROGRAM = "gpt2"
_HEADINGS = ("on one H200", "their time / ours", "faster", "beside")


def with_output(text: str, records: Sequence[Mapping[str, Any]]) -> str:
    """Replace what is between the marks of ``OUTPUT`` by the ladder's output, emulated and measured."""
    emulated = next(r for r in records if r["on"] == "emulator")
    parts = [f"On a machine without a GPU:\n\n{sample_output(Outcome.from_dict(emulated))}"]
    measured = [Outcome.from_dict(r) for r in records if r["on"] == "gpu" and r["problem"]["n"] == _MEASURED_SIZE]
    parts += [f"On an {outcome.arch.title}:\n\n{sample_output(outcome)}" for outcome in measured]
    return between(text, OUTPUT, "\n".join(parts))


def with_speeds(text: str, results: Path) -> str:
    """Replace what is between the marks of ``SPEEDS`` by the table of the records in ``results``."""
    return between(text, SPEEDS, f"{_table(_rows(results))}\n{_emulator(results)}")


def with_four_speeds(text: str, results: Path) -> str:
    """Replace what is between the marks of ``SPEEDS`` by four rows of the table: three gains and a loss."""
    rows = _rows(results)
    return between(text, SPEEDS, _table([next(row for row in rows if words in row.what) for words in _SHOWN]))


def package_page(readme: str) -> str:
    r"""Return the README for a package index, where the repository's files and pictures are not: without links to them.

    >>> print(package_page("# matmill\n\n![Rates](x.png)\n\nSee [a page](docs/a.md) and [a paper](https://arxiv.org)."))
    # matmill
    <BLANKLINE>
    See a page and [a paper](https://arxiv.org).
    """
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)\n+", "", readme)
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", text)


def sample_output(outcome: Outcome) -> str:
    """Return a console block: the command, and what it prints for the rungs shown."""
    emulated = outcome.on == "emulator"
    names = LADDERS[outcome.ladder].short if emulated else (*RUNGS, outcome.rows[-1].rung)
    shown = replace(outcome, rows=tuple(row for row in outcome.rows if row.rung in names))
    file = io.StringIO()
    show(summary(shown) if emulated else report(shown), file)
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    command = f"$ matmill ladder {outcome.ladder} --n {outcome.problem.n}"
    command += "" if emulated else f" --rungs '{','.join(names)}'"
    return "\n".join(["```console", command, *lines, "```", ""])


#: Groups of ``benchmarks/beside_torch.py`` in words.
_CALLS = {
    "aligned": "16-bit products, rows on 16 bytes, sides from 1 to 28672",
    "odd": "16-bit products of odd sizes, sides from 511 to 8193",
}


@dataclass(frozen=True)
class _Row:
    """A row of the table: their time over ours, shown as its range and who is faster, or as ``said`` and ``faster``."""

    what: str
    beside: str
    ratios: Sequence[float]
    said: str = ""
    faster: str = ""

    def cells(self) -> list[str]:
        return [self.what, self.said or _said(self.ratios), self.faster or _verdict(self.ratios), self.beside]


def _rows(results: Path) -> list[_Row]:
    """Return all rows of speeds beside cuBLAS and torch, fastest first."""
    rows = [
        *_programs(results),
        *_inner(results),
        *_transpose_add(results),
        *_calls(results),
        *_double_squares(results),
        *_pieces(results),
        *_random(results),
        *_kinds(results),
    ]
    return sorted(rows, key=lambda row: -max(row.ratios))


def _table(rows: Iterable[_Row]) -> str:
    return markdown(_HEADINGS, (row.cells() for row in rows))


def _programs(results: Path) -> list[_Row]:
    """Return whole training steps of one program, and of all that are recorded."""
    rows = json.loads((results / "programs_h200.json").read_text(encoding="utf-8"))["programs"]
    shown = next(row for row in rows if row["name"] == _PROGRAM)
    ratios = [row["ratio"] for row in rows]
    return [
        _Row(f"`matmill.torch.enable()`: a step of {shown['title']}", "torch", [shown["ratio"]]),
        _Row(f"the same: {len(rows)} programs", "torch", ratios, f"{mean(ratios):.2f} (mean), {_said(ratios)}"),
    ]


def _random(results: Path) -> Iterator[_Row]:
    """Yield random products, and those of few outputs and a long k."""
    result = json.loads((results / "matmul_random_h200.json").read_text(encoding="utf-8"))
    random, long = result["random"], result["kinds"][0]
    for what, ratio in (
        (f"{long['products']} random products, {long['kind']}", long["geometric_mean"]),
        (
            f"{random['products']} random products, {random['slower_by_more_than_3_percent']} of them over 3% slower",
            random["geometric_mean"],
        ),
    ):
        faster = "" if ratio > 1 + _EQUAL else "it depends"
        yield _Row(f"`matmul`: {what}", "torch.matmul", [ratio], f"{ratio:.2f} (mean)", faster)


def _kinds(results: Path) -> Iterator[_Row]:
    """Yield products of every shape, by class: the mean of each type."""
    result = json.loads((results / "shapes_h200.json").read_text(encoding="utf-8"))["records"]
    for kind, what in _KINDS.items():
        # float64 squares have a record of their own.
        some = [one for one in result if one["kind"] == kind and (kind, one["dtype"]) != ("squares", "float64")]
        if not some:
            continue
        types = {dtype: mean([ratio_of(one) for one in of]) for (_, dtype), of in grouped(some).items()}
        text = ", ".join(f"{ratio:.2f} {name}" for name, ratio in types.items())
        sizes = {name: _span(one[name] for one in some) for name in ("batch", "m", "n", "k")}
        yield _Row(f"`matmul`: {what.format(**sizes)}", "torch.matmul", list(types.values()), text)


def _span(sizes: Iterable[int]) -> str:
    """Return the least and the greatest, which may be one.

    >>> _span([1000000, 1000000]), _span([8, 64, 17])
    ('1e6', '8 to 64')
    """
    result = sorted(set(sizes))
    return " to ".join("1e6" if size == 10**6 else str(size) for size in dict.fromkeys((result[0], result[-1])))


def _inner(results: Path) -> list[_Row]:
    """Return the paper's products."""
    result = json.loads((results / "inner_h200_cases.json").read_text(encoding="utf-8"))["products"]
    times = [{row["name"]: row["median"] for row in product["rows"]} for product in result]
    ratios = [of["torch.mm"] / of["matmill.inner"] for of in times]
    sides, ks = ({product["problem"][name] for product in result} for name in ("m", "k"))
    what = f"`inner`: {min(sides)} to {max(sides)} rows and columns, k from {min(ks):.0e} to {max(ks):.0e}, float32"
    return [_Row(what.replace("e+0", "e"), "torch.mm", ratios)]


def _transpose_add(results: Path) -> list[_Row]:
    """Return the article's sum, beside eager torch and the fastest kernel that torch compiles."""
    result = json.loads((results / "transpose_add_h200_article.json").read_text(encoding="utf-8"))["sums"][0]
    times = {row["name"]: row["median"] for row in result["rows"]}
    what = "`transpose_add`: {m} x {n} {dtype}".format(**result["shape"])
    theirs = {"torch": "torch eager", "torch.compile, max-autotune": "max-autotune"}
    return [_Row(what, shown, [times[name] / times["matmill.transpose_add"]]) for shown, name in theirs.items()]


def _calls(results: Path) -> Iterator[_Row]:
    """Yield 16-bit products, as users call them: the mean, the least and the greatest of each group."""
    result = json.loads((results / "matmul_h200.json").read_text(encoding="utf-8"))["products"]
    for group, what in _CALLS.items():
        ratios = [one["theirs"] / one["ours"] for one in result if one["group"] == group]
        text = f"{mean(ratios):.2f} (mean), {_said(ratios)}"
        yield _Row(f"`matmul`: {len(ratios)} {what}", "torch.mm", ratios, text)


def _double_squares(results: Path) -> list[_Row]:
    """Return float64 squares of even sizes, by the configuration that is chosen."""
    rows = json.loads((results / "float64_tiles_h200.json").read_text(encoding="utf-8"))["rows"]
    squares = [row for row in rows if row["m"] == row["n"] == row["k"] and row["m"] % 2 == 0 and row["m"] >= 512]
    ratios = [row["seconds"]["torch.mm"] / row["seconds"][row["chosen"]] for row in squares]
    sides = sorted({row["m"] for row in squares})
    return [_Row(f"`matmul`: float64 squares of {sides[0]} to {sides[-1]}", "torch.mm", ratios)]


def _pieces(results: Path) -> list[_Row]:
    """Return float32 squares by tensor cores, with the largest error of both."""
    rows = [row for row in recorded_float32(results)["products"] if row["kind"] == "square" and row["n"] >= _LARGE]
    ratios = [row["seconds"][SGEMM] / row["seconds"][IN_PIECES] for row in rows]
    ours, theirs = (max(row["errors"][name] for row in rows) for name in (IN_PIECES, SGEMM))
    sides = f"float32 squares of {rows[0]['n']} to {rows[-1]['n']}"
    what = f'`matmul(precision="{IN_PIECES}")`: {sides}, error {ours:.1f} beside {theirs:.1f}'
    return [_Row(what, SGEMM, ratios)]


def _emulator(results: Path) -> str:
    """Return what the emulator takes, as sentences: a command that anybody can run, and a kernel alone."""
    result = json.loads((results / "emulator_speed.json").read_text(encoding="utf-8"))
    product, ladder = result["sgemm"], result["ladder"]
    counted, raced = (units.seconds(product[name]["fastest_s"]) for name in ("counters_only", "with_races"))
    sizes = " x ".join(map(str, product["shape"]))
    return (
        f"On one CPU core the emulator takes {units.seconds(ladder['fastest_s'])} for `{ladder['command']}`, with the "
        f"search for data races and the check. Of that size, {sizes} in float32, the launch alone of a kernel with "
        f"8 x 8 outputs a thread takes {counted}, and {raced} with that search.\n"
    )


def _said(ratios: Sequence[float]) -> str:
    """Return the least and the greatest, which may be one.

    >>> _said([0.514, 0.8]), _said([1.0])
    ('0.51 to 0.80', '1.00')
    """
    return " to ".join(dict.fromkeys(f"{ratio:.2f}" for ratio in (min(ratios), max(ratios))))


def _verdict(ratios: Sequence[float]) -> str:
    """Say who is faster.

    >>> _verdict([1.2, 2.0]), _verdict([1.01]), _verdict([0.5, 1.1]), _verdict([0.5])
    ('matmill', 'equal', 'it depends', 'theirs')
    """
    if min(ratios) > 1 + _EQUAL:
        return "matmill"
    if max(ratios) < 1 - _EQUAL:
        return "theirs"
    return "equal" if min(ratios) > 1 - _EQUAL and max(ratios) < 1 + _EQUAL else "it depends"


def between(text: str, marks: tuple[str, str], new: str) -> str:
    """Return ``text`` with what is between two marks replaced."""
    before, begin, rest = text.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    return f"{before}{begin}\n{new}\n{end}{after}"
