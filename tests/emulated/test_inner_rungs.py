"""Every rung of the inner ladder, run as its own PTX: right, race-free, and with the memory traffic that it claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from matmill.dtypes import ALL, F16
from matmill.emulator import Memory, Report, run
from matmill.jit.compile import compile_ptx
from matmill.jit.steps import ptx
from matmill.kernel import GemmOperands
from matmill.ladders.inner.rungs import INNER
from matmill.problem import Gemm
from support.strided import BARRIER, H200, TARGET, without
from support.trial import Case, Trial

RUNGS = {rung.label: rung for rung in INNER}
GENERAL = [label for label in RUNGS if label != "gram"]
ATOMIC = ["basic", "phvm", "one-pass", "vectorized"]
ONE_PASS = ["one-pass", "vectorized", "two-stage"]

# Sizes, dtypes and layouts, and the launch: no k is a multiple of what a grid takes at a time.
SHAPES = [
    (Case(3, 5, 777, layout="row", alpha=1.25, beta=-0.5), {"GS": 3, "BS": 64}),
    (Case(1, 1, 1, "float64"), {"GS": 2, "BS": 32}),
    (Case(7, 2, 1130, "float16"), {"GS": 2, "BS": 96}),
    (Case(2, 7, 1001, "bfloat16", "row", beta=2.0), {"GS": 2, "BS": 64}),
    (Case(13, 9, 301), {"GS": 2}),
    (Case(11, 4, 41, "float16", "row", alpha=-0.75), {"BS": 128}),
    (Case(4, 6, 0, "float64", beta=0.5), {"BS": 32}),
    (Case(16, 16, 264, "bfloat16"), {"GS": 2}),
    (Case(9, 16, 70, "float64", "row", beta=1.0), {"GS": 1}),
]
SQUARES = [
    (Case(3, 3, 777, layout="gram", alpha=1.25, beta=-0.5), {"GS": 3, "BS": 64}),
    (Case(1, 1, 1, "float64", "gram"), {"GS": 2, "BS": 32}),
    (Case(7, 7, 1130, "float16", "gram"), {"GS": 2, "BS": 96}),
    (Case(2, 2, 1001, "bfloat16", "gram", beta=2.0), {"GS": 2, "BS": 64}),
    (Case(13, 13, 301, "float64", "gram"), {"GS": 2}),
    (Case(20, 20, 101, "float32", "gram", beta=1.0), {"GS": 2}),
    (Case(5, 5, 0, "float32", "gram", beta=0.5), {}),
    (Case(33, 33, 40, "float64", "gram"), {"GS": 1}),
]
# The same header does the work of both.
LIKE_TWO_STAGE = {"vectorized": SHAPES[::3]}
RUNS = [
    # A tree of barriers for each output is slow to emulate: few outputs for the first two rungs.
    *(
        (label, case, launch)
        for label in GENERAL
        for case, launch in LIKE_TWO_STAGE.get(label, SHAPES)
        if label in ONE_PASS or case.m * case.n < 30
    ),
    *(("gram", case, launch) for case, launch in SQUARES),
    *((label, *SQUARES[0]) for label in ("phvm", "two-stage")),
]


@pytest.mark.parametrize(
    ("label", "case", "launch"), RUNS, ids=lambda value: "" if isinstance(value, dict) else str(value)
)
def test_right_and_free_of_races(label: str, case: Case, launch: dict[str, Any]) -> None:
    trial = Trial(RUNGS[label], case, **launch)
    for schedule in (0, 1):
        assert not [hazard for report in trial.run(schedule=schedule) for hazard in report.hazards]
        assert trial.excess() <= 1


@pytest.mark.parametrize("pad", [1, 8])
@pytest.mark.parametrize("layout", ["row", "column"])
@pytest.mark.parametrize("label", ["phvm", "one-pass", "two-stage"])
def test_rows_further_apart_than_they_are_long(label: str, layout: str, pad: int) -> None:
    trial = Trial(RUNGS[label], Case(5, 3, 136, layout=layout), pad=pad)
    trial.run()
    assert trial.excess() <= 1


def test_bfloat16_is_rounded_to_even_without_the_instruction() -> None:
    with_cvt, by_hand = (Trial(RUNGS["two-stage"], Case(8, 8, 33, "bfloat16")) for _ in range(2))
    with_cvt.run()
    by_hand.run(target="sm_75")
    assert "cvt.rn.bf16" not in compile_ptx(by_hand.source(), "sm_75")
    assert by_hand.excess() <= 1
    assert with_cvt.d.tobytes() == by_hand.d.tobytes()


def test_two_stage_gives_the_same_bits_in_any_order() -> None:
    trial = Trial(RUNGS["two-stage"], Case(3, 4, 5000), GS=7, BS=64)
    results = set()
    for schedule in range(4):
        trial.run(schedule=schedule, races=False)
        results.add(trial.d.tobytes())
    assert len(results) == 1


def test_gram_is_symmetric_to_the_bit() -> None:
    trial = Trial(RUNGS["gram"], Case(20, 20, 500, layout="gram"))
    trial.run()
    assert trial.d.tobytes() == trial.d.T.tobytes()


PLAIN = {
    **dict.fromkeys(
        ("basic", "phvm"), ("atomicAdd(&sums[row * n + column], shares[0])", "sums[row * n + column] += shares[0]")
    ),
    "one-pass": ("atomicAdd(&sums[output], ", "sums[output] += ("),
    "vectorized": ("atomicAdd(&sums[output], sum)", "sums[output] += sum"),
}
PLANTED = [
    *((label, BARRIER, index, "", "shared memory") for label in ("basic", "phvm") for index in (0, 1)),
    *((label, BARRIER, 0, "", "shared memory") for label in RUNGS if label not in {"basic", "phvm"}),
    *((label, atomic, 0, plain, "workspace") for label, (atomic, plain) in PLAIN.items()),
    *(
        (label, "partial_sums[Index(blockIdx.x)", 0, "partial_sums[Index(0)", "workspace")
        for label in ("two-stage", "gram")
    ),
]


@pytest.mark.parametrize(("label", "snippet", "index", "instead", "where"), PLANTED)
def test_planted_races_are_named(label: str, snippet: str, index: int, instead: str, where: str) -> None:
    trial = Trial(RUNGS[label], Case(3, 3, 900, layout="gram" if label == "gram" else "column"), GS=2, BS=64)
    source = trial.source()
    own = dict(source.headers)[f"ladders/inner/{trial.kernel.file}"]
    assert own.count(BARRIER) == (2 if label in {"basic", "phvm"} else 1)
    report = trial.main(without(source, trial.kernel.file, snippet, index, instead))
    assert {hazard.kind for hazard in report.hazards} == {"race"}
    assert all(where in hazard.message for hazard in report.hazards)
    assert all(f"{trial.kernel.file}:" in hazard.where or "block_sum.cuh:" in hazard.where for hazard in report.hazards)


WRONG = [
    *((label, "clear", "clear/kernel.cuh", "workspace[i] = 0;", ";") for label in ATOMIC),
    *(
        (label, "splitk_reduce", "reduce.cuh", "Index(i) * outputs + output", "output")
        for label in ("two-stage", "gram")
    ),
    *((label, "", "lane_product.cuh", "at = pieces * V + first", "at = k") for label in ("vectorized", "two-stage")),
    ("gram", "", "gram.cuh", "pieces * V + first : k;", "k : k;"),
    ("gram", "splitk_reduce", "reduce/kernel.cuh", "Config::MIRRORED && row > column", "false"),
]


@pytest.mark.parametrize(("label", "entry", "header", "snippet", "instead"), WRONG)
def test_planted_errors_are_beyond_the_bound(label: str, entry: str, header: str, snippet: str, instead: str) -> None:
    trial = Trial(RUNGS[label], Case(3, 3, 903, layout="gram" if label == "gram" else "column"), GS=2, BS=64)
    trial.run(without(trial.source(entry), header, snippet, 0, instead))
    assert not trial.excess() <= 1


def sectors_per_request(report: Report) -> float:
    return report.counters.global_load_sectors / report.counters.global_load_requests


@pytest.mark.parametrize(("dtype", "apart", "together"), [("float32", 32, 4), ("float64", 32, 8), ("float16", 32, 2)])
def test_basic_reads_a_sector_per_lane_and_phvm_coalesces(dtype: str, apart: int, together: int) -> None:
    case = Case(2, 3, 64 * 2 * 16, dtype)  # 16 terms per thread: at least a sector apart
    basic, phvm = (Trial(RUNGS[label], case, GS=2, BS=64).main() for label in ("basic", "phvm"))
    assert sectors_per_request(basic) == apart
    assert sectors_per_request(phvm) == together
    # One inner product per output: two vectors of k elements each, and GS atomics.
    for report in (basic, phvm):
        assert report.counters.global_load_bytes == 6 * 2 * case.k * ALL[dtype].itemsize
        assert report.counters.atomics == 6 * 2


def test_phvm_reads_one_element_in_n_of_a_row_major_f() -> None:
    report = Trial(RUNGS["phvm"], Case(2, 8, 1024, layout="row"), GS=2, BS=64).main()
    # Half of the requests are E's, of 4 sectors; F's elements are 8 apart, one per sector.
    assert sectors_per_request(report) == (4 + 32) / 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("label", ONE_PASS)
def test_one_pass_reads_each_input_once(label: str, dtype: str) -> None:
    for layout in ("row", "column"):
        trial = Trial(RUNGS[label], Case(4, 3, 1024, dtype, layout), GS=2, BS=64)
        counts = trial.main(races=False).counters
        assert counts.global_load_bytes == trial.a.nbytes + trial.b.nbytes
        if layout == "column":
            assert counts.global_load_sectors * 32 == counts.global_load_bytes


@pytest.mark.parametrize("label", ONE_PASS)
def test_lanes_that_share_a_k_ask_for_it_together(label: str) -> None:
    trial = Trial(RUNGS[label], Case(16, 16, 512), GS=2)
    counts = trial.main(races=False).counters
    assert counts.global_load_sectors * 32 == trial.a.nbytes + trial.b.nbytes
    assert counts.shared_load_wavefronts == 2 * counts.shared_load_wavefronts_ideal
    assert counts.shared_store_wavefronts == counts.shared_store_wavefronts_ideal


def test_gram_reads_its_input_once() -> None:
    trial = Trial(RUNGS["gram"], Case(9, 9, 1024, layout="gram"), GS=2)
    counts = trial.main(races=False).counters
    assert counts.global_load_bytes == counts.global_load_sectors * 32 == trial.a.nbytes
    assert counts.ffma == 1024 * 9 * 10 // 2


@pytest.mark.parametrize(("dtype", "fewer"), [("float32", 4), ("float64", 2), ("bfloat16", 8)])
def test_vectorized_asks_fewer_times(dtype: str, fewer: int) -> None:
    case = Case(4, 4, 64 * 2 * 8 * 4, dtype)
    scalar, wide = (
        Trial(RUNGS[label], case, GS=2, BS=64).main(races=False).counters for label in ("one-pass", "vectorized")
    )
    assert scalar.global_load_requests == fewer * wide.global_load_requests
    assert scalar.atomics == wide.atomics == 16 * 2


def test_two_stage_has_no_atomics() -> None:
    trial = Trial(RUNGS["two-stage"], Case(4, 4, 300), GS=3, BS=64)
    reports = trial.run()
    assert [report.counters.atomics for report in reports] == [0, 0]
    assert trial.kernel.workspace(trial.problem) == 3 * 16 * 4


@pytest.mark.parametrize("label", RUNGS)
def test_offsets_beyond_32_bits(label: str, tmp_path: Path) -> None:
    # Rows of E, and k's of F, so far apart that their offsets in elements take 33 bits; the files are almost all holes.
    rows, k, columns = 3, 9, 2
    e_row, f_k = 2**31 + 8, 2**29 + 8
    e_file = np.memmap(tmp_path / "E", np.float16, "w+", shape=((rows - 1) * e_row + k,))
    f_file = np.memmap(tmp_path / "F", np.float16, "w+", shape=((k - 1) * f_k + columns,))
    e = as_strided(e_file, (rows, k), (2 * e_row, 2))
    f = as_strided(f_file, (k, columns), (2 * f_k, 2))
    rng = np.random.default_rng(k)
    e[:], f[:] = rng.uniform(-1, 1, e.shape), rng.uniform(-1, 1, f.shape)
    gram = label == "gram"
    problem = Gemm(
        rows, rows if gram else columns, k, F16, a_strides=(e_row, 1), b_strides=(f_k, 1), b_align=16, gram=gram
    )
    kernel = RUNGS[label].kernel_for(problem, H200)
    assert kernel.why_not(problem, H200) is None
    memory = Memory()
    d = np.full((problem.m, problem.n), np.nan, np.float16)
    workspace = memory.bind("workspace", np.zeros(kernel.workspace(problem), np.uint8), access="rw")
    a, b = memory.bind("E", e, access="r"), memory.bind("F", f, access="r")
    to = memory.bind("D", d, access="w")
    operands = GemmOperands(a=a, b=b, c=to, d=to, workspace=workspace)
    for text, launch in ptx(kernel, problem, operands, TARGET):
        run(text, launch, memory, races=False)
    exact = e.astype(np.float64) @ (e.T if gram else f).astype(np.float64)
    assert np.abs(d - exact).max() <= 2.0**-11 * np.abs(exact).max() + 1e-5
