"""Kernels of numba-cuda in the emulator, and programs whose launches are redirected there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import matmill
from matmill.errors import ArgumentError, CompileError
from matmill.testing import redirected
from matmill.testing.report import HazardError

pytest.importorskip("numba.cuda")
programs: Any = __import__("languages.numba_programs", fromlist=["axpy"])
cuda: Any = __import__("numba.cuda", fromlist=["jit"])

RNG = np.random.default_rng(0)
SOURCE = Path(__file__).with_name("numba_programs.py")


def line_of(text: str) -> str:
    lines = SOURCE.read_text(encoding="utf-8").splitlines()
    return f"{SOURCE.name}:{next(n for n, line in enumerate(lines, 1) if text in line)}"


def test_arguments_by_position_and_by_name(emulate: Any) -> None:
    x, y = np.arange(100, dtype=np.float32), np.ones(100, np.float32)
    emulate(programs.axpy, None, 1, 128, 2.0, y=y, x=x)
    np.testing.assert_allclose(y, 4 * x + np.sin(x) + 1, rtol=1e-5)
    with pytest.raises(ArgumentError, match=r"missing a required argument: 'x'; wanted axpy\(a, x, y\)"):
        emulate(programs.axpy, None, 1, 128, 2.0, y=y)
    with pytest.raises(ArgumentError, match="block: got None"):
        emulate(programs.axpy, None, 1, None, 2.0, x, y)


def test_matmul_of_strided_arrays(emulate: Any) -> None:
    a, b, c = RNG.random((40, 60), np.float32)[:, ::2], RNG.random((50, 30), np.float32).T, np.zeros((40, 50))
    emulate(programs.matmul, None, (4, 3), (16, 16), a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)


def test_a_tree_of_sums_in_dynamic_shared_memory(emulate: Any) -> None:
    x, out = RNG.random(1000, np.float32), np.zeros(1, np.float32)
    emulate(programs.total, None, 3, 128, x, out, shared=512)
    np.testing.assert_allclose(out[0], x.sum(dtype=float), rtol=1e-5)


def test_histogram(emulate: Any) -> None:
    x, counts = RNG.normal(size=2000), np.zeros(32, np.int32)
    emulate(programs.histogram, None, 4, 64, x, -4.0, 0.25, counts)
    assert counts.tolist() == np.histogram(x, 32, (-4, 4))[0].tolist()


def test_every_kind_of_argument(emulate: Any) -> None:
    records = np.zeros(8, programs.RECORD)
    records["scale"] = np.arange(8)
    steps, out, row = (
        np.arange(24, dtype=np.int16).reshape(8, 3),
        np.zeros(8, np.complex64),
        np.arange(8, dtype=np.int8),
    )
    emulate(programs.everything, None, 1, 32, np.bool_(1), 2 + 1j, (3, row), records[2], records, steps, out)
    assert out.tolist() == ((2 + 1j) * 3 + row + 2.0 * records["scale"] + steps[:, 0]).astype(np.complex64).tolist()


def test_ptx_text_by_the_abi_of_numba() -> None:
    x, y = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    ptx = matmill.emulate(programs.axpy, None, 1, 128, 2.0, x, y).ptx
    y[:] = 0
    flat = [each for array in (x, y) for each in (None, None, array.size, array.itemsize, array, 100, 4)]
    assert matmill.emulate(ptx, None, 1, 128, 2.0, *flat).ok
    np.testing.assert_allclose(y, 4 * x + np.sin(x), rtol=1e-5, atol=1e-6)


def test_a_missing_barrier_names_the_line() -> None:
    report = matmill.emulate(programs.total_without_barriers, None, 1, 128, np.ones(128, np.float32), np.zeros(1, "f4"))
    hazard = next(each for each in report.hazards if each.kind == "race")
    assert line_of("result += parts[i]") in hazard.message
    assert line_of("parts[t] = x[t]") in hazard.message
    assert "result += parts[i]" in str(report)


def test_an_access_out_of_bounds_names_the_line() -> None:
    (hazard,) = matmill.emulate(programs.shift, None, 2, 64, np.zeros(128, np.float32)).hazards
    assert (hazard.kind, hazard.where) == ("out-of-bounds", line_of("x[i + 1] = twice(x[i])"))
    assert "behind the end of x (512 B)" in hazard.message


def test_what_is_refused() -> None:
    x = np.zeros(4)
    with pytest.raises(ArgumentError, match=r"@cuda.jit\(debug=True\)"):
        matmill.emulate(programs.checked, None, 1, 1, x)
    with pytest.raises(ArgumentError, match=r"@cuda.jit\(device=True\)"):
        matmill.emulate(programs.twice, None, 1, 1, x)
    with pytest.raises(ArgumentError, match="x: got a function"):
        matmill.emulate(programs.shift, None, 1, 1, lambda: 0)
    with pytest.raises(CompileError, match=r"shift: got code that numba does not compile for \(int64\)"):
        matmill.emulate(programs.shift, None, 1, 1, 5)


def test_programs_launch_on_the_emulator() -> None:
    with redirected("numba") as reports:
        double = cuda.jit("void(f8[:], f8[:])")(programs.doubled)
        assert cuda.is_available()
        with cuda.gpus[0], cuda.stream() as stream:
            x, y = cuda.to_device(np.arange(100.0)), cuda.device_array(100)
            double[2, 64, stream](x, y)
            stream.synchronize()
            double.forall(100)(y, y)
        assert y.copy_to_host().tolist() == (4 * np.arange(100.0)).tolist()
        with pytest.raises(ArgumentError, match=r"x: got array\(float32, 1d, C\); wanted array\(float64, 1d, A\)"):
            double[2, 64](np.zeros(9, np.float32), y)
        with pytest.raises(HazardError, match="out-of-bounds"):
            programs.shift[1, 64](np.zeros(64))
    assert [report.ok for report in reports] == [True, True, False]
    assert not cuda.is_available()


def test_numba_s_own_simulator_stays_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.config.ENABLE_CUDASIM", 1)
    with pytest.raises(ArgumentError, match="NUMBA_ENABLE_CUDASIM: got 1"), redirected("numba"):
        pass


def test_tests_of_a_project_are_redirected(tmp_path: Path) -> None:
    (tmp_path / "test_project.py").write_text(
        "import numpy as np\nfrom numba import cuda\n\n@cuda.jit\ndef k(x):\n    x[cuda.grid(1)] += 1\n\n"
        "def test_right():\n    x = cuda.to_device(np.zeros(32))\n    k[1, 32](x)\n"
        "    assert x.copy_to_host().sum() == 32\n\n"
        "def test_wrong():\n    k[2, 32](np.zeros(32))\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--matmill-redirect", "numba"]
    result = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed" in result.stdout
    assert "out-of-bounds at test_project.py:6" in result.stdout
