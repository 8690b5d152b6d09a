"""``matmill learn``: every lesson can be failed and passed, and what a student, or a teacher, may do wrong is named."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import matmill
from lab.lessons_page import lesson_pages
from matmill import cli
from matmill.errors import ArgumentError, LaunchError
from matmill.launch import Pointer
from matmill.learn import gpu_time
from matmill.learn.judgement import judge
from matmill.learn.lesson import FOLDER, Lesson, lessons, read
from matmill.runtime import gpu
from matmill.runtime.clock import Competitor, StreamHandle, Timing

ROOT = Path(__file__).resolve().parents[2]
LESSONS = lessons()
#: Lessons whose kernel to begin with has a race, which is what they are about.
RACES = {8}
every = pytest.mark.parametrize("lesson", LESSONS.values(), ids=lambda lesson: lesson.path.stem)

SMALL = """# 99. Twice
**Question.** How much is twice?

Words.

## What to conclude
Twice is more. Half is less.

## Exercise
Double it.

## Hints
1. Multiply.
2. By two.

## Solution
```cuda twice.cu
constexpr int THREADS = 32;
__global__ void twice(float* x) {
  x[threadIdx.x] *= 3;  //-
  x[threadIdx.x] *= 2;  //+
}
```

## Check
```python
KERNEL, GRID, BLOCK = "twice", 1, "THREADS"
def arguments(random):
    return {"x": random.standard_normal(32, np.float32)}
def expected(x):
    return {"x": 2 * x}
TOLERANCE = 0.0
AT_MOST = {"global_load_requests": 1}
```
"""


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time nothing on this machine's GPU."""
    monkeypatch.setattr(gpu, "unavailable", lambda: "there is none")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a lesson of a teacher's own, in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = Path("twice.md")
    path.write_text(SMALL, encoding="utf-8")
    return path


def _run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Return exit code and output of ``matmill learn``."""
    code = cli.main(["learn", *words])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def _judged(lesson: Lesson, source: str, folder: Path) -> SimpleNamespace:
    """Judge a source; the hazards are those that are errors."""
    file = folder / lesson.file
    file.write_text(source, encoding="utf-8")
    judgement = judge(lesson, file)
    errors = [hazard for hazard in judgement.report.hazards if hazard.severity == "error"]
    right = all(each.ok for each in judgement.results)
    faulted, goals = judgement.report.faulted, judgement.goals
    return SimpleNamespace(passed=judgement.passed, errors=errors, right=right, goals=goals, faulted=faulted)


def test_there_are_ten_lessons_with_a_file_each() -> None:
    assert list(LESSONS) == list(range(1, 11))
    assert len({lesson.file for lesson in LESSONS.values()}) == 10
    assert all(lesson.path.name.startswith(f"{number:02}-") for number, lesson in LESSONS.items())


@every
def test_the_kernel_to_begin_with_runs_and_does_not_pass(lesson: Lesson, tmp_path: Path) -> None:
    first = _judged(lesson, lesson.exercise, tmp_path)
    assert not first.passed
    assert not first.faulted
    assert first.errors or not first.right or not all(reached for *_, reached in first.goals)
    assert not first.errors or lesson.number in RACES


@every
def test_the_solution_passes(lesson: Lesson, tmp_path: Path) -> None:
    solved = _judged(lesson, lesson.solution, tmp_path)
    assert solved.passed
    assert not solved.errors
    assert solved.goals


@every
def test_a_wrong_result_is_found(lesson: Lesson, tmp_path: Path) -> None:
    *_, store = re.finditer(r"^ .*\b(?:out|c|d|sums)\[(?=.* = )", lesson.solution, re.MULTILINE)
    wrong = f"{lesson.solution[: store.end()]}1 ^ {lesson.solution[store.end() :]}"
    broken = _judged(lesson, wrong, tmp_path)
    assert not broken.passed
    assert not broken.right or broken.errors


@every
def test_a_lost_barrier_is_found(lesson: Lesson, tmp_path: Path) -> None:
    if "__syncthreads();" not in lesson.solution:
        pytest.skip("it has no barrier")
    at = lesson.solution.rindex("__syncthreads();")
    broken = _judged(lesson, lesson.solution[:at] + lesson.solution[at + len("__syncthreads();") :], tmp_path)
    assert not broken.passed
    assert broken.errors


@every
def test_lessons_are_complete(lesson: Lesson, tmp_path: Path) -> None:
    assert len(lesson.hints) == 3
    assert lesson.learnt.endswith(".")
    drawings = re.findall(r"^```text\n(.*?)^```", lesson.page, re.MULTILINE | re.DOTALL)
    assert drawings
    assert all(len(line) <= 72 for drawing in drawings for line in drawing.splitlines())
    assert "```cuda" in lesson.page
    assert "```console\n$ matmill " in lesson.page
    assert lesson.exercise.replace("//-", "") == lesson.exercise
    assert set(lesson.check.advice) <= {name for name, *_ in _judged(lesson, lesson.solution, tmp_path).goals}


@every
def test_what_a_student_sees_fits_80_columns(
    lesson: Lesson, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    number = str(lesson.number)
    screens = [_run(capsys, number), _run(capsys, number, "--check")]
    Path(lesson.file).write_text(lesson.solution, encoding="utf-8")
    screens += [_run(capsys, number, "--check"), _run(capsys)]
    screens += [_run(capsys, number, "--hint", str(n + 1)) for n in range(len(lesson.hints))]
    assert [code for code, _ in screens] == [0, 1, 0, 0, *(0 for _ in lesson.hints)]
    assert [line for _, screen in screens for line in screen.splitlines() if len(line) > 80] == []
    assert "Passed.\n" in screens[2][1]
    assert (f"Next: matmill learn {lesson.number + 1}\n" in screens[2][1]) == (lesson.number < 10)
    assert f"{lesson.file} (solved)" in screens[3][1]
    code, page = _run(capsys, number, "--read")
    assert code == 0
    assert "## Solution" not in page
    code, solution = _run(capsys, number, "--hint", str(len(lesson.hints) + 1))
    assert code == 0
    assert lesson.solution in solution


@every
def test_rates_in_conclusions_are_recorded(lesson: Lesson) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("ladder-*.md"))
    recorded = set(re.findall(r"\d+\.?\d*", pages))
    conclusion = " ".join(lesson.sections["What to conclude"].split())
    lists = re.findall(r"((?:[\d.]+(?:,| to| and)? )+)TFLOP/s", conclusion)
    assert lists
    assert set(re.findall(r"[\d.]+", " ".join(lists))) <= recorded


def test_pages_are_up_to_date_and_their_links_lead_somewhere() -> None:
    pages = lesson_pages(ROOT / "docs" / "learn")
    assert set(pages) == set((ROOT / "docs" / "learn").glob("*.md"))
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, "run `make docs`"
        links = re.findall(r"\]\(([^)#\s]+)\)", text)
        assert links
        assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize(
    ("declared", "index"), [("[32][33]", "[threadIdx.x][row]"), ("[32][32]", "[threadIdx.x][row ^ threadIdx.x]")]
)
def test_padding_and_swizzle_both_solve_bank_conflicts(declared: str, index: str, tmp_path: Path) -> None:
    source = LESSONS[4].exercise.replace("[32][32]", declared).replace("[threadIdx.x][row]", index)
    if "^" in index:
        source = source.replace("tile[row][threadIdx.x] =", "tile[row][threadIdx.x ^ row] =")
    assert _judged(LESSONS[4], source, tmp_path).passed


@pytest.mark.parametrize(
    ("rows", "threads", "passed"), [(4, 512, True), (2, 256, True), (4, 128, False), (1, 32, False)]
)
def test_blocks_and_warps_are_judged_together(rows: int, threads: int, passed: bool, tmp_path: Path) -> None:
    source = LESSONS[6].exercise.replace("ROWS = 44, THREADS = 128", f"ROWS = {rows}, THREADS = {threads}")
    assert _judged(LESSONS[6], source, tmp_path).passed is passed


def test_a_copy_that_is_waited_for_at_once_is_not_in_flight(tmp_path: Path) -> None:
    late = _judged(LESSONS[5], LESSONS[5].solution.replace("wait<1>()", "wait<0>()"), tmp_path)
    assert not late.passed
    assert [name for name, *_, reached in late.goals if not reached] == ["copies in flight"]


def test_a_lesson_of_one_s_own(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = _run(capsys, str(small))
    assert (code, Path("twice.cu").read_text(encoding="utf-8").count("*= 3")) == (0, 1)
    assert "then matmill learn twice.md --check" in text
    code, text = _run(capsys, str(small), "--check")
    assert code == 1
    assert "argument x differs from the right result in 32 of 32 elements:" in text
    assert "Errors first" in text
    assert "Stuck? matmill learn twice.md --hint" in text
    assert "this time" not in text
    Path("better.cu").write_text(read(small).solution, encoding="utf-8")
    code, text = _run(capsys, str(small), "--check", "better.cu", "--html", "page.html")
    assert code == 0
    assert "better.cu" in Path("page.html").read_text(encoding="utf-8")
    assert "Passed.\nTwice is more.\n" in text
    assert "Next:" not in text


def test_a_changed_file_stays_unless_forced(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = Path("twice.cu")
    assert "twice.cu is written" in _run(capsys, str(small))[1]
    assert "twice.cu is written" in _run(capsys, str(small))[1]
    kernel.write_text("mine", encoding="utf-8")
    code, text = _run(capsys, str(small))
    assert (code, kernel.read_text(encoding="utf-8")) == (0, "mine")
    assert "twice.cu stays as you have changed it (--force writes it anew)" in text
    assert "twice.cu is written" in _run(capsys, str(small), "--force")[1]
    assert kernel.read_text(encoding="utf-8") == read(small).exercise


def test_the_list_says_how_far_the_student_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, text in ((1, LESSONS[1].exercise), (2, LESSONS[2].exercise + "//"), (3, "void"), (4, "")):
        Path(LESSONS[number].file).write_text(text, encoding="utf-8")
    Path(LESSONS[4].file).write_text(LESSONS[4].solution, encoding="utf-8")
    code, text = _run(capsys)
    assert code == 0
    states = ("naive.cu (not yet changed)", "tiles.cu (not yet solved)", "outputs.cu (not yet solved)")
    assert all(state in text for state in (*states, "transpose.cu (solved)"))
    assert re.search(rf"{LESSONS[5].file}$", text, re.MULTILINE)
    assert text.endswith("\nNext: matmill learn 1\n")
    Path("naive.cu").write_text(LESSONS[1].solution, encoding="utf-8")
    assert _run(capsys)[1].endswith("\nNext: matmill learn 2\n")


def test_an_answer_that_does_not_compile_has_the_compiler_s_words(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("twice.cu").write_text("__global__ void twice(float* x) { x[0] = y; }", encoding="utf-8")
    code, text = _run(capsys, str(small), "--check")
    assert code == 1
    assert 'error: identifier "y" is undefined' in text


def test_a_race_with_the_right_result_and_output_of_the_kernel(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = read(small).solution.replace(
        "{\n", '{ __shared__ volatile int n; n = threadIdx.x; if (!threadIdx.x) printf("here\\n");\n', 1
    )
    Path("twice.cu").write_text(source, encoding="utf-8")
    small.write_text(
        SMALL.replace('"THREADS"', "(64,)").replace("random.standard_normal(32,", "np.ones(64,"), encoding="utf-8"
    )
    code, text = _run(capsys, str(small), "--check")
    assert code == 1
    assert text.startswith("here\n")
    assert "error: race at twice.cu:2" in text
    assert "The result is right this time; in another order of the warps it may not be." in text


def test_an_answer_that_faults_does_not_pass(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = read(small).solution.replace("[threadIdx.x] *", "[threadIdx.x + 1000] *")
    Path("twice.cu").write_text(source, encoding="utf-8")
    code, text = _run(capsys, str(small), "--check")
    assert code == 1
    assert "error: out-of-bounds" in text
    assert "Goals" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["11"], "LESSON: got '11'; wanted one of 1, 2, 3, 4, 5, 6, 7, 8, 9, 10."),
        (["four"], "LESSON: got 'four'; wanted a number, or a file ending in .md."),
        (["none.md"], "LESSON: got 'none.md': No such file or directory; wanted a Markdown file"),
        (["--check"], "LESSON: got nothing; wanted the number of a lesson."),
        (["4", "--check"], "--check: got no file 'transpose.cu' here; wanted your answer"),
        (["4", "--check", "no.cu"], "--check: got no file 'no.cu' here"),
        (["4", "--html", "page.html"], "--html: got no --check; wanted an answer to draw. Add --check."),
        (["twice.md", "--check", "constant.cu", "--html", "none/page.html"], "--html: got 'none/page.html'; wanted"),
        (["4", "--hint", "5"], "--hint: got 5; wanted 1 to 3, or 4 for a solution."),
        (["twice.md", "--check", "constant.cu"], "BLOCK: got 'THREADS', whose value the file does not determine"),
    ],
)
def test_mistakes_are_named(words: list[str], message: str, small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("constant.cu").write_text(read(small).solution.replace("THREADS", "OTHER"), encoding="utf-8")
    code, text = _run(capsys, *words)
    assert code == 2
    assert message in text


def test_a_folder_in_place_of_the_file_is_named(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("twice.cu").mkdir()
    code, text = _run(capsys, str(small))
    assert code == 2
    assert "twice.md's file: got 'twice.cu', which is a folder; wanted a file name." in text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("# 99. Twice", "# Twice", "the first line '# Twice'; wanted a title such as '# 4. Bank conflicts'"),
        ("**Question.**", "Question:", "no question; wanted a paragraph that begins with '**Question.** '"),
        ("## Exercise", "## Task", "no section 'Exercise'; wanted the sections What to conclude, Exercise, Hints"),
        ("Double it.", "", "no section 'Exercise'"),
        ("1. Multiply.\n2. By two.", "Multiply.", "no hint; wanted a numbered list of hints"),
        ("```cuda twice.cu", "```cuda", "a Solution without a source; wanted a block that begins with ```cuda NAME.cu"),
        ("  //+", "", "lines that end in //- or //+"),
        ("```python", "```", "a Check without code; wanted a block that begins with ```python"),
        ('KERNEL, GRID, BLOCK = "twice"', 'NAME, GRID, BLOCK = "twice"', "a Check without KERNEL; wanted a Check with"),
        ("TOLERANCE = 0.0", "TOLERANCE = zero", "a Check that raises NameError: name 'zero' is not defined"),
        ("global_load_requests", "global_load_request", "Did you mean 'global_load_requests'?"),
    ],
)
def test_a_damaged_lesson_is_named(old: str, new: str, message: str, small: Path) -> None:
    text = SMALL.replace(old, new)
    if old == "  //+":
        text = SMALL.replace("  x[threadIdx.x] *= 3;  //-\n", "").replace(old, new)
    small.write_text(text, encoding="utf-8")
    with pytest.raises((ArgumentError, LookupError), match=re.escape(message)) as raised:
        _ = read(small).check
    assert "twice.md" in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("random.standard", "random.normal_standard", "arguments() that raises AttributeError"),
        ("2 * x}", "2 * y}", "expected() that raises NameError: name 'y' is not defined"),
        (
            '"x": 2 * x}',
            '"y": 2 * x}',
            "expected() with 'y' of shape (32,); wanted arrays as the arguments {'x': (32,)}",
        ),
        ("2 * x}", "x[:3]}", "expected() with 'x' of shape (3,)"),
        ("TOLERANCE", "def judge(report): return 1 / 0\nTOLERANCE", "judge() that raises ZeroDivisionError"),
    ],
)
def test_a_check_that_fails_itself_is_named(
    old: str, new: str, message: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(capsys, str(small))[0] == 0
    small.write_text(SMALL.replace(old, new), encoding="utf-8")
    code, text = _run(capsys, str(small), "--check")
    assert code == 2
    assert f"lesson twice.md: got {message}" in text


def test_headings_in_code_are_no_sections(small: Path) -> None:
    small.write_text(SMALL.replace("Words.", "```text\n## Exercise\nno\n```"), encoding="utf-8")
    assert read(small).goal == "Double it."


def test_a_check_says_the_time_on_a_gpu_if_there_is_one(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("twice.cu").write_text(read(small).solution, encoding="utf-8")
    assert "median" not in _run(capsys, str(small), "--check")[1]
    monkeypatch.setattr(gpu, "unavailable", lambda: None)
    monkeypatch.setattr(gpu.GPU, "get", lambda: SimpleNamespace(arch=SimpleNamespace(title="H200")))
    monkeypatch.setattr(gpu_time, "time_on", lambda *_: Timing(2.5e-6, 2e-6, 3e-6, 40))
    assert "On the H200: 2.50 us, the median of 40 runs\n" in _run(capsys, str(small), "--check")[1]
    refusal = LaunchError(argument="launch", got="too much shared memory", wanted="less", fix="Use less.")
    monkeypatch.setattr(gpu_time, "time_on", Mock(side_effect=refusal))
    code, text = _run(capsys, str(small), "--check")
    assert code == 0
    assert "On the H200: no time: too much shared memory\n" in text


def test_a_gpu_gets_machine_code_and_copies_of_the_arguments(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("twice.cu").write_text(read(small).solution, encoding="utf-8")
    launched: list[tuple[Any, ...]] = []
    uploaded: list[str] = []

    def compare(competitors: list[Competitor]) -> list[Timing]:
        competitors[0].run(StreamHandle(0))
        return [Timing(1e-6, 1e-6, 1e-6, 3)]

    def upload(_: object, name: str) -> SimpleNamespace:
        uploaded.append(name)
        return SimpleNamespace(pointer=lambda name: Pointer(name, 4096))

    monkeypatch.setattr(gpu_time, "Clock", lambda *_: nullcontext(SimpleNamespace(compare=compare)))
    arch = SimpleNamespace(target="sm_90a", l2_bytes=1)
    device: Any = SimpleNamespace(arch=arch, upload=upload, launch=lambda *words: launched.append(words))
    timing = gpu_time.time_on(device, read(small), Path("twice.cu"))
    ((binary, launch, _),) = launched
    assert (timing.rounds, uploaded) == (3, ["x"])
    assert binary.cubin.startswith(b"\x7fELF")
    assert (launch.block, launch.args[0].address) == ((32, 1, 1), 4096)


def test_parameters_may_be_called_as_python_s_keywords() -> None:
    source = "__global__ void copy(const float* in, float* out) { out[threadIdx.x] = in[threadIdx.x]; }"
    arrays: dict[str, Any] = {"in": np.arange(32, dtype=np.float32), "out": np.zeros(32, np.float32)}
    assert matmill.emulate(source, "copy", 1, 32, **arrays).ok
    assert arrays["out"].tolist() == arrays["in"].tolist()


def test_lessons_ship_in_the_wheel() -> None:
    patterns = re.findall(r'"(learn/[^"]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert {path for pattern in patterns for path in FOLDER.parents[1].glob(pattern)} == set(FOLDER.glob("*.md"))
