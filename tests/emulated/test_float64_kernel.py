"""float64 products on the tensor cores: every layout, alignment and tile, split-K, batches, and no bank conflict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from matmill.arch import ARCHES
from matmill.config import Config
from matmill.dtypes import F64
from matmill.kernels.hgemm.tiles import double_tile, shapes
from support.mma_product import LAYOUTS, ODD, Product, order
from support.strided import COLUMN, ROW, Layout

#: Quick to emulate; of two steps and two warps in each direction.
SMALL = double_tile(32, 32, 16, 2, 2, stages=3)
H200 = ARCHES["h200"]


def product(shape: tuple[int, int, int], *layouts: Layout, config: Config = SMALL, **options: Any) -> Product:
    """Return a product in float64 of A, B and D of these layouts."""
    return Product(shape, *layouts, dtype="float64", config=config, **options)


@pytest.mark.parametrize("arch", ["a100", "h200"])
@pytest.mark.parametrize(("a", "b"), LAYOUTS, ids=order)
def test_every_pair_of_layouts(a: Layout, b: Layout, arch: str) -> None:
    aligned = product((72, 68, 52), a, b, ROW, arch=arch)
    config = aligned.kernel.config
    assert (config["A_VEC"], config["B_VEC"], config["D_VEC"]) == (2, 2, 2)
    report = aligned.right_report()
    # 9 blocks of 4 warps, 4 k-tiles of 4 steps, 16 x 16 sums: two m16n8k4 on Hopper, two m8n8k4 for each on Ampere.
    assert report.counters.dmma == 9 * 4 * 4 * 4 * (2 if arch == "h200" else 4)
    assert report.counters.global_store_sectors == 72 * 68 * 8 // 32


@pytest.mark.parametrize(("a", "b"), LAYOUTS, ids=order)
def test_an_odd_pitch_costs_copies_but_no_bank_conflicts(a: Layout, b: Layout) -> None:
    m, n, k = 67, 75, 51
    odd = product((m, n, k), replace(a, start=1), b, ODD)
    assert (odd.kernel.config["A_VEC"], odd.kernel.config["B_VEC"], odd.kernel.config["D_VEC"]) == (1, 1, 1)
    report = odd.right_report(schedule=1)
    # Every element of A for each of 3 columns of tiles, and of B for each of 3 rows of tiles, 8 bytes at once.
    assert report.counters.cp_async_bytes == 3 * (m * k + k * n) * 8
    assert report.counters.global_load_requests == 0


@pytest.mark.parametrize(
    ("arch", "config"),
    [(arch, config) for arch in ("a100", "h200") for config in shapes(ARCHES[arch], F64)],
    ids=lambda x: x if isinstance(x, str) else f"{x['BM']}x{x['BN']}",
)
def test_every_tile_shape(arch: str, config: Config) -> None:
    tried = product((config["BM"] + 2, config["BN"] + 2, 54), COLUMN, ROW, ROW, arch=arch, config=config)
    tried.right_report()


@pytest.mark.parametrize("mma_k", [8, 16])
def test_longer_instructions(mma_k: int) -> None:
    config = double_tile(32, 32, 2 * mma_k, 2, 2, stages=2, mma_k=mma_k)
    tried = product((34, 38, 52), ROW, COLUMN, ROW, config=config)
    tried.right_report()


@pytest.mark.parametrize("parts", [2, 3])
def test_every_rest_of_k_in_every_slice(parts: int) -> None:
    for k in range(33, 49):
        tried = product((34, 33, k), ROW, COLUMN, ROW, parts=parts)
        assert all(report.ok for report in tried.run())
        assert tried.right(), k
