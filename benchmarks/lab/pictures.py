"""Pictures of recorded results on the generated pages: which there are, how they are drawn, and whether one is stale.

``make docs`` draws them where matplotlib is installed. Each has the digest of its records inside, and a test compares.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.gemm.shapes import ratio_of
from lab.ratio_plot import draw_ratios
from matmill.ladders.hgemm.subject import half_product
from matmill.ladders.registry import LADDERS
from matmill.ladders.runner.emulated import events_of
from matmill.ladders.runner.plot import draw
from matmill.ladders.runner.results import Outcome
from matmill.ladders.runner.sweep import Sweep
from matmill.ladders.runner.sweep_plot import draw_sweep
from matmill.page.timeline import timeline

Record = dict[str, Any]


def _sweep(records: Sequence[Record], path: Path, source: str) -> None:
    draw_sweep(Sweep.of_records(records), path, source)


def _outcome(records: Sequence[Record], path: Path, source: str) -> None:
    (record,) = records
    draw(Outcome.from_dict(record), path, source)


def _shapes(records: Sequence[Record], path: Path, source: str) -> None:
    (record,) = records
    ratios = [(one["kind"], one["dtype"], ratio_of(one)) for one in record["records"]]
    draw_ratios(ratios, "torch.matmul's time over matmill's on an H200: right of 1 matmill is faster", path, source)


def _inner(records: Sequence[Record], path: Path, source: str) -> None:
    ratios = []
    for group, title in _GROUPS.items():
        for product in (one for record in records if record["group"] == group for one in record["products"]):
            # Short products by graph replay: plain calls take the host's time.
            times = {row["name"]: row["graph" if group == "small" else "median"] for row in product["rows"]}
            ratios.append((title, product["problem"]["dtype"], times["torch.mm"] / times["matmill.inner"]))
    draw_ratios(ratios, "torch.mm's time over matmill.inner's on an H200: right of 1 matmill is faster", path, source)


#: Groups of inner products by their name in records.
_GROUPS = {
    "bandwidth": "Up to 16 rows and columns: bandwidth",
    "cases": "The products of the paper",
    "fma": "17 to 128 rows and columns: bandwidth, then FMAs",
    "small": "Short k, from 1e4 to 1e6",
}


def _sums(records: Sequence[Record], path: Path, source: str) -> None:
    (record,) = records
    ratios = []
    for one in record["sums"]:
        times = {row["name"]: row["median"] for row in one["rows"]}
        ours = times["matmill.transpose_add"]
        ratios += [(one["shape"]["kind"], name, times[name] / ours) for name in ("torch eager", "torch.compile")]
    draw_ratios(ratios, "their time over matmill's on an H200: right of 1 matmill is faster", path, source)


def _programs(records: Sequence[Record], path: Path, source: str) -> None:
    (record,) = records
    rows = sorted(record["programs"], key=lambda row: -row["ratio"])
    ratios = [(row["name"], "a step", row["ratio"]) for row in rows]
    for row in rows:
        graph = row["seconds"].get("graph")
        if graph is not None:
            ratios.append((row["name"], "as a CUDA graph", graph["torch"] / graph["matmill"]))
    draw_ratios(ratios, "torch's time over that with matmill on an H200: right of 1 matmill is faster", path, source)


@dataclass(frozen=True)
class Picture:
    """A picture by its file's name without suffix, in words for those who do not see it, of the records ``glob``."""

    name: str
    words: str
    glob: str
    drawer: Callable[[Sequence[Record], Path, str], None] = _outcome
    #: The parts of a record that are drawn.
    parts: tuple[str, ...] = ("problem", "rows", "baselines")

    def records(self, folder: Path) -> list[Record]:
        """Return what it is drawn from: of a sweep, the products whose size is a power of two."""
        result = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(self.glob))]
        return [one for one in result if self.drawer is not _sweep or one["problem"]["n"].bit_count() == 1]

    def path(self, folder: Path) -> Path:
        """Return its file beside the records."""
        return folder / f"{self.name}.png"

    def source(self, folder: Path) -> str:
        """Return the digest of its records, which the file says it was drawn from."""
        shown = [[record[key] for key in self.parts] for record in self.records(folder)]
        return f"records {hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:32]}"

    def draw(self, folder: Path) -> None:
        """Draw it anew."""
        self.drawer(self.records(folder), self.path(folder), self.source(folder))


_RATES = "Rates of the rungs and of libraries over the size, on an"
#: The pictures of every page: of a ladder's by the ladder's name.
PICTURES: dict[str, tuple[Picture, ...]] = {
    "programs": (
        Picture(
            "programs_h200",
            "Times of a step with torch alone over those with matmill, for every program, on an H200",
            "programs_h200.json",
            _programs,
            ("programs",),
        ),
    ),
    "sgemm": (
        Picture("sgemm_h200", f"{_RATES} H200", "sgemm_h200_*.json", _sweep),
        Picture(
            "sgemm_emulated",
            "Wavefronts of shared memory, and bytes used over bytes moved by loads, of every rung",
            "sgemm_emulated_256.json",
        ),
    ),
    "hgemm": tuple(
        Picture(f"hgemm_h100_{dtype}", f"{_RATES} H100, {dtype}", f"hgemm_h100_*_{dtype}.json", _sweep)
        for dtype in ("float16", "bfloat16")
    ),
    "memory": (Picture("memory_h200", "Where the time of every rung goes, on an H200", "memory_h200_8192.json"),),
    "inner": (
        Picture(
            "inner_h200",
            "Bandwidths of the rungs and of libraries, 5 x 5 x 3e7, on an H200",
            "inner_h200_5x5x30000000_float32_row.json",
        ),
        Picture(
            "inner_h200_products",
            "torch.mm's time over matmill.inner's for every product, by group and element type, on an H200",
            "inner_h200_[bcfs]*.json",
            _inner,
            ("group", "products"),
        ),
    ),
    "transpose_add": (
        Picture(
            "transpose_add_h200",
            "Bandwidths of the rungs and of libraries in bfloat16, on an H200",
            "transpose_add_h200_24300x11520_bfloat16.json",
        ),
        Picture(
            "transpose_add_h200_shapes",
            "The time of eager torch and of torch.compile over matmill's for forty sums, by class, on an H200",
            "transpose_add_h200_shapes.json",
            _sums,
            ("sums",),
        ),
    ),
    "shapes": (
        Picture(
            "shapes_h200",
            "torch.matmul's time over matmill's for every product, by class and element type, on an H200",
            "shapes_h200.json",
            _shapes,
            ("records",),
        ),
    ),
}


def pingpong_timeline() -> str:
    """Return the timeline of the hgemm ladder's ``pingpong``, as the emulator runs it."""
    ladder = LADDERS["hgemm"]
    (rung,) = (each for each in ladder.rungs if each.label == "pingpong")
    return timeline(rung.label, events_of(rung, ladder.subject, half_product(256, 256, 256)))


def shown(page: str) -> Iterator[str]:
    """Yield the pictures of a page, as Markdown for a page in ``docs/``."""
    for picture in PICTURES[page]:
        yield f"![{picture.words}](../benchmarks/results/{picture.name}.png)\n"
