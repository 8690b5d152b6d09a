"""float64 on the tensor cores: which GPUs, which tiles, what they cost, and when they are chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matmill.arch import ARCHES, get
from matmill.choose import choose
from matmill.dtypes import F32, F64
from matmill.jit.source import generate
from matmill.kernels.hgemm import HGEMM, cost, space
from matmill.kernels.hgemm import tiles as mma
from matmill.kernels.hgemm.tiles import shapes, threads, with_vector_widths
from matmill.problem import Gemm
from support.compiled import resources

H200 = get("h200")
LARGE = Gemm(4096, 4096, 4096, F64)


@pytest.mark.parametrize("name", ["t4", "rtx2080ti", "rtx4090", "k40"])
def test_gpus_without_fast_float64_tensor_cores(name: str) -> None:
    arch = get(name)
    (config,) = space(LARGE, arch)
    result = ".".join(map(str, arch.capability))
    reason = f"tensor cores for float64 need compute capability 8.0 or 9.0: {name} has {result}"
    assert HGEMM.with_config(config).why_not(LARGE, arch) == reason
    assert choose(LARGE, arch).kernel.entry == "gemm"
    assert any(reason in each for each in choose(LARGE, arch).reasons)


def test_float32_has_no_configuration() -> None:
    assert space(replace(LARGE, dtype=F32), H200) == ()


@pytest.mark.parametrize("name", ["a100", "h100", "h200"])
@pytest.mark.parametrize("align", [8, 16])
def test_every_tile_of_a_gpu_fits_it(name: str, align: int) -> None:
    arch, problem = get(name), replace(LARGE, a_align=align, b_align=align, d_align=align)
    for config in mma.space(problem, arch):
        assert mma.why_not(problem, config, arch) is None
        assert (config["A_VEC"], config["B_VEC"], config["D_VEC"]) == (align // 8,) * 3
        assert config["BLOCKS_PER_SM"] * (config["SHARED_BYTES"] + arch.shared_reserved) <= arch.shared_per_sm
        assert config["BLOCKS_PER_SM"] * threads(config) <= arch.threads_per_sm


def test_nothing_is_repacked() -> None:
    odd = Gemm(1001, 1003, 1005, F64, a_align=8, b_align=8, d_align=8)
    configs = space(odd, H200)
    assert {(config["REPACK_A"], config["REPACK_B"]) for config in configs} == {(0, 0)}
    # Odd extents or strides leave single elements, whatever the alignment of the first.
    assert {config["A_VEC"] for config in space(replace(odd, a_align=16), H200)} == {1}
    wide = with_vector_widths(shapes(H200, F64)[0], LARGE)
    reason = "A_VEC = 2 needs aligned, contiguous rows in multiples of 2 elements"
    assert mma.why_not(odd, wide, H200) == reason


@pytest.mark.parametrize(("arch", "fmas"), [("a100", 64), ("h200", 128)])
def test_large_products_come_near_what_tensor_cores_do_in_a_clock(arch: str, fmas: int) -> None:
    target = get(arch)
    result = min((cost.explain(LARGE, c, target) for c in space(LARGE, target)), key=lambda each: each.seconds)
    assert 0.85 < LARGE.flops / result.seconds / (2 * fmas * target.sms * target.boost_hz) < 1
    assert result.bound == "multiply"
    unknown = replace(target, name="unknown", matrix_flops={})
    assert [cost.explain(LARGE, c, unknown).seconds for c in space(LARGE, unknown)] == [
        cost.explain(LARGE, c, target).seconds for c in space(LARGE, target)
    ]


@pytest.mark.parametrize("side", [256, 257, 512, 1000, 1001, 2048, 8192])
def test_squares_run_on_tensor_cores(side: int) -> None:
    align = 16 if side % 2 == 0 else 8
    problem = Gemm(side, side, side, F64, a_align=align, b_align=align, d_align=align)
    for name in ("a100", "h200"):
        result = choose(problem, get(name))
        assert result.kernel.entry == "hgemm"
        assert result.predicted_seconds < 0.9 * choose(problem, replace(get(name), capability=(8, 9))).predicted_seconds


def test_narrower_copies_are_not_cheaper() -> None:
    odd = replace(LARGE, a_align=8, b_align=8, d_align=8)
    for wide, narrow in zip(space(LARGE, H200), space(odd, H200), strict=True):
        aligned = cost.explain(LARGE, wide, H200).seconds
        assert aligned < cost.explain(odd, narrow, H200).seconds < 1.4 * aligned


def test_few_outputs_and_a_long_k_stay_with_the_kernel_for_them() -> None:
    assert choose(Gemm(64, 64, 10**6, F64), H200).kernel.entry == "inner"
    assert choose(Gemm(9, 9, 10**7, F64), H200).kernel.entry == "inner"


#: Strides of 1024 x 1024 matrices and the bytes that their rows or columns are aligned to.
ROWS, COLUMNS = ((1024, 1), 16), ((1, 1024), 16)
ODD_ROWS, ODD_COLUMNS = ((1025, 1), 8), ((1, 1025), 8)


@pytest.mark.parametrize(
    ("name", "a", "b"), [("h200", ROWS, ROWS), ("h200", ODD_COLUMNS, ODD_ROWS), ("a100", ODD_ROWS, COLUMNS)]
)
def test_no_tile_spills(name: str, a: tuple[tuple[int, int], int], b: tuple[tuple[int, int], int]) -> None:
    arch = ARCHES[name]
    problem = Gemm(1024, 1024, 1024, F64, a_strides=a[0], b_strides=b[0], a_align=a[1], b_align=b[1], d_align=a[1])
    for config in space(problem, arch):
        if config["SPLIT_K"] == 1:  # one binary serves all
            assert resources(generate(HGEMM.with_config(config), F64), arch.target).spill_stores == 0, str(config)
