"""Documentation that can be trusted: paths exist, commands run, examples hold, generated pages are up to date."""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab.doors import with_screens
from lab.front_page import OUTPUT, SPEEDS, between, package_page, with_four_speeds, with_output, with_speeds
from lab.gemm.wgmma_tiles import packed
from lab.groups_page import MARKS as GROUPS
from lab.groups_page import measured_groups, recorded_groups
from lab.pages import hgemm_page, inner_page, memory_page, recorded, remarks, sgemm_page, transpose_add_page
from lab.pictures import PICTURES, Picture
from lab.programs_page import recorded_programs, with_programs
from lab.shapes_page import recorded_products, recorded_shapes, shapes_page
from lab.tails_page import MARKS, library_tails, recorded_tails
from lab.transpose_add.report import recorded_comparisons
from lab.wgmma_page import recorded_tiles, tile_of, wgmma_page
from matmill.arch import get
from matmill.dtypes import BF16
from matmill.kernels.wgmma.tiles import EXAMPLES, configured
from matmill.ladders.hgemm.rungs import HGEMM
from matmill.ladders.inner.rungs import INNER
from matmill.ladders.memory.rungs import MEMORY
from matmill.ladders.registry import LADDERS
from matmill.ladders.sgemm.rungs import SGEMM
from matmill.ladders.transpose_add.rungs import TRANSPOSE_ADD

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
START = ROOT / "docs" / "getting-started.md"
RECIPES = ("A kernel", "A rung", "An emulator instruction", "A dtype", "An array library")
RESULTS = ROOT / "benchmarks" / "results"


def _fenced(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def _commands() -> list[str]:
    text = START.read_text(encoding="utf-8")
    before, after = (
        text.partition(OUTPUT[0])[0],
        text.partition(OUTPUT[1])[2],
    )  # samples of output hold no command to run
    text = before + after
    return [line.removeprefix("$ ") for block in _fenced(text, "console") for line in block.splitlines()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)#\s]+)", text)
    local = [link for link in links if "://" not in link]
    missing = [link for link in local if not (page.parent / link).exists()]
    assert missing == []


def test_getting_started_has_commands_to_try() -> None:
    assert len(_commands()) >= 5
    assert all(command.startswith("matmill ") for command in _commands())


@pytest.mark.parametrize("command", _commands())
def test_commands_of_getting_started_run(command: str, tmp_path: Path) -> None:
    if "--plot" in command:
        pytest.importorskip("matplotlib")
    words = [sys.executable, "-m", *shlex.split(command)]
    path = {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, **path})
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_examples_run(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}  # a page's later examples go on from its earlier ones
    for block in _fenced(page.read_text(encoding="utf-8"), "python"):
        exec(compile(block, str(page), "exec"), names)  # noqa: S102 — code of our own page
        expected = re.search(r"print\(.*\)  # (.*)", block)
        if expected:
            assert capsys.readouterr().out.strip() == expected.group(1)


def test_the_readme_opens_with_purpose_and_commands_then_has_three_doors() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    opening = (
        "see what your CUDA kernel does to a GPU, without one",
        "faster than cuBLAS",
        "pip install",
        "make run",
        "make test",
        "## Learn",
        "## Use in PyTorch",
        "```python",
        "## Test in CI",
        "| theirs |",
    )
    offsets = [text.index(part) for part in opening]
    assert offsets == sorted(offsets)
    example = _fenced(text, "python")[0]
    assert len([line for line in example.splitlines() if line.strip()]) == 5


def test_the_readme_has_a_screen_a_door_one_table_and_one_picture() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) <= 130
    assert sum(line.startswith("| `") for line in lines) == 4
    assert sum(line.startswith("![") for line in lines) == 1
    screens = _fenced(text, "console")
    assert len(screens) == 3
    assert all(len(line) <= 100 for screen in screens for line in screen.splitlines())


def test_the_readme_s_screens_are_what_its_commands_print(monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest's summaries are longer where this is set.
    monkeypatch.setenv("CI", "true")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text == with_screens(text, RESULTS), "run `make docs`"
    steps = json.loads((RESULTS / "language_model_h100.json").read_text(encoding="utf-8"))
    for name, milliseconds in steps["milliseconds"].items():
        assert f"a step takes {milliseconds[-1]} ms" in steps["printed"][name]


def test_speeds_are_those_recorded() -> None:
    for page, shown in ((ROOT / "README.md", with_four_speeds), (ROOT / "docs" / "speeds.md", with_speeds)):
        text = page.read_text(encoding="utf-8")
        assert text == shown(text, RESULTS), "run `make docs`"
        assert "| theirs |" in text  # the table names what is not faster, too


def test_the_index_has_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md", "package.md"}
    assert pages == set(re.findall(r"\]\(([a-z_0-9-]+\.md)", index))
    assert "(learn/README.md)" in index


def test_terms_that_libraries_lose_are_those_recorded() -> None:
    text = (ROOT / "docs" / "correctness.md").read_text(encoding="utf-8")
    assert text == between(text, MARKS, library_tails(recorded_tails(RESULTS))), "run `make docs`"


def test_the_speeds_of_groups_are_those_of_the_record() -> None:
    text = (ROOT / "docs" / "groups.md").read_text(encoding="utf-8")
    assert text == between(text, GROUPS, measured_groups(recorded_groups(RESULTS))), "run `make docs`"


def test_the_page_of_the_package_is_the_readme_without_links_into_the_repository() -> None:
    page = (ROOT / "docs" / "package.md").read_text(encoding="utf-8")
    assert page == package_page((ROOT / "README.md").read_text(encoding="utf-8")), "run `make docs`"
    assert all(link.startswith("https://") for link in re.findall(r"\]\(([^)]+)", page))


def test_getting_started_shows_recorded_output() -> None:
    text = START.read_text(encoding="utf-8")
    assert text == with_output(text, recorded(RESULTS, "sgemm")), "run `make docs`"
    assert text.count("```console\n$ matmill ladder sgemm --n ") == 2


def test_every_recipe_names_a_commit_that_did_it() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    recipes = re.findall(r"^### (.*?)\n(.*?)(?=^### |\Z)", page.partition("## Recipes")[2], re.MULTILINE | re.DOTALL)
    cited = [re.findall(r'^\*"(.*)"\*', recipe, re.MULTILINE) for _, recipe in recipes]
    assert [title for title, _ in recipes] == list(RECIPES)
    assert all(len(commits) == 1 for commits in cited)
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists() or (ROOT / ".git" / "shallow").exists():
        pytest.skip("no history here")
    log = subprocess.run([git, "log", "--format=%s"], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert [commit for (commit,) in cited if not any(line.startswith(commit) for line in log.splitlines())] == []


@pytest.mark.parametrize("ladder", list(LADDERS))
def test_ladder_pages_are_up_to_date(ladder: str) -> None:
    records = recorded(RESULTS, ladder)
    result = {
        "sgemm": lambda: sgemm_page(SGEMM, records, remarks(RESULTS, "sgemm")),
        "hgemm": lambda: hgemm_page(HGEMM, records, remarks(RESULTS, "hgemm")),
        "memory": lambda: memory_page(MEMORY, records),
        "inner": lambda: inner_page(INNER, records),
        "transpose_add": lambda: transpose_add_page(
            TRANSPOSE_ADD, records, recorded_comparisons(RESULTS), remarks(RESULTS, "transpose_add")
        ),
    }[ladder]()
    committed = (ROOT / "docs" / f"ladder-{ladder}.md").read_text(encoding="utf-8")
    assert committed == result, "run `make docs`"


@pytest.mark.parametrize(
    "picture", [one for pictures in PICTURES.values() for one in pictures], ids=lambda one: one.name
)
def test_pictures_are_drawn_from_today_s_records(picture: Picture) -> None:
    text = picture.path(RESULTS).read_text(encoding="utf-8")
    assert f"<dc:description>{picture.source(RESULTS)}<" in text, "run `make docs`"
    shown = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", text))
    assert picture.drawing(picture.records(RESULTS)).title in html.unescape(shown), "run `make docs`"


def test_the_page_of_products_of_every_shape_is_up_to_date() -> None:
    committed = (ROOT / "docs" / "shapes.md").read_text(encoding="utf-8")
    assert committed == shapes_page(recorded_shapes(RESULTS), recorded_products(RESULTS)), "run `make docs`"


def test_the_page_of_programs_is_up_to_date() -> None:
    committed = (ROOT / "docs" / "programs.md").read_text(encoding="utf-8")
    assert committed == with_programs(committed, RESULTS), "run `make docs`"
    assert all(row["losses_agree"] for row in recorded_programs(RESULTS)["programs"])


def test_the_page_of_the_warp_specialised_kernel_is_up_to_date() -> None:
    committed = (ROOT / "docs" / "wgmma.md").read_text(encoding="utf-8")
    assert committed == wgmma_page(*recorded_tiles(RESULTS)), "run `make docs`"


def test_the_machine_code_recorded_is_that_of_today_s_tiles() -> None:
    recorded_rows = recorded_tiles(RESULTS)[0]["rows"]
    problem = packed(8192, 8192, 8192, BF16, "column")
    configs = [configured(shape, problem, get("h200")) for shape in EXAMPLES]
    today = [(tile_of(one), one["STAGES"], one["SHARED_BYTES"]) for one in configs]
    assert [(row["tile"], row["stages"], row["shared_bytes"]) for row in recorded_rows] == today, "wgmma_sass.py --out"


@pytest.mark.parametrize("ladder", ["sgemm", "hgemm", "inner", "transpose_add"])
def test_the_recorded_emulation_covers_today_s_ladder(ladder: str) -> None:
    emulated = [r for r in recorded(RESULTS, ladder) if r["on"] == "emulator"]
    assert emulated
    for record in emulated:
        assert [row["rung"] for row in record["rows"]] == [rung.label for rung in LADDERS[ladder].rows]
        assert all(row["ok"] for row in record["rows"])


def test_make_refuses_an_old_python_in_words(tmp_path: Path) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("no make here")
    old = tmp_path / "python"
    # Answers as Python 3.9 would: the version check of the Makefile is Python code, so a stub has to run it.
    old.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c \"import sys; sys.version_info = (3, 9, 0); sys.version = '3.9.0 x'; "
        'exec(sys.argv[2])" "$@"\n',
        encoding="utf-8",
    )
    old.chmod(0o755)
    words = [make, "--directory", str(ROOT), f"VENV={tmp_path / 'venv'}", f"PYTHON={old}", "run"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "matmill needs Python 3.11 or newer" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_bits_like_torch_s_are_those_recorded() -> None:
    rows = json.loads((RESULTS / "equal_bits_h200.json").read_text(encoding="utf-8"))["rows"]
    plain = [row for row in rows if not row["apart"] and not row["torch splits"]]
    kinds = ("float16", "bfloat16"), ("float32",), ("float64",)
    groups = [[row["equal"] for row in plain if row["dtype"] in types] for types in kinds]
    (halves, of_halves), (single, of_single), (double, of_double) = (
        (sum(share == 1 for share in shares), len(shares)) for shares in groups
    )
    page = " ".join((ROOT / "docs" / "precision.md").read_text(encoding="utf-8").split())
    assert halves == of_halves
    assert f"all of {of_halves} random products of 16 bits have torch's bits" in page
    assert f"{single} of {of_single} float32 products and {double} of {of_double} of float64" in page
    sliced = [row["equal"] for row in rows if row not in plain and row["dtype"] in {"float16", "bfloat16"}]
    assert min(sliced) >= 0.98


def prose(page: str) -> str:
    """Return a page's text in one line, without its generated table of speeds and its code."""
    text = (ROOT / page).read_text(encoding="utf-8")
    text = between(text, SPEEDS, "") if SPEEDS[0] in text else text
    text = re.sub(r"^```.*?^```|^ {4}\S.*?$|\]\([^)]*\)", "", text, flags=re.MULTILINE | re.DOTALL)
    return " ".join(text.split())


def test_figures_in_prose_are_those_recorded() -> None:
    public = " ".join((RESULTS / "public_kernels.md").read_text(encoding="utf-8").split())
    kernels, compiled = re.findall(r"Of (\d+) kernels (\d+) compile", public)[0]
    of_all, ran = re.findall(r"Of (\d+) kernels of these collections and of three more (\d+) were run", public)[0]
    *_, not_run = re.findall(r"\| all \| ([\d |]*) \|", public)[0].split(" | ")
    assert int(of_all) - int(not_run) == int(ran)
    calls = json.loads((RESULTS / "matmul_h200.json").read_text(encoding="utf-8"))["products"]
    slower: dict[bool, list[bool]] = {True: [], False: []}  # by whether a side is short
    for one in (one for one in calls if one["group"] == "aligned"):
        slower[min(one["m"], one["n"], one["k"]) < 2048].append(one["theirs"] / one["ours"] < 0.97)
    short, long = (f"{sum(some)} of {len(some)}" for some in slower.values())
    assert f"{kernels} kernels {compiled} compile" in prose("docs/emulator.md")
    assert f"Of {of_all} kernels of these collections and of three more {ran} were run" in prose("docs/emulator.md")
    slow = f"if a side is below 2048 ({short} are over 3% slower, of larger ones {long})"
    assert slow in prose("docs/speeds.md")


def test_the_readme_s_prose_has_no_other_figures() -> None:
    # A version, a capability, a lesson, an element type, a size, GPT-2 and its vocabulary, and Apache-2.0.
    figures = set(re.findall(r"(?<!\w)\d[\d.,]*\d|(?<!\w)\d", prose("README.md")))
    assert figures == {"16", "7.5", "1", "0.1", "50257", "4096", "2", "2.0"}


def test_speeds_of_the_emulator_s_page_are_those_recorded() -> None:
    page = " ".join((ROOT / "docs" / "emulator.md").read_text(encoding="utf-8").partition("## Speed")[2].split())
    record = json.loads((RESULTS / "emulator_speed.json").read_text(encoding="utf-8"))
    for name in ("sgemm", "tiled", "hgemm", "persistent"):
        times = (record[name][how]["fastest_s"] for how in ("counters_only", "with_races"))
        assert "| {:.2f} s | {:.2f} s |".format(*times) in page, name
    command = f"`{record['ladder']['command']}`, with its start, the search for races and the check against float64, "
    assert f"{command}{record['ladder']['fastest_s']:.2f} s." in page
