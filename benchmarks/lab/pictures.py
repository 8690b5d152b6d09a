"""Pictures of recorded results on the generated pages: which there are, how they are drawn, and whether one is stale.

``make docs`` draws them where matplotlib is installed. Each has the digest of its records inside, and a test compares.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lab.gemm.shapes import ratio_of
from lab.ratio_plot import Ratio, balance, draw_ratios
from matmill.errors import ArgumentError
from matmill.ladders.hgemm.subject import half_product
from matmill.ladders.registry import LADDERS
from matmill.ladders.runner.bars import draw_bars, groups_of, notes_of, sentence
from matmill.ladders.runner.emulated import events_of
from matmill.ladders.runner.plot import conclusion, draw
from matmill.ladders.runner.results import Outcome
from matmill.ladders.runner.sweep import Sweep
from matmill.ladders.runner.sweep_plot import draw_sweep, sweep_sentence
from matmill.page.timeline import timeline

Record = dict[str, Any]
RESULTS = Path(__file__).resolve().parents[1] / "results"
#: The GPU whose records of the sgemm ladder are drawn.
_SGEMM_GPU = "h100"


@dataclass(frozen=True)
class Drawing:
    """A picture: a sentence of what it shows, and the function that draws it, which takes the path and the source."""

    title: str
    draw: Callable[[Path, str], None]


def _rungs(records: Sequence[Record]) -> Drawing:
    outcomes = list(map(Outcome.from_dict, records))
    # Groups with another scale stand below the others.
    groups = sorted((group for one in outcomes for group in groups_of(one)), key=lambda group: group.rescaled)
    notes = [note for one in outcomes for note in notes_of(one)]
    return Drawing(sentence(groups), partial(draw_bars, sentence(groups), notes, groups))


def _sizes(records: Sequence[Record]) -> Drawing:
    sweep = Sweep.of_records([one for one in records if one["problem"]["n"].bit_count() == 1])
    return Drawing(sweep_sentence(sweep), partial(draw_sweep, sweep))


def _outcome(records: Sequence[Record]) -> Drawing:
    (record,) = records
    outcome = Outcome.from_dict(record)
    return Drawing(conclusion(outcome), partial(draw, outcome))


def _ratios(products: Sequence[Ratio], title: str, label: str) -> Drawing:
    return Drawing(title, partial(draw_ratios, products, title, f"{label} on an H200"))


def _shapes(records: Sequence[Record]) -> Drawing:
    (record,) = records
    ratios = [(one["kind"], one["dtype"], ratio_of(one)) for one in record["records"]]
    title = f"matmill.matmul beside torch.matmul: {balance(ratios)}"
    return _ratios(ratios, title, "torch.matmul's time over matmill's")


def _inner(records: Sequence[Record]) -> Drawing:
    ratios = []
    for group, title in _GROUPS.items():
        for product in (one for record in records if record.get("group") == group for one in record["products"]):
            # Short products by graph replay: plain calls take the host's time.
            times = {row["name"]: row["graph" if group == "small" else "median"] for row in product["rows"]}
            ratios.append((title, product["problem"]["dtype"], times["torch.mm"] / times["matmill.inner"]))
    return _ratios(ratios, f"matmill.inner beside torch.mm: {balance(ratios)}", "torch.mm's time over matmill.inner's")


#: Groups of inner products by their name in records.
_GROUPS = {
    "bandwidth": "Up to 16 rows and columns: bandwidth",
    "cases": "The products of the paper",
    "fma": "17 to 128 rows and columns: bandwidth, then FMAs",
    "small": "Short k, from 1e4 to 1e6",
}


def _sums(records: Sequence[Record]) -> Drawing:
    (record,) = records
    ratios = []
    for one in record["sums"]:
        times = {row["name"]: row["median"] for row in one["rows"]}
        ours = times["matmill.transpose_add"]
        ratios += [(one["shape"]["kind"], name, times[name] / ours) for name in ("torch eager", "torch.compile")]
    return _ratios(ratios, f"matmill.transpose_add {_each(ratios, 'beside ')}", "their time over matmill's")


def _programs(records: Sequence[Record]) -> Drawing:
    (record,) = records
    rows = sorted(record["programs"], key=lambda row: -row["ratio"])
    ratios = [(row["name"], "a step", row["ratio"]) for row in rows]
    for row in rows:
        graph = row["seconds"].get("graph")
        if graph is not None:
            ratios.append((row["name"], "as a CUDA graph", graph["torch"] / graph["matmill"]))
    return _ratios(ratios, f"Programs with matmill: {_each(ratios)}", "torch's time over that with matmill")


def _each(ratios: Sequence[Ratio], word: str = "") -> str:
    """Return the balance of every series apart, with ``word`` before its name."""
    series = dict.fromkeys(name for _, name, _ in ratios)
    return "; ".join(f"{word}{name} {balance([one for one in ratios if one[1] == name])}" for name in series)


@dataclass(frozen=True)
class Picture:
    """A picture by its file's name without suffix, and the records that ``globs`` name."""

    name: str
    globs: tuple[str, ...]
    drawing: Callable[[Sequence[Record]], Drawing] = _outcome
    #: The parts of a record that are drawn.
    parts: tuple[str, ...] = ("problem", "rows", "baselines")

    def records(self, folder: Path) -> list[Record]:
        """Return what it is drawn from.

        Raises :class:`~matmill.errors.ArgumentError` where a glob has no record.
        """
        paths = [sorted(folder.glob(glob)) for glob in self.globs]
        for glob, some in zip(self.globs, paths, strict=True):
            if not some:
                raise ArgumentError(
                    argument=f"picture {self.name}",
                    got=f"no record {glob}",
                    wanted="each of its records",
                    fix="Record it on that GPU, or name another in benchmarks/lab/pictures.py.",
                )
        return [json.loads(path.read_text(encoding="utf-8")) for some in paths for path in some]

    def path(self, folder: Path) -> Path:
        """Return its file beside the records."""
        return folder / f"{self.name}.svg"

    def source(self, folder: Path) -> str:
        """Return the digest of its records, which the file says it was drawn from."""
        shown = [[record[key] for key in self.parts] for record in self.records(folder)]
        return f"records {hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:32]}"

    def draw(self, folder: Path) -> None:
        """Draw it anew."""
        self.drawing(self.records(folder)).draw(self.path(folder), self.source(folder))


_SGEMM, _HGEMM = f"sgemm_{_SGEMM_GPU}_4096.json", "hgemm_h100_4096_float16.json"
#: The pictures of every page: of a ladder's by the ladder's name. The first one is at the top.
PICTURES: dict[str, tuple[Picture, ...]] = {
    "front": (Picture("rungs", (_SGEMM, _HGEMM), _rungs),),
    "programs": (Picture("programs_h200", ("programs_h200.json",), _programs, ("programs",)),),
    "sgemm": (
        Picture("sgemm_rungs", (_SGEMM,), _rungs),
        Picture("sgemm_sizes", (f"sgemm_{_SGEMM_GPU}_*.json",), _sizes),
        Picture("sgemm_emulated", ("sgemm_emulated_256.json",)),
    ),
    "hgemm": (
        Picture("hgemm_rungs", (_HGEMM,), _rungs),
        Picture("hgemm_sizes", ("hgemm_h100_*_float16.json",), _sizes),
    ),
    "memory": (Picture("memory_h200", ("memory_h200_8192.json",)),),
    "inner": (
        Picture("inner_h200", ("inner_h200_5x5x30000000_float32_row.json",)),
        Picture("inner_h200_products", ("inner_h200_[bcfs]*.json",), _inner, ("group", "products")),
    ),
    "transpose_add": (
        Picture("transpose_add_h200", ("transpose_add_h200_24300x11520_bfloat16.json",)),
        Picture("transpose_add_h200_shapes", ("transpose_add_h200_shapes.json",), _sums, ("sums",)),
    ),
    "shapes": (Picture("shapes_h200", ("shapes_h200.json",), _shapes, ("records",)),),
}


def pingpong_timeline() -> str:
    """Return the timeline of the hgemm ladder's ``pingpong``, as the emulator runs it."""
    ladder = LADDERS["hgemm"]
    (rung,) = (each for each in ladder.rungs if each.label == "pingpong")
    return timeline(rung.label, events_of(rung, ladder.subject, half_product(256, 256, 256)))


def shown(page: str) -> list[str]:
    """Return the pictures of a page, as Markdown for a page in ``docs/``: what each shows is its text."""
    return [
        f"![{picture.drawing(picture.records(RESULTS)).title}](../benchmarks/results/{picture.name}.svg)\n"
        for picture in PICTURES[page]
    ]
