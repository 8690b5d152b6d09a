"""Integer tensors on a GPU: results of the right type, cached plans, workspaces, and torch's own on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import matmill
from matmill.dispatch import fast_path, plan_cache
from matmill.ops import matmul_call
from support.fake_gpu import Tensors
from support.integers import INTEGERS, exact, random


@pytest.mark.parametrize("dtype", INTEGERS)
def test_tensors_on_a_gpu(dtype: str, tensors: Tensors) -> None:
    for turn in range(2):  # the second call takes the plan of the first
        a, b = random(turn, 40, 33, dtype=dtype), random(turn + 5, 33, 20, dtype=dtype)
        answer = exact(a, b)
        result = matmill.matmul(tensors(a), tensors(b))
        assert (result.dtype, result.shape) == (answer.dtype.name, answer.shape)
        assert (result.base == answer).all()
    assert len(plan_cache.calls) == 1
    c = random(9, 40, 20, dtype=answer.dtype.name)
    for alpha, beta in ((-3, 2**31), (2**32 + 1, 0), (0, 1)):
        result = matmill.matmul(tensors(a), tensors(b), c=tensors(c), alpha=alpha, beta=beta)
        assert (result.base == exact(a, b, c, alpha, beta)).all()
    out = tensors(np.full_like(answer, 77))
    assert matmill.matmul(tensors(a), tensors(b), out=out) is out
    assert (out.base == answer).all()


def test_the_fast_path_takes_products_whose_results_have_the_type_of_their_factors(
    tensors: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = {name: (random(0, 8, 8, dtype=name), random(1, 8, 8, dtype=name)) for name in INTEGERS}
    for a, b in pairs.values():
        matmill.matmul(tensors(a), tensors(b))
    answered = []
    repeat = fast_path.repeat

    def noted(*arguments: Any) -> Any:
        result = repeat(*arguments)
        answered.append(result is not None)
        return result

    monkeypatch.setattr(fast_path, "repeat", noted)
    for name, (a, b) in pairs.items():
        assert (matmill.matmul(tensors(a), tensors(b)).base == exact(a, b)).all()
        assert answered.pop() == (np.dtype(name).itemsize > 1)


@pytest.mark.parametrize(("dtype", "entry"), [("int8", "igemm"), ("int64", "gemm")])
def test_the_plan_of_a_call(dtype: str, entry: str, tensors: Tensors) -> None:
    a, b = (tensors(random(seed, 33, 33, dtype=dtype)) for seed in (0, 1))
    d = tensors(np.zeros((33, 33), exact(a.base, b.base).dtype))
    (ready,) = plan_cache.completed(*matmul_call(a, b, out=d)).plan.ready
    assert ready.choice.kernel.entry == entry
