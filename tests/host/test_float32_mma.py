"""float32 in pieces of tf32: which products and GPUs, which tiles, what they cost, and when they are chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matmill.analysis.floor import floor
from matmill.arch import ARCHES, get
from matmill.choose import choose
from matmill.dtypes import F16, F32
from matmill.jit.source import generate
from matmill.kernels.hgemm import HGEMM, cost, space
from matmill.kernels.hgemm import tiles as mma
from matmill.kernels.hgemm.tiles import threads
from matmill.problem import Epilogue, Gemm
from support.compiled import resources

H200 = get("h200")
LARGE = Gemm(4096, 4096, 4096, F32, precision="tf32x3")


@pytest.mark.parametrize("precision", ["default", "fp16x3", "tf32"])
def test_other_precisions_are_refused(precision: str) -> None:
    problem = replace(LARGE, precision=precision)
    assert space(problem, H200) == ()
    reason = HGEMM.with_config(space(LARGE, H200)[0]).why_not(problem, H200)
    assert reason is not None
    assert reason.startswith("float32 is not float16 or bfloat16")


@pytest.mark.parametrize(("k", "count"), [(85, 0), (86, 6)])
def test_a_short_k_is_left_to_fma(k: int, count: int) -> None:
    assert len(space(replace(LARGE, k=k, precision="float32_tensor"), H200)) == count


def test_a_gpu_without_tf32() -> None:
    (config,) = space(LARGE, get("t4"))
    reason = "mma.sync on tf32 needs compute capability 8.0: t4 has 7.5"
    assert HGEMM.with_config(config).why_not(LARGE, get("t4")) == reason
    assert choose(LARGE, get("t4")).kernel.entry == "gemm"


@pytest.mark.parametrize("name", ["a100", "rtx4090", "h100", "h200"])
@pytest.mark.parametrize("align", [4, 8, 16])
def test_every_tile_of_a_gpu_fits_it(name: str, align: int) -> None:
    arch, problem = get(name), replace(LARGE, a_align=align, b_align=align, d_align=align)
    for config in mma.space(problem, arch):
        assert mma.why_not(problem, config, arch) is None
        assert (config["A_VEC"], config["B_VEC"], config["D_VEC"]) == (align // 4, align // 4, min(align // 4, 2))
        assert 2 <= config["STAGES"] <= 6
        assert config["BLOCKS_PER_SM"] * (config["SHARED_BYTES"] + arch.shared_reserved) <= arch.shared_per_sm
        assert config["BLOCKS_PER_SM"] * threads(config) <= arch.threads_per_sm


def test_nothing_is_repacked() -> None:
    odd = replace(LARGE, m=1001, n=1003, k=1005, a_align=4, b_align=4, d_align=4)
    assert {(config["REPACK_A"], config["REPACK_B"], config["A_VEC"]) for config in space(odd, H200)} == {(0, 0, 1)}


@pytest.mark.parametrize("name", ["a100", "h200"])
def test_large_products_come_near_a_third_of_what_tensor_cores_do_in_a_clock(name: str) -> None:
    target = get(name)
    share = {8: 1.0, 9: cost.DEFAULT.mma_share}[target.capability[0]]
    result = min((cost.explain(LARGE, c, target) for c in space(LARGE, target)), key=lambda each: each.seconds)
    rate = 2 * {8: 512, 9: 1024}[target.capability[0]] * target.sms * target.boost_hz
    # Of its issue slots an mma takes seven.
    assert 0.6 < LARGE.flops * 3 / result.seconds / (share * rate) < 1
    least = floor(LARGE, target, space(LARGE, target))
    assert least.unit is not None
    assert least.unit.endswith("3 products for each of float32")
    assert least.seconds < result.seconds
    halves = replace(LARGE, dtype=F16, precision="default")
    assert result.seconds > 4 * choose(halves, target).predicted_seconds


@pytest.mark.parametrize(("m", "n", "k"), [(10**6, 64, 100), (169343, 40, 256), (20000, 30, 20000), (1024, 1024, 1024)])
def test_tensor_cores_are_chosen_where_the_precision_allows_them(m: int, n: int, k: int) -> None:
    allowed = Gemm(m, n, k, F32, precision="float32_tensor")
    assert choose(allowed, H200).kernel.instruction in {"mma.sync", "wgmma"}
    assert choose(replace(allowed, precision="default"), H200).kernel.instruction not in {"mma.sync", "wgmma"}
    # Its tensor cores multiply tf32 no faster than its FMA units multiply float32.
    assert choose(allowed, get("rtx4090")).kernel.entry != "hgemm"


def test_an_epilogue_is_the_kernels_own_unless_k_is_split() -> None:
    problem = replace(LARGE, epilogue=Epilogue("row", activation="relu"), has_c=True)
    choice = choose(problem, get("a100"))
    assert choice.kernel.entry == "hgemm"
    assert choice.kernel.workspace(problem) == 0
    constants = choice.kernel.config
    assert (constants["BIAS"], constants["ACTIVATION"], constants["HAS_C"]) == (1, 1, 1)
    long = replace(problem, m=64, n=64, k=8192)
    split = [config for config in space(long, get("a100")) if config["SPLIT_K"] > 1]
    assert split
    for config in split:
        assert (config["BIAS"], config["ACTIVATION"], config["HAS_C"]) == (0, 0, 0)
        assert HGEMM.with_config(config).workspace(long) == 4 * 64 * 64 * config["SPLIT_K"]


#: Strides of 1024 x 1024 matrices and the bytes that their rows or columns are aligned to.
ROWS, COLUMNS = ((1024, 1), 16), ((1, 1024), 16)
ODD_ROWS, ODD_COLUMNS = ((1025, 1), 4), ((1, 1025), 4)


@pytest.mark.parametrize(
    ("name", "a", "b"),
    [
        ("h200", ROWS, ROWS),
        ("h200", ROWS, COLUMNS),
        ("h200", ODD_COLUMNS, ODD_ROWS),
        ("h200", ODD_ROWS, ODD_COLUMNS),
        ("a100", COLUMNS, ODD_ROWS),
        ("rtx4090", ODD_COLUMNS, ODD_COLUMNS),
    ],
)
def test_no_tile_spills(name: str, a: tuple[tuple[int, int], int], b: tuple[tuple[int, int], int]) -> None:
    """But for two registers beside the 255 of a thread with a warp tile of 64 x 32 and copies of 4 bytes."""
    arch = ARCHES[name]
    problem = replace(
        LARGE, m=1024, n=1024, k=1024, a_strides=a[0], b_strides=b[0], a_align=a[1], b_align=b[1], d_align=a[1]
    )
    for config in space(problem, arch):
        if config["SPLIT_K"] == 1:  # one binary serves all
            most = 8 if config["A_VEC"] == 1 and config["BM"] * config["BN"] >= 128 * 64 else 0
            assert resources(generate(HGEMM.with_config(config), F32), arch.target).spill_stores <= most, str(config)
