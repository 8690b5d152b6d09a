"""The inner kernel's own PTX in the emulator: right, free of races and the same bits, whatever was chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from matmill.arch import Arch
from matmill.choose import choose_from
from matmill.config import Config
from matmill.dtypes import F16, F64
from matmill.emulator import Memory, run
from matmill.jit.steps import ptx
from matmill.kernel import GemmOperands, Kernel, Production
from matmill.kernels.inner import INNER, cost, piece, total
from matmill.kernels.inner.passes import Reads
from matmill.kernels.inner.space import space
from matmill.problem import Gemm
from support.strided import H200, TARGET, Array, without
from support.trial import Case, Trial, hazards

_OURS = [Production(INNER, space, cost.explain)]


@dataclass(frozen=True)
class Chosen:
    """The configuration that the cost model picks, with ``blocks`` in place of its grid where that is given."""

    blocks: int | None = None

    def kernel_for(self, problem: Gemm, arch: Arch) -> Kernel[Gemm]:
        """Return the model's choice."""
        kernel = choose_from(_OURS, problem, arch).kernel
        return kernel if self.blocks is None else kernel.with_config(kernel.config.launched(SPLIT_K=self.blocks))


@dataclass(frozen=True)
class Picked:
    """One configuration of the space, by what it is like."""

    wanted: Callable[[Config], bool]
    number: int = 0

    def kernel_for(self, problem: Gemm, arch: Arch) -> Kernel[Gemm]:
        """Return the ``number``-th of those that are ``wanted``."""
        fitting = [config for config in space(problem, arch) if self.wanted(config)]
        return INNER.with_config(fitting[self.number % len(fitting)])


@pytest.mark.parametrize(
    "case",
    [
        Case(33, 65, 200),
        Case(128, 100, 130, "float64", "row"),
        Case(33, 65, 200, "bfloat16"),
        Case(100, 100, 200, "float32", "gram"),
    ],
    ids=str,
)
def test_more_outputs_than_calls_give_it_at_this_length(case: Case) -> None:
    trial = Trial(Chosen(), case)
    assert not hazards(trial)
    assert trial.excess() <= 1


MANY = Case(6, 10, 3000, "float32", "row", alpha=0.5, beta=-1.5)
DIRECT = Picked(lambda config: config["BK"] == 0 and config["SPLIT_K"] > 4)
STAGED = Picked(lambda config: config["BK"] > 0 and config["SPLIT_K"] > 4)


LONG = [
    Case(6, 10, 2600, "float32", "row"),
    Case(5, 7, 2601, "float16", "column"),  # lines that begin anywhere
    Case(8, 16, 2601, "bfloat16", "row", a_layout="column"),
    Case(20, 20, 2601, "float16", "gram"),
    Case(16, 16, 2600, "float64", "column"),
]


@pytest.mark.parametrize("case", LONG, ids=str)
@pytest.mark.parametrize("stages", [3, 4])
def test_blocks_with_many_stages(case: Case, stages: int) -> None:
    few = Picked(
        lambda config: config["STAGES"] == stages and config["BK"] in {64, 128, 256} and config["SPLIT_K"] == 1
    )
    trial = Trial(few, case)
    assert not hazards(trial)
    assert trial.excess() <= 1


@pytest.mark.parametrize("m", [5, 9, 24])
def test_gram_matrices_in_triangles_of_tiles(m: int) -> None:
    odd = Picked(
        lambda config: config["DOWN"] in {3, 5, 7, 10} and config["BK"] in {0, 32} and config["SPLIT_K"] > 1, 2 * m
    )
    trial = Trial(odd, Case(m, m, 700, "float32", "gram"))
    assert trial.kernel.config["S"] < trial.kernel.config["DOWN"] ** 2
    assert not hazards(trial)
    assert trial.excess() <= 1
    assert trial.d.tobytes() == np.ascontiguousarray(trial.d.T).tobytes()


@pytest.mark.parametrize(
    "case", [Case(16, 16, 512, "float32", "row"), Case(12, 12, 1025, "float16"), Case(48, 48, 256)]
)
def test_the_host_knows_which_banks_meet(case: Case) -> None:
    plain = Picked(lambda config: config["BK"] in {64, 256} and config["SPLIT_K"] == 1 and not config["MMA"])
    trial = Trial(plain, case)
    config = trial.kernel.config
    passed = 0.0  # of a warp per k of each of its groups of threads
    for name, count in (("E", config["TM"]), ("F", config["TN"])):
        reads = Reads.of(config, name, trial.problem)
        passed += count * reads.per_element * reads.passes(config[f"{name}_PITCH"])
    expected = passed * config["S"] / 32 * case.k
    sums = config["TM"] * config["TN"] * config["BS"] / 16  # and whole stages, where k is none
    assert expected <= trial.main(races=False).counters.shared_load_wavefronts <= 1.1 * expected + sums


def test_a_long_chain_of_additions_does_not_swallow_its_terms() -> None:
    direct = Picked(
        lambda config: config["BK"] == 0 and config["U"] == 8 and config["BS"] == 128 and config["SPLIT_K"] == 1
    )
    trial = Trial(direct, Case(1, 1, 128 * 4 * 8 * 4, "float32", "column"))
    trial.a[...], trial.b[...] = 1, 1
    trial.a[0, 0] = 2**24  # to which a thread could add ones for ever
    assert not hazards(trial)
    missing = 2**24 + trial.problem.k - 1 - float(trial.d[0, 0])
    assert 0 <= missing <= 4 * 8  # those of its own round


def test_one_block_needs_no_second_launch_and_no_workspace() -> None:
    trial = Trial(Chosen(blocks=1), Case(4, 4, 900))
    assert trial.kernel.workspace(trial.problem) == 0
    assert len(trial.run()) == 1
    assert trial.excess() <= 1


#: Fewer outputs than a vector, than a warp, than a block, in whole vectors and not; more than a block has threads.
ADDED = [
    Case(1, 1, 5000),
    Case(3, 3, 4001),
    Case(3, 3, 4001, "float64", "row"),
    Case(16, 16, 1500, "float16", "row"),
    Case(5, 7, 2601, "bfloat16", "column", alpha=1.5, beta=2.0),
    Case(17, 17, 900, "float32", "row", beta=1.0),
    Case(12, 12, 900, "float32", "gram"),
    Case(24, 24, 500, "float64", "gram"),
]


def by_last(*, staged: bool) -> Picked:
    """Return a configuration whose last block adds the partial sums of four blocks and more."""
    return Picked(lambda config: bool(config["LAST_BLOCK"]) and config["SPLIT_K"] >= 4 and bool(config["BK"]) == staged)


@pytest.mark.parametrize("staged", [False, True], ids=["direct", "staged"])
@pytest.mark.parametrize("case", ADDED, ids=str)
def test_the_last_block_adds_the_sums_of_all(case: Case, staged: bool) -> None:
    trial = Trial(by_last(staged=staged), case)
    for _ in range(2):
        (report,) = trial.run(counted=True)
        assert not report.hazards
        assert trial.excess() <= 1
        assert trial.counter[0] == 0


def test_whichever_block_is_the_last_changes_no_bit() -> None:
    trial = Trial(by_last(staged=True), MANY)
    results = set()
    for schedule in range(4):
        trial.run(schedule=schedule, counted=True, races=False)
        results.add(trial.d.tobytes())
    assert len(results) == 1


@pytest.mark.parametrize(
    ("header", "snippet", "instead"),
    [
        (
            "last_block.cuh",
            "__syncthreads();  // the block's writes become visible to thread 0, which releases them",
            "",
        ),
        ("atomic.cuh", "atom.acq_rel.gpu", "atom.relaxed.gpu"),
        ("atomic.cuh", "atom.acq_rel.gpu", "atom.acquire.gpu"),
        ("atomic.cuh", "atom.acq_rel.gpu", "atom.release.gpu"),
        ("atomic.cuh", "atom.acq_rel.gpu", "atom.acq_rel.cta"),
        (
            "last_block.cuh",
            "ptx::atom_inc_acq_rel(counter, blocks - 1) == blocks - 1",
            "ptx::atom_inc_acq_rel(counter, blocks - 1) == 1",
        ),
    ],
)
def test_sums_that_are_read_too_early_are_found(header: str, snippet: str, instead: str) -> None:
    trial = Trial(by_last(staged=False), replace(MANY, beta=0.0))
    source = without(trial.source(), header, snippet, instead=instead)
    assert [hazard for report in trial.run(source, counted=True) for hazard in report.hazards]


@pytest.mark.parametrize("subject", [DIRECT, STAGED], ids=["direct", "staged"])
def test_a_batch_is_a_product_for_each(subject: Picked) -> None:
    rng = np.random.default_rng(7)
    e, f = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((3, 6, 800), (3, 800, 10)))
    d = np.full((3, 6, 10), np.nan, np.float32)
    problem = Gemm(6, 10, 800, batch=3)
    kernel = subject.kernel_for(problem, H200)
    for last in (0, 1):
        kernel = kernel.with_config(kernel.config.launched(LAST_BLOCK=last))
        d[...] = np.nan
        _run_all(kernel, problem, (e, f, d), np.full(kernel.workspace(problem), 0xFF, np.uint8))
        np.testing.assert_allclose(d, e.astype(np.float64) @ f.astype(np.float64), atol=1e-4)


def test_pieces_of_k_add_up() -> None:
    rng = np.random.default_rng(8)
    e, f = rng.uniform(-1, 1, (3, 900)), rng.uniform(-1, 1, (900, 5))
    sums, d = np.zeros((3, 5)), np.full((3, 5), np.nan)
    for start, end in ((0, 500), (500, 900)):
        part = np.ascontiguousarray(e[:, start:end])
        problem = Gemm(3, 5, end - start, dtype=F64)
        chosen = Chosen().kernel_for(problem, H200)
        kernel = piece(chosen)
        workspace = np.full(kernel.workspace(problem), 0xFF, np.uint8)
        _run_all(kernel, problem, (part, f[start:end], sums), workspace, alpha=7.0)
    np.testing.assert_allclose(sums, e @ f, rtol=1e-12, atol=1e-12)
    _run_all(total(chosen), problem, (part, f[start:end], d), sums, alpha=2.0)
    np.testing.assert_allclose(d, 2 * (e @ f), rtol=1e-12, atol=1e-12)


def _run_all(
    kernel: Kernel[Gemm], problem: Gemm, matrices: tuple[Array, Array, Array], workspace: Array, alpha: float = 1.0
) -> None:
    """Run all launches of a kernel on E, F and D."""
    e, f, d = matrices
    memory = Memory()
    operands = GemmOperands(
        memory.bind("E", e, access="r"),
        memory.bind("F", f, access="r"),
        memory.bind("C", None, access="r"),
        memory.bind("D", d, access="rw"),
        alpha=alpha,
        workspace=memory.bind("workspace", workspace, access="rw"),
        counter=memory.bind("counter", np.zeros(1, np.uint32), access="rw"),
    )
    for text, launch in ptx(kernel, problem, operands, TARGET):
        assert not run(text, launch, memory, races=True).hazards


@pytest.mark.parametrize("subject", [DIRECT, STAGED], ids=["direct", "staged"])
def test_offsets_beyond_32_bits(subject: Picked, tmp_path: Path) -> None:
    # Rows of E so far apart that their offsets in elements take 33 bits; the file is almost all holes.
    rows, columns, k, e_row = 8, 8, 2600, 2**29 + 8
    file = np.memmap(tmp_path / "E", np.float16, "w+", shape=((rows - 1) * e_row + k,))
    e = as_strided(file, (rows, k), (2 * e_row, 2))
    e[:] = np.random.default_rng(k).integers(-2, 3, e.shape)
    f = np.random.default_rng(e_row).integers(-2, 3, (k, columns)).astype(np.float16)
    problem = Gemm(rows, columns, k, F16, a_strides=(e_row, 1))
    kernel = subject.kernel_for(problem, H200)
    d = np.full((rows, columns), np.nan, np.float16)
    _run_all(kernel, problem, (e, f, d), np.zeros(kernel.workspace(problem), np.uint8))
    assert np.array_equal(d.astype(np.float64), e.astype(np.float64) @ f.astype(np.float64))
