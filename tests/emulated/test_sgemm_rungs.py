"""Every rung of S0 and S1, run as its own PTX: right, race-free, and with the memory accesses that it claims."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest

from matmill.dtypes import F32
from matmill.emulator import Memory, Report, run
from matmill.jit.compile import compile_ptx
from matmill.jit.source import generate
from matmill.kernel import GemmOperands, Kernel
from matmill.ladders.memory.rungs import FILL, PRODUCT, Fill, filled
from matmill.ladders.sgemm.rungs import SGEMM
from matmill.problem import Gemm
from support.strided import BARRIER, TARGET, without
from support.trial import in_place

RUNGS = {rung.label: rung.kernel for rung in SGEMM}

# Sizes that no tile divides, for the kernels that take any: (m, n, k).
RAGGED = {
    "naive": [(33, 35, 7), (1, 1, 1), (5, 33, 0)],
    **{f"multi({x})": [(9, 32 * x + 3, 6), (3, 1, 2), (2, 9, 0)] for x in (1, 2, 4, 8)},
    "product": [(17, 35, 21), (1, 1, 1), (3, 5, 0)],
}
# One tile in one direction, two in the other where that is cheap, and two steps of k; the second has no steps at all.
TILED = {
    **{f"shared({x})": [(x, 2 * x, 2 * x), (x, x, 0)] for x in (8, 16, 32)},
    **{f"granularity({x})": [(32, 16 * x, 32), (16, 16 * x, 0)] for x in (1, 2, 4)},
    **{f"ilp({x})": [(64, 32, 64), (32, 32, 0)] for x in (1, 2, 4, 8, 16)},
    "volkov": [(256, 64, 128), (256, 64, 0)],
    "register-tile": [(128, 128, 32), (128, 128, 0)],
    "conflict-free": [(256, 128, 32), (256, 128, 0)],
}
CASES = [(label, shape) for label, shapes in {**RAGGED, **TILED}.items() for shape in shapes]
STAGED = [*TILED, "product"]


def kernel_of(label: str) -> Kernel[Gemm]:
    return PRODUCT if label == "product" else RUNGS[label]


def one_step_more(label: str) -> tuple[int, int, int]:
    """Return the smallest problem in which a tile is overwritten after it was read."""
    return {**RAGGED, **TILED}[label][0]


@pytest.mark.parametrize(("beta", "schedule"), [(0.0, 0), (-0.5, 1)])
@pytest.mark.parametrize(("label", "shape"), CASES, ids=lambda value: str(value).replace(" ", ""))
def test_right_and_free_of_races(label: str, shape: tuple[int, int, int], beta: float, schedule: int) -> None:
    trial = in_place(kernel_of(label), shape, alpha=1.25, beta=beta)
    report = trial.main(schedule=schedule)
    assert not report.hazards
    assert np.isfinite(trial.d).all()
    assert trial.excess() <= 1


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("label", STAGED)
def test_a_missing_barrier_is_a_race(label: str, index: int) -> None:
    kernel = kernel_of(label)
    whole = generate(kernel, F32)
    assert len(whole.headers) == 1
    assert whole.headers[0][1].count(BARRIER) == 2
    planted = without(whole, "", BARRIER, index)
    report = in_place(kernel, one_step_more(label)).main(planted)
    races = [hazard for hazard in report.hazards if hazard.kind == "race"]
    assert races
    ((_, text),) = planted.headers
    lines = text.splitlines()
    for race in races:
        file, _, line = race.where.rpartition(":")
        assert file.endswith(kernel.file)
        assert re.search(r"\b(As|Bs|a_words|b_words)\[", lines[int(line) - 1])


def line_of(kernel: Kernel[Gemm], snippet: str) -> str:
    """Return the one line of the kernel's file that holds ``snippet``, as the report names it."""
    ((_, text),) = generate(kernel, F32).headers
    (line,) = [number for number, content in enumerate(text.splitlines(), start=1) if snippet in content]
    return f"{kernel.file}:{line}"


def conflict(report: Report, kernel: Kernel[Gemm], snippet: str) -> Fraction:
    """Return wavefronts over the fewest possible, of the shared loads on the line that holds ``snippet``."""
    counts = report.by_line[line_of(kernel, snippet)]
    return Fraction(counts.shared_load_wavefronts, counts.shared_load_wavefronts_ideal)


def test_register_tile_reads_a_two_way_and_b_four_way_conflicted() -> None:
    kernel = RUNGS["register-tile"]
    report = in_place(kernel, (128, 128, 16)).main()
    assert conflict(report, kernel, "a[i] = a_words") == 2
    assert conflict(report, kernel, "b[j] = b_words") == 4
    counts = report.counters
    assert counts.shared_store_wavefronts == counts.shared_store_wavefronts_ideal
    # 8 warps, 16 steps, 8 reads of A and 8 of B.
    assert counts.shared_load_wavefronts == 8 * 16 * (8 * 2 + 8 * 4)


def test_conflict_free_is_free_of_conflicts() -> None:
    counts = in_place(RUNGS["conflict-free"], (256, 128, 16)).main(races=False).counters
    # 16 warps, 16 steps, 8 reads of A and 8 of B; 8 stores of A and 4 of B per thread.
    assert counts.shared_load_wavefronts == counts.shared_load_wavefronts_ideal == 16 * 16 * (8 + 8)
    assert counts.shared_store_wavefronts == counts.shared_store_wavefronts_ideal == 16 * (8 + 4)


@pytest.mark.parametrize("label", [label for label in STAGED if label not in {"register-tile", "conflict-free"}])
def test_square_tiles_and_broadcasts_never_conflict(label: str) -> None:
    # S0 suspects a 32-way conflict on the A tile of shared(32): there is none.
    counts = in_place(kernel_of(label), one_step_more(label)).main(races=False).counters
    assert counts.shared_load_wavefronts == counts.shared_load_wavefronts_ideal > 0
    assert counts.shared_store_wavefronts == counts.shared_store_wavefronts_ideal > 0


@pytest.mark.parametrize("multi", [1, 2, 4, 8])
def test_multi_goes_to_global_memory_for_every_term(multi: int) -> None:
    k = 5
    counts = in_place(RUNGS[f"multi({multi})"], (8, 32 * multi, k)).main(races=False).counters
    warps = 8
    # Per step a load of A and, per output, loads of B and C and a store of C; then one pass over C at either end.
    assert counts.global_load_requests == warps * (k * (1 + 2 * multi) + multi)
    assert counts.global_store_requests == warps * (k * multi + 2 * multi)
    assert counts.global_store_sectors == counts.global_store_requests * 4 * multi


def test_volkov_reads_a_row_per_lane() -> None:
    kernel = RUNGS["volkov"]
    report = in_place(kernel, (256, 64, 64)).main()
    counts = report.by_line[line_of(kernel, "a = a_row[")]
    assert counts.global_load_requests == 8 * 64
    assert counts.global_load_sectors == 32 * counts.global_load_requests
    assert report.counters.shared_load_requests == 8 * 64 * 64


@pytest.mark.parametrize(("rows", "columns"), [(3, 100), (1, 1), (16, 16)])
def test_fill_gives_the_numbers_that_the_host_computes(rows: int, columns: int) -> None:
    problem = Fill(rows, columns, seed=5)
    memory = Memory()
    matrix = np.full((rows, columns), np.nan, dtype=np.float32)
    pointer = memory.bind("X", matrix, access="w")
    launch = FILL.launch(problem, GemmOperands(pointer, pointer, pointer, pointer))
    report = run(compile_ptx(generate(FILL, F32), TARGET), launch, memory, races=True, schedule=0)
    assert not report.hazards
    assert np.array_equal(matrix, filled(problem))
