"""What is chosen must not spill: estimates of registers against the assembler, on one GPU for a grid of problems."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import gcd

import pytest

from lab.gemm.shapes import packed
from matmill.arch import get
from matmill.choose import choose, choose_from, choose_transpose_add
from matmill.dtypes import ALL, COMPLEX, F16, F32, F64, TRANSPOSES, DType
from matmill.dtypes import BF16 as HALF
from matmill.jit.source import generate
from matmill.kernels.complex_gemm import tiled
from matmill.kernels.hgemm import HGEMM
from matmill.kernels.hgemm import space as hgemm_space
from matmill.kernels.splitk import SPLITK_REDUCE
from matmill.kernels.transpose.slim import TRANSPOSE_SLIM
from matmill.kernels.transpose.slim import space as slim_space
from matmill.ladders.inner.subject import gram_of, inner_product
from matmill.problem import ACTIVATIONS, Epilogue, Geam, Gemm, View
from matmill.registry import PRODUCTION
from support.compiled import resources

H200 = get("h200")
_INNER = [one for one in PRODUCTION if one.kernel.entry == "inner"]


@pytest.mark.parametrize("dtype", [F32, F64, HALF], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(("m", "n", "k"), [(3, 3, 10**7), (16, 16, 10**6), (17, 9, 10**6 + 1), (64, 64, 10**6)])
def test_inner_products_do_not_spill(m: int, n: int, k: int, dtype: DType) -> None:
    problem = inner_product(m, n, k, dtype, "column")
    for asked in (problem, gram_of(problem)):
        kernel = choose_from(_INNER, asked, H200).kernel
        assert resources(generate(kernel, dtype), H200.target).spill_stores == 0


@pytest.mark.parametrize("layout", ["row", "column"])
@pytest.mark.parametrize(
    ("m", "dtype"),
    [(64, F32), (65, F32), (96, F32), (128, F32), (24, F64), (64, F64), (96, F64), (24, HALF), (65, HALF), (127, HALF)],
    ids=str,
)
def test_wide_inner_products_do_not_spill(m: int, dtype: DType, layout: str) -> None:
    problem = inner_product(m, m, 10**6, dtype, layout)
    kernel = choose_from(_INNER, problem, H200).kernel
    assert resources(generate(kernel, dtype), H200.target).spill_stores == 0, str(kernel.config)


@pytest.mark.parametrize("layout", ["row", "column"])
@pytest.mark.parametrize("m", [13, 65, 100, 127])
def test_inner_products_of_16_bits_and_an_odd_k_do_not_spill(m: int, layout: str) -> None:
    problem = inner_product(m, m, 10**6 + 1, HALF, layout)
    for asked in (problem, gram_of(problem)):
        kernel = choose_from(_INNER, asked, H200).kernel
        assert kernel.config["MMA"] == 1
        assert resources(generate(kernel, HALF), H200.target).spill_stores == 0, str(kernel.config)


@pytest.mark.parametrize("dtype", ALL.values(), ids=lambda dtype: dtype.name)
def test_short_and_thin_products_do_not_spill(dtype: DType) -> None:
    """But for 24 bytes of float64, of which 16 columns keep more sums than there are registers."""
    most = 24 if dtype is F64 else 0
    for problem in (
        *(packed(side, side, side, dtype, batch=20000) for side in (8, 17, 32)),
        *(packed(10**6, n, 64, dtype) for n in (1, 4, 17, 64)),
        *(packed(few, 14336, 4096, dtype, layouts=layouts) for few in (1, 4, 16) for layouts in ("nn", "nt")),
        packed(30, 20, 10, dtype, layouts="tt"),
    ):
        kernel = choose(problem, H200).kernel
        if kernel.entry in {"short_k", "thin"}:
            result = resources(generate(kernel, dtype), H200.target)
            assert result.spill_stores <= most, (str(problem), str(kernel.config))


def transposed(m: int, n: int, dtype: DType, batch: int = 1) -> Geam:
    """Return X transposed plus Y, packed."""
    size = dtype.itemsize
    rows = View((n, 1), m * n, align=gcd(16, n * size, m * n * size))
    return Geam(m, n, dtype, View((1, m), m * n, align=gcd(16, m * size, m * n * size)), rows, rows, batch)


@pytest.mark.parametrize("name", TRANSPOSES)
def test_sums_do_not_spill(name: str) -> None:
    dtype = TRANSPOSES[name]
    for asked in (
        transposed(4096, 4096, dtype),
        transposed(4095, 4097, dtype),
        transposed(16, 16, dtype, batch=100_000),
        transposed(33, 31, dtype, batch=5000),
    ):
        for problem in (asked, replace(asked, y=None)):
            kernel = choose_transpose_add(problem, H200).kernel
            result = resources(generate(kernel, dtype), H200.target)
            assert (result.spill_stores, result.stack) == (0, 0), (str(problem), kernel.config)


@pytest.mark.parametrize("name", TRANSPOSES)
@pytest.mark.parametrize("short", [8, 30])
def test_no_chunk_of_a_slim_matrix_spills(name: str, short: int) -> None:
    dtype = TRANSPOSES[name]
    for long, wide in product((100_000, 100_001), (False, True)):  # with Y: without it there is less to hold
        problem = transposed(*((short, long) if wide else (long, short)), dtype)
        configs = slim_space(problem, H200)
        assert configs
        for config in configs:
            result = resources(generate(TRANSPOSE_SLIM.with_config(config), dtype), H200.target)
            # One register where two chunks are loaded ahead: three blocks that spill it take 0.86 of the time of what
            # came before on an H200 (30 x 3000001 int8, 2026-11-20), and two that do not would hide less.
            most = 4 if config["AHEAD"] > 1 else 0
            assert result.spill_stores <= most, (str(problem), config)
            assert result.stack <= 2 * most


#: Strides of 1024 x 1024 matrices and the bytes that their lines are aligned to: packed either way, and odd starts.
ROWS, COLUMNS, ODD_ROWS, ODD_COLUMNS = (((1024, 1), 16), ((1, 1024), 16), ((1024, 1), 2), ((1, 1024), 2))


@pytest.mark.parametrize(
    ("name", "a", "b"),
    [
        ("t4", ODD_ROWS, ODD_ROWS),
        ("rtx4090", ODD_ROWS, ODD_COLUMNS),
        ("h200", ROWS, COLUMNS),
        ("h200", ROWS, ODD_ROWS),
        ("h200", ODD_COLUMNS, ODD_ROWS),
    ],
)
def test_no_tile_of_16_bit_products_spills(
    name: str, a: tuple[tuple[int, int], int], b: tuple[tuple[int, int], int]
) -> None:
    arch = get(name)
    problem = Gemm(1024, 1024, 1024, F16, a_strides=a[0], b_strides=b[0], a_align=a[1], b_align=b[1])
    for config in hgemm_space(problem, arch):
        if config["SPLIT_K"] == 1:  # one binary serves all
            result = resources(generate(HGEMM.with_config(config), F16), arch.target)
            assert result.spill_stores == 0, str(config)


@pytest.mark.parametrize("dtype", COMPLEX.values(), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(("a", "conjugates"), [(ROWS, ""), (COLUMNS, "a")])
def test_no_tile_of_complex_products_spills(a: tuple[tuple[int, int], int], conjugates: str, dtype: DType) -> None:
    problem = Gemm(1024, 1024, 1024, dtype, a_strides=a[0], conjugates=conjugates)
    for config in tiled.PRODUCTION.space(problem, H200):
        result = resources(generate(tiled.COMPLEX_GEMM_TILED.with_config(config), dtype), H200.target)
        assert (result.spill_stores, result.stack) == (0, 0), str(config)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_no_epilogue_spills(activation: str) -> None:
    problem = Gemm(64, 64, 64, F64, epilogue=Epilogue("row", activation=activation))
    for launch in SPLITK_REDUCE:
        result = resources(generate(launch.of_problem(problem, launch.config), F64), H200.target)
        assert (result.spill_stores, result.stack) == (0, 0), str(launch.config)
