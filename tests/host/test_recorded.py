"""The recorded times beside cuBLAS that ``matmill why`` shows."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import pytest

from lab.recorded_ratios import ratios_text, rungs_text
from matmill.analysis import recorded as module
from matmill.analysis.recorded import MOST_DOUBLINGS, nearest, recorded
from matmill.arch import get
from matmill.dtypes import BF16, F16, F32
from matmill.problem import Gemm

ROOT = Path(__file__).parents[2]
H200 = get("h200")


def test_the_ratios_of_the_package_are_those_recorded() -> None:
    for room, text in (("analysis", ratios_text), ("ladders", rungs_text)):
        shipped = ROOT / "src" / "matmill" / room / "recorded.json"
        assert shipped.read_text(encoding="utf-8") == text(ROOT / "benchmarks" / "results"), "run `make docs`"


def test_products_of_programs_are_found_and_sums_too_short_for_pieces_are_compared_with_those_without() -> None:
    head = Gemm(8192, 50257, 768, BF16, b_strides=(1, 768), a_align=16, b_align=16, d_align=2)
    found = nearest(head, H200)
    assert found is not None
    assert (found.m, found.n, found.k, found.faster) == (8192, 50257, 768, "matmill")
    short, long = (nearest(Gemm(10**6, 64, k, F32, precision="float32_tensor"), H200) for k in (64, 100))
    assert short is not None
    assert long is not None
    assert (short.precision, long.precision) == ("default", "float32_tensor")


def test_every_json_file_of_the_sources_is_in_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["matmill"]
    sources = ROOT / "src" / "matmill"
    paths = [path.relative_to(sources).as_posix() for path in sources.rglob("*.json")]
    assert "analysis/recorded.json" in paths
    assert [path for path in paths if not any(fnmatch(path, pattern) for pattern in patterns)] == []


@pytest.mark.parametrize("arch", ["h200", "h100"])
def test_a_product_that_was_timed_is_the_nearest_to_itself(arch: str) -> None:
    for one in recorded(arch)[::40]:
        near = nearest(one.problem, get(arch))
        assert near is not None
        assert near[:-1] == one[:-1]


def test_products_of_another_kind_are_never_near() -> None:
    aligned = Gemm(4096, 4096, 4096, BF16)
    near = nearest(aligned, H200)
    assert near is not None
    assert near.faster == "equal"
    odd = nearest(replace(aligned, n=4097, b_align=2, d_align=2), H200)
    assert odd is not None
    assert odd.problem.d_align < 16
    assert odd.faster == "matmill"
    half = nearest(replace(aligned, dtype=F16), H200)
    assert half is not None
    assert half.dtype == "float16"
    assert nearest(replace(aligned, out_dtype=F32), H200) is None
    assert nearest(replace(aligned, m=10**7), H200) is None
    assert nearest(aligned, get("a100")) is None


@pytest.mark.parametrize("arch", ["h200", "h100"])
def test_who_is_faster_is_seldom_the_contrary_for_the_nearest_product(arch: str) -> None:
    rows = recorded(arch)
    pairs = []
    for one in rows[::5]:
        kind, problem = module._kind(one.problem), one.problem
        others = [other for other in rows if other[2:7] != one[2:7] and module._kind(other.problem) == kind]
        best = min(others, key=lambda other: module._distance(problem, other))
        if module._distance(problem, best) <= MOST_DOUBLINGS:
            pairs.append({one.faster, best.faster})
    assert len(pairs) > 50
    assert pairs.count({"matmill", "torch"}) < 0.15 * len(pairs)
