"""Complex tensors on the host: lazily conjugated views as torch's operators make them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

import matmill
from matmill.dtypes import COMPLEX
from matmill.errors import ArgumentError
from matmill.settings import Executor
from support.complex_product import excess

VIEWS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda x: x,
    "conj": lambda x: x.conj(),
    "mH": lambda x: x.mT.contiguous().mH.conj().conj(),
    "mT": lambda x: x.mT.contiguous().mT,
    "slice": lambda x: x.repeat(1, 2)[:, 1::2].resolve_conj().conj(),
}


def random(seed: int, *shape: int, dtype: str) -> Any:
    """Draw a tensor of normal complex numbers."""
    kind: torch.dtype = getattr(torch, dtype)
    return torch.randn(*shape, dtype=kind, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("executor", ["cpu", "emulator"])
@pytest.mark.parametrize("dtype", COMPLEX)
def test_views_are_not_materialised(dtype: str, executor: Executor) -> None:
    left, right, added = random(0, 9, 12, dtype=dtype), random(1, 12, 7, dtype=dtype), random(2, 9, 7, dtype=dtype)
    for p, q, r in product(VIEWS.values(), repeat=3):
        a, b, c = p(left), q(right), r(added)
        values = [x.resolve_conj().numpy() for x in (a, b, c)]
        plain = matmill.matmul(a, b, executor=executor)
        assert not plain.is_conj()
        assert excess(plain.numpy(), *values[:2]) <= 1
        if r is not VIEWS["slice"]:
            result = matmill.matmul(a, b, c=c, beta=1 - 2j, executor=executor)
            assert excess(result.numpy(), *values, beta=1 - 2j) <= 1


@pytest.mark.parametrize("executor", ["cpu", "emulator"])
def test_inner_of_a_matrix_and_its_conjugate(executor: Executor) -> None:
    e = random(0, 5, 400, dtype="complex64")
    for f in (e.mH, e.mT):
        assert excess(matmill.inner(e, f, executor=executor).numpy(), e.numpy(), f.resolve_conj().numpy()) <= 1
    conjugate = e.conj().resolve_conj().numpy()
    assert excess(matmill.inner(e.conj(), executor=executor).numpy(), conjugate, conjugate.T) <= 1


def test_nothing_is_written_to_conjugates() -> None:
    a = random(0, 3, 3, dtype="complex64")
    out = torch.zeros(3, 3, dtype=torch.complex64)
    with pytest.raises(ArgumentError, match=r"out: got a lazily conjugated view"):
        matmill.matmul(a, a, out=out.conj())
    assert not out.any()
    assert matmill.matmul(a, a, out=out) is out
    assert excess(out.numpy(), a.numpy(), a.numpy()) <= 1
