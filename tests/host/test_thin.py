"""Which products the kernel for few rows or columns takes, the words where it does not, and what is chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matmill.analysis.candidates import candidates
from matmill.arch import ARCHES, get
from matmill.choose import choose
from matmill.config import Config
from matmill.dtypes import ALL, BF16, F32
from matmill.kernels.thin import THIN, cost, space
from matmill.kernels.thin.tiles import batch, rows_of_block
from matmill.problem import Gemm
from matmill.registry import PRODUCTION

H200 = get("h200")
#: x @ weights.T of one row: k is contiguous in both.
ROW = Gemm(1, 14336, 4096, b_strides=(1, 4096))


@pytest.mark.parametrize(
    ("problem", "entry"),
    [
        (ROW, "thin"),
        (replace(ROW, b_strides=None), "thin"),
        (replace(ROW, m=16), "thin"),
        (Gemm(4096, 1, 4096), "thin"),
        (Gemm(3, 5000, 3001, ALL["float64"], a_align=8), "thin"),
        (Gemm(404, 3, 2157, BF16, a_align=2, b_align=2), "thin"),
        (Gemm(17, 4096, 4096), "gemm"),
        (Gemm(3, 5, 100_000), "inner"),
        (Gemm(16, 4096, 4096, ALL["float16"]), "wgmma_gemm"),
    ],
    ids=str,
)
def test_products_go_where_they_are_faster(problem: Gemm, entry: str) -> None:
    assert choose(problem, H200).kernel.entry == entry


@pytest.mark.parametrize("size", [(17, 4096, 4096), (4096, 4096, 4096), (3, 5000, 127), (3, 5, 100_000)], ids=str)
def test_others_have_no_configuration(size: tuple[int, int, int]) -> None:
    assert space(Gemm(*size), H200) == ()


@pytest.mark.parametrize("arch", [arch for arch in ARCHES.values() if arch.compiles], ids=lambda arch: arch.name)
@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("size", [(1, 14336, 4096), (70, 9, 400), (16, 300, 5001), (2, 200_000, 128)], ids=str)
def test_every_configuration_is_legal(size: tuple[int, int, int], dtype: str, arch: object) -> None:
    target = ARCHES[arch.name]  # type: ignore[attr-defined] # an Arch: pytest's ids take objects
    for align in (16, ALL[dtype].itemsize):
        problem = Gemm(*size, dtype=ALL[dtype], a_align=align, b_align=align)
        result = space(problem, target)
        assert result
        for config in result:
            assert THIN.with_config(config).why_not(problem, target) is None
            assert config["BK"] % batch(config) == 0
            chunks = -(-problem.k // config["BK"])
            assert (config["SPLIT_K"] - 1) * -(-chunks // config["SPLIT_K"]) < chunks  # no slice is empty


def _config(problem: Gemm) -> Config:
    return space(problem, H200)[0]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"m": 17}, "17 x 14336 outputs have more than 16 rows and columns, or none"),
        ({"m": 2}, "constants for 1 of 2 rows or columns"),
        ({"a_align": 8}, "copies of 4 elements need aligned, contiguous columns or rows along k"),
        (
            {"b_align": 8},
            "vectors of 4 elements need aligned, contiguous rows in multiples of 4 elements",
        ),
        ({"k": 2**31 - 1, "b_strides": (1, 2**31)}, "k = 2147483647 > 2147482624"),
        ({"n": 2**31 - 1}, "n = 2147483647 > 2147482624"),
        ({"precision": "tf32"}, "precision 'tf32' needs wgmma: compute capability 9.0"),
    ],
)
def test_what_it_does_not_take_is_refused_in_words(changed: dict[str, object], reason: str) -> None:
    result = THIN.with_config(_config(ROW)).why_not(replace(ROW, **changed), H200)  # type: ignore[arg-type]
    assert result is not None
    assert reason in result


def test_a_precision_of_tensor_cores_is_refused_once() -> None:
    assert len(space(replace(ROW, precision="tf32"), H200)) == 1
    assert space(replace(ROW, precision="high"), H200) == space(ROW, H200)


def test_a_short_long_side_is_split_over_blocks_where_that_pays() -> None:
    problem = Gemm(16, 200, 6000)
    kernel = THIN.with_config(min(space(problem, H200), key=lambda one: cost.explain(problem, one, H200).seconds))
    assert kernel.config["SPLIT_K"] > 1
    assert kernel.count_launches(problem) == 2
    assert kernel.workspace(problem) == kernel.config["SPLIT_K"] * 16 * 200 * F32.itemsize


def test_the_model_is_bound_by_memory_where_few_rows_are_multiplied() -> None:
    one, many = (
        min((cost.explain(p, c, H200) for c in space(p, H200)), key=lambda made: made.seconds)
        for p in (ROW, replace(ROW, m=16))
    )
    assert one.bound == "memory"
    assert ROW.least_bytes / H200.dram_bytes_per_s < one.seconds < 1.4 * ROW.least_bytes / H200.dram_bytes_per_s
    assert one.seconds < many.seconds < 1.5 * one.seconds


def test_it_is_explained_as_the_others_are() -> None:
    legal, _ = candidates([one for one in PRODUCTION if one.kernel.entry == "thin"], ROW, H200)
    assert legal[0].terms.keys() == {"compute", "memory", "latency", "second"}
    assert legal[0].waves is None
    assert rows_of_block(legal[0].config) * -(-14336 // rows_of_block(legal[0].config)) >= 14336
