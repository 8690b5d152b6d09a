"""Every rung of the transpose+add ladder as its own PTX: right, free of races, and with the accesses that it claims."""

from __future__ import annotations

import pytest

from matmill.dtypes import ELEMENTWISE
from matmill.kernel import Rung
from matmill.kernels.transpose.tiles import space
from matmill.ladders.transpose_add.rungs import TRANSPOSE_ADD
from matmill.problem import Geam
from support.strided import COLUMN, H200, ROW, Layout
from support.strided_sum import StridedSum, check

RUNGS = {rung.label: rung for rung in TRANSPOSE_ADD}


def of_rung(rung: Rung[Geam], trial: StridedSum) -> StridedSum:
    """Return the trial with a rung's kernel."""
    trial.kernel = rung.kernel_for(trial.problem, H200)
    return trial


@pytest.mark.parametrize("label", RUNGS)
@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize(("m", "n"), [(64, 64), (48, 70), (272, 34)])
def test_a_transpose_and_a_sum(m: int, n: int, name: str, label: str) -> None:
    check(of_rung(RUNGS[label], StridedSum((1, m, n), ELEMENTWISE[name], (COLUMN, ROW, ROW), (2.0, -1.0))))


@pytest.mark.parametrize("label", ["wide", "shifted"])
@pytest.mark.parametrize("name", ["bfloat16", "int8", "float64"])
@pytest.mark.parametrize("pad", [0, 1])
def test_ours_take_any_pitch_and_start(pad: int, name: str, label: str) -> None:
    places = (Layout(transposed=True, pad=pad, start=pad), Layout(pad=2 * pad), Layout(start=1))
    check(of_rung(RUNGS[label], StridedSum((1, 67, 45), ELEMENTWISE[name], places)))


@pytest.mark.parametrize(
    ("label", "m", "n", "reason"),
    [
        ("v1", 65, 64, "X's columns are not contiguous, or do not all start on 16 bytes"),
        ("v2", 64, 63, "the rows of Y and D are not whole numbers of 2 elements"),
    ],
)
def test_the_articles_rungs_say_what_they_do_not_take(label: str, m: int, n: int, reason: str) -> None:
    trial = of_rung(RUNGS[label], StridedSum((1, m, n), ELEMENTWISE["bfloat16"], (COLUMN, ROW, ROW)))
    assert trial.kernel.why_not(trial.problem, H200) == reason


def test_each_rung_asks_for_memory_less_often() -> None:
    requests = []
    for rung in TRANSPOSE_ADD:
        # Rows of 132 bfloat16 start on 8 bytes, as the article's do.
        trial = of_rung(rung, StridedSum((1, 256, 132), ELEMENTWISE["bfloat16"], (COLUMN, ROW, ROW)))
        counters = check(trial).counters
        requests.append(counters.global_load_requests + counters.global_store_requests)
    v1, v2, wide, _shifted = requests
    assert v1 > 1.5 * v2
    assert v2 > 1.2 * wide


def test_v1_meets_in_the_banks_and_ours_do_not() -> None:
    passes = {}
    for label in ("v1", "v2", "shifted"):
        trial = of_rung(RUNGS[label], StridedSum((1, 512, 256), ELEMENTWISE["bfloat16"], (COLUMN, ROW, ROW)))
        if label == "shifted":
            square = next(config for config in space(trial.problem, H200) if config["BR"] == config["BC"] == 64)
            trial.kernel = trial.kernel.with_config(square)
        counters = check(trial).counters
        passes[label] = counters.shared_load_wavefronts / counters.shared_load_wavefronts_ideal
    assert passes == {"v1": 4.0, "v2": 8.0, "shifted": 1.0}
