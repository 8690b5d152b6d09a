"""Descriptors of the inner ladder, launches of several stages, 16-bit element types: what the host decides."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from matmill import arch
from matmill.dtypes import ALL, BF16, DTYPES, F16, F32, F64, DType, of_numpy
from matmill.errors import ArgumentError
from matmill.jit.source import generate, read_source
from matmill.kernel import GemmOperands, Kernel, Program, Rung
from matmill.ladders import documents
from matmill.ladders.inner.rungs import INNER
from matmill.ladders.sgemm.rungs import SGEMM
from matmill.launch import Launch, Pointer
from matmill.problem import Gemm
from support.compiled import resources

A100, H200 = arch.get("a100"), arch.get("h200")
RUNGS = {rung.label: rung for rung in INNER}
WIDE = ["vectorized", "two-stage"]
E, F, C, D, W = (Pointer(name, 4096 * i) for i, name in enumerate("EFCDW", start=1))
OPERANDS = GemmOperands(E, F, C, D, alpha=2.0, beta=3.0, workspace=W)


def problem_of(rung: Rung[Gemm], m: int, k: int = 10**6, dtype: DType = F32) -> Gemm:
    """Return a problem of m x m outputs; F is column-major, or E's transpose where the rung asks for it."""
    return Gemm(m, m, k, dtype, b_strides=(1, k), gram=rung.name == "gram")


def kernel_of(rung: Rung[Gemm], problem: Gemm) -> Kernel[Gemm]:
    return rung.kernel_for(problem, H200)


def values(launch: Launch) -> tuple[object, ...]:
    """Return the launch's arguments, numbers as Python's."""
    return tuple(x.item() if isinstance(x, np.generic) else x for x in launch.args)


def named(step: tuple[Program, Launch]) -> dict[str, object]:
    """Return the launch's arguments by the names of the program's parameters."""
    program, launch = step
    assert program.parameters is not None
    return dict(zip([name for name, _ in program.parameters.fields], launch.args, strict=True))


def test_the_ladder_in_order() -> None:
    assert list(RUNGS) == ["basic", "phvm", "one-pass", "vectorized", "two-stage", "gram"]


@pytest.mark.parametrize("rung", INNER, ids=lambda rung: rung.label)
def test_descriptors_are_complete(rung: Rung[Gemm]) -> None:
    for text in (rung.changes, rung.predicts, *([rung.claim] if rung.claim else [])):
        assert text.endswith(".")
    assert re.search(r"\d", rung.predicts), "a prediction is a number"
    assert (rung.source is documents.S3) == bool(rung.claim)
    text = read_source(rung.kernel.package, rung.kernel.file)
    assert text.startswith("// ")
    assert re.search(rf"\b{rung.kernel.entry}\(", text)
    assert rung.kernel.file == f"{rung.name.replace('-', '_')}.cuh"
    source = "".join(text for _, text in generate(rung.kernel, F32).headers)
    for name, _ in kernel_of(rung, problem_of(rung, 3)).config.constants:
        assert f"Config::{name}" in source, f"{name} is decided on the host and not used on the device"


@pytest.mark.parametrize("target", ["sm_75", "sm_90a"])
@pytest.mark.parametrize("m", [3, 8, 16])
@pytest.mark.parametrize("label", RUNGS)
def test_rungs_compile_without_spills(label: str, m: int, target: str) -> None:
    rung = RUNGS[label]
    dtypes = [F32] if target == "sm_75" or m != 8 else [F32, F64, BF16]
    for dtype in dtypes:
        problem = problem_of(rung, m, dtype=dtype)
        kernel = kernel_of(rung, problem)
        assert kernel.why_not(problem, H200) is None
        used = resources(generate(kernel, dtype), target)
        assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0)
        assert 0 < used.registers * kernel.config["BS"] <= H200.registers_per_sm
        assert 0 < used.shared <= 48 * 1024


def test_the_papers_launches_can_be_set() -> None:
    problem = Gemm(5, 5, 30_000_000)
    for label in ("basic", "phvm"):
        config = RUNGS[label].kernel_for(problem, A100).config
        assert (config["GS"], config["BS"]) == (864, 256)  # the paper's optimum on an A100
    for rung in INNER:
        mine = problem_of(rung, 5)
        kernel = kernel_of(rung, mine)
        kernel = kernel.with_config(kernel.config.replace(GS=136, BS=512))
        assert kernel.why_not(mine, H200) is None
        own = kernel.launches(mine, OPERANDS)[len(kernel.before)]
        assert (own.entry, own.grid, own.block) == (kernel.entry, (136, 1, 1), (512, 1, 1))


@pytest.mark.parametrize("label", RUNGS)
def test_every_type_up_to_64_rows_and_columns(label: str) -> None:
    for dtype in ALL.values():
        for m in (1, 9, 17, 31, 32, 33, 64):
            problem = problem_of(RUNGS[label], m, dtype=dtype)
            assert kernel_of(RUNGS[label], problem).why_not(problem, H200) is None


@pytest.mark.parametrize("label", RUNGS)
def test_a_short_k_needs_few_blocks(label: str) -> None:
    for k in (0, 1, 2000):
        config = kernel_of(RUNGS[label], problem_of(RUNGS[label], 3, k)).config
        assert 1 <= config["GS"] <= max(1, -(-k // 256) + 1)


def test_launches_of_an_atomic_rung() -> None:
    problem = Gemm(5, 7, 1000, F16, d_strides=(9, 1), has_c=True)
    kernel = kernel_of(RUNGS["phvm"], problem)
    assert kernel.workspace(problem) == 5 * 7 * 4
    clear, own, finish = kernel.launches(problem, OPERANDS)
    assert [launch.entry for launch in (clear, own, finish)] == ["clear", "phvm", "splitk_reduce"]
    assert values(clear) == (W, 35)
    assert values(own) == (E, F, W, 5, 7, 1000, 1000, 1, 7, 1)
    assert {type(x) for x in own.args[5:]} == {np.int64}
    assert finish.grid == (2, 1, 1)
    assert values(finish) == (C, D, W, 1, 5, 7, 7, 1, 35, 9, 1, 35, 2.0, 3.0, Pointer("no bias", 0), 1)
    # Sums of 16-bit types are float32, and so are alpha and beta.
    last = named(kernel.steps(problem, OPERANDS)[-1])
    assert type(last["alpha"]) is type(last["beta"]) is np.float32


def test_launches_of_the_deterministic_rungs() -> None:
    for label, mirrored in (("two-stage", 0), ("gram", 1)):
        problem = problem_of(RUNGS[label], 4)
        kernel = kernel_of(RUNGS[label], problem)
        gs = kernel.config["GS"]
        assert kernel.workspace(problem) == gs * 16 * 4
        _, reduction = kernel.steps(problem, OPERANDS)
        assert named(reduction)["slices"] == gs
        assert reduction[0].config["MIRRORED"] == mirrored
    assert values(kernel.launches(problem, OPERANDS)[0]) == (E, W, 10**6, 10**6)


def test_one_launch_of_several_is_refused() -> None:
    problem = Gemm(3, 3, 100)
    kernel = kernel_of(RUNGS["basic"], problem)
    with pytest.raises(ArgumentError, match="one launch asked of a kernel of 3"):
        kernel.launch(problem, OPERANDS)
    with pytest.raises(ArgumentError, match="36 bytes for kernel basic"):
        kernel.launches(problem, replace(OPERANDS, workspace=None))


def test_kernels_of_one_launch_are_what_they_were() -> None:
    problem = Gemm(64, 64, 64)
    kernel = SGEMM[0].kernel
    assert kernel.workspace(problem) == 0
    assert kernel.launches(problem, GemmOperands(E, F, C, D)) == (kernel.launch(problem, GemmOperands(E, F, C, D)),)


@pytest.mark.parametrize(
    ("label", "problem", "constants", "reason"),
    [
        ("basic", Gemm(3, 3, 9, batch=2), {}, "a batch of 2 is not one product"),
        ("basic", Gemm(0, 3, 9), {}, "0 x 3 outputs are not in 1..2147483647"),
        ("basic", Gemm(2**16, 2**16, 1), {}, "65536 x 65536 outputs are not in 1..2147483647"),
        ("phvm", Gemm(3, 3, 9), {"GS": 0}, "GS = 0 is not in 1..2147483647"),
        ("phvm", Gemm(3, 3, 9), {"BS": 48}, "BS = 48 is not a multiple of 32 in 32..1024"),
        ("phvm", Gemm(3, 3, 9), {"BS": 1056}, "BS = 1056 is not a multiple of 32 in 32..1024"),
        ("one-pass", Gemm(3, 3, 9), {"M": 4}, "constants for 4 x 3 outputs, not 3 x 3"),
        ("one-pass", Gemm(32, 32, 9), {"BS": 1024}, "shared memory 131328 > 49152 bytes"),
        ("one-pass", Gemm(16, 16, 9), {"TM": 4}, "4 tiles of 4 x 8, 2 side by side, do not cover D"),
        ("one-pass", Gemm(16, 16, 9), {"TM": 17}, "136 sums per thread > 128"),
        (
            "one-pass",
            Gemm(1024, 1024, 9),
            {},
            "16384 threads that share a k are no power of two that divides BS = 1024",
        ),
        ("two-stage", Gemm(3, 3, 9, a_strides=(1, 3)), {}, "E's rows are not contiguous: their stride is 3"),
        ("two-stage", Gemm(3, 3, 8), {"F_MODE": 0}, "F's columns are not contiguous: their stride is 3"),
        ("two-stage", Gemm(3, 3, 9), {"E_WIDTH": 4}, "E_WIDTH = 4 needs rows or columns aligned to 16 bytes"),
        ("two-stage", Gemm(3, 3, 8, b_strides=(5, 1)), {"F_MODE": 1}, "F with strides (5, 1) is not one run of memory"),
        ("gram", Gemm(3, 3, 9), {}, "F is not the transpose of E"),
    ],
)
def test_why_not(label: str, problem: Gemm, constants: dict[str, int], reason: str) -> None:
    kernel = kernel_of(RUNGS[label], problem)
    kernel = kernel.with_config(kernel.config.replace(**constants))
    assert (kernel.why_not(problem, H200) or "").startswith(reason)


@pytest.mark.parametrize(
    ("problem", "e_width", "f_mode", "f_width"),
    [
        (Gemm(3, 3, 1000), 4, 1, 4),
        (Gemm(3, 3, 1001, b_align=4), 1, 1, 1),
        (Gemm(3, 3, 1001, b_align=4, b_start_align=16), 1, 1, 4),
        (Gemm(3, 3, 1002, b_strides=(1, 1002)), 2, 0, 2),
        (Gemm(1, 3, 1001, b_strides=(1, 1004)), 4, 0, 4),
        (Gemm(3, 3, 1000, b_strides=(4, 1)), 4, 2, 1),
        (Gemm(3, 3, 1000, BF16), 8, 1, 8),
        (Gemm(3, 3, 1000, F64, a_align=8), 1, 1, 2),
    ],
)
def test_loads_are_as_wide_as_the_alignment(problem: Gemm, e_width: int, f_mode: int, f_width: int) -> None:
    for label in WIDE:
        config = kernel_of(RUNGS[label], problem).config
        assert (config["E_WIDTH"], config["F_MODE"], config["F_WIDTH"]) == (e_width, f_mode, f_width)


def test_a_gram_problem_is_one_input() -> None:
    problem = Gemm(4, 4, 100, a_strides=(128, 1), gram=True)
    assert problem.b_row_col == (1, 128)
    assert problem.least_bytes == 4 * (400 + 16)
    assert replace(problem, gram=False).least_bytes == 4 * (800 + 16)
    assert Gemm(4, 4, 100, batch=3, gram=True).batch_strides == (400, 400, 0, 16)


def test_two_types_for_any_size_and_two_of_16_bits() -> None:
    assert set(DTYPES) == {"float32", "float64"}
    assert set(ALL) == {"float32", "float64", "float16", "bfloat16"}
    for dtype in (F16, BF16):
        assert (dtype.itemsize, dtype.accumulator) == (2, F32)
        assert of_numpy(dtype.numpy, "a") is dtype
        steps = np.array([1.0, 1 + dtype.roundoff, 1 + 2 * dtype.roundoff]).astype(dtype.numpy).astype(np.float64)
        assert list(steps) == [1.0, 1.0, 1 + 2 * dtype.roundoff]
    assert (F16.tiny, BF16.tiny) == (2.0**-14, 2.0**-126)
    assert (F32.accumulator, F64.accumulator) == (F32, F64)
