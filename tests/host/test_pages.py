"""Pages of HTML: well-formed, complete in themselves, links that lead somewhere; in a browser where there is one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import matmill
from matmill import cli
from matmill.cli import ladder_page, main
from matmill.ladders.runner.results import Outcome
from matmill.page.launch import page, write_pages
from matmill.testing.report import LaunchReport
from matmill.testing.sarif import sarif

SOURCE = """// <b> is no tag
__global__ void transpose(const float* in, float* out, int n) {
  __shared__ float tile[32][32];
  const int x = threadIdx.x, y = threadIdx.y;
  tile[y][x] = in[y * n + x];
  out[y * 32 + x] = 2.0f * tile[x][y] + 1.0f;
}
int main() {}
"""
_VOID = {"meta", "link", "br", "img"}


class _Page(HTMLParser):
    """Tags in balance, identities, links, and what a page would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.add(tag)
        if tag not in _VOID:
            self.open.append(tag)
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links += [given["href"] or ""] if tag == "a" else []
        self.fetched += [given[name] or "" for name in ("src", "href") if name in given and tag != "a"]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(text: str) -> _Page:
    """Return a page whose links within it all lead somewhere and that fetches nothing."""
    result = _Page(text)
    assert len(set(result.ids)) == len(result.ids)
    assert {link[1:] for link in result.links if link.startswith("#")} <= set(result.ids)
    assert all(link.startswith("data:") for link in result.fetched)
    assert "script" not in result.tags
    assert not re.search(r"@import|url\(\s*['\"]?(?!#|data:)", text)
    return result


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> LaunchReport:
    path = tmp_path_factory.mktemp("page") / "transpose.cu"
    path.write_text(SOURCE)
    return matmill.emulate(
        path, "transpose", 1, (32, 32), np.ones((40, 40), np.float32), np.zeros(1024, np.float32), 40
    )


def test_the_page_of_a_launch_has_it_all(report: LaunchReport) -> None:
    text = page(report)
    result = checked(text)
    assert {"hazards", "hazard-1", "source", "banks", "sectors", "mix", "roofline", "counts"} <= set(result.ids)
    assert result.links.count("#hazard-1") == 2  # both accesses of the race
    assert result.links.count("#L-transpose.cu_5") >= 2
    assert "// &lt;b&gt; is no tag" in text
    assert text.count('class="clash"') == 32  # a column of the tile: all lanes in one bank
    assert "takes 32 passes where 1 would do" in text
    assert "left out: host code: main" in text
    assert re.search(r"allow 2 blocks per SM \(limited by threads\)", text)


def test_a_page_opens_with_the_verdict(report: LaunchReport) -> None:
    text = page(report)
    assert text.index('id="hazards"') < text.index('id="verdict"') < text.index('id="source"')  # it has an error
    right = matmill.emulate(
        SOURCE.replace("tile[y][x] = in[y * n + x];", "tile[y][x] = in[y * n + x]; __syncthreads();"), "transpose", 132,
        (32, 32), np.ones((40, 40), np.float32), np.zeros(1024, np.float32), 40, races=False,
    )  # fmt: skip
    text = page(right)
    assert text.index('id="verdict"') < text.index('id="hazards"')
    assert "1 thing to improve" in text
    assert "fine" not in text
    assert "32 passes where 1 would do (bank conflicts)" in text
    assert "shared passes 135,168 → 4,224" in text


def test_a_launch_without_hazards_and_one_of_ptx(report: LaunchReport, tmp_path: Path) -> None:
    calm = matmill.emulate(
        "__global__ void k(int* x) { x[threadIdx.x] = 1; }", "k", 1, 32, np.zeros(32, np.int32), cluster=1
    )
    assert "No access to shared memory" in page(calm)
    ptx = matmill.emulate(report.ptx, None, 1, (32, 32), np.ones(1600, np.float32), np.zeros(1024, np.float32), 40)
    assert any(key.startswith("L-PTX_line_") for key in checked(page(ptx)).ids)
    write_pages(tmp_path / "pages", "tests/test_it.py::test_one[a/b]", [calm, report], failed=True)
    write_pages(tmp_path / "pages", "tests/test_it.py::test_two --><b>", [report])
    names = sorted(path.name for path in (tmp_path / "pages").iterdir())
    assert names == [
        "index.html",
        "tests_test_it.py_test_one_a_b_-1.html",
        "tests_test_it.py_test_one_a_b_-2.html",
        "tests_test_it.py_test_two_--_b_-1.html",
    ]
    text = (tmp_path / "pages" / "index.html").read_text()
    index = checked(text)
    assert index.links[-3:] == names[1:]
    assert '<strong class="error">2 of 3 launches are of failed tests</strong>' in text
    assert re.findall("(?<=>)(?:failed|passed)(?=<)", text) == ["failed", "failed", "passed"]


def test_sarif_names_kinds_lines_and_reasons(report: LaunchReport) -> None:
    accepted = matmill.emulate(
        report.paths["transpose.cu"], "transpose", 1, (32, 32), np.ones((40, 40), np.float32),
        np.zeros(1024, np.float32), 40, suppressions=(),
    )  # fmt: skip
    log = sarif([report, accepted])
    assert log["version"] == "2.1.0"
    run = log["runs"][0]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["race"]
    first = run["results"][0]
    assert first["level"] == "error"
    assert first["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": report.paths["transpose.cu"]},
        "region": {"startLine": 6},
    }
    assert first["relatedLocations"][0]["physicalLocation"]["region"] == {"startLine": 5}


def test_the_command_line_writes_pages(
    report: LaunchReport, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    html, log = tmp_path / "page.html", tmp_path / "log.sarif"
    words = ["--arg", "random:f32:40x40", "--arg", "zeros:f32:1024", "--arg", "40"]
    command = ["emulate", report.paths["transpose.cu"], "--block", "32,32", *words]
    assert main([*command, "--html", str(html), "--sarif", str(log)]) == cli.FAILED
    checked(html.read_text())
    assert json.loads(log.read_text())["runs"][0]["results"]
    assert main([*command, "--html", str(tmp_path / "gone" / "page.html")]) == cli.USAGE
    ladder = tmp_path / "ladder.html"
    assert (
        main(["ladder", "sgemm", "--on", "emulator", "--n", "32", "--rungs", "naive,shared", "--html", str(ladder)])
        == 0
    )
    text = ladder.read_text()
    result = checked(text)
    assert {"results", "figures", "rungs"} <= set(result.ids)
    assert "<ins>" in text
    assert "changes to naive" in text
    capsys.readouterr()


def test_the_figures_of_a_ladder_need_no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Path(__file__).parents[2] / "benchmarks" / "results" / "hgemm_h100_4096_float16.json"
    monkeypatch.setattr(ladder_page, "find_spec", lambda _name: None)
    text = ladder_page.page(Outcome.from_dict(json.loads(record.read_text(encoding="utf-8"))))
    assert checked(text).ids
    assert re.search(r"cuBLAS \d+ TFLOP/s", text)
    assert "<td>tma-store</td>" in text


BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)

#: What a browser is asked of a page: overflow, errors, contrast of text against what is behind it.
PROBE = """<script>
window.onerror = (text) => { document.title = 'error: ' + text; };
window.onload = () => {
  const wide = document.documentElement.scrollWidth, room = document.documentElement.clientWidth;
  const focusable = document.querySelectorAll('a, summary, [tabindex]').length;
  document.title = JSON.stringify({wide, room, focusable, cells: document.querySelectorAll('.banks .clash').length,
    dark: matchMedia('(prefers-color-scheme: dark)').matches, ink: getComputedStyle(document.body).color,
    paper: getComputedStyle(document.body).backgroundColor});
};</script>"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_lays_it_out(report: LaunchReport, tmp_path: Path, width: int) -> None:
    assert BROWSER is not None
    path = tmp_path / "page.html"
    path.write_text(page(report).replace("</body>", f"{PROBE}</body>"))
    words = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--dump-dom"]
    done = subprocess.run(
        [*words, f"--user-data-dir={tmp_path / 'profile'}", path.as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None
    text = json.loads(title[1])
    assert text["wide"] <= text["room"], "the page itself must not scroll sideways"
    assert text["focusable"] > 15
    assert text["cells"] == 32
    assert text["ink"] != text["paper"]
