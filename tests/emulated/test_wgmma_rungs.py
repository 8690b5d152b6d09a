"""The rungs of the HGEMM ladder on wgmma: right, free of hazards however late copies land, and counted as predicted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matmill.emulator import Counters, KernelFault, Report
from matmill.jit.source import Source
from matmill.kernel import Kernel
from matmill.ladders.hgemm.rungs import ON_WGMMA
from matmill.problem import Gemm
from support.examples import examples
from support.strided import H200, without
from support.trial import Case, Trial, problem_of

RUNGS = {rung.name: rung for rung in ON_WGMMA}
#: So many blocks walk over the tiles, several of them each.
WALKERS = {"persistent": 1, "tma-store": 1, "multicast": 2, "pingpong": 1}


def product(m: int, n: int, k: int, dtype: str = "float16", beta: float = 0.0) -> Case:
    """Return a product of packed matrices."""
    return Case(m, n, k, dtype, "row", 1.25, beta)


def kernel(name: str, case: Case, blocks: int | None = None, **constants: int) -> Kernel[Gemm]:
    """Return the rung's kernel for a product, with as many blocks as there are in the end."""
    result = RUNGS[name].kernel_for(problem_of(case), H200)
    config = result.config.replace(**constants)
    return result.with_config(config if blocks is None else config.launched(BLOCKS=blocks))


def errors(report: Report) -> list[str]:
    """Return what is wrong, beyond the note that a box of a remainder was all outside its matrix."""
    return [str(hazard) for hazard in report.hazards if hazard.kind != "box-outside"]


def counters(name: str, m: int, n: int, k: int, **constants: int) -> Counters:
    case = product(m, n, k)
    return Trial(kernel(name, case, **constants), case).main(races=False).counters


@pytest.mark.parametrize("name", RUNGS)
def test_right_with_the_same_bits_early_and_late(name: str) -> None:
    # Remainders in each dimension; two tiles of 128 x 256 or three of 128 x 128, and more k-steps than stages.
    case = product(72, 264, 136 if name in WALKERS else 264, "bfloat16", beta=-0.5)
    constants = {"SHARES_B": 1} if name == "multicast" else {}
    trial = Trial(kernel(name, case, WALKERS.get(name), **constants), case, in_place=True)
    assert errors(trial.main()) == []
    assert trial.excess() <= 1
    early = trial.d.tobytes()
    assert errors(trial.main(races=False, late_copies=True, schedule=1)) == []
    assert trial.d.tobytes() == early


def test_clusters_that_share_a() -> None:
    case = product(136, 264, 136, beta=0.5)
    trial = Trial(kernel("multicast", case, 2, SHARES_B=0), case)
    assert errors(trial.main(late_copies=True)) == []
    assert trial.excess() <= 1


@examples(10)
@given(
    m=st.integers(1, 140),
    n=st.integers(1, 18).map(lambda eights: 8 * eights),
    k=st.integers(1, 50).map(lambda eights: 8 * eights),
    beta=st.sampled_from([0.0, 0.75]),
    name=st.sampled_from(list(RUNGS)),
)
def test_any_size_whose_rows_are_on_16_bytes(m: int, n: int, k: int, beta: float, name: str) -> None:
    case = product(m, n, k, beta=beta)
    trial = Trial(kernel(name, case, WALKERS.get(name)), case)
    assert errors(trial.main(races=False, late_copies=True)) == []
    assert trial.excess() <= 1


def test_every_residue_of_k() -> None:
    for k in range(8, 136, 8):
        trial = Trial(RUNGS["tma-pipeline"], product(8, 8, k))
        trial.main(races=False)
        assert trial.excess() <= 1, k


# What predictions name


def test_one_instruction_does_what_16_did_and_nothing_is_loaded_by_threads() -> None:
    m, n, k = 128, 128, 128
    for name in RUNGS:
        result = counters(name, m, n, k)
        wide = 128 * 256 if name not in {"wgmma", "tma-pipeline", "pingpong"} else 128 * 128
        computed = 128 * 512 if name == "multicast" else wide  # with the tile beside this one, all outside
        assert result.gmma == computed * k // (16 * 16 * (wide // 128))
        assert (result.hmma, result.ldmatrix_requests, result.global_load_requests) == (0, 0, 0)


def test_no_barrier_of_the_block_is_in_the_loop() -> None:
    assert counters("wgmma", 128, 128, 64).barriers < counters("wgmma", 128, 128, 256).barriers
    short, long = (counters("tma-pipeline", 128, 128, k) for k in (64, 512))
    assert short.barriers == long.barriers == 4
    assert long.mbarrier_waits > short.mbarrier_waits


def test_bytes_that_tma_loads() -> None:
    m, n, k = 256, 512, 64
    # Tiles of 128 x 128 load A four times and B twice, of 128 x 256 A twice, and pairs of these B once, or A once.
    a, b = m * k * 2, k * n * 2
    wanted = {
        "wgmma": 4 * a + 2 * b,
        "tma-pipeline": 4 * a + 2 * b,
        "warp-specialised": 2 * a + 2 * b,
        "persistent": 2 * a + 2 * b,
        "tma-store": 2 * a + 2 * b,
        "multicast": 2 * a + b,
        "pingpong": 4 * a + 2 * b,
    }
    assert {name: counters(name, m, n, k).bulk_load_bytes for name in RUNGS} == wanted
    assert counters("multicast", m, n, k, SHARES_B=0).bulk_load_bytes == a + 2 * b


def test_stores_of_the_epilogue() -> None:
    m, n, k = 128, 256, 64
    before, after = counters("persistent", m, n, k), counters("tma-store", m, n, k)
    # Eight warps with 16 x 256 each: 64 stores of 8 sectors, or 16 stmatrix of 4 wavefronts.
    assert (before.global_store_requests, before.global_store_sectors) == (8 * 64, 8 * 64 * 8)
    assert (before.stmatrix_requests, before.bulk_stores) == (0, 0)
    assert (after.global_store_requests, after.stmatrix_requests) == (0, 8 * 16)
    assert after.shared_store_wavefronts == after.shared_store_wavefronts_ideal == 8 * 16 * 4
    assert (after.bulk_stores, after.bulk_store_bytes) == (8, m * n * 2)


# Waits, fences and barriers, each taken away

PLANTED = [
    ("wgmma", "tile.finish();", "wgmma_wait<1>();", {"race", "register-in-flight"}),
    ("wgmma", "    __syncthreads();\n  }", "  }", {"race"}),
    ("tma-pipeline", "wgmma_wait<1>();", "wgmma_wait<2>();", {"race"}),
    ("tma-pipeline", "mbarrier_wait(empty + 8 * before.stage, before.parity);", "", {"race"}),
    ("warp-specialised", "mbarrier_wait(full + 8 * slot.stage, slot.parity);", "", {"race"}),
    ("persistent", "mbarrier_wait(empty + 8 * slot.stage, slot.parity ^ 1);", "", {"race"}),
    ("tma-store", "    Tile::finish_stores();\n", "", {"unwaited"}),
    ("multicast", "mbarrier_wait(empty + 8 * slot.stage, slot.parity ^ 1);", "", {"race"}),
    ("multicast", "  cluster_sync();  // the other", "  // the other", {"cluster"}),
    ("pingpong", "if (index != blockIdx.x) barrier_sync<256>(ORDER + group);", "", {"race"}),
]


def kinds_of(trial: Trial, planted: Source, *, own_waits: bool) -> set[str]:
    """Return kinds of hazards of a launch, or of its end."""
    try:
        return {hazard.kind for hazard in trial.main(planted, late_copies=True, own_waits=own_waits).hazards}
    except KernelFault as fault:
        return {fault.hazard.kind, *(hazard.kind for hazard in fault.earlier)}


@pytest.mark.parametrize(("name", "snippet", "instead", "kinds"), PLANTED)
def test_planted_bugs_are_named(name: str, snippet: str, instead: str, kinds: set[str]) -> None:
    # One tile of 128 x 256 or two of 128 x 128, and more k-steps than stages.
    case = product(72, 136, 328)
    trial = Trial(kernel(name, case, WALKERS.get(name)), case)
    planted = without(trial.source(), f"hgemm/{trial.kernel.file}", snippet, 0, instead)
    assert kinds <= kinds_of(trial, planted, own_waits=True)
    # Where one warpgroup has the whole tile, its own wait frees the stage on Hopper.
    alone = name in {"wgmma", "tma-pipeline"} and kinds == {"race"} and "wgmma_wait" not in snippet
    assert (kinds <= kinds_of(trial, planted, own_waits=False)) == (not alone)


def test_what_the_epilogue_writes_needs_its_fence() -> None:
    trial = Trial(RUNGS["tma-store"], product(128, 256, 64))
    planted = without(trial.source(), "warpgroup_tile.cuh", "    ptx::fence_proxy_async_shared();\n")
    assert {hazard.kind for hazard in trial.main(planted).hazards} == {"missing-proxy-fence"}
