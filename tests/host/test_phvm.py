"""The paper's launch-cost model: its optima, its two readings, and the page that tells of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matmill import arch
from matmill.analysis.phvm import (
    PARAMETERS,
    READINGS,
    PhvmParameters,
    Reading,
    best,
    feasible,
    parameters,
    predict,
    predictions,
    traffic,
)
from matmill.errors import ArgumentError, UnknownNameError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cost-models.md"
MTX = (5, 7, 9)
K = 30_000_000
STATED = {"rtx2080ti": (136, 512), "a100": (864, 256)}
#: Round enough to follow by hand: t_pre = (k / 64 * 20 + 4 + ln 32 * 14) / 0.5, t_post = 4 + 8 + 2 + 8 = 22.
TOY = PhvmParameters(sm_num=2, threads_per_sm=32, cores=16, sigma_add=2, sigma_mul=2, sigma_g=8, sigma_s=4, u_sm=0.5)


@pytest.mark.parametrize("m", MTX)
@pytest.mark.parametrize("name", STATED)
def test_corrected_gives_the_optima_that_the_paper_states(name: str, m: int) -> None:
    result = best(parameters(name), m, m, K, "corrected")
    assert (result.gs, result.bs) == STATED[name]


@pytest.mark.parametrize("name", STATED)
def test_a_factor_in_the_last_term_picks_the_largest_block(name: str) -> None:
    with_factor = [reading for reading in _all_readings() if reading.gs_in_last_term]
    assert READINGS["printed"] in with_factor
    assert {best(parameters(name), m, m, K, reading).bs for m in MTX for reading in with_factor} == {1024}


def test_no_other_way_to_read_the_equations_gives_both_optima() -> None:
    right = [
        reading
        for reading in _all_readings()
        if all(
            (result.gs, result.bs) == STATED[name]
            for name in STATED
            for result in [best(parameters(name), 5, 5, K, reading)]
        )
    ]
    assert right == [READINGS["corrected"]]


def test_both_cases_by_hand() -> None:
    pre = (640 / 64 * 20 + 4 + math.log(32) * 14) / 0.5
    result = predict(TOY, 3, 2, 640, gs=2, bs=32)
    # 16 / 32 * 22 = 11 is less than t_pre.
    assert (result.case, result.t_post) == (2, 22)
    assert result.t_pre == pytest.approx(pre)
    assert result.cycles == pytest.approx(6 * (2 * 32 / 16 * pre + 11))
    assert predict(TOY, 3, 2, 640, 2, 32, "printed").cycles == pytest.approx(6 * (2 * 32 / 16 * pre + 22))

    many = PhvmParameters(**{**vars(TOY), "cores": 16 * 1024})
    early = predict(many, 1, 1, 640, gs=2, bs=32)
    assert early.case == 1
    assert early.cycles == pytest.approx(pre + 2 * 22)
    assert predict(many, 1, 1, 640, 2, 32, "printed") == early


@pytest.mark.parametrize("name", PARAMETERS)
def test_feasible_is_all_that_the_conditions_allow(name: str) -> None:
    p = parameters(name)
    threads = p.sm_num * p.threads_per_sm
    allowed = {(threads // bs, bs) for bs in range(1, 1025) if bs % 32 == 0 and p.threads_per_sm % bs == 0}
    assert set(feasible(p)) == allowed
    assert list(feasible(p)) == sorted(allowed)
    assert all(gs * bs == threads for gs, bs in feasible(p))


def test_block_sizes_that_are_no_power_of_two_are_feasible_where_they_divide() -> None:
    p = PhvmParameters(**{**vars(TOY), "threads_per_sm": 1536})
    assert [bs for _, bs in feasible(p)] == [768, 512, 384, 256, 192, 128, 96, 64, 32]


@given(st.integers(1, 200), st.integers(1, 200), st.integers(10**7, 10**12), st.sampled_from(sorted(STATED)))
def test_in_the_second_case_the_optimum_depends_on_no_size(m: int, n: int, k: int, name: str) -> None:
    result = best(parameters(name), m, n, k)
    assert {made.case for made in predictions(parameters(name), m, n, k)} == {2}
    assert (result.gs, result.bs) == STATED[name]


@given(st.integers(1, 10**12), st.sampled_from(sorted(STATED)), st.sampled_from(sorted(READINGS)))
def test_predictions_are_positive_and_grow_with_k(k: int, name: str, reading: str) -> None:
    for gs, bs in feasible(parameters(name)):
        less, more = (predict(parameters(name), 2, 3, size, gs, bs, reading) for size in (k, 2 * k))
        assert 0 < less.cycles < math.inf
        assert less.t_pre < more.t_pre


def test_an_arch_without_measured_latencies_names_those_that_have_them() -> None:
    for name in set(arch.ARCHES) - set(PARAMETERS):
        with pytest.raises(ArgumentError, match="rtx2080ti, a100"):
            parameters(name)


def test_parameters_are_of_known_arches() -> None:
    for name, p in PARAMETERS.items():
        known = arch.get(name)
        assert (p.sm_num, p.threads_per_sm) == (known.sms, known.threads_per_sm)


@pytest.mark.parametrize(
    ("change", "argument"),
    [({"m": 0}, "m"), ({"k": -1}, "k"), ({"gs": 0}, "gs"), ({"bs": 0}, "bs"), ({"n": 2**63}, "n")],
)
def test_sizes_out_of_range_are_refused(change: dict[str, int], argument: str) -> None:
    sizes = {"m": 1, "n": 1, "k": 1, "gs": 1, "bs": 32} | change
    with pytest.raises(ArgumentError) as caught:
        predict(TOY, sizes["m"], sizes["n"], sizes["k"], sizes["gs"], sizes["bs"])
    assert caught.value.argument == argument


def test_an_unknown_reading_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'printed'"):
        best(TOY, 1, 1, 1, "printd")


def test_the_page_shows_what_the_model_gives() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [row for row in _parameter_rows() if row not in page] == []


def test_the_page_s_figures_follow_from_the_model() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    missing = [words for words in _figures() if words not in page]
    assert missing == []


def test_differences_over_the_space_are_half_a_per_cent() -> None:
    spreads = {name: _spread(name) for name in STATED}
    assert spreads == {"rtx2080ti": pytest.approx(0.0039, abs=5e-5), "a100": pytest.approx(0.0048, abs=5e-5)}


def _all_readings() -> list[Reading]:
    return [Reading(*how) for how in product((math.e, 2, 10), (True, False), (False, True))]


def _parameter_rows() -> Iterator[str]:
    for name, p in PARAMETERS.items():
        values = (p.sm_num, p.threads_per_sm, p.cores, p.sigma_add, p.sigma_mul, p.sigma_g, p.sigma_s, p.u_sm)
        yield _row(_title(name), *values)


def _figures() -> Iterator[str]:
    a100, gpu = parameters("a100"), arch.get("a100")
    result = best(a100, 5, 5, K)
    seconds = result.cycles / gpu.boost_hz
    floor = traffic(5, 5, K) / gpu.dram_bytes_per_s
    least = (5 + 5) * K * 4 / gpu.dram_bytes_per_s
    inner = 25 * K / a100.cores * (2 * a100.sigma_g + a100.sigma_add + a100.sigma_mul) / a100.u_sm
    yield f"within {_spread('rtx2080ti'):.2%} of each other on the RTX 2080 Ti"
    yield f"within {_spread('a100'):.2%} on the A100"
    yield f"{inner / result.cycles:.1%} of the A100's prediction"
    yield f"the optimum is {result.cycles:,.0f} cycles, {seconds * 1e3:.0f} ms at {gpu.boost_hz / 1e9:.2f} GHz"
    yield f"which takes {floor * 1e3:.2f} ms"
    yield f"the prediction is {seconds / floor:.0f} times that, and {seconds / least:.0f} times what reading"


def _spread(name: str) -> float:
    cycles = [result.cycles for result in predictions(parameters(name), 5, 5, K)]
    return max(cycles) / min(cycles) - 1


def _title(name: str) -> str:
    return {"rtx2080ti": "RTX 2080 Ti", "a100": "A100 40 GB"}[name]


def _row(*cells: object) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |".replace("|  |", "| |")
