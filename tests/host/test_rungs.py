"""Entries of all ladders: complete, beside their kernels, honest about what they take and how they are launched."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from matmill import arch
from matmill.config import Config
from matmill.dtypes import ALL, BF16, DTYPES, F16, F32, F64, DType, of_numpy
from matmill.errors import ArgumentError
from matmill.jit.compile import compile_ptx
from matmill.jit.source import generate, read_source
from matmill.kernel import GemmOperands, Kernel, Program, Rung
from matmill.ladders import documents
from matmill.ladders.hgemm.rungs import ON_MMA
from matmill.ladders.inner.rungs import INNER
from matmill.ladders.memory.rungs import FILL, MEMORY, PRODUCT, Fill, filled
from matmill.ladders.packed import reported
from matmill.ladders.registry import LADDERS
from matmill.ladders.sgemm.rungs import IN_PIECES, IN_REGISTERS, ON_FMA, SGEMM
from matmill.ladders.transpose_add.subject import transpose_add_problem
from matmill.launch import Launch, Pointer
from matmill.problem import Gemm
from support.compiled import resources
from support.rungs import WHOLE

A100, H200 = arch.get("a100"), arch.get("h200")
TARGETS = ("sm_75", "sm_90a")
RUNGS = {rung.label: rung for rung in INNER}
BY_LABEL = {rung.label: rung for rung in SGEMM}
ANY_SHAPE = (
    "uncoalesced",
    "naive",
    "multi(1)",
    "multi(2)",
    "multi(4)",
    "multi(8)",
    "tuned",
    *(rung.label for rung in IN_PIECES),
)
E, F, C, D, W = (Pointer(name, 4096 * i) for i, name in enumerate("EFCDW", start=1))
OPERANDS = GemmOperands(E, F, C, D, alpha=2.0, beta=3.0, workspace=W)
ENTRIES = [(name, rung) for name, ladder in LADDERS.items() for rung in ladder.rungs]


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


# Entries


@pytest.mark.parametrize(("ladder", "rung"), ENTRIES, ids=lambda value: getattr(value, "label", value))
def test_entries_are_complete(ladder: str, rung: Any) -> None:
    for text in (rung.changes, rung.predicts, rung.claim):
        assert text.endswith(".") or not text
    assert rung.changes
    assert 0 < len(rung.idea) <= 24, "an idea fits into a table of 80 columns"
    assert not rung.base or rung.base in {other.label for other in LADDERS[ladder].rungs}
    assert re.search(r"\d", rung.predicts) or ladder == "hgemm", "a prediction is a number"
    claims = rung.source is not documents.OURS
    assert bool(rung.claim) == claims
    if ladder == "sgemm" and claims:
        assert re.search(r"\d ms \([\d.]+ TFLOP/s\) on ", rung.claim)


@pytest.mark.parametrize(
    ("ladder", "rung"),
    [entry for entry in ENTRIES if entry[0] != "memory" and entry[1] not in IN_PIECES],
    ids=lambda value: getattr(value, "label", ""),
)
def test_a_kernel_lies_beside_its_entry_and_uses_every_constant(ladder: str, rung: Rung[Any]) -> None:
    assert rung.kernel.package == f"matmill.ladders.{ladder}"
    assert rung.kernel.file == f"{rung.name.replace('-', '_')}.cuh"
    text = read_source(rung.kernel.package, rung.kernel.file)
    assert text.startswith("// ")
    assert re.search(rf"\b{rung.kernel.entry}\(", text)
    if ladder in {"sgemm", "inner"} and rung.name != "tuned":
        kernel = kernel_of(rung, problem_of(rung, 3)) if ladder == "inner" else rung.kernel
        source = "".join(text for _, text in generate(rung.kernel, F32).headers)
        for name, _ in kernel.config.constants:
            assert f"Config::{name}" in source, f"{name} is decided on the host and not used on the device"


def test_the_ladders_in_order() -> None:
    labels = {name: [rung.label for rung in ladder.rungs] for name, ladder in LADDERS.items()}
    assert labels["sgemm"] == list(WHOLE)
    assert labels["inner"] == ["basic", "phvm", "one-pass", "vectorized", "two-stage", "gram"]
    assert labels["transpose_add"] == ["v1", "v2", "wide", "shifted"]
    assert labels["memory"] == [rung.transfer for rung in MEMORY] == ["pageable", "pinned", "unified"]
    of_the_document = ["hierarchical", "vectorized", "swizzled", "prefetch", "tile-shape", "double-buffer"]
    assert labels["hgemm"][:10] == [rung.label for rung in ON_MMA]
    assert labels["hgemm"][:10] == [*of_the_document, "multistage", "any-size", "epilogue", "float32-sums"]
    assert all((rung.product, rung.fill, rung.source) == (PRODUCT, FILL, documents.SLIDES) for rung in MEMORY)


def test_reported_times_turn_into_rates() -> None:
    assert "(26.2 TFLOP/s)" in BY_LABEL["conflict-free(256)"].claim
    assert "(4.05 TFLOP/s)" in reported(1024, {"GTX Titan X": 0.53028})


# Registers and code


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rung", [*ON_FMA[:-4], PRODUCT, FILL], ids=lambda rung: getattr(rung, "label", "kernel"))
def test_float32_rungs_compile_without_spills(rung: Any, target: str) -> None:
    kernel = getattr(rung, "kernel", rung)
    used = resources(generate(kernel, F32), target)
    assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0)
    if kernel is not FILL:
        x, y, z = kernel.geometry(Gemm(1024, 1024, 1024), kernel.config).block
        assert 0 < used.registers * x * y * z <= H200.registers_per_sm


@pytest.mark.parametrize("n", [256, 1024, 4096, 8192])
@pytest.mark.parametrize("rung", [*IN_REGISTERS, *IN_PIECES], ids=lambda rung: rung.label)
def test_float32_rungs_on_tensor_cores_compile_without_spills(rung: Rung[Gemm], n: int) -> None:
    problem = Gemm(n, n, n)
    kernel = kernel_of(rung, problem)
    assert kernel.why_not(problem, H200) is None
    used = resources(generate(kernel, F32), "sm_90a")
    assert (used.spill_stores, used.spill_loads) == (0, 0)
    assert used.stack == 0 or rung in IN_PIECES  # arguments of the function that multiplies whole elements


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("m", [3, 8, 16])
@pytest.mark.parametrize("label", RUNGS)
def test_inner_rungs_compile_without_spills(label: str, m: int, target: str) -> None:
    rung = RUNGS[label]
    for dtype in [F32] if target == "sm_75" or m != 8 else [F32, F64, BF16]:
        problem = problem_of(rung, m, dtype=dtype)
        kernel = kernel_of(rung, problem)
        assert kernel.why_not(problem, H200) is None
        used = resources(generate(kernel, dtype), target)
        assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0)
        assert 0 < used.registers * kernel.config["BS"] <= H200.registers_per_sm
        assert 0 < used.shared <= 48 * 1024


def test_multi_keeps_its_loads_of_c() -> None:
    # The rung is about global memory; were C summed up in a register, no load of it would stand between two products.
    ptx = compile_ptx(generate(BY_LABEL["multi(1)"].kernel, F32), "sm_90a")
    body = re.sub(r"^\s*(//.*|\.loc.*)\n", "", ptx, flags=re.MULTILINE)
    pieces = body.split("fma.rn.f32")
    assert len(pieces) > 2
    assert all(re.search(r"ld\.volatile\.global", piece) for piece in pieces[:-1])


@pytest.mark.parametrize("target", TARGETS)
def test_register_tile_reads_shared_memory_a_word_at_a_time(target: str) -> None:
    ptx = compile_ptx(generate(BY_LABEL["register-tile"].kernel, F32), target)
    assert len(re.findall(r"ld\.volatile\.shared\.[fb]32", ptx)) == 16 * 16
    assert not re.search(r"ld\.\S*shared\S*\.v[24]", ptx)


def test_other_constants_make_another_kernel() -> None:
    kernel = BY_LABEL["shared(8)"].kernel
    assert generate(kernel, F32).digest != generate(kernel.with_config(Config.of(B=16)), F32).digest


# What rungs take


@pytest.mark.parametrize("label", [label for label in WHOLE if label not in ANY_SHAPE])
def test_why_not_names_the_multiple(label: str) -> None:
    whole = WHOLE[label]
    kernel = BY_LABEL[label].kernel
    assert kernel.why_not(Gemm(*whole), H200) is None
    for at, name in enumerate("mnk"):
        m, n, k = more = [size + (place == at) for place, size in enumerate(whole)]
        reason = kernel.why_not(Gemm(m, n, k), H200) or ""
        match = re.fullmatch(rf"{name} = {more[at]} is not a multiple of (\d+)", reason)
        assert match is not None, reason
        assert whole[at] % int(match[1]) == 0


@pytest.mark.parametrize("label", WHOLE)
def test_why_not_refuses_what_the_parameters_cannot_say(label: str) -> None:
    right = Gemm(*WHOLE[label])
    kernel = kernel_of(BY_LABEL[label], right)
    assert kernel.why_not(right, H200) is None
    assert kernel.why_not(replace(right, dtype=F64), H200) == "float64 is not float32"
    assert kernel.why_not(replace(right, batch=2), H200) == "a batch of 2 is not one product"
    for name, field in (("A", "a_strides"), ("B", "b_strides"), ("C", "d_strides")):
        strange: dict[str, Any] = {field: (1, 77)}
        reason = kernel.why_not(replace(right, **strange), H200)
        assert (reason or "").startswith(f"strides (1, 77) of {name} are not those of a packed matrix")


@pytest.mark.parametrize("label", RUNGS)
def test_every_type_up_to_64_rows_and_columns(label: str) -> None:
    for dtype in ALL.values():
        for m in (1, 9, 17, 31, 32, 33, 64):
            problem = problem_of(RUNGS[label], m, dtype=dtype)
            assert kernel_of(RUNGS[label], problem).why_not(problem, H200) is None


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
    ("label", "m", "n", "reason"),
    [
        ("v1", 65, 64, "X's columns are not contiguous, or do not all start on 16 bytes"),
        ("v2", 64, 63, "the rows of Y and D are not whole numbers of 2 elements"),
    ],
)
def test_the_articles_rungs_say_what_they_do_not_take(label: str, m: int, n: int, reason: str) -> None:
    (rung,) = (rung for rung in LADDERS["transpose_add"].rungs if rung.label == label)
    problem = transpose_add_problem(n, m)
    assert rung.kernel_for(problem, H200).why_not(problem, H200) == reason


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
    for label in ("vectorized", "two-stage"):
        config = kernel_of(RUNGS[label], problem).config
        assert (config["E_WIDTH"], config["F_MODE"], config["F_WIDTH"]) == (e_width, f_mode, f_width)


# Launches


@pytest.mark.parametrize("rung", [*ON_FMA, *IN_REGISTERS], ids=lambda rung: rung.label)
def test_arguments_follow_the_parameters(rung: Rung[Gemm]) -> None:
    a, b, c, d = (Pointer(name, 256 * i) for i, name in enumerate("ABCD", start=1))
    args = rung.kernel.arguments(Gemm(256, 512, 768), rung.kernel.config, GemmOperands(a, b, c, d, alpha=2.0, beta=3.0))
    scalars = (np.int32(256), np.int32(512), np.int32(768), np.float32(2), np.float32(3))
    assert args == (a, b, d, *scalars)
    assert [type(x) for x in args[3:]] == [type(x) for x in scalars]


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
    single = SGEMM[0].kernel
    assert single.workspace(problem) == 0
    assert single.launches(problem, OPERANDS) == (single.launch(problem, OPERANDS),)


def test_fill_launches_a_thread_per_element() -> None:
    target = Pointer("X", 256)
    launch = FILL.launch(Fill(3, 100, seed=7), GemmOperands(target, target, target, target))
    assert (launch.grid, launch.block) == ((2, 1, 1), (256, 1, 1))
    assert launch.args == (target, np.int64(300), np.uint32(7))
    assert [type(x) for x in launch.args[1:]] == [np.int64, np.uint32]
    assert FILL.why_not(Fill(3, 100), H200) is None


def test_filled_numbers_are_spread_over_the_interval() -> None:
    numbers = filled(Fill(256, 256, seed=3))
    assert numbers.shape == (256, 256)
    assert numbers.min() >= -1
    assert numbers.max() < 1
    share, _ = np.histogram(numbers, bins=16, range=(-1, 1))
    assert np.abs(share / numbers.size - 1 / 16).max() < 0.005
    assert not np.array_equal(numbers, filled(Fill(256, 256, seed=4)))


# Problems and types


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
