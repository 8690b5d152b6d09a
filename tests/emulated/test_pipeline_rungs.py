"""The ladder's last rungs: right, race-free however late copies land, and none of their waits is there for nothing."""

from __future__ import annotations

import numpy as np
import pytest

from matmill.config import Config
from matmill.emulator import KernelFault, Memory, run
from matmill.jit.compile import compile_ptx
from matmill.jit.source import generate
from matmill.kernel import GemmOperands, Kernel
from matmill.kernels.gemm.tiles import TILES, with_vector_widths
from matmill.ladders.sgemm.rungs import SGEMM
from matmill.problem import Gemm
from support.strided import BARRIER, TARGET, without
from support.trial import in_place

RUNGS = {rung.label: rung.kernel for rung in SGEMM}
SHAPES = {"vectorized": (128, 256, 24), "async-copy": (128, 256, 24), "warp-tiles": (128, 512, 24)}
SCHEDULES = [(0, False), (1, True), (2, True)]
RAGGED = [(70, 131, 37), (5, 7, 0), (130, 4, 100)]


def tuned(shape: tuple[int, int, int], tile: Config) -> Kernel[Gemm]:
    """Return the last rung with a tile of our choice."""
    m, n, k = shape
    problem = Gemm(m, n, k, b_align=16 if n % 4 == 0 else 4, d_align=16 if n % 4 == 0 else 4)
    return RUNGS["tuned"].with_config(with_vector_widths(tile, problem))


@pytest.mark.parametrize("beta", [0.0, -0.5])
@pytest.mark.parametrize(("schedule", "late"), SCHEDULES)
@pytest.mark.parametrize("label", SHAPES)
def test_right_and_free_of_races(label: str, schedule: int, late: bool, beta: float) -> None:
    trial = in_place(RUNGS[label], SHAPES[label], alpha=1.25, beta=beta)
    report = trial.main(schedule=schedule, late_copies=late)
    assert not report.hazards
    assert trial.excess() <= 1


@pytest.mark.parametrize("label", SHAPES)
def test_no_steps_at_all(label: str) -> None:
    m, n, _ = SHAPES[label]
    trial = in_place(RUNGS[label], (m, n, 0), beta=2.0)
    assert not trial.main().hazards
    assert trial.excess() <= 1


@pytest.mark.parametrize("shape", RAGGED, ids=str)
@pytest.mark.parametrize("tile", TILES[4], ids=lambda tile: f"{tile['BM']}x{tile['BN']}x{tile['BK']}")
def test_every_tile_takes_any_size(tile: Config, shape: tuple[int, int, int]) -> None:
    beta = float(shape[0] % 2)
    trial = in_place(tuned(shape, tile), shape, alpha=-0.75, beta=beta)
    report = trial.main(schedule=1, late_copies=True)
    assert not report.hazards
    assert trial.excess() <= 1


COPY_NEXT = "if (k0 + BK < k) copy(k0 + BK, buffer ^ 1);"
WAIT = "matmill::ptx::cp_async_wait<0>();"
PLANTED = [
    ("vectorized", BARRIER, 0, "", {"race"}),
    ("vectorized", BARRIER, 1, "", {"race"}),
    ("async-copy", BARRIER, 0, "", {"race"}),
    ("async-copy", WAIT, 0, "", {"missing-wait", "race"}),
    ("async-copy", COPY_NEXT, 0, COPY_NEXT.replace(" ^ 1", ""), {"missing-wait", "race"}),
    ("warp-tiles", BARRIER, 0, "", {"race"}),
    ("warp-tiles", WAIT, 0, "", {"missing-wait", "race"}),
    ("warp-tiles", COPY_NEXT, 0, COPY_NEXT.replace(" ^ 1", ""), {"missing-wait", "race"}),
]


@pytest.mark.parametrize(("label", "snippet", "index", "instead", "kinds"), PLANTED)
def test_planted_bugs_are_named(label: str, snippet: str, index: int, instead: str, kinds: set[str]) -> None:
    trial = in_place(RUNGS[label], SHAPES[label])
    report = trial.main(without(trial.source(), "", snippet, index, instead), late_copies=True)
    assert report.hazards
    assert {hazard.kind for hazard in report.hazards} <= kinds
    # A race of a copy may be named where the copy was issued: in the header that wraps cp.async.
    assert all(f"{trial.kernel.file}:" in hazard.where or "cp_async.cuh:" in hazard.where for hazard in report.hazards)


LOOP_WAIT = "ptx::cp_async_wait<STAGES - 2>();"


@pytest.mark.parametrize(
    ("snippet", "index", "instead"),
    [
        *((BARRIER, index, "") for index in range(4)),
        (LOOP_WAIT, 0, ""),
        (LOOP_WAIT, 1, LOOP_WAIT.replace("- 2", "- 1")),
    ],
    ids=["before the loop", "in the loop", "before the merge", "in the merge", "first wait", "a wait too short"],
)
def test_each_barrier_and_wait_of_the_pipeline_is_needed(snippet: str, index: int, instead: str) -> None:
    shape = (64, 128, 96)
    sliced = next(tile for tile in TILES[4] if tile["SLICES"] > 1)
    kernel = tuned(shape, sliced)
    trial = in_place(kernel, shape)
    whole = generate(kernel, trial.problem.dtype)
    text = dict(whole.headers)["kernels/gemm/simt.cuh"]
    assert (text.count(BARRIER), text.count(LOOP_WAIT)) == (4, 2)
    report = trial.main(without(whole, "", snippet, index, instead), late_copies=True)
    assert report.hazards
    assert {hazard.kind for hazard in report.hazards} <= {"race", "missing-wait"}
    assert all("simt.cuh:" in hazard.where or "cp_async.cuh:" in hazard.where for hazard in report.hazards)


@pytest.mark.parametrize("label", ["naive", "register-tile", "vectorized", "tuned"])
def test_an_output_one_row_short_is_named(label: str) -> None:
    problem = Gemm(128, 128, 16)
    kernel = RUNGS[label] if label != "tuned" else tuned((128, 128, 16), TILES[4][0])
    memory = Memory()
    a = memory.bind("A", np.ones((128, 16), np.float32), access="r")
    b = memory.bind("B", np.ones((16, 128), np.float32), access="r")
    c = memory.bind("C", np.zeros((127, 128), np.float32), access="rw")
    launch = kernel.launch(problem, GemmOperands(a, b, c, c))
    with pytest.raises(KernelFault) as caught:
        run(compile_ptx(generate(kernel, problem.dtype), TARGET), launch, memory)
    hazard = caught.value.hazard
    assert hazard.kind == "out-of-bounds"
    assert "behind the end of C" in hazard.message
    assert ".cuh:" in hazard.where
