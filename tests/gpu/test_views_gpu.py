"""Products of views whose elements start anywhere, on a GPU: a misaligned access would lose the context."""

from __future__ import annotations

from typing import Any

import pytest

import matmill
from matmill.dtypes import ALL
from support.views import check_windows


@pytest.mark.parametrize("name", ALL)
def test_wide_windows(name: str) -> None:
    check_windows(300, 128, 136, name, "gpu")


def test_windows_of_torch(torch: Any) -> None:
    x = torch.arange(200.0, device="cuda")
    ones = torch.ones(16, 3, device="cuda")
    assert torch.equal(matmill.matmul(x.unfold(0, 16, 1), ones), x.unfold(0, 16, 1).contiguous() @ ones)


def test_long_batches(torch: Any) -> None:
    """More products than a grid's second dimension counts, by one launch of a persistent kernel."""
    a, b = (torch.randint(-3, 4, (200_001, 4, 4), device="cuda").float() for _ in range(2))
    assert torch.equal(matmill.matmul(a, b), a @ b)


@pytest.mark.parametrize("sizes", [(3, 3, 300_000), (8, 8, 100_000), (16, 2, 5000), (3000, 1, 2000), (200, 150, 64)])
def test_float64_sums(torch: Any, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    a, b = torch.randn(m, k, device="cuda") + 1000, torch.randn(k, n, device="cuda") + 1000
    got = matmill.matmul(a, b, out_dtype="float64")
    torch.testing.assert_close(got, a.double() @ b.double(), rtol=1e-12, atol=0.0)
