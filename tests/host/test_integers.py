"""Products of integers on the host: refusals, the choice of kernels, and the commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import matmill
from matmill import errors
from matmill.arch import get
from matmill.choose import choose
from matmill.cli import main
from matmill.dtypes import I32
from matmill.jit.source import generate
from matmill.kernels.inner import INNER
from matmill.kernels.short_k import SHORT_K
from matmill.kernels.thin import THIN
from matmill.kernels.thin import space as thin_space
from matmill.kernels.wgmma import WGMMA
from matmill.problem import Gemm
from support.compiled import resources
from support.integers import INTEGERS, exact, random

H200 = get("h200")


def problem(name: str, m: int, n: int, k: int, **fields: Any) -> Gemm:
    """Return a product of integers."""
    dtype = INTEGERS[name]
    return Gemm(m, n, k, dtype, out_dtype=I32 if dtype.itemsize == 1 else None, **fields)


@pytest.mark.parametrize(
    ("options", "argument", "words"),
    [
        ({"alpha": 0.5}, "alpha", "got 0.5; wanted a whole number, for arrays of int32"),
        ({"alpha": np.float32(1.5)}, "alpha", "a whole number"),
        ({"alpha": True}, "alpha", "bool"),
        ({"alpha": float("inf")}, "alpha", "a whole number"),
        ({"c": np.ones((3, 5), np.int32), "beta": 0.25}, "beta", "got 0.25"),
        ({"bias": np.ones(5, np.int32)}, "bias", "an array with elements of int32; wanted None"),
        ({"activation": "relu"}, "activation", "'relu' with elements of int32; wanted None"),
        ({"precision": "tf32"}, "precision", "dtype int32"),
        ({"precision": "float32_tensor"}, "precision", "dtype int32"),
        ({"out_dtype": "int64"}, "out_dtype", "got dtype int64 for a product in int32; wanted int32."),
        ({"out_dtype": "float32"}, "out_dtype", "wanted int32."),
        ({"c": np.ones((3, 5), np.int64), "beta": 1}, "c", "wanted a's int32"),
        ({"out": np.ones((3, 5))}, "out", "wanted a's int32"),
    ],
    ids=str,
)
def test_refusals(options: dict[str, Any], argument: str, words: str) -> None:
    with pytest.raises(errors.MatmillError) as raised:
        matmill.matmul(np.ones((3, 4), np.int32), np.ones((4, 5), np.int32), executor="cpu", **options)
    assert raised.value.argument == argument
    assert words in str(raised.value)
    assert raised.value.fix


def test_bytes_have_results_of_32_bits_alone() -> None:
    a, b = random(0, 3, 4, dtype="uint8"), random(1, 4, 5, dtype="uint8")
    assert matmill.matmul(a, b, executor="cpu").dtype == np.int32
    for out_dtype in ("int32", "i32", np.int32, np.dtype(np.int32)):
        assert (matmill.matmul(a, b, out_dtype=out_dtype, executor="cpu") == exact(a, b)).all()
    for out_dtype in ("uint8", "int64", "float32"):
        with pytest.raises(errors.DTypeError, match=r"^out_dtype: got .* wanted int32\."):
            matmill.matmul(a, b, out_dtype=out_dtype, executor="cpu")
    with pytest.raises(errors.DTypeError, match=r"^c: got dtype uint8; wanted out_dtype's int32"):
        matmill.matmul(a, b, c=np.ones((3, 5), np.uint8), beta=1, executor="cpu")


@pytest.mark.parametrize(("name", "cure"), [("int16", "int32"), ("uint16", "int32"), ("bool", "int32")])
def test_other_integers_are_converted_to_those_that_hold_them(name: str, cure: str) -> None:
    ones = np.ones((3, 3), name)
    with pytest.raises(errors.DTypeError, match=rf"a\.astype\('{cure}'\)\.$"):
        matmill.matmul(ones, ones, executor="cpu")


def test_types_are_not_mixed() -> None:
    with pytest.raises(errors.DTypeError, match=r"^b: got dtype uint8; wanted a's int8\."):
        matmill.matmul(np.ones((3, 3), np.int8), np.ones((3, 3), np.uint8), executor="cpu")


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("sizes", [(4096, 4096, 4096), (8, 8, 8), (1, 1, 10**6), (3, 5000, 700), (100, 90, 0)], ids=str)
def test_every_product_has_a_kernel_that_does_not_spill(name: str, sizes: tuple[int, int, int]) -> None:
    asked = problem(name, *sizes)
    kernel = choose(asked, H200).kernel
    assert kernel.entry in ({"igemm"} if asked.dtype.itemsize == 1 else {"gemm", "thin"})
    assert resources(generate(kernel, asked.dtype), H200.target).spill_stores == 0, str(kernel.config)


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("kernel", [INNER, SHORT_K, WGMMA], ids=lambda kernel: kernel.entry)
def test_kernels_of_floats_say_that_they_take_no_integers(name: str, kernel: Any) -> None:
    reason = kernel.why_not(problem(name, 16, 16, 32), H200)
    assert reason is not None
    assert name in reason


@pytest.mark.parametrize("name", ["int32", "int64"])
@pytest.mark.parametrize("sizes", [(14336, 8, 4096), (8, 14336, 4096), (14336, 16, 4096), (16, 14336, 4096)], ids=str)
def test_no_tile_of_few_columns_spills(name: str, sizes: tuple[int, int, int]) -> None:
    asked = problem(name, *sizes)
    kernels = {generate(THIN.with_config(config), asked.dtype): config for config in thin_space(asked, H200)}
    assert kernels
    for source, config in kernels.items():
        assert resources(source, H200.target).spill_stores == 0, str(config)


def test_bytes_need_a_gpu_since_ampere() -> None:
    with pytest.raises(errors.IllegalConfigError, match=r"m16n8k32 on int8 needs compute capability 8\.0: t4 has 7\.5"):
        choose(problem("int8", 64, 64, 64), get("t4"))
    assert choose(problem("int32", 64, 64, 64), get("t4")).kernel.entry == "gemm"


@pytest.mark.parametrize("name", INTEGERS)
def test_files(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = random(0, 30, 40, dtype=name), random(1, 40, 20, dtype=name)
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", b)
    files = [str(tmp_path / f"{letter}.npy") for letter in "AB"]
    call = ["matmul", *files, "--out", str(tmp_path / "D.npy"), "--executor", "cpu", "--alpha", "-3"]
    assert main(call) == 0
    result, answer = np.load(tmp_path / "D.npy"), exact(a, b, alpha=-3)
    assert result.dtype == answer.dtype
    assert (result == answer).all()
    shown = capsys.readouterr().out
    assert f"30x20x40 {name}" in shown
    assert f"(30, 20) {answer.dtype}" in shown
    assert main([*call[:-1], "0.5"]) != 0
    assert "alpha: got 0.5; wanted a whole number" in capsys.readouterr().err


@pytest.mark.parametrize("name", INTEGERS)
def test_why(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "matmul", "500x600", "600x700T", "--dtype", name, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["seconds"] > 0
    assert main(["why", "matmul", "500x600", "600x700", "--dtype", name]) == 0
    shown = capsys.readouterr().out
    assert "integer" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert main(["why", "inner", "3x6000", "6000x7", "--dtype", name]) != 0
    assert f"'{name}'" in capsys.readouterr().err


def test_more_bits_take_more_time() -> None:
    seconds = [choose(problem(name, 4096, 4096, 4096), H200).predicted_seconds for name in ("int8", "int32", "int64")]
    assert seconds == sorted(seconds)
    float32 = choose(Gemm(4096, 4096, 4096), H200).predicted_seconds
    assert seconds[0] < float32 < seconds[1]
