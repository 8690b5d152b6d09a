"""float32 products in pieces of tf32: layouts, alignments, tiles, split-K, what is not finite, and no bank conflict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from matmill import reference
from matmill.arch import ARCHES
from matmill.config import Config
from matmill.dtypes import F32
from matmill.kernels.hgemm.tiles import shapes, split_tile
from matmill.precision import SHORTEST_K
from support.mma_product import LAYOUTS, ODD, Product, order
from support.strided import COLUMN, ROW, Layout

#: Quick to emulate; of four steps and two warps in each direction.
SMALL = split_tile(32, 32, 32, 2, 2, stages=3)
H200 = ARCHES["h200"]


def product(shape: tuple[int, int, int], *layouts: Layout, config: Config = SMALL, **options: Any) -> Product:
    """Return a product in float32 of A, B and D of these layouts."""
    return Product(shape, *layouts, dtype="float32", config=config, **options)


@pytest.mark.parametrize("arch", ["a100", "h200"])
@pytest.mark.parametrize(("a", "b"), LAYOUTS, ids=order)
def test_every_pair_of_layouts(a: Layout, b: Layout, arch: str) -> None:
    aligned = product((72, 72, 164), a, b, ROW, arch=arch)
    config = aligned.kernel.config
    assert (config["A_VEC"], config["B_VEC"], config["D_VEC"]) == (4, 4, 2)
    report = aligned.right_report()
    # 9 blocks of 4 warps, 6 k-tiles of 4 steps, 16 x 16 sums: three products of two m16n8k8 each.
    assert report.counters.hmma == 9 * 4 * 6 * 4 * 3 * 2
    assert report.counters.global_store_sectors == 72 * 72 * 4 // 32


@pytest.mark.parametrize(("a", "b"), LAYOUTS, ids=order)
def test_an_odd_pitch_costs_copies_but_no_bank_conflicts(a: Layout, b: Layout) -> None:
    m, n, k = 67, 75, 103
    odd = product((m, n, k), replace(a, start=1), b, ODD)
    assert (odd.kernel.config["A_VEC"], odd.kernel.config["B_VEC"], odd.kernel.config["D_VEC"]) == (1, 1, 1)
    report = odd.right_report(schedule=1)
    # Every element of A for each of 3 columns of tiles, and of B for each of 3 rows of tiles, 4 bytes at once.
    assert report.counters.cp_async_bytes == 3 * (m * k + k * n) * 4
    assert report.counters.global_load_requests == 0


@pytest.mark.parametrize(
    ("arch", "config"),
    [(arch, config) for arch in ("h200", "rtx4090") for config in shapes(ARCHES[arch], F32)],
    ids=lambda x: x if isinstance(x, str) else f"{x['BM']}x{x['BN']}",
)
def test_every_tile_shape(arch: str, config: Config) -> None:
    tried = product((config["BM"] + 2, config["BN"] + 2, 166), COLUMN, ROW, ROW, arch=arch, config=config)
    tried.right_report()


@pytest.mark.parametrize(("bk", "sum_k"), [(16, 8), (32, 8), (64, 32)])
def test_sums_of_fewer_terms(bk: int, sum_k: int) -> None:
    tried = product((34, 38, 132), ROW, COLUMN, ROW, config=split_tile(32, 32, bk, 2, 2, stages=2, sum_k=sum_k))
    tried.right_report()


@pytest.mark.parametrize("parts", [2, 3])
def test_every_rest_of_k_in_every_slice(parts: int) -> None:
    for k in range(SHORTEST_K, SHORTEST_K + 33):
        tried = product((18, 17, k), ROW, COLUMN, ROW, parts=parts)
        assert all(report.ok for report in tried.run())
        assert tried.right(), k


#: Numbers that splitting must not change the answer of, by the factor of all other elements. The largest ones overflow
#: in pieces alone, or in the sum as they do by FMA.
NUMBERS = (
    (np.inf, 1.0),
    (-np.inf, 1.0),
    (np.nan, 1.0),
    (0.0, 1.0),
    (-0.0, 1.0),
    (3.4e38, 1.0),
    (3.4e38, 2.0**60),
    (2.0**-126, 2.0**-20),
    (2.0**-149, 1.0),
    (2.0**127, 2.0**-126),
)


@pytest.mark.parametrize("side", "AB")
@pytest.mark.parametrize(("number", "scale"), NUMBERS, ids=str)
@pytest.mark.parametrize("parts", [1, 2])
def test_numbers_at_the_ends_of_the_range(number: float, scale: float, side: str, parts: int) -> None:
    tried = product((35, 39, 99), ROW, COLUMN, ROW, parts=parts)
    a, b = (tried.product.arrays[name][0] for name in "AB")
    a *= np.float32(scale)
    b *= np.float32(scale)
    (a if side == "A" else b.T)[33, 70] = number
    assert all(report.ok for report in tried.run())
    result = tried.product.arrays["D"][0]
    with np.errstate(all="ignore"):
        expected = -1.5 * np.matmul(a.astype(np.float64), b.astype(np.float64))
        limit = reference.bound(a[None], b[None], alpha=-1.5)[0]
        rounded = expected.astype(np.float32)
    assert tried.product.untouched()
    assert np.array_equal(np.isnan(result), np.isnan(rounded))
    special = ~np.isfinite(rounded)
    assert np.array_equal(result[special], rounded[special], equal_nan=True)
    finite = ~special
    assert (np.abs(result[finite] - expected[finite]) <= limit[finite] + 2.0**-149).all()


def test_opposite_infinities_make_nan_and_zeros_make_zero() -> None:
    tried = product((33, 8, 90), ROW, ROW, ROW)
    a, b = (tried.product.arrays[name][0] for name in "AB")
    b[...] = 1
    a[...] = 0
    a[3, [5, 60]] = np.inf, -np.inf
    a[4, [5, 60]] = np.inf, np.inf
    a[5] = -0.0
    assert all(report.ok for report in tried.run())
    result = tried.product.arrays["D"][0]
    assert np.isnan(result[3]).all()
    assert (result[4] == -np.inf).all()
    assert not np.delete(result, [3, 4], axis=0).any()
