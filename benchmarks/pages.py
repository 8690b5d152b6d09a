"""Writes the generated pages of ``docs/``, pictures, sample output and the README's speeds from what is recorded."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from lab.doors import with_screens
from lab.float32_page import MARKS, float32_products, recorded_float32
from lab.front_page import between, package_page, with_four_speeds, with_output, with_speeds
from lab.groups_page import MARKS as GROUPS
from lab.groups_page import measured_groups, recorded_groups
from lab.lessons_page import lesson_pages
from lab.pages import hgemm_page, inner_page, memory_page, recorded, remarks, sgemm_page, transpose_add_page
from lab.pictures import PICTURES, pingpong_timeline
from lab.programs_page import with_programs
from lab.recorded_ratios import ratios_text, rungs_text
from lab.shapes_page import recorded_products, recorded_shapes, shapes_page
from lab.tails_page import MARKS as TAILS
from lab.tails_page import library_tails, recorded_tails
from lab.transpose_add.report import recorded_comparisons
from lab.wgmma_page import recorded_tiles, wgmma_page
from matmill.ladders.hgemm.rungs import HGEMM
from matmill.ladders.inner.rungs import INNER
from matmill.ladders.memory.rungs import MEMORY
from matmill.ladders.sgemm.rungs import SGEMM
from matmill.ladders.transpose_add.rungs import TRANSPOSE_ADD

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Write every page and draw every picture."""
    results = ROOT / "benchmarks" / "results"
    # Sample output on a page shows these rates, as `matmill ladder` reads them.
    (ROOT / "src" / "matmill" / "ladders" / "recorded.json").write_text(rungs_text(results), encoding="utf-8")
    runs = recorded(results, "sgemm")
    halves = hgemm_page(HGEMM, recorded(results, "hgemm"), remarks(results, "hgemm"))
    transpose_add = transpose_add_page(
        TRANSPOSE_ADD,
        recorded(results, "transpose_add"),
        recorded_comparisons(results),
        remarks(results, "transpose_add"),
    )
    start, precision = ROOT / "docs" / "getting-started.md", ROOT / "docs" / "precision.md"
    correctness, speeds = ROOT / "docs" / "correctness.md", ROOT / "docs" / "speeds.md"
    groups = ROOT / "docs" / "groups.md"
    pages = {
        ROOT / "docs" / "ladder-sgemm.md": sgemm_page(SGEMM, runs, remarks(results, "sgemm")),
        ROOT / "docs" / "ladder-hgemm.md": halves,
        ROOT / "docs" / "ladder-memory.md": memory_page(MEMORY, recorded(results, "memory")),
        ROOT / "docs" / "ladder-inner.md": inner_page(INNER, recorded(results, "inner")),
        ROOT / "docs" / "ladder-transpose_add.md": transpose_add,
        ROOT / "docs" / "programs.md": with_programs(
            (ROOT / "docs" / "programs.md").read_text(encoding="utf-8"), results
        ),
        correctness: between(correctness.read_text(encoding="utf-8"), TAILS, library_tails(recorded_tails(results))),
        precision: between(precision.read_text(encoding="utf-8"), MARKS, float32_products(recorded_float32(results))),
        groups: between(groups.read_text(encoding="utf-8"), GROUPS, measured_groups(recorded_groups(results))),
        ROOT / "src" / "matmill" / "analysis" / "recorded.json": ratios_text(results),
        ROOT / "docs" / "shapes.md": shapes_page(recorded_shapes(results), recorded_products(results)),
        ROOT / "docs" / "wgmma.md": wgmma_page(*recorded_tiles(results)),
        results / "pingpong_timeline.svg": pingpong_timeline(),
        start: with_output(start.read_text(encoding="utf-8"), runs),
        ROOT / "README.md": with_screens(
            with_four_speeds((ROOT / "README.md").read_text(encoding="utf-8"), results), results
        ),
        speeds: with_speeds(speeds.read_text(encoding="utf-8"), results),
    }
    pages |= lesson_pages(ROOT / "docs" / "learn")
    pages[ROOT / "docs" / "package.md"] = package_page(pages[ROOT / "README.md"])
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {len(text.splitlines())} lines")
    if find_spec("matplotlib") is None:
        print("no pictures: they need matplotlib, of the extra 'plots'")
        return
    for picture in chain.from_iterable(PICTURES.values()):
        picture.draw(results)
        print(picture.path(results).relative_to(ROOT))


if __name__ == "__main__":
    main()
