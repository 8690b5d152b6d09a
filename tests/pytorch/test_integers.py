"""Integer tensors of torch: their products on the host, and what enable() leaves to torch."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

import matmill
from support.integers import INTEGERS, exact, random

torch: Any = pytest.importorskip("torch")
mt: Any = import_module("matmill.torch")


@pytest.mark.parametrize("name", INTEGERS)
def test_tensors_on_the_host(name: str) -> None:
    a, b = random(0, 6, 7, dtype=name), random(1, 7, 5, dtype=name)
    left, right = torch.from_numpy(a), torch.from_numpy(b)
    result = matmill.matmul(left, right, executor="cpu")
    answer = exact(a, b)
    assert result.dtype is getattr(torch, answer.dtype.name)
    assert (result.numpy() == answer).all()
    out = torch.zeros(result.shape, dtype=result.dtype)
    assert matmill.matmul(left, right, out=out, out_dtype=out.dtype, executor="emulator") is out
    assert (out.numpy() == answer).all()
    assert (matmill.matmul(left.mT.mT, right, c=out, beta=-1, executor="cpu") == 0).all()


@pytest.mark.parametrize("name", ["int8", "uint8", "int32", "int64"])
def test_torch_keeps_its_own_integer_products(decided: Any, name: str) -> None:
    a, b = (torch.from_numpy(random(seed, 16, 16, dtype=name)) for seed in (0, 1))
    theirs = a @ b
    with mt.enable():
        torch.mm(a.float(), b.float())
        assert decided.ours.pop()  # the others would be there too
        mine = a @ b
        assert (torch.mm(a, b) == theirs).all()
        assert (torch.bmm(a[None], b[None])[0] == theirs).all()
    assert decided.ours == []
    assert mine.dtype is theirs.dtype
    assert (mine == theirs).all()
