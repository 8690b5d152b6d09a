"""A cost model says the same of many configurations at once as of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matmill.arch import get
from matmill.config import Columns
from matmill.dtypes import ALL, F16, F32
from matmill.kernel import Production
from matmill.problem import NO_EPILOGUE, Epilogue, Geam, Gemm, View
from matmill.registry import PRODUCTION, TRANSPOSE_ADD_KERNELS
from support.examples import examples

_DTYPES = list(ALL.values())
_EXTENTS = st.one_of(st.integers(1, 70), st.sampled_from([128, 197, 1000, 4096, 50257, 2**22]))


def _agree(models: tuple[Production[Any], ...], problem: Any, arch: str) -> None:
    gpu = get(arch)
    for model in models:
        configs = [kernel.config for kernel in model.legal(problem, gpu)]
        single = [model.explain(problem, config, gpu).seconds for config in configs]
        assert model.predict(problem, configs, gpu) == pytest.approx(single, rel=1e-12)
        if model.least is not None and single:  # what a choice leaves kernels out by
            assert model.least(problem, gpu) <= (1 + 1e-9) * min(single)
        if configs:
            columns = model.columns(problem, gpu)  # as a choice asks for them: tiles, and launches of each
            with np.errstate(all="ignore"):
                predicted = dict(zip(columns.configs, model.predict(problem, columns, gpu), strict=True))
            assert [predicted[config] for config in configs] == pytest.approx(single, rel=1e-12)
            together = model.explain(problem, Columns(configs), gpu)
            for index, config in enumerate(configs):
                terms = model.explain(problem, config, gpu).terms
                many = {name: np.broadcast_to(value, len(configs))[index] for name, value in together.terms.items()}
                assert many == pytest.approx(dict(terms), rel=1e-12)


@given(
    m=_EXTENTS, n=_EXTENTS, k=_EXTENTS,
    dtype=st.sampled_from(_DTYPES), batch=st.sampled_from([1, 1, 12, 4096]),
    aligned=st.booleans(), transposed=st.booleans(),
    precision=st.sampled_from(["default", "high", "tf32"]), arch=st.sampled_from(["h200", "a100", "t4"]),
    epilogue=st.sampled_from([NO_EPILOGUE, Epilogue(activation="relu")]),
)  # fmt: skip
@examples(25)
def test_products(
    *, m: int, n: int, k: int, dtype: Any, batch: int, aligned: bool, transposed: bool, precision: str, arch: str,
    epilogue: Epilogue,
) -> None:  # fmt: skip
    align = 16 if aligned else dtype.itemsize
    precision = "default" if precision == "tf32" and dtype is not F32 else precision
    strides = (1, m) if transposed else None
    problem = Gemm(
        m, n, k, dtype, batch=batch, a_align=align, b_align=align, a_strides=strides, precision=precision,
        epilogue=epilogue,
    )  # fmt: skip
    _agree(PRODUCTION, problem, arch)


@given(
    m=_EXTENTS, n=_EXTENTS, dtype=st.sampled_from(_DTYPES), batch=st.sampled_from([1, 70]), added=st.booleans(),
    align=st.sampled_from([1, 4, 16]),
)  # fmt: skip
@examples(15)
def test_transposes(*, m: int, n: int, dtype: Any, batch: int, added: bool, align: int) -> None:
    align = max(align, dtype.itemsize)
    rows, columns = View((n, 1), m * n, align, align), View((1, m), m * n, align, align)
    _agree(TRANSPOSE_ADD_KERNELS, Geam(m, n, dtype, columns, rows if added else None, rows, batch), "h200")


@pytest.mark.parametrize("dtype", [F16, F32])
@pytest.mark.parametrize("k", [700, 40_000])
def test_tiles_with_few_slices_and_with_many(dtype: Any, k: int) -> None:
    _agree(PRODUCTION, Gemm(24, 17, k, dtype, a_align=4, b_align=4), "h200")


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 64), (16, 4096, 512), (4096, 4096, 64), (1024, 8, 4096)])
def test_aligned_products(dtype: Any, m: int, n: int, k: int) -> None:
    _agree(PRODUCTION, Gemm(m, n, k, dtype), "h200")


def test_no_configuration_is_no_prediction() -> None:
    assert [model.predict(Gemm(8, 8, 8, F16), [], get("h200")) for model in PRODUCTION] == [[] for _ in PRODUCTION]
