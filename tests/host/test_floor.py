"""The least time is a bound: below every prediction, and below every time that anybody has measured and recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matmill.analysis.floor import floor
from matmill.arch import ARCHES, get
from matmill.choose import choose
from matmill.config import Config
from matmill.dtypes import ALL, BF16, F16, F32, F64
from matmill.errors import IllegalConfigError
from matmill.ladders.registry import LADDERS
from matmill.problem import SPLIT_METHODS, Geam, Gemm

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
#: Of a configuration that splits float32 elements for the tensor cores: what the fastest long products do.
SPLIT = (Config.of(MMA=1),)
TYPES = {"fp32": F32, "fp64": F64, "bf16": BF16, "fp16": F16}
PROBLEMS = [
    *(Gemm(n, n, n, dtype) for n in (64, 1000, 4096, 16384) for dtype in ALL.values()),
    *(Gemm(5, 5, 30_000_000, dtype) for dtype in ALL.values()),
    *(Gemm(100_000, 16, 64, dtype) for dtype in ALL.values()),
    Gemm(8192, 8192, 32, BF16),
    Gemm(1, 4096, 4096, F16),
    Gemm(17, 17, 17, F32, batch=20_000),
    Gemm(4096, 4096, 4096, F32, precision="tf32"),
    *(Gemm(n, n, n, F32, precision=name) for n in (64, 1024, 8192) for name in SPLIT_METHODS),
    Gemm(3, 3, 10_000_000, F32, gram=True, a_strides=(10_000_000, 1)),
]


@pytest.mark.parametrize("name", [name for name, arch in ARCHES.items() if arch.compiles])
def test_no_prediction_is_below_it(name: str) -> None:
    arch, taken = get(name), 0
    for problem in PROBLEMS:
        try:
            choice = choose(problem, arch)
        except IllegalConfigError:
            continue
        taken += 1
        assert floor(problem, arch, (choice.kernel.config,)).seconds <= choice.predicted_seconds, problem
    assert taken > len(PROBLEMS) // 2


def ladders() -> Iterator[tuple[str, Gemm | Geam, float]]:
    """Yield every time in the records of ladders, rungs and libraries alike."""
    for path in sorted(RESULTS.glob("*_h200_*.json")):
        record: Any = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict) or "ladder" not in record:
            continue
        subject = LADDERS[record["ladder"]].subject
        for row in (*record["rows"], *record["baselines"]):
            if row["seconds"] and not row.get("phases"):
                problem = subject.problem(row.get("problem") or record["problem"])
                if row.get("rung") == "fp16x3":
                    problem = replace(problem, precision="fp16x3")
                yield f"{path.name}: {row}", problem, row["seconds"]


def products() -> Iterator[tuple[str, Gemm | Geam, float]]:
    """Yield every time in the records of products of every shape, and of random ones."""
    files = [path for name in ("shapes", "thin", "short_k") for path in RESULTS.glob(f"{name}_h200.json")]
    for path in files:
        name = path.stem
        for one in json.loads(path.read_text(encoding="utf-8"))["records"]:
            problem = Gemm(one["m"], one["n"], one["k"], ALL[one["dtype"]], batch=one["batch"])
            times = {text: seconds for text, seconds in one["seconds"].items() if text != "moving the bytes"}
            yield from ((f"{name}: {text}", problem, seconds) for text, seconds in times.items() if seconds)
    for one in json.loads((RESULTS / "matmul_random_h200.json").read_text(encoding="utf-8"))["products"]:
        problem = Gemm(one["m"], one["n"], one["k"], TYPES[one["dt"]], batch=one["b"])
        yield from ((f"random: {one}", problem, one[key] * 1e-6) for key in ("us", "torch"))


def test_no_measured_time_is_below_it() -> None:
    timed = [*ladders(), *products()]
    assert len(timed) > 1000
    below = [text for text, problem, seconds in timed if seconds < floor(problem, get("h200"), SPLIT).seconds]
    assert below == []


def test_pieces_are_three_products_of_the_tensor_cores() -> None:
    arch = get("h200")
    rates = {"fp16x3": 989.4e12, "tf32x3": 494.7e12, "float32_tensor": 989.4e12}
    for name, rate in rates.items():
        least = floor(Gemm(8192, 8192, 8192, F32, precision=name), arch)
        assert least.flops_per_s == rate / 3
        assert least.unit is not None
        assert least.unit.endswith("3 products for each of float32")
    short = Gemm(8192, 8192, 85, F32, precision="float32_tensor")
    assert floor(short, arch).unit == "FMA units, float32"
