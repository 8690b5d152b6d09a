"""Which GPU and which problem a rung of the HGEMM ladder takes, and the words where it does not; and its tiles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matmill.arch import ARCHES
from matmill.dtypes import BF16, F16, F32
from matmill.kernel import Rung
from matmill.kernels.hgemm import tiles as mma
from matmill.kernels.hgemm.tiles import space, threads, with_vector_widths
from matmill.ladders.hgemm.common import in_float32
from matmill.ladders.hgemm.rungs import HGEMM, ON_MMA, ON_WGMMA
from matmill.problem import Epilogue, Gemm

RUNGS = {rung.name: rung for rung in HGEMM}
COMPILED = [arch for arch in ARCHES.values() if arch.compiles]
LARGE = Gemm(8192, 8192, 8192, dtype=F16)


def why_not(rung: Rung[Gemm], problem: Gemm, arch: str) -> str | None:
    return rung.kernel_for(problem, ARCHES[arch]).why_not(problem, ARCHES[arch])


@pytest.mark.parametrize("arch", COMPILED, ids=lambda arch: arch.name)
@pytest.mark.parametrize("rung", ON_MMA, ids=lambda rung: rung.name)
def test_float16_runs_on_every_gpu_since_turing(rung: Rung[Gemm], arch: object) -> None:
    name = arch.name  # type: ignore[attr-defined] # an Arch: pytest's ids take objects
    for each in (rung, in_float32(rung)):
        reason = why_not(each, LARGE, name)
        if rung.name == "multistage" and ARCHES[name].capability < (8, 0):
            assert reason == f"cp.async needs compute capability 8.0: {name} has 7.5"
        else:
            assert reason is None


@pytest.mark.parametrize("rung", ON_MMA, ids=lambda rung: rung.name)
def test_bfloat16_needs_ampere(rung: Rung[Gemm]) -> None:
    problem = replace(LARGE, dtype=BF16)
    assert why_not(rung, problem, "a100") is None
    reason = why_not(rung, problem, "t4")
    assert reason is not None
    assert reason.endswith("needs compute capability 8.0: t4 has 7.5")
    narrow = rung.kernel.with_config(rung.kernel.config.replace(ACC16=1))
    assert narrow.why_not(problem, ARCHES["h200"]) == "tensor cores sum products of bfloat16 in float32 alone"


@pytest.mark.parametrize("rung", ON_WGMMA, ids=lambda rung: rung.name)
def test_wgmma_needs_hopper(rung: Rung[Gemm]) -> None:
    for name, arch in ARCHES.items():
        for dtype in (F16, BF16):
            reason = why_not(rung, replace(LARGE, dtype=dtype), name)
            if arch.capability == (9, 0):
                assert reason is None
                config = rung.kernel_for(LARGE, arch).config
                assert config["SHARED_BYTES"] <= arch.shared_per_block
            else:
                result = ".".join(map(str, arch.capability))
                assert reason == f"wgmma needs compute capability 9.0, no other: {name} has {result}"


@pytest.mark.parametrize("rung", ON_WGMMA, ids=lambda rung: rung.name)
@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (replace(LARGE, n=8196), "rows of n = 8196 elements are not a multiple of 16 bytes, as TMA needs them"),
        (replace(LARGE, k=8193), "rows of k = 8193 elements are not a multiple of 16 bytes, as TMA needs them"),
        (replace(LARGE, k=0), "k = 0: TMA has nothing to copy"),
        (replace(LARGE, d_align=8), "rows of D start at multiples of 8 bytes, not of 16"),
        (replace(LARGE, dtype=F32), "float32 is not float16 or bfloat16"),
        (replace(LARGE, batch=3), "a batch of 3 is not one product"),
        (replace(LARGE, m=2**31), "m = 2147483648 > 2147482624"),
        (replace(LARGE, m=1, n=8, k=8), None),
        (replace(LARGE, m=8191, n=8200, k=8184), None),
    ],
    ids=str,
)
def test_reasons_of_tma(rung: Rung[Gemm], problem: Gemm, reason: str | None) -> None:
    assert why_not(rung, problem, "h200") == reason


@pytest.mark.parametrize(
    ("m", "n", "shares_b", "blocks"),
    [(256, 256, 1, 2), (128, 512, 0, 2), (384, 512, 0, 6), (384, 256, 1, 4), (8192, 8192, 1, 132)],
)
def test_clusters_leave_few_tiles_without_work(m: int, n: int, shares_b: int, blocks: int) -> None:
    problem = Gemm(m, n, 64, dtype=F16)
    kernel = RUNGS["multicast"].kernel_for(problem, ARCHES["h200"])
    geometry = kernel.geometry(problem, kernel.config)
    assert (kernel.config["SHARES_B"], geometry.grid, geometry.cluster) == (shares_b, (blocks, 1, 1), (2, 1, 1))


@pytest.mark.parametrize("arch", ["k40", "titan-x"])
def test_gpus_without_matrix_units(arch: str) -> None:
    assert why_not(RUNGS["hierarchical"], LARGE, arch) == (
        f"mma.sync on float16 needs compute capability 7.5: {arch} has {'.'.join(map(str, ARCHES[arch].capability))}"
    )


@pytest.mark.parametrize(
    ("name", "problem", "reason"),
    [
        ("hierarchical", replace(LARGE, m=8320), "m = 8320 is not a multiple of 256"),
        ("swizzled", replace(LARGE, n=8256), "n = 8256 is not a multiple of 128"),
        ("tile-shape", replace(LARGE, n=8320), "n = 8320 is not a multiple of 256"),
        ("double-buffer", replace(LARGE, k=8208), "k = 8208 is not a multiple of 32"),
        ("vectorized", replace(LARGE, a_align=8), "rows of A start at multiples of 8 bytes, not of 16"),
        ("prefetch", replace(LARGE, dtype=F32), "float32 is not float16 or bfloat16"),
        ("any-size", replace(LARGE, batch=2), "a batch of 2 is not one product"),
        *(
            (name, replace(LARGE, **asked), "rungs have no bias, activation, other type of D or other precision")
            for name, asked in (
                ("hierarchical", {"epilogue": Epilogue(activation="relu")}),
                ("float32-sums", {"out_dtype": F32}),
                ("tma-store", {"precision": "high"}),
            )
        ),
        (
            "epilogue",
            replace(LARGE, a_strides=(1, 8192)),
            "strides (1, 8192) of A are not those of a packed matrix, (8192, 1)",
        ),
        (
            "float32-sums",
            replace(LARGE, has_c=True, c_strides=(9000, 1)),
            "strides (9000, 1) of C are not those of a packed matrix, (8192, 1)",
        ),
        ("float32-sums", replace(LARGE, k=2**31), "k = 2147483648 > 2147482624"),
    ],
)
def test_reasons(name: str, problem: Gemm, reason: str) -> None:
    assert why_not(RUNGS[name], problem, "h200") == reason


def test_shared_memory_of_turing_bounds_the_double_buffer() -> None:
    rung = RUNGS["double-buffer"]
    config = rung.kernel_for(LARGE, ARCHES["t4"]).config
    assert config["SHARED_BYTES"] == ARCHES["t4"].shared_per_block == 65536
    deeper = rung.kernel.with_config(config.replace(SHARED_BYTES=3 * 32768))
    assert deeper.why_not(LARGE, ARCHES["t4"]) == "shared memory 98304 > 65536 bytes per block"


@pytest.mark.parametrize("arch", COMPILED, ids=lambda arch: arch.name)
@pytest.mark.parametrize("k", [8192, 8191])
def test_every_tile_of_a_gpu_fits_it(arch: object, k: int) -> None:
    result = ARCHES[arch.name]  # type: ignore[attr-defined] # an Arch: pytest's ids take objects
    problem = Gemm(8192, 8192, k, dtype=F16, a_align=16 if k % 8 == 0 else 2)
    for config in space(problem, result):
        assert mma.why_not(problem, config, result) is None
        assert config["SHARED_BYTES"] <= result.shared_per_block
        reserve = result.shared_reserved
        assert config["BLOCKS_PER_SM"] * (config["SHARED_BYTES"] + reserve) <= result.shared_per_sm
        assert config["BLOCKS_PER_SM"] * threads(config) <= result.threads_per_sm


def test_copies_are_never_wider_than_the_rows_allow() -> None:
    odd, arch = Gemm(64, 64, 63, dtype=F16, a_align=2), ARCHES["h200"]
    wide = with_vector_widths(space(LARGE, arch)[0], LARGE)
    assert mma.why_not(odd, wide, arch) == "A_VEC = 8 needs aligned, contiguous rows in multiples of 8 elements"
    transposed = Gemm(64, 64, 64, dtype=F16, a_strides=(1, 64), b_strides=(1, 64))
    config = with_vector_widths(wide, transposed)
    assert (config["A_K_INNER"], config["B_K_INNER"], config["A_VEC"], config["B_VEC"]) == (0, 1, 8, 8)
    assert mma.why_not(transposed, wide, arch) == "A_K_INNER = 1 takes 8 elements at a time along the longer stride"


def test_small_products_get_small_tiles() -> None:
    rung = RUNGS["float32-sums"]
    result = [
        rung.kernel_for(Gemm(size, size, size, dtype=F16), ARCHES["h200"]).config for size in (512, 1024, 4096, 8192)
    ]
    sizes = [config["BM"] * config["BN"] for config in result]
    assert sizes == sorted(sizes)
    assert sizes[0] == 64 * 64
    assert sizes[-1] == 128 * 256
