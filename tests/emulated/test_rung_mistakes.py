"""Barriers, waits, fences and atomics of rungs, each left out: the emulator names the mistake."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from matmill.emulator import KernelFault, Memory, run
from matmill.jit.compile import compile_ptx
from matmill.jit.source import Source, generate
from matmill.kernel import GemmOperands
from matmill.kernels.gemm.tiles import TILES, with_vector_widths
from matmill.ladders.sgemm.rungs import ON_FMA
from matmill.problem import Gemm
from support.rungs import MMA, RUNGS, S2, WALKERS, halves, of, small_tile, trial_of, whole_tiles
from support.strided import BARRIER, TARGET, without
from support.trial import Case, Trial, problem_of

#: A rung, the end of the file's name, what is in it, which one of those, what replaces it, and the kinds of hazards.
Mistake = tuple[str, str, str, int, str, set[str]]
RACE, WAIT = {"race"}, {"missing-wait", "race"}
COPY_NEXT = "if (k0 + BK < k) copy(k0 + BK, buffer ^ 1);"
LOOP_WAIT = "ptx::cp_async_wait<STAGES - 2>();"
ALL_LANDED = "matmill::ptx::cp_async_wait<0>();"
ADDED = "atomicAdd(&sums[row * n + column], shares[0])"
#: What wraps a copy, a fragment, a word, the next tiles, a sum over a block: a hazard may be there.
WRAPPERS = {"cp_async.cuh", "mma.cuh", "word.cuh", "next_tiles.cuh", "block_sum.cuh"}
#: Barriers in a rung's own file: each is taken away.
BARRIERS = {
    **{f"sgemm/{label}": 2 for label in [*(rung.label for rung in ON_FMA[6:-4]), "vectorized"]},
    "memory/product": 2,
    "sgemm/async-copy": 1,
    "sgemm/warp-tiles": 1,
    "inner/basic": 2,
    "inner/phvm": 2,
    **dict.fromkeys(of("inner")[2:], 1),
    **{name: 2 if name in S2[:5] else 1 for name in MMA[:7]},
}
MISTAKES: list[Mistake] = [
    *((name, "", BARRIER, at, "", RACE) for name, count in BARRIERS.items() for at in range(count)),
    ("sgemm/async-copy", "", ALL_LANDED, 0, "", WAIT),
    ("sgemm/async-copy", "", COPY_NEXT, 0, COPY_NEXT.replace(" ^ 1", ""), WAIT),
    ("sgemm/warp-tiles", "", ALL_LANDED, 0, "", WAIT),
    ("sgemm/warp-tiles", "", COPY_NEXT, 0, COPY_NEXT.replace(" ^ 1", ""), WAIT),
    # Before the loop, in it, before the merge of slices of k and in it.
    *(("sgemm/tuned", "gemm/simt.cuh", BARRIER, at, "", WAIT) for at in range(4)),
    ("sgemm/tuned", "gemm/simt.cuh", LOOP_WAIT, 0, "", WAIT),
    ("sgemm/tuned", "gemm/simt.cuh", LOOP_WAIT, 1, LOOP_WAIT.replace("- 2", "- 1"), WAIT),
    ("hgemm/multistage", "", f"matmill::{LOOP_WAIT}", 0, "", WAIT),
    *(("hgemm/float32-sums", "gemm/mma.cuh", LOOP_WAIT, at, "", WAIT) for at in (0, 1)),
    *(("hgemm/float32-sums", "gemm/mma.cuh", " sync();", at, "", WAIT) for at in (0, 1)),
    ("hgemm/float32-sums", "gemm/staged_store.cuh", BARRIER, 0, "", RACE),
    *((f"inner/{label}", "", ADDED, 0, "sums[row * n + column] += shares[0]", RACE) for label in ("basic", "phvm")),
    ("inner/one-pass", "", "atomicAdd(&sums[output], ", 0, "sums[output] += (", RACE),
    ("inner/vectorized", "", "atomicAdd(&sums[output], sum)", 0, "sums[output] += sum", RACE),
    ("inner/two-stage", "", "partial_sums[Index(blockIdx.x)", 0, "partial_sums[Index(0)", RACE),
    ("inner/gram", "", "partial_sums[Index(blockIdx.x)", 0, "partial_sums[Index(0)", RACE),
]


def trial_for(name: str) -> Trial:
    """Return a trial in which a tile is overwritten after it was read."""
    if name == "sgemm/tuned":
        case = Case(64, 128, 96, layout="row")  # k is shared out among groups of warps
        sliced = next(tile for tile in TILES[4] if tile["SLICES"] > 1)
        return trial_of(name, case, config=with_vector_widths(sliced, problem_of(case)))
    if name == "hgemm/float32-sums":
        case = halves(64, 64, 320)
        return trial_of(name, case, config=small_tile(case))
    if name.startswith("inner"):
        return trial_of(name, Case(3, 3, 900, layout="gram" if name == "inner/gram" else "column"), GS=2, BS=64)
    if name == "memory/product":
        return trial_of(name, Case(17, 35, 21, layout="row"))
    return trial_of(name, whole_tiles(name, 4 if name == "hgemm/multistage" else 2))


def own_file(trial: Trial) -> str:
    """Return the name of the file that a rung is written in."""
    (name,) = (file for file, _ in trial.source().headers if file.endswith(f"/{trial.kernel.file}"))
    return name


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: f"{mistake[0]}-{mistake[2][:16]}-{mistake[3]}")
def test_planted_mistakes_are_named(mistake: Mistake) -> None:
    name, header, snippet, index, instead, kinds = mistake
    trial = trial_for(name)
    planted = without(trial.source(), header or own_file(trial), snippet, index, instead)
    hazards = trial.main(planted, late_copies=True).hazards
    assert hazards
    assert {hazard.kind for hazard in hazards} <= kinds
    files = {header.rpartition("/")[2] or trial.kernel.file, *WRAPPERS}
    assert {hazard.where.rpartition(":")[0].rpartition("/")[2] for hazard in hazards} <= files
    if name.startswith("inner"):
        where = "shared memory" if snippet == BARRIER else "workspace"
        assert all(where in hazard.message for hazard in hazards)


@pytest.mark.parametrize("name", BARRIERS)
def test_every_barrier_was_taken_away(name: str) -> None:
    trial = trial_for(name)
    assert dict(trial.source().headers)[own_file(trial)].count(BARRIER) == BARRIERS[name]


CLEARED = ("clear", "clear/kernel.cuh", "workspace[i] = 0;", ";")
REDUCED = ("splitk_reduce", "reduce.cuh", "Index(i) * outputs + output", "output")
TAIL = ("", "lane_product.cuh", "at = pieces * V + first", "at = k")
WRONG = [
    *((name, *CLEARED) for name in of("inner")[:4]),
    *((name, *REDUCED) for name in of("inner")[4:]),
    *((name, *TAIL) for name in ("inner/vectorized", "inner/two-stage")),
    ("inner/gram", "", "gram.cuh", "pieces * V + first : k;", "k : k;"),
    ("inner/gram", "splitk_reduce", "reduce/kernel.cuh", "Config::MIRRORED && row > column", "false"),
]


@pytest.mark.parametrize(("name", "entry", "header", "snippet", "instead"), WRONG)
def test_planted_errors_are_beyond_the_bound(name: str, entry: str, header: str, snippet: str, instead: str) -> None:
    trial = trial_of(name, Case(3, 3, 903, layout="gram" if name == "inner/gram" else "column"), GS=2, BS=64)
    trial.run(without(trial.source(entry), header, snippet, 0, instead))
    assert not trial.excess() <= 1


#: On wgmma a hazard may be the end of a launch.
ON_WGMMA = [
    ("wgmma", "tile.finish();", "wgmma_wait<1>();", {"race", "register-in-flight"}),
    ("wgmma", "    __syncthreads();\n  }", "  }", RACE),
    ("tma-pipeline", "wgmma_wait<1>();", "wgmma_wait<2>();", RACE),
    ("tma-pipeline", "mbarrier_wait(empty + 8 * before.stage, before.parity);", "", RACE),
    ("warp-specialised", "mbarrier_wait(full + 8 * slot.stage, slot.parity);", "", RACE),
    ("persistent", "mbarrier_wait(empty + 8 * slot.stage, slot.parity ^ 1);", "", RACE),
    ("tma-store", "    Tile::finish_stores();\n", "", {"unwaited"}),
    ("multicast", "mbarrier_wait(empty + 8 * slot.stage, slot.parity ^ 1);", "", RACE),
    ("multicast", "  cluster_sync();  // the other", "  // the other", {"cluster"}),
    ("pingpong", "if (index != blockIdx.x) barrier_sync<256>(ORDER + group);", "", RACE),
]


def kinds_of(trial: Trial, planted: Source, **options: Any) -> set[str]:
    """Return kinds of hazards of a launch, or of its end."""
    try:
        return {hazard.kind for hazard in trial.main(planted, late_copies=True, **options).hazards}
    except KernelFault as fault:
        return {fault.hazard.kind, *(hazard.kind for hazard in fault.earlier)}


@pytest.mark.parametrize(("label", "snippet", "instead", "kinds"), ON_WGMMA)
def test_planted_mistakes_on_wgmma_are_named(label: str, snippet: str, instead: str, kinds: set[str]) -> None:
    # One tile of 128 x 256 or two of 128 x 128, and more k-steps than stages.
    trial = trial_of(f"hgemm/{label}", halves(72, 136, 328), blocks=WALKERS.get(f"hgemm/{label}"))
    planted = without(trial.source(), f"hgemm/{trial.kernel.file}", snippet, 0, instead)
    assert kinds <= kinds_of(trial, planted, own_waits=True)
    # Where one warpgroup has the whole tile, its own wait frees the stage on Hopper.
    alone = label in {"wgmma", "tma-pipeline"} and kinds == RACE and "wgmma_wait" not in snippet
    assert (kinds <= kinds_of(trial, planted, own_waits=False)) == (not alone)


def test_what_the_epilogue_writes_needs_its_fence() -> None:
    trial = trial_of("hgemm/tma-store", halves(128, 256, 64))
    planted = without(trial.source(), "warpgroup_tile.cuh", "    ptx::fence_proxy_async_shared();\n")
    assert {hazard.kind for hazard in trial.main(planted).hazards} == {"missing-proxy-fence"}


@pytest.mark.parametrize("label", ["naive", "register-tile", "vectorized", "tuned"])
def test_an_output_one_row_short_is_named(label: str) -> None:
    problem = problem_of(Case(128, 128, 16, layout="row"))
    kernel = RUNGS[f"sgemm/{label}"].kernel_for(problem, trial_of("sgemm/naive", Case(1, 1, 1, layout="row")).arch)
    memory = Memory()
    a = memory.bind("A", np.ones((128, 16), np.float32), access="r")
    b = memory.bind("B", np.ones((16, 128), np.float32), access="r")
    c = memory.bind("C", np.zeros((127, 128), np.float32), access="rw")
    launch = kernel.launch(Gemm(128, 128, 16), GemmOperands(a, b, c, c))
    with pytest.raises(KernelFault) as caught:
        run(compile_ptx(generate(kernel, problem.dtype), TARGET), launch, memory)
    hazard = caught.value.hazard
    assert hazard.kind == "out-of-bounds"
    assert "behind the end of C" in hazard.message
    assert ".cuh:" in hazard.where
