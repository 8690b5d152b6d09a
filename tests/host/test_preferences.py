"""Measured preferences: ``choose`` follows them for exactly one problem and arch, and says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from matmill.analysis.candidates import Candidate, candidates
from matmill.arch import get
from matmill.choose import Preference, choose, choose_transpose_add, forget, prefer, problem_text
from matmill.dtypes import BF16, F32
from matmill.problem import Epilogue, Geam, Gemm, View
from matmill.registry import PRODUCTION, TRANSPOSE_ADD_KERNELS

ARCH = get("h200")
PROBLEM = Gemm(512, 512, 512, BF16)
SUM = Geam(64, 96, F32, View((1, 64)), View((96, 1)), View((96, 1)))


@pytest.fixture(autouse=True)
def _no_preferences() -> Iterator[None]:
    forget()
    yield
    forget()


def _preference(candidate: Candidate) -> Preference:
    return Preference(candidate.kernel.entry, str(candidate.config), 31.2e-6, 35e-6)


def test_a_preference_is_chosen_with_its_reason_though_the_choice_was_cached() -> None:
    first = choose(PROBLEM, ARCH)
    legal, _ = candidates(PRODUCTION, PROBLEM, ARCH)
    other = next(one for one in legal if one.config != first.kernel.config)
    prefer(PROBLEM, ARCH, _preference(other))
    chosen = choose(PROBLEM, ARCH)
    assert (chosen.kernel.entry, chosen.kernel.config) == (other.kernel.entry, other.config)
    assert chosen.predicted_seconds == pytest.approx(other.seconds)
    (reason,) = chosen.reasons
    assert reason.endswith("measured on this GPU: 31.2 us, the model's first took 35.0 us")
    assert choose(PROBLEM, "h200") == chosen
    forget()
    assert choose(PROBLEM, ARCH) == first


def test_other_problems_and_archs_are_left_to_the_models() -> None:
    longer, elsewhere = Gemm(512, 512, 1024, BF16), get("h100")
    before = choose(longer, ARCH), choose(PROBLEM, elsewhere)
    legal, _ = candidates(PRODUCTION, PROBLEM, ARCH)
    prefer(PROBLEM, ARCH, _preference(legal[-1]))
    assert (choose(longer, ARCH), choose(PROBLEM, elsewhere)) == before


def test_a_sum_may_be_preferred_too() -> None:
    legal, _ = candidates(TRANSPOSE_ADD_KERNELS, SUM, ARCH)
    prefer(SUM, ARCH, _preference(legal[-1]))
    assert choose_transpose_add(SUM, ARCH).kernel.config == legal[-1].config


@pytest.mark.parametrize("preference", [Preference("gone", "BM=1", 1.0, 2.0), Preference("hgemm", "BM=1", 1.0, 2.0)])
def test_a_configuration_that_no_kernel_has_is_ignored(preference: Preference) -> None:
    first = choose(PROBLEM, ARCH)
    prefer(PROBLEM, ARCH, preference)
    assert choose(PROBLEM, ARCH) == first


def test_texts_tell_problems_apart() -> None:
    problems = [
        PROBLEM,
        Gemm(512, 512, 512),
        Gemm(512, 512, 512, BF16, batch=2),
        Gemm(512, 512, 512, BF16, a_strides=(1, 512)),
        Gemm(512, 512, 512, BF16, out_dtype=F32),
        Gemm(512, 512, 512, BF16, epilogue=Epilogue("row")),
        Gemm(512, 512, 512, BF16, gram=True),
        SUM,
    ]
    assert len({problem_text(problem) for problem in problems}) == len(problems)
