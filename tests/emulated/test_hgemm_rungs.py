"""The rungs of the HGEMM ladder on mma.sync, run as PTX: right, race-free, and with the bank conflicts they claim."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matmill.arch import ARCHES
from matmill.config import Config
from matmill.dtypes import F16
from matmill.jit.source import generate
from matmill.kernel import Rung
from matmill.kernels.hgemm.tiles import tile, with_vector_widths
from matmill.ladders.hgemm.common import in_float32
from matmill.ladders.hgemm.rungs import ON_MMA
from matmill.problem import Gemm
from support.examples import examples
from support.strided import BARRIER, without
from support.trial import Case, Trial, problem_of

RUNGS = {rung.name: rung for rung in ON_MMA}
S2 = ("hierarchical", "vectorized", "swizzled", "prefetch", "tile-shape", "double-buffer")
TILED = (*S2, "multistage")
PIPELINED = ("any-size", "epilogue", "float32-sums")
T4 = ARCHES["t4"]
WAIT = "cp_async_wait<STAGES - 2>();"


def config_of(rung: Rung[Gemm], dtype: str = "float16") -> Config:
    """Return the rung's constants for a problem that every rung takes."""
    return rung.kernel_for(problem_of(product(512, 512, 512, dtype)), ARCHES["h200"]).config


def tile_case(rung: Rung[Gemm], steps: int, dtype: str = "float16", beta: float = 0.0) -> Case:
    """Return one tile of the rung and so many steps of k."""
    config = config_of(rung, dtype)
    return product(config["BM"], config["BN"], steps * config["BK"], dtype, beta=beta)


def product(m: int, n: int, k: int, dtype: str = "float16", beta: float = 0.0) -> Case:
    """Return a product of packed matrices."""
    return Case(m, n, k, dtype, "row", 1.25, beta)


def right(trial: Trial) -> bool:
    return trial.excess() <= 1


@pytest.mark.parametrize("name", RUNGS)
def test_right_in_float16_with_float16_sums(name: str) -> None:
    rung = RUNGS[name]
    trial = Trial(rung, tile_case(rung, 4 if name == "multistage" else 2, beta=-0.5))
    assert trial.kernel.config["ACC16"] == (name != "float32-sums")
    assert trial.main(schedule=1, late_copies=True).ok
    assert right(trial)


@pytest.mark.parametrize("name", RUNGS)
def test_right_in_float16_with_float32_sums(name: str) -> None:
    rung = in_float32(RUNGS[name])
    trial = Trial(rung, tile_case(rung, 2))
    assert trial.kernel.config["ACC16"] == 0
    assert trial.main().ok
    assert right(trial)


@pytest.mark.parametrize("name", RUNGS)
def test_right_in_bfloat16(name: str) -> None:
    rung = RUNGS[name]
    trial = Trial(rung, tile_case(rung, 1, "bfloat16", beta=0.5), in_place=True)
    assert trial.main(schedule=2).ok
    assert right(trial)


@pytest.mark.parametrize("name", [*S2, *PIPELINED])
def test_right_on_turing(name: str) -> None:
    # m16n8k8 in pairs, and no cp.async.
    rung = RUNGS[name]
    config = rung.kernel_for(problem_of(product(512, 512, 512)), T4).config
    trial = Trial(rung, product(config["BM"], config["BN"], 2 * config["BK"], beta=-0.5), arch=T4, config=config)
    report = trial.main(schedule=1)
    assert report.ok
    assert report.counters.hmma == trial.problem.m * trial.problem.n * trial.problem.k // (16 * 8 * 8)
    assert right(trial)


@pytest.mark.parametrize("name", S2)
def test_a_tile_among_others_and_no_steps_at_all(name: str) -> None:
    rung = RUNGS[name]
    config = config_of(rung)
    several = Trial(rung, product(2 * config["BM"], 2 * config["BN"], config["BK"]))
    several.main(races=False)
    assert right(several)
    none = Trial(rung, product(config["BM"], config["BN"], 0, beta=0.5))
    none.main()
    assert right(none)


@pytest.mark.parametrize("name", RUNGS)
def test_wavefronts_of_ldmatrix(name: str) -> None:
    rung = RUNGS[name]
    report = Trial(rung, tile_case(rung, 1)).main(races=False)
    lines = [counts for counts in report.by_line.values() if counts.ldmatrix_requests]
    assert len(lines) >= 2
    for counts in lines:
        # Each request loads four matrices.
        each = 32 if name in {"hierarchical", "vectorized"} else 4
        assert counts.shared_load_wavefronts == each * counts.ldmatrix_requests
    counters = report.counters
    assert counters.shared_store_wavefronts == counters.shared_store_wavefronts_ideal
    if name not in {"hierarchical", "vectorized"}:
        assert counters.bank_conflicts == 0


def test_copies_of_the_first_rungs() -> None:
    # Per step 256 x 64 elements of A and 64 x 128 of B: by ones, then by eights.
    requests = {}
    for name in ("hierarchical", "vectorized"):
        counters = Trial(RUNGS[name], tile_case(RUNGS[name], 1)).main(races=False).counters
        assert counters.global_load_bytes == (256 * 64 + 64 * 128) * 2
        requests[name] = counters.global_load_requests
    assert requests == {"hierarchical": 768, "vectorized": 96}


def test_stores_of_the_epilogue() -> None:
    requests = {}
    for name in ("multistage", "any-size", "epilogue"):
        trial = Trial(RUNGS[name], product(256, 256, 64), config=None)
        counters = trial.main(races=False).counters
        requests[name] = counters.global_store_requests
        # 256 x 256 outputs of 2 bytes, and no sector that is written in parts by one request counts twice for it.
        assert counters.global_store_bytes == 256 * 256 * 2
    assert requests == {"multistage": 256 * 256 // 64, "any-size": 256 * 256 // 32, "epilogue": 256 * 256 // 256}


@pytest.mark.parametrize(
    ("name", "index"), [(name, index) for name in TILED for index in range(2 if name in S2[:5] else 1)]
)
def test_a_missing_barrier_is_a_race(name: str, index: int) -> None:
    rung = RUNGS[name]
    trial = Trial(rung, tile_case(rung, 3 if name == "multistage" else 2))
    whole = generate(trial.kernel, F16)
    texts = dict(whole.headers)
    (own,) = (file for file in texts if file.endswith(rung.kernel.file))
    assert texts[own].count(BARRIER) == (2 if name in S2[:5] else 1)
    report = trial.main(without(whole, "", BARRIER, index))
    assert any(hazard.kind == "race" for hazard in report.hazards)


def small(problem: Gemm, *, stages: int = 3, acc16: int = 0) -> Config:
    """Return the smallest tile of the pipeline."""
    return with_vector_widths(tile(64, 64, 64, 2, 2, stages=stages).replace(ACC16=acc16), problem)


@pytest.mark.parametrize(("header", "index"), [("mma.cuh", 0), ("mma.cuh", 1), ("staged_store.cuh", 0)])
def test_a_missing_barrier_of_the_pipeline_is_a_race(header: str, index: int) -> None:
    case = product(64, 64, 256)
    trial = Trial(RUNGS["float32-sums"], case, config=small(problem_of(case), stages=2))
    whole = generate(trial.kernel, F16)
    assert sum(text.count(BARRIER) for _, text in whole.headers) == 3
    report = trial.main(without(whole, f"gemm/{header}", BARRIER, index))
    assert any(hazard.kind == "race" for hazard in report.hazards)


@pytest.mark.parametrize(("name", "index"), [("multistage", 0), ("float32-sums", 0), ("float32-sums", 1)])
def test_a_missing_wait_is_found(name: str, index: int) -> None:
    rung = RUNGS[name]
    case = tile_case(rung, 4) if name == "multistage" else product(64, 64, 320)
    trial = Trial(rung, case, config=None if name == "multistage" else small(problem_of(case)))
    whole = generate(trial.kernel, F16)
    planted = without(whole, "", f"matmill::ptx::{WAIT}" if name == "multistage" else f"ptx::{WAIT}", index)
    report = trial.main(planted, late_copies=True)
    assert {hazard.kind for hazard in report.hazards} & {"missing-wait", "race"}


@examples(10)
@given(
    m=st.integers(1, 150),
    n=st.integers(1, 150),
    k=st.integers(0, 200),
    dtype=st.sampled_from(["float16", "bfloat16"]),
    beta=st.sampled_from([0.0, -0.5]),
    name=st.sampled_from(PIPELINED),
    narrow=st.booleans(),
)
def test_any_size(m: int, n: int, k: int, dtype: str, beta: float, name: str, narrow: bool) -> None:  # noqa: PLR0917 — drawn
    case = product(m, n, k, dtype, beta=beta)
    config = small(problem_of(case), acc16=int(narrow and dtype == "float16"))
    trial = Trial(RUNGS[name], case, config=config)
    assert trial.main(late_copies=True).ok
    assert right(trial)


@pytest.mark.parametrize("columns", [8, 4, 2, 1])
@pytest.mark.parametrize("arch", ["t4", "h200"])
def test_every_width_of_copies(columns: int, arch: str) -> None:
    case = product(65, 40 + columns, 64 + columns, beta=0.5)
    config = small(problem_of(case), stages=2)
    assert (config["A_VEC"], config["B_VEC"], config["D_VEC"]) == (columns, columns, 8 if columns == 8 else 1)
    trial = Trial(RUNGS["epilogue"], case, arch=ARCHES[arch], config=config)
    assert trial.main(schedule=1).ok
    assert right(trial)


def test_infinities_and_nan_stay_in_their_rows_and_columns() -> None:
    case = product(40, 24, 33)
    trial = Trial(RUNGS["float32-sums"], case)
    trial.a[3, 5], trial.b[7, 11] = np.inf, np.nan
    trial.main(races=False)
    odd = np.zeros((40, 24), np.bool_)
    odd[3], odd[:, 11] = True, True
    assert (np.isfinite(trial.d) == ~odd).all()


def test_names_and_claims() -> None:
    assert [rung.name for rung in ON_MMA] == [*TILED, *PIPELINED]
    for rung in ON_MMA:
        assert rung.changes
        assert rung.predicts
        assert bool(rung.claim) == (rung.name in S2)
