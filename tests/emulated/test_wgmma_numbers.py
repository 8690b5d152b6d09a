"""The warp-specialised kernel's numbers: the tensor cores' sums bit by bit, and every remainder of k in every slice."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from matmill.dtypes import ALL, F32
from matmill.emulator.arith.tensor_core import rule_of
from matmill.kernels.wgmma.tiles import K_BYTES, Shape
from support.strided import COLUMN, ROW, Layout
from support.tensor_core_rule import sum_of_products
from support.wgmma_cases import Case

_NARROW, _SQUARE = Shape(64, 8, 1), Shape(64, 64, 1)
_FACTORS = {"float16": "f16", "bfloat16": "bf16", "float32": "tf32"}


def _spread(case: Case) -> Any:
    """Return the product with factors of very different exponents, which show in what a sum truncates.

    A tf32 has 10 bits.
    """
    trial = case.product()
    rng = np.random.default_rng(7)
    for name in "AB":
        view = trial.arrays[name]
        drawn = (rng.standard_normal(view.shape) * 2.0 ** rng.integers(-6, 4, view.shape)).astype(np.float32)
        if trial.dtype is F32:
            drawn = (drawn.view(np.uint32) & 0xFFFFE000).view(np.float32)
        view[...] = drawn.astype(trial.dtype.numpy)
    return trial


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("name", _FACTORS)
def test_sums_are_those_of_the_tensor_cores_chain_after_chain_and_slice_after_slice(name: str, slices: int) -> None:
    dtype = ALL[name]
    given: dict[str, object] = {"b": COLUMN, "dtype": dtype, "precision": "tf32" if dtype is F32 else "default"}
    step, product = 128 // dtype.itemsize, K_BYTES // dtype.itemsize
    case = Case(name, _NARROW, (64, 8, 6 * step + 8), slices=slices, given={**given, "out_dtype": F32})
    trial = _spread(case)
    trial.emulated(case.kernel(trial.problem), races=False)
    assert trial.excess() <= 1
    a, b = (trial.arrays[one][0].astype(np.float64) for one in "AB")
    rule, steps = rule_of("sm_90a", _FACTORS[name], "f32"), 7
    bounds = [min(steps * index // slices * step, a.shape[1]) for index in range(slices + 1)]
    for row, column in zip(range(0, 64, 5), [*range(8), *range(8)], strict=False):
        total = np.float32(0)
        for first, last in pairwise(bounds):
            chain_of, own = np.arange(last - first) // product % _NARROW.chains, np.float32(0)
            for chain in range(_NARROW.chains):
                left, right = (x[first:last][chain_of == chain].tolist() for x in (a[row], b[:, column]))
                own = np.float32(own + np.float32(sum_of_products(left, right, 0.0, rule)))
            total = np.float32(total + own)
        assert trial.arrays["D"][0, row, column] == total


@pytest.mark.parametrize(
    ("slices", "layout"), [(1, "K-major"), (2, "K-major"), (3, "K-major"), (3, "MN-major")], ids=str
)
def test_every_remainder_of_k(slices: int, layout: str) -> None:
    given: dict[str, object]
    for k in range(129, 193):
        pad = -k % 8  # rows start on 16 bytes, and what follows them is NaN
        if layout == "K-major":
            shape, given = _NARROW, {"a": Layout(pad=pad), "b": Layout(transposed=True, pad=pad)}
        else:
            shape, given = _SQUARE, {"a": COLUMN, "b": ROW}
        case = Case(str(k), shape, (8, 8, k), slices=slices, sms=slices, given=given)
        trial = case.product()
        trial.emulated(case.kernel(trial.problem), races=False)
        assert trial.excess() <= 1, k
