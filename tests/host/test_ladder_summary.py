"""The bounds that counters set to rungs, and what an emulated ladder concludes from them and from recorded rates."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest

from matmill.arch import get
from matmill.cli.console import show
from matmill.cli.ladder_page import page
from matmill.cli.ladder_summary import summary
from matmill.emulator import Counters
from matmill.ladders.hgemm.subject import half_product
from matmill.ladders.registry import LADDERS
from matmill.ladders.runner.bound import Bound, bound
from matmill.ladders.runner.recorded import recorded
from matmill.ladders.runner.results import Outcome
from matmill.problem import Gemm
from support.recorded import EMULATED

#: A product of 2**17 FMAs: 1024 cycles of the 128 lanes of an SM.
PRODUCT = Gemm(m=32, n=32, k=128)
#: A product of 2**23 operations: 2048 cycles of an SM's tensor cores.
HALVES = half_product(128, 128, 256)
FMA: dict[str, Any] = {"ffma": 2**17}


@pytest.mark.parametrize(
    ("ladder", "counters", "words"),
    [
        ("sgemm", FMA, "100% FMA"),
        ("sgemm", FMA | {"shared_load_requests": 1024}, "80% issue slots"),
        ("sgemm", FMA | {"shared_load_wavefronts": 2048, "shared_load_wavefronts_ideal": 2048}, "50% banks"),
        ("sgemm", FMA | {"shared_load_wavefronts": 2048, "shared_load_wavefronts_ideal": 512}, "50% banks, 4x!"),
        ("sgemm", FMA | {"shared_load_wavefronts": 512, "shared_load_wavefronts_ideal": 128}, "100% FMA"),
        ("sgemm", FMA | {"global_load_requests": 8192}, "13% loads"),
        (
            "sgemm",
            FMA | {"global_load_requests": 4096, "global_load_sectors": 65536, "global_load_bytes": 4096 * 128},
            "6.3% sectors, 4x!",
        ),
        (
            "sgemm",
            FMA | {"global_load_requests": 4096, "global_load_sectors": 16384, "global_load_bytes": 4096 * 128},
            "25% loads",
        ),
        ("hgemm", {"gmma": 64, "matrix_flops": 2**23}, "100% tensor cores"),
        ("hgemm", {"hmma": 2048, "matrix_flops": 2**23}, "66% mma.sync"),
        ("hgemm", {"gmma": 64, "matrix_flops": 2**23, "wgmma_shared_bytes": 2**19}, "54% wgmma operands"),
        ("hgemm", {"gmma": 64, "matrix_flops": 2**23, "bulk_load_sectors": 8192}, "54% L2"),
        ("sgemm", {"gmma": 64, "matrix_flops": 2**19}, "7.4x tensor cores"),
    ],
)
def test_a_bound_is_the_unit_that_takes_longest(ladder: str, counters: dict[str, Any], words: str) -> None:
    problem: Gemm = PRODUCT if ladder == "sgemm" else HALVES
    counted = Counters(**counters).as_dict()
    assert str(bound(counted, problem, LADDERS[ladder].subject, get("h200"))) == words


def test_a_gpu_without_the_unit_has_no_bound() -> None:
    assert bound(Counters(hmma=1).as_dict(), HALVES, LADDERS["hgemm"].subject, get("k40")) is None


@pytest.mark.parametrize(
    "record", [name for name in EMULATED if name.startswith(("sgemm", "hgemm")) and "bf" not in name]
)
def test_no_recorded_rate_is_above_its_bound(record: str) -> None:
    outcome = Outcome.from_dict(EMULATED[record])
    run, peak = recorded(outcome.ladder), outcome.subject.peak(outcome.problem, outcome.arch)
    assert run is not None
    assert peak is not None
    bounds = {row.rung: Bound(**row.bound) for row in outcome.rows if row.bound}
    assert len(bounds) == len(outcome.rows) or "1024" in record  # which is recorded for its pipelines
    above = {name: each for name, each in bounds.items() if run.rates[name][0] * 1e12 > each.fraction * peak}
    assert above == {}


def outcome_of(*rungs: str, ladder: str = "sgemm_emulated_256", **changes: Any) -> Outcome:
    """Return a recorded run of some rungs; ``changes`` are made to the last row."""
    whole = Outcome.from_dict(EMULATED[ladder])
    rows = [row for row in whole.rows if row.rung in rungs]
    return replace(whole, rows=(*rows[:-1], replace(rows[-1], **changes)))


def text_of(outcome: Outcome) -> str:
    """Return a summary as it is printed into a file."""
    file = io.StringIO()
    show(summary(outcome), file)
    return file.getvalue()


def test_a_summary_concludes_from_gains_and_counters() -> None:
    text = text_of(outcome_of(*LADDERS["sgemm"].short))
    assert max(map(len, text.splitlines())) <= 80
    said = " ".join(text.split())
    assert "8 of 8 right" in said
    assert re.search(r"uncoalesced to tuned: \d+ times the rate, from 1\.0% to 100\.4% of cuBLAS\.", said)
    assert re.search(r"The largest steps: warps along rows \(naive, [\d.]+ times uncoalesced\) and 8x8 sums", said)
    assert "register-tile stands out (banks, 2.9x the least): conflict-free(128), without that, is 1.7" in said


def test_where_the_largest_step_cured_all_no_counter_stands_out() -> None:
    said = " ".join(text_of(outcome_of("uncoalesced", "naive", "shared(32)")).split())
    assert "stands out (" not in said
    assert re.search(r"shared\(32\) reaches 13\.\d% of the peak where its counters allow 15\.\d%: latency", said)


def test_a_step_is_compared_with_the_rung_that_it_grew_from() -> None:
    said = " ".join(text_of(outcome_of("naive", "tuned")).split())
    assert re.search(r"read ahead, best tile \(tuned, 1\.1\d times warp-tiles\)", said)
    assert "naive to" not in text_of(outcome_of("naive"))
    said = text_of(outcome_of("multi(1)", "multi(2)"))
    assert "multi(1) to multi(2)" in said
    assert "largest step" not in said


def test_a_summary_says_what_is_wrong_in_place_of_a_bound() -> None:
    text = text_of(outcome_of("naive", "shared(32)", ok=False, error_ratio=2.0, bound=None))
    assert "WRONG" in next(line for line in text.splitlines() if line.startswith("shared(32)"))
    assert "1 of 2 right" in text


def test_a_page_shows_changes_to_the_rung_that_a_rung_grew_from() -> None:
    html = page(outcome_of("naive", "shared(32)", "register-tile", "vectorized"))
    assert re.findall(r"<summary>(.*?)</summary>", html) == [
        "changes to uncoalesced", "changes to naive", "changes to shared(32)", "changes to conflict-free(128)",
    ]  # fmt: skip
    assert "<ins>" in html
