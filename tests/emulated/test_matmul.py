"""matmul through the production kernel's own PTX: every shape, stride and factor, and no race or hazard."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from matmill import arch
from matmill.arrays import inspect
from matmill.choose import choose
from matmill.dtypes import ALL
from matmill.emulator import Memory, run
from matmill.lowering import lower_gemm
from matmill.plan import prepare
from matmill.problem import Gemm
from matmill.reference import check

Array = NDArray[Any]


def _random(seed: int, *shape: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _emulate(*args: Any, **options: Any) -> Any:
    return matmill.matmul(*args, executor="emulator", **options)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("late_copies", [False, True])
@pytest.mark.parametrize("sizes", [(33, 65, 40), (128, 64, 64)])
def test_the_kernel_has_no_race(sizes: tuple[int, int, int], dtype: str, late_copies: bool) -> None:
    m, n, k = sizes
    a, b, c = _random(0, m, k, dtype=dtype), _random(1, k, n, dtype=dtype), _random(2, m, n, dtype=dtype)
    d = np.full((m, n), np.nan, dtype)
    memory = Memory()
    pointers = [
        memory.bind(name, x, access=access)
        for name, x, access in (("A", a, "r"), ("B", b, "r"), ("C", c, "r"), ("D", d, "w"))
    ]
    operands = [
        inspect(x, "x")._replace(address=pointer.address) for x, pointer in zip((a, b, c, d), pointers, strict=True)
    ]
    (ready,) = prepare(lower_gemm(*operands), arch.get("h200"))
    places = [pointer.address for pointer in pointers]
    (launch,) = ready.launches((places[0], places[1], places[2], places[3], 0, 0, 0), alpha=0.5, beta=2.0)
    for schedule in (0, 1):
        d[...] = np.nan
        report = run(ready.ptx[0], launch, memory, late_copies=late_copies, schedule=schedule)
        assert not report.hazards
        assert check(d, a, b, c, alpha=0.5, beta=2.0).ok


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
    [("float32", 150, 1500, "gemm", 1), ("float32", 152, 1500, "gemm", 4), ("float64", 150, 700, "hgemm", 2)],
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
