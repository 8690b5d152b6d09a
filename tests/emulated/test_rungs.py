"""Every rung of every ladder, run as its own PTX: right on small and odd problems, in any order of warps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from matmill.arch import ARCHES
from matmill.config import Config
from matmill.dtypes import ELEMENTWISE, F16
from matmill.emulator import Memory, Report, run
from matmill.jit.compile import compile_ptx
from matmill.jit.source import generate
from matmill.jit.steps import ptx
from matmill.kernel import GemmOperands
from matmill.kernels.gemm.tiles import TILES, with_vector_widths
from matmill.ladders.memory.rungs import FILL, Fill, filled
from matmill.ladders.sgemm.rungs import IN_PIECES, ON_FMA
from matmill.precision import UNIT, error_bound
from matmill.problem import Gemm
from matmill.reference import relative_bound
from support.examples import examples
from support.rungs import (
    MMA,
    PIPELINED,
    RUNGS,
    S2,
    TRANSPOSE_ADD_RUNGS,
    WALKERS,
    WGMMA,
    WHOLE,
    faults,
    halves,
    of,
    options_of,
    small_tile,
    sum_of,
    trial_of,
    whole_tiles,
)
from support.strided import H200, TARGET, Layout
from support.strided_sum import check
from support.trial import Case, Trial, problem_of

ATOMIC = {"inner/basic", "inner/phvm", "inner/one-pass", "inner/vectorized"}
T4 = ARCHES["t4"]

#: Each load waits, and each sum has one order.
SYNCHRONOUS = {"memory/product", *(f"sgemm/{rung.label}" for rung in ON_FMA[:-3]), *S2}


# Right and free of races

#: Sizes that no tile divides, for the rungs that take any, and no steps of k at all.
ODD = {
    "sgemm/naive": [(33, 35, 7), (1, 1, 1), (5, 33, 0)],
    **{f"sgemm/multi({x})": [(9, 32 * x + 3, 6), (3, 1, 2), (2, 9, 0)] for x in (1, 2, 4, 8)},
    # Remainders in each dimension, float16 pieces in chunks of 128 terms, and a row that starts off 16 bytes.
    **{f"sgemm/{rung.label}": [(72, 136, 264), (33, 70, 91)] for rung in IN_PIECES},
    "memory/product": [(17, 35, 21), (1, 1, 1), (3, 5, 0)],
}
#: No k is a multiple of what a grid takes at a time.
INNER_CASES = [
    (Case(3, 5, 777, layout="row", alpha=1.25, beta=-0.5), {"GS": 3, "BS": 64}),
    (Case(1, 1, 1, "float64"), {"GS": 2, "BS": 32}),
    (Case(7, 2, 1130, "float16"), {"GS": 2, "BS": 96}),
    (Case(2, 7, 1001, "bfloat16", "row", beta=2.0), {"GS": 2, "BS": 64}),
    (Case(13, 9, 301), {"GS": 2}),
    (Case(11, 4, 41, "float16", "row", alpha=-0.75), {"BS": 128}),
    (Case(4, 6, 0, "float64", beta=0.5), {"BS": 32}),
    (Case(16, 16, 264, "bfloat16"), {"GS": 2}),
    (Case(9, 16, 70, "float64", "row", beta=1.0), {"GS": 1}),
    *((Case(5, 3, 136, layout=layout), {"pad": pad}) for layout in ("row", "column") for pad in (1, 8)),
]
GRAM_CASES = [
    (Case(3, 3, 777, layout="gram", alpha=1.25, beta=-0.5), {"GS": 3, "BS": 64}),
    (Case(1, 1, 1, "float64", "gram"), {"GS": 2, "BS": 32}),
    (Case(7, 7, 1130, "float16", "gram"), {"GS": 2, "BS": 96}),
    (Case(2, 2, 1001, "bfloat16", "gram", beta=2.0), {"GS": 2, "BS": 64}),
    (Case(13, 13, 301, "float64", "gram"), {"GS": 2}),
    (Case(20, 20, 101, "float32", "gram", beta=1.0), {"GS": 2}),
    (Case(5, 5, 0, "float32", "gram", beta=0.5), {}),
    (Case(33, 33, 40, "float64", "gram"), {"GS": 1}),
]
Row = tuple[str, Case, dict[str, Any]]


def sgemm_rows() -> Iterator[Row]:
    """Yield odd sizes where a rung takes them, else whole tiles with several steps of k and with none."""
    for name, shapes in ODD.items():
        yield from ((name, Case(*shape, layout="row", beta=-0.5 * (at == 0)), {}) for at, shape in enumerate(shapes))
    for depth in (1, 0):
        for name in of("sgemm"):
            if name in ODD or name == "sgemm/tuned":
                continue
            m, n, k = WHOLE[name.split("/")[1]]
            yield name, Case(m, n, depth * k, layout="row", alpha=1.25, beta=-0.5), {}


def mma_rows() -> Iterator[Row]:
    """Yield every type and precision of sums, Turing's instructions, several tiles, and every width of copies."""
    for name in MMA:
        yield name, whole_tiles(name, 4 if name == "hgemm/multistage" else 2, beta=-0.5), {}
        yield name, whole_tiles(name), {"wide": True}
        yield name, whole_tiles(name, 1, "bfloat16", 0.5), {"in_place": True}
    for name in (*S2, *PIPELINED):  # m16n8k8 in pairs, and no cp.async
        yield name, whole_tiles(name, beta=-0.5, arch=T4), {"arch": T4}
    for name in S2:
        m, n, k = ((case := whole_tiles(name, 1)).m, case.n, case.k)
        yield name, halves(2 * m, 2 * n, k), {}
        yield name, halves(m, n, 0, beta=0.5), {}
    for columns in (8, 4, 2, 1):
        for arch in (T4, H200):
            case = halves(65, 40 + columns, 64 + columns, beta=0.5)
            yield "hgemm/epilogue", case, {"arch": arch, "config": small_tile(case, stages=2)}


def wgmma_rows() -> Iterator[Row]:
    """Yield remainders in every dimension, and clusters that share either operand."""
    for name in WGMMA:
        # Remainders in each dimension; two tiles of 128 x 256 or three of 128 x 128, and more k-steps than stages.
        case = halves(72, 264, 136 if name in WALKERS else 264, "bfloat16", beta=-0.5)
        yield name, case, {"blocks": WALKERS.get(name), "in_place": True}
    for shares_b in (0, 1):
        yield "hgemm/multicast", halves(136, 264, 136, beta=0.5), {"blocks": 2, "SHARES_B": shares_b}


def inner_rows() -> Iterator[Row]:
    """Yield every type and layout, and matrices whose rows are further apart than they are long."""
    for name in of("inner")[:-1]:
        for at, (case, launch) in enumerate(INNER_CASES):
            # A tree of barriers for each output is slow to emulate, and one header does the work of two rungs.
            slow = name in {"inner/basic", "inner/phvm"} and case.m * case.n >= 30
            if not slow and (name != "inner/vectorized" or at % 3 == 0):
                yield name, case, launch
    yield from (("inner/gram", case, launch) for case, launch in GRAM_CASES)
    yield from ((name, *GRAM_CASES[0]) for name in ("inner/phvm", "inner/two-stage"))


def named(row: Row) -> str:
    """Return a row's name."""
    name, case, options = row
    return f"{name}-{case}-{options_of({key: value for key, value in options.items() if key != 'config'})}"


def right(trial: Trial, name: str) -> list[Report]:
    """Run late, looking for races, and early where copies are asynchronous or sums are atomic; return late reports."""
    late = trial.run(schedule=1, late_copies=True)
    assert faults(late) == []
    assert trial.excess() <= 1
    bits = trial.d.tobytes()
    assert name != "inner/gram" or trial.case.beta or bits == trial.d.T.tobytes()
    if name not in SYNCHRONOUS:
        assert faults(trial.run(races=False)) == []
        assert trial.excess() <= 1
        assert name in ATOMIC or trial.d.tobytes() == bits
    return late


@pytest.mark.parametrize("row", [*sgemm_rows(), *mma_rows(), *wgmma_rows(), *inner_rows()], ids=named)
def test_right_and_free_of_races(row: Row) -> None:
    name, case, options = row
    trial = trial_of(name, case, **options)
    reports = right(trial, name)
    if name in MMA:
        problem, config = trial.problem, trial.kernel.config
        assert config["ACC16"] == (name != MMA[-1] and case.dtype == "float16" and not {"wide", "config"} & {*options})
        if options.get("arch") is T4 and "config" not in options:
            assert reports[0].counters.hmma == problem.m * problem.n * problem.k // (16 * 8 * 8)


@pytest.mark.parametrize("shape", [(70, 131, 37), (5, 7, 0), (130, 4, 100)], ids=str)
@pytest.mark.parametrize("tile", TILES[4], ids=lambda tile: f"{tile['BM']}x{tile['BN']}x{tile['BK']}")
def test_every_tile_of_the_last_rung_takes_any_size(tile: Config, shape: tuple[int, int, int]) -> None:
    case = Case(*shape, layout="row", alpha=-0.75, beta=float(shape[0] % 2))
    config = with_vector_widths(tile, problem_of(case))
    right(trial_of("sgemm/tuned", case, config=config), "sgemm/tuned")


@examples(10)
@given(
    m=st.integers(1, 150),
    n=st.integers(1, 150),
    k=st.integers(0, 200),
    dtype=st.sampled_from(["float16", "bfloat16"]),
    beta=st.sampled_from([0.0, -0.5]),
    name=st.sampled_from(PIPELINED),
    narrow=st.booleans(),
)
def test_any_size_on_mma_sync(m: int, n: int, k: int, dtype: str, beta: float, name: str, narrow: bool) -> None:  # noqa: PLR0917 — drawn
    case = halves(m, n, k, dtype, beta)
    trial = trial_of(name, case, config=small_tile(case, acc16=int(narrow and dtype == "float16")))
    assert trial.main(late_copies=True).ok
    assert trial.excess() <= 1


@examples(10)
@given(
    m=st.integers(1, 140),
    n=st.integers(1, 18).map(lambda eights: 8 * eights),
    k=st.integers(1, 50).map(lambda eights: 8 * eights),
    beta=st.sampled_from([0.0, 0.75]),
    name=st.sampled_from(WGMMA),
)
def test_any_size_on_wgmma_whose_rows_are_on_16_bytes(m: int, n: int, k: int, beta: float, name: str) -> None:
    trial = trial_of(name, halves(m, n, k, beta=beta), blocks=WALKERS.get(name))
    assert faults(trial.run(races=False, late_copies=True)) == []
    assert trial.excess() <= 1


def test_every_residue_of_k() -> None:
    for k in range(8, 136, 8):
        trial = trial_of("hgemm/tma-pipeline", halves(8, 8, k))
        trial.main(races=False)
        assert trial.excess() <= 1, k


def test_the_last_rung_takes_elements_that_float16_pieces_cannot_hold() -> None:
    trial = trial_of("sgemm/fp16x3", Case(40, 72, 136, layout="row", beta=-0.5))
    trial.a[3, 5] = 2.0**-60
    trial.run(races=False, late_copies=True)
    assert trial.excess() <= 1


#: Rungs of the SGEMM ladder on tensor cores, and the largest error that is proven for k = 1024.
PROVEN = {
    "tf32x3": 2.25 * 1024,
    "promoted": error_bound("tf32x3_registers", 1024),
    "pieces": error_bound("tf32x3", 1024),
    "fp16x3": error_bound("fp16x3", 1024, 1.0),
}


@pytest.mark.parametrize("label", PROVEN)
def test_errors_of_one_sum_are_large_and_those_of_promoted_sums_are_not(label: str) -> None:
    trial = trial_of(f"sgemm/{label}", Case(128, 128, 1024, layout="row"))
    trial.run(races=False)
    error = trial.excess() * relative_bound(1024, UNIT) / UNIT
    assert error <= PROVEN[label]
    assert (error > 10) == (label == "tf32x3")


def test_infinities_and_nan_stay_in_their_rows_and_columns() -> None:
    trial = trial_of("hgemm/float32-sums", halves(40, 24, 33))
    trial.a[3, 5], trial.b[7, 11] = np.inf, np.nan
    trial.main(races=False)
    odd = np.zeros((40, 24), np.bool_)
    odd[3], odd[:, 11] = True, True
    assert (np.isfinite(trial.d) == ~odd).all()


def test_bfloat16_is_rounded_to_even_without_the_instruction() -> None:
    with_cvt, by_hand = (trial_of("inner/two-stage", Case(8, 8, 33, "bfloat16")) for _ in range(2))
    with_cvt.run()
    by_hand.run(target="sm_75")
    assert "cvt.rn.bf16" not in compile_ptx(by_hand.source(), "sm_75")
    assert by_hand.excess() <= 1
    assert with_cvt.d.tobytes() == by_hand.d.tobytes()


@pytest.mark.parametrize("name", of("inner"))
def test_offsets_beyond_32_bits(name: str, tmp_path: Path) -> None:
    # Rows of E, and k's of F, so far apart that their offsets in elements take 33 bits; the files are almost all holes.
    rows, k, columns = 3, 9, 2
    e_row, f_k = 2**31 + 8, 2**29 + 8
    e_file = np.memmap(tmp_path / "E", np.float16, "w+", shape=((rows - 1) * e_row + k,))
    f_file = np.memmap(tmp_path / "F", np.float16, "w+", shape=((k - 1) * f_k + columns,))
    e = as_strided(e_file, (rows, k), (2 * e_row, 2))
    f = as_strided(f_file, (k, columns), (2 * f_k, 2))
    rng = np.random.default_rng(k)
    e[:], f[:] = rng.uniform(-1, 1, e.shape), rng.uniform(-1, 1, f.shape)
    gram = name == "inner/gram"
    problem = Gemm(
        rows, rows if gram else columns, k, F16, a_strides=(e_row, 1), b_strides=(f_k, 1), b_align=16, gram=gram
    )
    kernel = RUNGS[name].kernel_for(problem, H200)
    assert kernel.why_not(problem, H200) is None
    memory = Memory()
    d = np.full((problem.m, problem.n), np.nan, np.float16)
    workspace = memory.bind("workspace", np.zeros(kernel.workspace(problem), np.uint8), access="rw")
    a, b = memory.bind("E", e, access="r"), memory.bind("F", f, access="r")
    to = memory.bind("D", d, access="w")
    operands = GemmOperands(a=a, b=b, c=to, d=to, workspace=workspace)
    for text, launch in ptx(kernel, problem, operands, TARGET):
        run(text, launch, memory, races=False)
    exact = e.astype(np.float64) @ (e.T if gram else f).astype(np.float64)
    assert np.abs(d - exact).max() <= 2.0**-11 * np.abs(exact).max() + 1e-5


@pytest.mark.parametrize("label", TRANSPOSE_ADD_RUNGS)
@pytest.mark.parametrize("dtype", ELEMENTWISE)
@pytest.mark.parametrize(("m", "n"), [(64, 64), (48, 70), (272, 34)])
def test_a_transpose_and_a_sum(m: int, n: int, dtype: str, label: str) -> None:
    check(sum_of(label, m, n, dtype))


@pytest.mark.parametrize("label", ["wide", "shifted"])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float64"])
@pytest.mark.parametrize("pad", [0, 1])
def test_sums_of_any_pitch_and_start(pad: int, dtype: str, label: str) -> None:
    places = (Layout(transposed=True, pad=pad, start=pad), Layout(pad=2 * pad), Layout(start=1))
    check(sum_of(label, 67, 45, dtype, places))


@pytest.mark.parametrize(("rows", "columns"), [(3, 100), (1, 1), (16, 16)])
def test_fill_gives_the_numbers_that_the_host_computes(rows: int, columns: int) -> None:
    problem = Fill(rows, columns, seed=5)
    memory = Memory()
    matrix = np.full((rows, columns), np.nan, dtype=np.float32)
    pointer = memory.bind("X", matrix, access="w")
    launch = FILL.launch(problem, GemmOperands(pointer, pointer, pointer, pointer))
    report = run(compile_ptx(generate(FILL, ELEMENTWISE["float32"]), TARGET), launch, memory, races=True, schedule=0)
    assert not report.hazards
    assert np.array_equal(matrix, filled(problem))
