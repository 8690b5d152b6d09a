"""The recipe of docs/architecture.md: a folder and a line of the registry make a kernel, chosen and explained."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from matmill import choose as choosing
from matmill.analysis import explain as explaining
from matmill.choose import choose
from matmill.dtypes import F32
from matmill.problem import Gemm
from matmill.registry import PRODUCTION
from support.strided import H200
from support.trial import Case, Trial

FILES = {
    "kernel.cuh": """// One thread for each output of packed matrices.
extern "C" __global__ void outputs(PARAMETERS) {
  const int j = blockIdx.x * Config::THREADS + threadIdx.x, i = blockIdx.y;
  if (j >= n) return;
  float sum = 0;
  for (int l = 0; l < k; ++l) sum += A[i * k + l] * B[j * k + l];
  D[i * n + j] = alpha * sum;
}
""",
    "cost.py": """
from matmill.kernels.shared.model import Prediction

def explain(problem, config, arch):
    return Prediction(1e-9, {"memory": 1e-9}, ("memory",))
""",
    "__init__.py": """
from matmill.config import Config
from matmill.kernel import Geometry, Kernel, Production, ceil_div
from matmill.parameters import Parameters
from {name}.cost import explain

PARAMETERS = Parameters.of(A="const Scalar*", B="const Scalar*", D="Scalar*", n="int", k="int", alpha="float")

def geometry(problem, config):
    return Geometry(grid=(ceil_div(problem.n, config["THREADS"]), problem.m, 1), block=(config["THREADS"], 1, 1))

def arguments(problem, config, operands):
    values = dict(A=operands.a, B=operands.b, D=operands.d, n=problem.n, k=problem.k, alpha=operands.alpha)
    return PARAMETERS.pack(problem.dtype, **values)

def why_not(problem, config, arch):
    packed = problem.a_row_col == (problem.k, 1) and problem.b_row_col == (1, problem.k) and not problem.has_c
    return None if packed and problem.batch == 1 else "operands are not packed along k"

KERNEL = Kernel("outputs", __name__, Config.of(THREADS=64), geometry, arguments, why_not, parameters=PARAMETERS)
PRODUCTION = Production(KERNEL, lambda problem, arch: (KERNEL.config,), explain)
""",
}


def test_a_folder_and_a_line_make_a_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = "outputs_of_a_recipe"
    (tmp_path / name).mkdir()
    for file, text in FILES.items():
        (tmp_path / name / file).write_text(text.replace("{name}", name), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = importlib.import_module(name)
    try:
        monkeypatch.setattr(choosing, "PRODUCTION", (*PRODUCTION, folder.PRODUCTION))
        case = Case(5, 70, 33)
        problem = Gemm(5, 70, 33, dtype=F32, b_strides=(1, 33), a_align=4, b_align=4)
        choice = choose(problem, H200)
        assert choice.kernel.entry == "outputs"
        trial = Trial(choice.kernel, case)
        assert [list(report.hazards) for report in trial.run()] == [[]]
        assert trial.excess() <= 1
        result = explaining.explain(problem, H200)
        assert result.chosen.kernel.entry == "outputs"
        assert result.chosen.bound == "memory"
        rows = Gemm(5, 70, 33, dtype=F32)
        assert choose(rows, H200).kernel.entry != "outputs"
        assert any("operands are not packed along k" in reason for reason in choose(rows, H200).reasons)
    finally:
        for module_name in [each for each in sys.modules if each.startswith(name)]:
            del sys.modules[module_name]
