"""Pictures can be read: no label covers another, whatever the figures are."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.pictures import PICTURES, Picture
from matmill import cli
from matmill.bench.plots.style import COLOURS, spread
from matmill.cli import main
from matmill.errors import ArgumentError
from matmill.ladders.runner.bars import groups_of, notes_of, sentence
from matmill.ladders.runner.plot import draw
from matmill.ladders.runner.results import Outcome
from matmill.ladders.runner.sweep import Sweep
from matmill.ladders.runner.sweep_plot import draw_sweep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
    from matplotlib.text import Text

pytest.importorskip("matplotlib")
import matplotlib.figure

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
#: Pixels by which the boxes of two texts may meet: boxes are higher than what is drawn in them.
TOUCH = 3.0


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Provide the figures that would be saved."""
    figures: list[Figure] = []
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", lambda self, *_, **__: figures.append(self))
    return figures


def texts(figure: Figure) -> Iterator[Text]:
    """Yield every text that is drawn and not along a line."""
    yield from figure.texts
    for axes in figure.axes:
        legend = axes.get_legend()
        yield from (text for text in (*axes.texts, axes.title) if not text.get_rotation())
        yield from legend.get_texts() if legend else ()
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            yield axis.label
            yield from (tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high)


def covered(figure: Figure) -> list[tuple[str, str]]:
    """Return pairs of texts of which one covers a part of the other."""
    figure.draw_without_rendering()
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure) if text.get_text()]
    assert len(boxes) > 10
    return [
        (one, other)
        for (one, a), (other, b) in combinations(boxes, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > TOUCH and min(a.y1, b.y1) - max(a.y0, b.y0) > TOUCH
    ]


def record(name: str) -> Outcome:
    return Outcome.from_dict(json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("arch", "asked"),
    [
        ("h200", ["--dtype", "f16", "--n", "4096"]),
        ("h200", ["--dtype", "bf16", "--n", "4096", "--measured", "1.9e-4"]),
        ("t4", ["--dtype", "f32"]),
        ("k40", ["--dtype", "f32", "--n", "64"]),
    ],
)
def test_rooflines(arch: str, asked: list[str], drawn: list[Figure], tmp_path: Path) -> None:
    assert main(["roofline", "--arch", arch, *asked, "--plot", str(tmp_path / "roofline.svg")]) == cli.OK
    assert [covered(figure) for figure in drawn] == [[]]


@pytest.mark.parametrize("ladder", ["hgemm_h100_{}_float16", "sgemm_h100_{}"])
def test_sweeps(ladder: str, drawn: list[Figure], tmp_path: Path) -> None:
    sweep = Sweep(tuple(record(ladder.format(n)) for n in (1024, 2048, 4096, 8192)))
    draw_sweep(sweep, tmp_path / "sweep.svg")
    assert [covered(figure) for figure in drawn] == [[]]


@pytest.mark.parametrize(
    "name",
    [
        "hgemm_emulated_256x256x128_float16",
        "sgemm_emulated_256",
        "memory_h200_1024",
        "inner_h200_5x5x30000000_float32_row",
        "transpose_add_h200_24300x11520_bfloat16",
    ],
)
def test_ladders(name: str, drawn: list[Figure], tmp_path: Path) -> None:
    draw(record(name), tmp_path / "ladder.svg")
    assert [covered(figure) for figure in drawn] == [[]]


#: The runs of the picture with all ways to multiply.
BOTH = ("sgemm_h100_4096", "hgemm_h100_4096_float16")


def test_bars_are_as_long_as_the_shares_in_the_records(drawn: list[Figure], tmp_path: Path) -> None:
    outcomes = [record(name) for name in BOTH]
    (picture,) = PICTURES["front"]
    picture.drawing([outcome.as_dict() for outcome in outcomes]).draw(tmp_path / "bars.svg", "")
    (figure,) = drawn
    sgemm, hgemm = ({row.rung: row.library_fraction for row in outcome.rows} for outcome in outcomes)
    bars = iter(cast("list[Rectangle]", figure.axes[0].patches))
    # float32 in pieces is beyond cuBLAS and comes last, at a scale of its own.
    (fma, pieces), (mma, wgmma) = map(groups_of, outcomes)
    for shares, group in ((sgemm, fma), (hgemm, mma), (hgemm, wgmma), (sgemm, pieces)):
        assert [bar.share for bar in group.bars] == pytest.approx([shares[bar.label] for bar in group.bars])
        lengths = [next(bars).get_width() for _ in group.bars]
        scale = lengths[0] / group.bars[0].share
        assert lengths == pytest.approx([scale * bar.share for bar in group.bars])
    assert next(bars, None) is None
    assert covered(figure) == []


def test_the_title_has_the_first_and_the_best_share_of_each_group() -> None:
    groups = [group for name in BOTH for group in groups_of(record(name))]
    words = sentence(groups)
    shares = [(bars[0].share, max(bar.share for bar in bars)) for bars in (group.bars for group in groups)]
    # float32 in pieces is told in multiples.
    assert [f"from {first:.0%} to {best:.0%}" in words for first, best in shares] == [True, False, True, True]
    assert f"tensor cores to {shares[1][1]:.2f} times" in words
    alone = "inner_h200_5x5x30000000_float32_row"
    assert sentence(groups_of(record(alone))) == "one-pass reaches 88.8% of the bandwidth, torch.mm 10.9%"


def test_the_best_of_a_family_has_a_bar_and_missing_and_wrong_rungs_have_names() -> None:
    outcome = record(BOTH[0])
    labels = [bar.label for bar in groups_of(outcome)[0].bars]
    assert [label for label in labels if label.startswith(("multi", "ilp"))] == ["multi(2)", "ilp(16)"]
    family = tuple(row for row in outcome.rows if row.rung.startswith("ilp"))
    assert len(groups_of(replace(outcome, rows=family))[0].bars) == len(family)
    rows = tuple(replace(row, ok={"ilp(1)": False, "tuned": None}.get(row.rung, True)) for row in outcome.rows)
    partly = replace(outcome, rows=rows)
    names = [bar.name for bar in groups_of(partly)[0].bars]
    assert {"ilp(1): WRONG", "ilp(16)"} <= set(names)
    assert "tuned" not in names
    assert any("not run here" in note and "tuned" in note for note in notes_of(partly))
    wrong = replace(outcome, rows=tuple(replace(row, ok=False) for row in rows))
    assert sentence(groups_of(wrong)) == "No rung has a right result"


@pytest.mark.parametrize("name", ["sgemm_h100_4096", "sgemm_emulated_256", "inner_emulated_100000", "memory_h200_1024"])
def test_runs_without_a_right_result_have_pictures_that_say_so(name: str, tmp_path: Path) -> None:
    outcome = record(name)
    for ok in (False, None):
        rows = tuple(replace(row, ok=ok, seconds=None, tflops=None) for row in outcome.rows)
        draw(replace(outcome, rows=rows, baselines=()), tmp_path / "wrong.svg")
        text = (tmp_path / "wrong.svg").read_text(encoding="utf-8")
        assert (": WRONG" in text) == (ok is False)
        assert ">No rung has a right result<" in text


def test_a_picture_without_its_record_is_not_drawn_from_another() -> None:
    picture = Picture("rungs", (f"{BOTH[0]}.json", "sgemm_of_no_gpu_*.json"))
    with pytest.raises(ArgumentError, match=r"no record sgemm_of_no_gpu_\*"):
        picture.records(RESULTS)
    assert len(replace(picture, globs=picture.globs[:1]).records(RESULTS)) == 1


def test_an_svg_has_the_colours_of_the_scheme_and_text_that_is_text(tmp_path: Path) -> None:
    path = tmp_path / "bars.svg"
    draw(record(BOTH[1]), path, "records abc")
    text = path.read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in text
    assert "<dc:description>records abc<" in text
    assert ">warp-specialised</text>" in text
    assert re.search(r"(fill|stroke): #", text) is None
    draw(record(BOTH[1]), tmp_path / "again.svg", "records abc")
    assert (tmp_path / "again.svg").read_text(encoding="utf-8") == text


def test_colours_differ_where_colour_is_not_seen() -> None:
    # How light each is, after ITU-R BT.709: what is left of a colour on a grey printer.
    light = [sum(w * int(c[i : i + 2], 16) for w, i in ((0.2126, 1), (0.7152, 3), (0.0722, 5))) for c in COLOURS]
    assert len({round(value / 8) for value in light}) >= len(COLOURS) - 1


@given(st.lists(st.floats(0, 100), max_size=8), st.floats(0.1, 12))
def test_labels_keep_their_distance_their_order_and_their_bounds(wanted: list[float], gap: float) -> None:
    result = spread(wanted, gap, 0, 100)
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    ranked = [result[index] for index in order]
    assert all(after - before >= gap - 1e-9 for before, after in pairwise(ranked))
    assert all(value >= -1e-9 for value in result)
    if gap * (len(wanted) - 1) <= 100:
        assert all(value <= 100 + 1e-6 for value in result)
    if all(b - a >= gap for a, b in pairwise(sorted(wanted))) and ranked:
        assert ranked[-1] <= 100 + 1e-6
        assert result == pytest.approx(wanted)
