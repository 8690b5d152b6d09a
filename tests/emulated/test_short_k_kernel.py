"""The kernel for a short k on problems that exercise each way of copying, computing and storing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matmill.arch import get
from matmill.choose import choose
from matmill.config import Config
from matmill.dtypes import ALL
from matmill.kernels.short_k import SHORT_K, space
from support.strided_product import StridedProduct

H200 = get("h200")


def _legal(product: StridedProduct, config: Config) -> bool:
    return SHORT_K.with_config(config).why_not(product.problem, H200) is None


@pytest.mark.parametrize(
    ("shape", "dtype"), [((7, 9, 5), "bfloat16"), ((33, 3, 11), "float32"), ((33, 3, 11), "float16")]
)
def test_runs_of_memory_start_anywhere(shape: tuple[int, int, int], dtype: str) -> None:
    product = StridedProduct(shape, dtype=ALL[dtype], batch=13)
    every = [config for config in space(product.problem, H200) if _legal(product, config)]
    shifted = [one for one in every if one["A_SHIFTED"] and one["B_SHIFTED"]]
    chosen = [*shifted[:1], *[one for one in shifted if one["D_SHIFTED"]][:1]]
    assert len(chosen) == 2
    for config in chosen:
        # Three blocks: each walks over several work tiles, whose runs start elsewhere.
        (report,) = product.emulated(SHORT_K.with_config(config.launched(BLOCKS=3)), late_copies=True)
        assert product.excess() <= 1, config
        assert not report.hazards, config


@pytest.mark.parametrize("shape", [(16, 16, 16), (17, 17, 17), (32, 32, 32)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packed_batches_move_whole_sectors(dtype: str, shape: tuple[int, int, int]) -> None:
    product = StridedProduct(shape, dtype=ALL[dtype], batch=64)
    kernel = choose(replace(product.problem, batch=20000), H200).kernel
    assert kernel.entry == "short_k"
    (report,) = product.emulated(kernel, races=False)
    m, n, k = shape
    size = ALL[dtype].itemsize
    counted = report.counters
    assert counted.cp_async_sectors <= 1.1 * 64 * (m * k + k * n) * size / 32
    assert counted.global_store_sectors <= 1.1 * 64 * m * n * size / 32


@pytest.mark.parametrize("n", [1, 4, 16, 17, 64])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tall_products_move_whole_sectors(dtype: str, n: int) -> None:
    product = StridedProduct((500, n, 64), dtype=ALL[dtype])
    kernel = choose(replace(product.problem, m=10**6), H200).kernel
    if kernel.entry == "short_k":
        kernel = kernel.with_config(kernel.config.launched(BLOCKS=1))
    else:
        assert kernel.entry == "wgmma_gemm"
    (report,) = product.emulated(kernel, races=False)
    size, counted = ALL[dtype].itemsize, report.counters
    read = counted.cp_async_sectors + counted.global_load_sectors + counted.bulk_load_sectors
    written = counted.global_store_sectors + counted.bulk_store_sectors
    least_read, least_written = 64 * (500 + n) * size / 32, 500 * n * size / 32
    if n < 16 and not kernel.config["D_STAGED"]:
        # Threads store 16 bytes each straight from registers: of rows this short, the halves of a sector apart.
        assert read <= 1.1 * least_read
        assert written <= 2 * least_written
    else:
        assert read + written <= 1.1 * (least_read + least_written)
