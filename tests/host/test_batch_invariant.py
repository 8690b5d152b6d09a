"""Batch-invariant sums: which kernels have them, by their configurations, and that no choice depends on m."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import matmill
from matmill.analysis.explain import explain
from matmill.arch import get
from matmill.choose import Preference, choose, choose_by_models, entries, forget, prefer
from matmill.cli.shapes import operand, product_stages
from matmill.dispatch.gemm import checked_options
from matmill.dtypes import ALL, F32_IN_F64, DType
from matmill.errors import ArgumentError
from matmill.invariant import slice_terms
from matmill.kernel import Kernel, ceil_div
from matmill.kernels.splitk import LOADED_SLICES
from matmill.problem import Epilogue, Gemm
from matmill.registry import PRODUCTION
from support.strided import H200
from support.summation import as_tree, terms_of

BF16, F16, F32, F64 = (ALL[name] for name in ("bfloat16", "float16", "float32", "float64"))
#: The rows and columns of layers, and some that no tile divides.
LAYERS = ((4096, 4096), (4096, 11008), (768, 3072), (50257, 768), (333, 777), (1024, 4096), (64, 4096), (10, 4096))
#: The constants of configurations that sums may depend on.
_CONSTANTS = ("SPLIT_K", "CLUSTER_K", "PROMOTED", "CHAINS", "BK", "SLICES", "SUM_K", "PIECES", "MMA_K")


def batch_invariant(problem: Gemm) -> Gemm:
    return replace(problem, slice_k=slice_terms(problem.n, problem.k, problem.dtype, problem.precision))


def kinds(problem: Gemm, arch: str) -> list[Kernel[Gemm]]:
    """Return a legal kernel with each combination of the constants that its order may depend on."""
    legal = (kernel for entry in entries(problem) for kernel in entry.legal(problem, get(arch)))
    by_kind: dict[Hashable, Kernel[Gemm]] = {}
    for kernel in legal:
        by_kind.setdefault((kernel.entry, *(kernel.config.get(name) for name in _CONSTANTS)), kernel)
    return list(by_kind.values())


@given(
    st.tuples(st.integers(1, 300), st.integers(1, 300), st.integers(1, 360)),
    st.sampled_from([(F16, "default"), (BF16, "high"), (F32, "default"), (F32, "tf32"), (F32, "fp16x3"),
                     (F32, "float32_tensor"), (F64, "default"), (F32_IN_F64, "default")]),
    st.sampled_from([1, 1, 1, 2, 4]),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.sampled_from([Epilogue(), Epilogue("row", activation="gelu")]),
    st.sampled_from([1, 3]),
)  # fmt: skip
@settings(deadline=None)
def test_all_legal_kernels_add_in_one_order(  # noqa: PLR0917 — drawn
    sizes: tuple[int, int, int],
    elements: tuple[DType, str],
    slices: int,
    layout: tuple[bool, bool, bool],
    epilogue: Epilogue,
    batch: int,
) -> None:
    (m, n, k), (dtype, precision) = sizes, elements
    by_tensor_cores = dtype.itemsize == 2 or precision == "tf32"
    step = 128 // dtype.itemsize if by_tensor_cores else 32
    sliced = slices > 1 and (by_tensor_cores or dtype in {F32, F32_IN_F64}) and precision in {"default", "tf32"}
    own = ceil_div(ceil_div(k, step), slices) * step if sliced else k
    if by_tensor_cores and ceil_div(k, step) % slices:
        own = k
    a_column, b_column, aligned = layout
    align = 16 if aligned else dtype.itemsize
    problem = Gemm(
        m, n, k, dtype, batch=batch, a_strides=(1, m) if a_column else (k, 1), b_strides=(1, k) if b_column else (n, 1),
        a_align=align, b_align=align, d_align=align, epilogue=epilogue, precision=precision, slice_k=own,
        out_dtype=F64 if dtype is F32_IN_F64 else None,
    )  # fmt: skip
    legal = kinds(problem, "h200")
    assert legal
    assert len({as_tree(terms_of(kernel, problem)) for kernel in legal}) == 1


@pytest.mark.parametrize("arch", ["h200", "a100", "t4", "rtx4090"])
@pytest.mark.parametrize("dtype", [F16, F32, F64], ids=lambda x: x.name)
def test_every_layout_has_a_kernel_on_every_gpu(dtype: DType, arch: str) -> None:
    for n, k in ((64, 3072), (333, 777), (3, 1), (130, 0)):
        for m in (1, 70, 300):
            for strides, align in (((k or 1, 1), 16), ((1, m), dtype.itemsize), ((2 * k + 3, 2), dtype.itemsize)):
                problem = batch_invariant(Gemm(m, n, k, dtype, a_strides=strides, a_align=align))
                assert choose(problem, arch).kernel.why_not(problem, get(arch)) is None


def _bounds(kernel: Kernel[Gemm], problem: Gemm) -> tuple[Hashable, ...]:
    """Return where slices begin, and how terms of one are added, as the kernel's code has it."""
    config, k = kernel.config, problem.k
    if kernel.entry == "wgmma_gemm":
        steps, slices = ceil_div(k, config["BK"]), config["SPLIT_K"] * config["CLUSTER_K"]
        own = config["PROMOTED"] or steps
        firsts = range(0, steps, own) if slices == 1 else [steps * index // slices for index in range(slices)]
        return "mma", config["CHAINS"], tuple(first * config["BK"] for first in firsts)
    if kernel.entry == "hgemm":
        own = ceil_div(ceil_div(k, config["BK"]), config["SPLIT_K"]) * config["BK"]
        return "fma" if problem.dtype is F64 else "mma", 1, tuple(range(0, k, own))
    assert kernel.entry in {"gemm_slices", "short_k"}
    fma = kernel.entry == "gemm_slices" or problem.dtype.itemsize > 2
    return "fma" if fma else "mma", 1, tuple(range(0, k, problem.slice_k))


@pytest.mark.parametrize(("dtype", "precision"), [(F16, "default"), (F32, "default"), (F64, "default"), (F32, "tf32")])
@pytest.mark.parametrize(("n", "k"), LAYERS)
def test_the_choice_for_every_m_has_one_order(
    n: int, k: int, dtype: DType, precision: str, request: pytest.FixtureRequest
) -> None:
    every = range(1, 4097) if request.config.getoption("--exhaustive") else (*range(1, 70, 9), 129, 257, 1000, 4096)
    results = set()
    for m in every:
        problem = batch_invariant(Gemm(m, n, k, dtype, b_strides=(1, k), precision=precision))
        results.add(_bounds(choose_by_models(problem, H200).kernel, problem))
    assert len(results) == 1


@given(st.integers(0, 60000), st.integers(0, 60000), st.sampled_from([F16, F32, F64]), st.booleans())
def test_slices_are_those_that_kernels_have(n: int, k: int, dtype: DType, rounds: bool) -> None:
    precision = "tf32" if rounds and dtype is F32 else "default"
    own = slice_terms(n, k, dtype, precision)
    slices = max(1, ceil_div(k, own))
    assert slices <= LOADED_SLICES, "one thread adds an output's partial sums, in order"
    if dtype is F16 or precision == "tf32":
        step = 128 // dtype.itemsize
        assert slices == 1 or ceil_div(k, step) * step == slices * own
    else:
        assert slices == 1 or own % 32 == 0


@pytest.mark.parametrize(("dtype", "align"), [(F16, 16), (F16, 2), (F32, 16), (F64, 16)])
def test_other_slices_are_ruled_out(dtype: DType, align: int) -> None:
    problem = Gemm(64, 64, 3072, dtype, a_align=align, b_align=align, slice_k=3072 if dtype is F64 else 768)
    legal = kinds(problem, "h200")
    assert legal
    for kernel in legal:
        other = kernel.with_config(kernel.config.launched(SPLIT_K=3))
        assert other.why_not(problem, H200) is not None


@pytest.mark.parametrize("dtype", [F16, F32])
def test_no_rows_decide_about_slices(dtype: DType) -> None:
    options = checked_options(None, None, None, dtype, batch_invariant=True)
    slices = {
        stage.problem.slice_k
        for shape in ("1x3072", "40000x3072", "5x7x3072", "5x1x3072", "64x3072T")
        for stage in product_stages(operand(shape, dtype, 1), operand("3072x768", dtype, 2), options)
    }
    assert slices == {slice_terms(768, 3072, dtype)}


def test_kernels_with_an_order_of_their_own_are_ruled_out() -> None:
    by_entry = {entry.kernel.entry: entry for entry in PRODUCTION}
    for name, m in (("gemm", 300), ("thin", 300), ("inner", 64)):
        problem = Gemm(m, 16, 4096, F32, b_strides=(1, 4096))
        assert list(by_entry[name].legal(problem, H200))
        assert not list(by_entry[name].legal(batch_invariant(problem), H200))


def test_a_preference_is_for_one_of_both_orders() -> None:
    problem = Gemm(64, 768, 3072, F16, b_strides=(1, 3072))
    other = batch_invariant(problem)
    config = next(kernel for kernel in kinds(other, "h200") if kernel != choose(other, H200).kernel)
    try:
        prefer(other, H200, Preference(config.entry, str(config.config), 1e-6, 2e-6))
        assert choose(other, H200).kernel == config
        assert choose(problem, H200) == choose_by_models(problem, H200)
        plain = choose(problem, H200).kernel
        prefer(other, H200, Preference(plain.entry, str(plain.config), 1e-6, 2e-6))
        assert choose(other, H200).kernel == choose_by_models(other, H200).kernel
    finally:
        forget()


def test_why_says_what_it_costs() -> None:
    problem = batch_invariant(Gemm(1, 4096, 4096, F16, b_strides=(1, 4096)))
    result = explain(problem, H200)
    assert result.free_seconds == choose(replace(problem, slice_k=0), H200).predicted_seconds < result.chosen.seconds
    assert explain(replace(problem, slice_k=0), H200).free_seconds is None


def test_only_a_truth_value_is_an_option() -> None:
    with pytest.raises(ArgumentError, match="batch_invariant: got 'yes'; wanted True or False"):
        matmill.matmul(np.ones((2, 2)), np.ones((2, 2)), batch_invariant="yes")  # type: ignore[call-overload]
    assert checked_options(None, None, None, F32, batch_invariant=True).batch_invariant


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("right", [(70, 33), (70,), (2, 70, 33)])
def test_rows_on_the_host_have_the_same_bits(dtype: str, right: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((2, 90, 70), right))
    bias = None if len(right) == 1 else rng.standard_normal(33).astype(dtype)
    multiply: Callable[..., np.ndarray] = partial(matmill.matmul, executor="cpu", batch_invariant=True, bias=bias)
    whole = multiply(a, b)
    assert np.allclose(whole, a @ b + (0 if bias is None else bias), atol=0.1 if dtype == "float16" else 1e-4)
    for first, last in ((0, 1), (3, 20), (89, 90)):
        rows = np.asfortranarray(a[:, first:last])
        assert multiply(rows, b).tobytes() == whole[:, first:last].tobytes()
        own = b[1] if len(right) == 3 else b
        assert multiply(rows[1], own).tobytes() == whole[1, first:last].tobytes()
