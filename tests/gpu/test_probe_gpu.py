"""The probe on the GPU present: figures in the ranges of all GPUs since Turing, and what the matrix kernels compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from matmill import cli
from matmill.arch import load
from matmill.bench.probe.run import data_sheet, probe
from matmill.bench.probe.samples import Runs
from matmill.cli import main
from matmill.kernels.probe.matrix import INPUTS, MatrixProducts, matrix, words
from matmill.runtime.gpu import GPU


@pytest.mark.parametrize("element", INPUTS)
def test_matrix_units_compute_every_product(device: GPU, element: str) -> None:
    kernel, problem = matrix(element, device.arch), MatrixProducts(element, trips=3, blocks=2)
    reason = kernel.why_not(problem, device.arch)
    if reason is not None:
        pytest.skip(reason)
    with Runs(device) as runs, device.upload(words(element, 2.0, 0.5), "words") as values:
        runs.seconds(kernel, problem, values)
        threads = problem.blocks * kernel.config["THREADS"]
        result = runs.results(threads, np.float64 if element == "float64" else np.float32)
    # Every operation counted is half an FMA of 2 and 0.5, that is of 1, and whole numbers add up exactly.
    assert (result == problem.operations(kernel.config) / 2 / threads).all()


@pytest.mark.alone
def test_a_probe_finds_plausible_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "this.json"
    assert main(["probe", "--out", str(path)]) == cli.OK
    assert f"Written: {path}" in capsys.readouterr().out
    result = load(path)
    for name in ("sigma_add", "sigma_mul", "sigma_fma"):
        assert 2 < getattr(result, name) < 10
    assert 2 < result.sigma_fma64 < 100
    assert 10 < result.sigma_s < 60
    assert result.sigma_s < result.sigma_l2 < result.sigma_g
    assert 15 < result.sigma_l1 < result.sigma_l2 < 500
    assert 200 < result.sigma_g < 2500
    assert 2e-7 < result.launch_seconds < 5e-5
    assert 2e-7 < result.enqueue_seconds < 1e-3
    assert result.l2_bytes_per_s > result.read_bytes_per_s


@pytest.mark.alone
def test_rates_come_near_the_data_sheet(device: GPU) -> None:
    result, sheet = probe(device), data_sheet(device.arch)
    for name in ("clock_hz", "fma_flops", "fma64_flops", "read_bytes_per_s", "write_bytes_per_s", "copy_bytes_per_s"):
        best = sheet[name]
        if best:
            assert result.spreads[name].median > 0.5 * best, name
