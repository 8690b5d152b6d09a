"""float32 in pieces: products, configurations, the workspace, tensor maps, the cost of splitting, and the choice."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from matmill.arch import get
from matmill.choose import choose
from matmill.config import Columns
from matmill.dtypes import F16, F32, F64
from matmill.kernel import GemmOperands, Kernel
from matmill.kernels.pieces import METHODS, MOST_BYTES, Pieces, as_split, in_pieces, piece_type
from matmill.kernels.pieces.cost import Splitting, pieces_of
from matmill.kernels.shared.exchange import exchanged
from matmill.kernels.shared.model import PRICES
from matmill.kernels.wgmma import WGMMA
from matmill.kernels.wgmma.cost import explain
from matmill.kernels.wgmma.maps import tensor_maps
from matmill.kernels.wgmma.space import space
from matmill.kernels.wgmma.tiles import Shape, configured, unaligned
from matmill.launch import Pointer, TensorMap
from matmill.precision import SHORTEST_K
from matmill.problem import Gemm
from support.strided import H200

LARGE = Gemm(4096, 4096, 4096, F32, precision="float32_tensor")
SQUARE = Shape(128, 128, 2)
COLUMNS = {"a_strides": (1, 4096), "b_strides": (1, 4096)}
WORKSPACE = Pointer("workspace", 1 << 20)
OPERANDS = GemmOperands(
    Pointer("A", 4096), Pointer("B", 8192), Pointer("C", 0), Pointer("D", 16384), workspace=WORKSPACE
)


def kernel(problem: Gemm, method: str, shape: Shape = SQUARE) -> Kernel[Gemm]:
    """Return the kernel with a tile for a problem in pieces."""
    return WGMMA.with_config(configured(shape, problem, H200, pieces=1 + METHODS.index(method)))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": F16, "precision": "default"}, "precision 'default' does not allow pieces by"),
        ({"dtype": F64, "precision": "default"}, "float64 is not float16, bfloat16 or float32"),
        ({"precision": "default"}, "wgmma rounds float32 to tf32, which precision='tf32' allows, or multiplies pieces"),
        ({"precision": "tf32"}, "precision 'tf32' does not allow pieces by"),
        ({"k": SHORTEST_K - 1}, "FMA is as exact for k < 86, and needs no pieces"),
        ({"m": 2**17, "k": 2**17}, f"> {MOST_BYTES} bytes"),
    ],
)
def test_products_that_are_not_split(change: dict[str, object], words: str, method: str) -> None:
    config = kernel(LARGE, method).config
    reason = WGMMA.with_config(config).why_not(replace(LARGE, **change), H200)  # type: ignore[arg-type]
    assert reason is not None
    assert words in reason


def test_each_precision_has_its_methods() -> None:
    for precision, methods in (("fp16x3", {1}), ("tf32x3", {2}), ("float32_tensor", {1, 2})):
        problem = replace(LARGE, precision=precision)
        assert {config["PIECES"] for config in space(problem, H200)} == methods
        for index, method in enumerate(METHODS, 1):
            assert (kernel(problem, method).why_not(problem, H200) is None) == (index in methods)
    whole = WGMMA.with_config(configured(SQUARE, replace(LARGE, precision="tf32"), H200))
    assert whole.why_not(LARGE, H200) == "precision 'float32_tensor' multiplies pieces"


@pytest.mark.parametrize("method", METHODS)
def test_configurations_that_have_no_pieces(method: str) -> None:
    split = kernel(LARGE, method)
    for change in ({"SPLIT_K": 2}, {"REPACK_A": 1}, {"REPACK_B": 1}, {"A_IN_REGISTERS": 1}):
        reason = split.with_config(split.config.replace(**change)).why_not(LARGE, H200)
        assert reason is not None, change
    few = split.config.replace(STAGES=3)
    assert split.with_config(few).why_not(LARGE, H200) == "3 stages < 4 leave nothing in flight"
    wide = kernel(LARGE, method, Shape(128, 256, 2)).why_not(LARGE, H200)
    assert wide == "256 accumulators per thread > 192"


def test_a_gpu_without_wgmma() -> None:
    assert kernel(LARGE, "fp16x3").why_not(LARGE, get("a100")) == "wgmma needs compute capability 9.0: a100 has 8.0"
    assert choose(LARGE, get("a100")).kernel.entry == "hgemm"
    assert choose(replace(LARGE, precision="fp16x3"), get("a100")).kernel.entry == "gemm"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("layout", [{}, COLUMNS], ids=["rows", "columns"])
def test_the_workspace(layout: dict[str, tuple[int, int]], method: str) -> None:
    """Parts follow one another on 256 bytes, none overlaps the next, and the last one ends with the workspace."""
    problem = replace(LARGE, m=100, n=35, k=131, batch=3, a_batch=0, **layout)  # type: ignore[arg-type]
    pieces, size = Pieces.of(problem, method), piece_type(method).itemsize
    exponents = (100, 3 * 35) if method == "fp16x3" else (0, 0)
    starts = (0, pieces.a_exponents, pieces.b_exponents, pieces.a_first, pieces.b_first, pieces.nbytes)
    least = (2 * 512 * 4, exponents[0] * 4, exponents[1] * 4, pieces.a.nbytes, pieces.b.nbytes)
    for (start, end), nbytes in zip(pairwise(starts), least, strict=True):
        assert start % 256 == 0
        assert nbytes <= end - start < nbytes + 256
    # Runs along k, or as they are in memory, of whole 16 bytes.
    along_k = (True, True) if method == "tf32x3" else (not layout, bool(layout))
    assert (pieces.a.along_k, pieces.b.along_k) == along_k
    for matrix, extent, count in ((pieces.a, 100, 1), (pieces.b, 35, 3)):
        runs, length = (extent, 131) if matrix.along_k else (131, extent)
        assert matrix.nbytes == 2 * count * runs * -(-length * size // 16) * 16
    _, operands = as_split(problem, kernel(problem, method).config, OPERANDS)
    assert (operands.a_first * size, operands.b_first * size) == (pieces.a_first, pieces.b_first)
    assert kernel(problem, method).workspace(problem) == pieces.nbytes


@pytest.mark.parametrize("method", METHODS)
def test_a_gram_matrix_has_one_pair_of_pieces(method: str) -> None:
    gram = replace(LARGE, gram=True, m=100, n=100, k=200)
    pieces = Pieces.of(gram, method)
    assert pieces.is_shared
    assert pieces.b_first == pieces.a_first
    assert pieces.b_exponents == pieces.a_exponents
    assert pieces.blocks[1] == 0
    product, _ = as_split(gram, kernel(gram, method).config, OPERANDS)
    assert pieces.exponents_between == 0
    assert product.a_row_col == product.b_row_col[::-1]
    assert not Pieces.of(exchanged(gram), method).is_shared


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("batch", [1, 3])
def test_tensor_maps(batch: int, method: str) -> None:
    """Of each product the second piece follows the first; of a matrix that all share there are two."""
    problem = replace(LARGE, m=300, n=200, k=331, batch=batch, b_batch=0)
    split = kernel(problem, method)
    product, operands = as_split(problem, split.config, OPERANDS)
    pieces, size, element = Pieces.of(problem, method), product.dtype.itemsize, split.config["BK"]
    a, b, _ = tensor_maps(product, split.config, operands)
    assert a == TensorMap(
        WORKSPACE, "float16" if method == "fp16x3" else "tfloat32", (331, 300, 2 * batch),
        (pieces.a.piece.pitch * size, 300 * pieces.a.piece.pitch * size), (element, 128, 1), 128, promotion=128,
        first=pieces.a_first,
    )  # fmt: skip
    assert (b.first, b.sizes[2], b.box) == (pieces.b_first, 2, (element, 128, 1) if size == 4 else (64, element, 1))
    assert b.sizes[:2] == ((331, 200) if size == 4 else (200, 331))
    assert all(stride % 16 == 0 for one in (a, b) for stride in one.strides)


@pytest.mark.parametrize("method", METHODS)
def test_pieces_of_any_layout_are_aligned(method: str) -> None:
    for strides in ((1, 1001), (1003, 3), (-1001, 1), (1, -1001), (0, 1)):
        odd = replace(LARGE, m=1001, n=1003, k=999, a_strides=strides, a_align=4, b_align=4)
        assert unaligned(in_pieces(odd, method)) == ()


def test_what_splitting_costs() -> None:
    """One launch; each matrix is read once and written as two pieces, and columns take longer."""
    configs = [kernel(LARGE, method).config for method in METHODS]
    configs.append(configured(SQUARE, replace(LARGE, precision="tf32"), H200))
    counts = Splitting.of(Columns(configs), lambda one: pieces_of(LARGE, one), "EXCHANGED", "PIECES")
    assert np.array_equal(counts.launches, [1, 1, 0])
    fp16, tf32, none = np.asarray(counts.bytes)
    assert fp16 > 2 * 4096**2 * 8  # B has columns
    assert (tf32, none) == (2 * 4096**2 * 12, 0)
    gram = replace(LARGE, gram=True)
    half = Splitting.of(kernel(gram, "tf32x3").config, lambda one: pieces_of(gram, one))
    assert half.bytes == 4096**2 * 12
    bandwidth = H200.dram_bytes_per_s
    seconds = half.seconds(PRICES, bandwidth)
    assert seconds > PRICES.second + half.bytes / bandwidth
    for config in configs[:2]:
        terms = explain(LARGE, config, H200).terms
        assert 0 < terms["split"] < terms["main_loop"]
    # Three products for each, of 16 bits or at half of their rate.
    fp16, tf32 = (explain(LARGE, config, H200).terms["main_loop"] for config in configs[:2])
    assert 1.8 < tf32 / fp16 < 2.2


@pytest.mark.parametrize("precision", ["fp16x3", "tf32x3", "float32_tensor"])
def test_what_is_chosen(precision: str) -> None:
    large = choose(replace(LARGE, precision=precision), H200)
    assert large.kernel.entry == "wgmma_gemm"
    assert METHODS[large.kernel.config["PIECES"] - 1] == ("tf32x3" if precision == "tf32x3" else "fp16x3")
    for small in ({"k": SHORTEST_K - 1}, {"m": 32, "n": 32, "k": 128}, {"m": 1}, {"n": 4, "k": 200}):
        choice = choose(replace(LARGE, precision=precision, **small), H200)  # type: ignore[arg-type]
        assert choice.kernel.instruction not in {"mma.sync", "wgmma"}, small
