"""A look at every wing: each production kernel, the end of each ladder, each route of a call, a race that is seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import matmill
from matmill.choose import choose_from
from matmill.cli import main
from matmill.ladders.registry import LADDERS
from matmill.reference import check
from matmill.registry import PRODUCTION, TRANSPOSE_ADD_KERNELS
from support.strided import H200
from support.trial import Case, Trial, problem_of

BY_ENTRY: dict[str, Any] = {production.kernel.entry: production for production in PRODUCTION}
#: Products that each kernel takes, one of them of odd sizes.
CASES = {
    "gemm": (Case(33, 45, 17), Case(64, 32, 16, "float64", beta=0.5)),
    "hgemm": (Case(37, 43, 29, "float16"), Case(64, 64, 64, "bfloat16", "row")),
    "igemm": (Case(37, 43, 29, "int8", "row"), Case(64, 64, 64, "uint8", beta=3)),
    "wgmma_gemm": (Case(64, 64, 64, "bfloat16", "row"), Case(80, 24, 40, "float16")),
    "short_k": (Case(100, 3, 3), Case(65, 8, 5, "float16")),
    "inner": (Case(3, 5, 1001), Case(4, 4, 900, "float64", "gram")),
    "thin": (Case(165, 2, 170), Case(3, 130, 333, "float16", "row")),
}


def test_every_kernel_is_looked_at() -> None:
    assert set(BY_ENTRY) == set(CASES)


@pytest.mark.parametrize("case", [(entry, case) for entry, cases in CASES.items() for case in cases], ids=str)
def test_a_production_kernel(case: tuple[str, Case]) -> None:
    entry, product = case
    kernel = choose_from((BY_ENTRY[entry],), problem_of(product), H200).kernel
    trial = Trial(kernel, product)
    reports = trial.run(counted=True)
    assert [str(hazard) for report in reports for hazard in report.hazards if hazard.severity != "note"] == []
    assert trial.excess() <= 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_transpose_add(dtype: str) -> None:
    assert len(TRANSPOSE_ADD_KERNELS) == 3
    random = np.random.default_rng(1)
    for m, n in ((65, 33), (3, 300), (2, 5)):
        x, y = random.integers(-9, 9, (n, m)).astype(np.int8), random.integers(-9, 9, (m, n)).astype(np.int8)
        given = (one if dtype == "int8" else one.astype(np.float32) for one in (x, y))
        assert (matmill.transpose_add(*given, executor="emulator") == x.T + y).all()


@pytest.mark.parametrize("executor", ["cpu", "emulator"])
def test_a_call(executor: Any) -> None:
    random = np.random.default_rng(2)
    a, b = random.uniform(-1, 1, (2, 9, 31)).astype(np.float32), random.uniform(-1, 1, (31, 7)).astype(np.float32)
    assert check(matmill.matmul(a, b, executor=executor), a, b).ok
    assert check(matmill.inner(b.T, b, executor=executor), b.T, b).ok


@pytest.mark.parametrize("ladder", LADDERS)
def test_a_ladder_ends_well(ladder: str, capsys: pytest.CaptureFixture[str]) -> None:
    rungs = LADDERS[ladder].rungs
    small = ["--n", "64"] if ladder == "sgemm" else []
    assert main(["ladder", ladder, "--on", "emulator", "--rungs", rungs[-1].label, *small]) == 0
    assert "ok" in capsys.readouterr().out


def test_a_race_is_seen() -> None:
    source = """extern "C" __global__ void k(int* x) {
      __shared__ int s[64];
      s[threadIdx.x] = threadIdx.x;
      x[threadIdx.x] = s[63 - threadIdx.x];
    }"""
    x = np.zeros(64, np.int32)
    assert [hazard.kind for hazard in matmill.emulate(source, "k", 1, 64, x).hazards] == ["race"]
    fixed = source.replace("x[threadIdx.x] =", "__syncthreads(); x[threadIdx.x] =")
    assert matmill.emulate(fixed, "k", 1, 64, x).ok
    assert x.tolist() == list(range(63, -1, -1))
