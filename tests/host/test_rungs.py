"""Descriptors of the SGEMM and memory ladders: complete, honest about what they take, and cheap in registers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from matmill import arch
from matmill.config import Config
from matmill.dtypes import F32, F64
from matmill.jit.compile import Resources, compile_ptx
from matmill.jit.source import generate, read_source
from matmill.kernel import GemmOperands, Kernel, P, Rung, ceil_div
from matmill.ladders import documents
from matmill.ladders.memory.rungs import FILL, MEMORY, PRODUCT, Fill, filled
from matmill.ladders.packed import reported
from matmill.ladders.sgemm.rungs import SGEMM
from matmill.launch import Pointer
from matmill.problem import Gemm
from support.compiled import resources

H200 = arch.get("h200")
TARGETS = ("sm_75", "sm_90a")
BY_LABEL = {rung.label: rung for rung in SGEMM}
ANY_SHAPE = ("naive", "multi(1)", "multi(2)", "multi(4)", "multi(8)")

# Rows and columns of C that one block makes, and the step of k, as the source documents give them.
TILES = {
    "naive": (32, 32, 1),
    **{f"multi({x})": (8, 32 * x, 1) for x in (1, 2, 4, 8)},
    **{f"shared({x})": (x, x, x) for x in (8, 16, 32)},
    **{f"granularity({x})": (16, 16 * x, 16) for x in (1, 2, 4)},
    **{f"ilp({x})": (32, 32, 32) for x in (1, 2, 4, 8, 16)},
    "volkov": (256, 64, 64),
    "register-tile": (128, 128, 16),
    "conflict-free": (256, 128, 16),
}
BLOCKS = {
    "naive": (32, 32, 1),
    **{f"multi({x})": (32, 8, 1) for x in (1, 2, 4, 8)},
    **{f"shared({x})": (x, x, 1) for x in (8, 16, 32)},
    **{f"granularity({x})": (16, 16, 1) for x in (1, 2, 4)},
    **{f"ilp({x})": (32, 32 // x, 1) for x in (1, 2, 4, 8, 16)},
    "volkov": (64, 4, 1),
    "register-tile": (16, 16, 1),
    "conflict-free": (16, 32, 1),
}
# Static shared bytes: S1 prints those of granularity and ilp, the rest follow from the tiles.
SHARED_BYTES = {
    **dict.fromkeys(ANY_SHAPE, 0),
    **{f"shared({x})": 2 * 4 * x * x for x in (8, 16, 32)},
    "granularity(1)": 2048,
    "granularity(2)": 3072,
    "granularity(4)": 5120,
    **{f"ilp({x})": 8192 for x in (1, 2, 4, 8, 16)},
    "volkov": 4 * 64 * 65,
    "register-tile": 4 * (128 * 16 + 16 * 128),
    "conflict-free": 4 * (256 * 16 + 16 * 128),
}


def each_rung(test: Callable[[Rung[Gemm]], None]) -> Callable[[Rung[Gemm]], None]:
    return pytest.mark.parametrize("rung", SGEMM, ids=lambda rung: rung.label)(test)


def used_by(kernel: Kernel[P], target: str) -> Resources:
    return resources(generate(kernel, F32), target)


def test_the_ladder_has_every_rung_of_both_documents_in_order() -> None:
    here = [label for label in BY_LABEL if label in TILES]
    assert here == list(TILES)
    assert len(BY_LABEL) == len(SGEMM)


@each_rung
def test_texts_are_complete(rung: Rung[Gemm]) -> None:
    for text in (rung.changes, rung.predicts):
        assert text.endswith(".")
    assert re.search(r"\d", rung.predicts), "a prediction is a number"
    if rung.source is not documents.OURS:
        assert re.search(r"\d ms \([\d.]+ TFLOP/s\) on ", rung.claim)


@each_rung
def test_the_kernel_lies_beside_its_descriptor(rung: Rung[Gemm]) -> None:
    text = read_source(rung.kernel.package, rung.kernel.file)
    assert text.startswith("// ")
    assert re.search(rf"\b{rung.kernel.entry}\(", text)
    assert rung.kernel.file == f"{rung.name.replace('-', '_')}.cuh"


@pytest.mark.parametrize("label", TILES)
def test_every_constant_reaches_the_device(label: str) -> None:
    source = generate(BY_LABEL[label].kernel, F32)
    text = "".join(text for _, text in source.headers)
    for name, _ in BY_LABEL[label].kernel.config.constants:
        assert f"Config::{name}" in text, f"{name} is decided on the host and not used on the device"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("label", TILES)
def test_rungs_compile_without_spills(label: str, target: str) -> None:
    rung = BY_LABEL[label]
    used = used_by(rung.kernel, target)
    assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0)
    threads = BLOCKS[label][0] * BLOCKS[label][1]
    assert 0 < used.registers * threads <= H200.registers_per_sm
    assert used.shared == SHARED_BYTES[label]


@pytest.mark.parametrize("label", TILES)
def test_the_grid_covers_c_once(label: str) -> None:
    rows, columns, step = TILES[label]
    kernel = BY_LABEL[label].kernel
    for down, across in ((1, 1), (3, 2)):
        geometry = kernel.geometry(Gemm(rows * down, columns * across, step), kernel.config)
        assert geometry.grid == (across, down, 1)
        assert geometry.block == BLOCKS[label]
        assert geometry.dynamic_shared == 0


@pytest.mark.parametrize("label", ANY_SHAPE)
@pytest.mark.parametrize(("m", "n"), [(1, 1), (33, 65), (31, 257)])
def test_ragged_grids_cover_c(label: str, m: int, n: int) -> None:
    rows, columns, _ = TILES[label]
    kernel = BY_LABEL[label].kernel
    assert kernel.why_not(Gemm(m, n, 5), H200) is None
    assert kernel.geometry(Gemm(m, n, 5), kernel.config).grid == (ceil_div(n, columns), ceil_div(m, rows), 1)


@pytest.mark.parametrize("label", [label for label in TILES if label not in ANY_SHAPE])
def test_why_not_names_the_multiple(label: str) -> None:
    m, n, k = TILES[label]
    kernel = BY_LABEL[label].kernel
    assert kernel.why_not(Gemm(m, n, k), H200) is None
    assert kernel.why_not(Gemm(2 * m + 1, n, k), H200) == f"m = {2 * m + 1} is not a multiple of {m}"
    assert kernel.why_not(Gemm(m, n + 1, k), H200) == f"n = {n + 1} is not a multiple of {n}"
    assert kernel.why_not(Gemm(m, n, k - 1), H200) == f"k = {k - 1} is not a multiple of {k}"


@pytest.mark.parametrize("label", TILES)
def test_why_not_refuses_what_the_parameters_cannot_say(label: str) -> None:
    m, n, k = TILES[label]
    kernel = BY_LABEL[label].kernel
    right = Gemm(m, n, k, a_strides=(k, 1))
    assert kernel.why_not(right, H200) is None
    assert kernel.why_not(replace(right, dtype=F64), H200) == "float64 is not float32"
    assert kernel.why_not(replace(right, batch=2), H200) == "a batch of 2 is not one product"
    strange = (1, 77)
    for name, problem in (
        ("A", replace(right, a_strides=strange)),
        ("B", replace(right, b_strides=strange)),
        ("C", replace(right, d_strides=strange)),
    ):
        reason = kernel.why_not(problem, H200)
        assert reason is not None
        assert reason.startswith(f"strides (1, 77) of {name} are not those of a packed matrix")


@each_rung
def test_arguments_follow_the_parameters(rung: Rung[Gemm]) -> None:
    a, b, c, d = (Pointer(name, 256 * i) for i, name in enumerate("ABCD", start=1))
    args = rung.kernel.arguments(Gemm(256, 512, 768), rung.kernel.config, GemmOperands(a, b, c, d, alpha=2.0, beta=3.0))
    scalars = (np.int32(256), np.int32(512), np.int32(768), np.float32(2), np.float32(3))
    assert args == (a, b, d, *scalars)
    assert [type(x) for x in args[3:]] == [type(x) for x in scalars]


def test_multi_keeps_its_loads_of_c() -> None:
    # The rung is about global memory; were C summed up in a register, no load of it would stand between two products.
    ptx = compile_ptx(generate(BY_LABEL["multi(1)"].kernel, F32), "sm_90a")
    body = re.sub(r"^\s*(//.*|\.loc.*)\n", "", ptx, flags=re.MULTILINE)
    pieces = body.split("fma.rn.f32")
    assert len(pieces) > 2
    assert all(re.search(r"ld\.volatile\.global", piece) for piece in pieces[:-1])


@pytest.mark.parametrize("target", TARGETS)
def test_register_tile_reads_shared_memory_a_word_at_a_time(target: str) -> None:
    ptx = compile_ptx(generate(BY_LABEL["register-tile"].kernel, F32), target)
    assert len(re.findall(r"ld\.volatile\.shared\.[fb]32", ptx)) == 16 * 16
    assert not re.search(r"ld\.\S*shared\S*\.v[24]", ptx)


def test_reported_times_turn_into_rates() -> None:
    assert "(26.2 TFLOP/s)" in BY_LABEL["conflict-free"].claim
    assert "(4.05 TFLOP/s)" in reported(1024, {"GTX Titan X": 0.53028})


def test_the_memory_ladder_differs_in_transfers_alone() -> None:
    assert [rung.label for rung in MEMORY] == ["pageable", "pinned", "unified"]
    assert [rung.transfer for rung in MEMORY] == ["pageable", "pinned", "unified"]
    for rung in MEMORY:
        assert rung.product is PRODUCT
        assert rung.fill is FILL
        assert rung.source is documents.S1
        for text in (rung.changes, rung.predicts, rung.claim):
            assert text.endswith(".")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", [PRODUCT, FILL], ids=lambda kernel: kernel.entry)
def test_memory_kernels_compile_without_spills(kernel: Kernel[P], target: str) -> None:
    used = used_by(kernel, target)
    assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0)


@pytest.mark.parametrize(("m", "n", "grid"), [(1, 1, (1, 1, 1)), (17, 33, (3, 2, 1))])
def test_the_product_takes_any_shape(m: int, n: int, grid: tuple[int, int, int]) -> None:
    assert PRODUCT.why_not(Gemm(m, n, 7), H200) is None
    assert PRODUCT.geometry(Gemm(m, n, 7), PRODUCT.config).grid == grid


def test_fill_launches_a_thread_per_element() -> None:
    target = Pointer("X", 256)
    launch = FILL.launch(Fill(3, 100, seed=7), GemmOperands(target, target, target, target))
    assert (launch.grid, launch.block) == ((2, 1, 1), (256, 1, 1))
    scalars = (np.int64(300), np.uint32(7))
    assert launch.args == (target, *scalars)
    assert [type(x) for x in launch.args[1:]] == [type(x) for x in scalars]
    assert FILL.why_not(Fill(3, 100), H200) is None


def test_filled_numbers_are_spread_over_the_interval() -> None:
    values = filled(Fill(256, 256, seed=3))
    assert values.shape == (256, 256)
    assert values.min() >= -1
    assert values.max() < 1
    share, _ = np.histogram(values, bins=16, range=(-1, 1))
    assert np.abs(share / values.size - 1 / 16).max() < 0.005
    assert not np.array_equal(values, filled(Fill(256, 256, seed=4)))


def test_other_constants_make_another_kernel() -> None:
    kernel = BY_LABEL["shared(8)"].kernel
    assert generate(kernel, F32).digest != generate(kernel.with_config(Config.of(B=16)), F32).digest
