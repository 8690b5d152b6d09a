"""matmul through the production kernel's own PTX: every shape, stride and factor, and no race or hazard."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from matmill import arch
from matmill.choose import choose
from matmill.dtypes import ALL
from matmill.emulator import Memory
from matmill.problem import Gemm
from matmill.reference import check

Array = NDArray[Any]


def _random(seed: int, *shape: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _emulate(*args: Any, **options: Any) -> Any:
    return matmill.matmul(*args, executor="emulator", **options)


# -- inner, and 16-bit types ------------------------------------------------------------------------------------------


def _cast(seed: int, *shape: int, dtype: str) -> Array:
    return _random(seed, *shape, dtype="float64").astype(ALL[dtype].numpy)


@pytest.mark.parametrize("dtype", ALL)
def test_a_transpose_in_the_same_memory_is_read_once(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[str] = []
    bind = Memory.bind

    def noted(self: Memory, name: str, *args: Any, **options: Any) -> Any:
        bound.append(name)
        return bind(self, name, *args, **options)

    monkeypatch.setattr(Memory, "bind", noted)
    for e in (_cast(0, 5, 333, dtype=dtype), _cast(0, 666, 5, dtype=dtype)[::-2].T, _cast(0, 2, 4, 65, dtype=dtype)):
        f = np.swapaxes(e, -1, -2)
        bound.clear()
        result = _emulate(e, f)
        assert bound == ["D", "A", "workspace"]
        assert check(result, e, f).ok
        assert result.tobytes() == np.ascontiguousarray(np.swapaxes(result, -1, -2)).tobytes()


@pytest.mark.parametrize(
    ("dtype", "n", "k", "entry", "vector"),
    [("float32", 150, 800, "gemm", 1), ("float32", 152, 800, "gemm", 4), ("float64", 150, 700, "hgemm", 2)],
)
def test_few_tiles_and_a_long_k_are_split_over_blocks(dtype: str, n: int, k: int, entry: str, vector: int) -> None:
    a, b, c = _random(3, 133, k, dtype=dtype), _random(4, k, n, dtype=dtype), _random(5, 133, n, dtype=dtype)
    kernel = choose(Gemm(133, n, k, ALL[dtype], has_c=True), arch.get(arch.DEFAULT)).kernel
    assert (kernel.entry, kernel.config["D_VEC"]) == (entry, vector)
    assert kernel.config["SPLIT_K"] > 1
    result = _emulate(a, b, c=c, alpha=-1.5, beta=0.5)
    assert check(result, a, b, c, alpha=-1.5, beta=0.5).ok
    # The parts are added in fixed order, and in the same for (i, j) and (j, i).
    assert np.array_equal(result, _emulate(a, b, c=c, alpha=-1.5, beta=0.5))
    gram = _emulate(a, a.T)
    assert np.array_equal(gram, gram.T)
