"""The inner kernel on tensor cores in the emulator: right, free of races, and float32 all the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import Kernel
from matmill.kernels.inner import INNER
from matmill.kernels.inner.passes import (
    PACKED,
    SHIFTED,
    STRIDED,
    Reads,
    groups,
    k_groups,
    outputs_of,
    remainder,
    triangle,
)
from matmill.kernels.inner.space import space
from matmill.problem import Gemm
from support.examples import examples
from support.strided import Array, without
from support.trial import Case, Trial, cases, hazards


@dataclass(frozen=True)
class TensorCores:
    """One of the configurations on tensor cores, which are offered where k is long, by what it is like."""

    wanted: Callable[[Config], bool] = lambda _config: True
    number: int = 0
    blocks: int = 2

    def kernel_for(self, problem: Gemm, arch: Arch) -> Kernel[Gemm]:
        """Give ``number``-th of those that are ``wanted``, with ``blocks`` blocks whose sums a second launch adds."""
        result = [config for config in space(replace(problem, k=10**6), arch) if config["MMA"] and self.wanted(config)]
        fitting = list(dict.fromkeys(config.launched(SPLIT_K=self.blocks, LAST_BLOCK=0) for config in result))
        assert fitting, "none of these is offered"
        return INNER.with_config(fitting[self.number % len(fitting)])


def like(v: int, *, several: bool, **constants: int) -> TensorCores:
    """Return lanes that load ``v`` k's at once, in several k-groups or one, and these constants."""
    wanted = {"V": v, **constants}
    return TensorCores(
        lambda config: (config["U"] > 1) == several and all(config[name] == wanted[name] for name in wanted)
    )


#: What a tensor core loses of a step's sum, in roundoffs of float32: 2**-25 of the largest product for each of 8
#: products and C, which it truncates, and a unit in the last place of the sum.
TRUNCATED = 9 / 2 + 2


def roundoffs(trial: Trial) -> float:
    """Return the largest error of float32 in roundoffs of what is added up, signs apart."""
    case = trial.case
    e, f, c = (matrix.astype(np.float64) for matrix in (trial.a, trial.b, trial.c))
    added = case.beta * c if case.beta else 0.0
    whole = abs(case.alpha) * (np.abs(e) @ np.abs(f)) + np.abs(added)
    error = np.abs(trial.d.astype(np.float64) - (case.alpha * (e @ f) + added))
    return float(np.max(error / (whole * trial.problem.dtype.roundoff)))


#: Layouts, and elements between the end of a contiguous run and the next: k odd, and runs that begin anywhere.
ON_TENSOR_CORES = [
    (like(1, several=True, F_MODE=STRIDED), Case(64, 64, 260, "float32", "row"), 0),
    (like(2, several=True, F_WIDTH=4), Case(48, 56, 260, "float32", "column"), 0),
    (like(4, several=False, F_MODE=PACKED), Case(65, 65, 130, "float32", "row", alpha=2.0, beta=-1.0), 0),
    (like(2, several=False, E_MODE=PACKED), Case(66, 33, 130, "float32", "row", a_layout="column"), 0),
    (like(4, several=True, E_MODE=STRIDED), Case(64, 40, 260, "float32", "column", a_layout="column", beta=0.5), 0),
    (like(1, several=True, E_MODE=SHIFTED), Case(33, 50, 201, "float32", "column"), 0),
    (like(2, several=False, E_WIDTH=1), Case(33, 50, 201, "float32", "column"), 0),
    (like(1, several=False, F_MODE=SHIFTED), Case(60, 44, 130, "float32", "column"), 1),
    (like(4, several=False, F_WIDTH=1), Case(44, 60, 130, "float32", "column"), 1),
    (like(1, several=False, F_MODE=STRIDED, F_WIDTH=1), Case(24, 52, 260, "float32", "row"), 1),
    (like(4, several=True, F_WIDTH=8), Case(64, 48, 260, "float16", "column", alpha=-1.5, beta=2.0), 4),
    (like(8, several=False, F_WIDTH=2), Case(33, 40, 261, "bfloat16", "column"), 1),
    (like(8, several=True, E_MODE=SHIFTED), Case(16, 24, 261, "float16", "column"), 0),
    (like(4, several=False, F_MODE=SHIFTED), Case(33, 13, 517, "bfloat16", "column", alpha=2.0, beta=-1.0), 1),
    (like(8, several=False, E_MODE=SHIFTED, F_MODE=PACKED), Case(13, 13, 259, "float16", "row"), 0),
    (like(4, several=True, E_MODE=SHIFTED, F_MODE=STRIDED), Case(20, 40, 515, "bfloat16", "row"), 0),
    (like(4, several=True, F_MODE=STRIDED), Case(24, 40, 260, "bfloat16", "row"), 0),
    (like(8, several=False, F_MODE=PACKED), Case(33, 13, 264, "float16", "row", alpha=2.0, beta=1.0), 0),
    (like(4, several=False, E_MODE=STRIDED), Case(48, 20, 130, "float16", "row", a_layout="column"), 4),
    (like(4, several=True, E_MODE=PACKED), Case(18, 24, 300, "bfloat16", "column", a_layout="column"), 0),
    (like(2, several=True, F_MODE=STRIDED), Case(32, 32, 260, "float64", "row"), 0),
    (like(1, several=True, E_MODE=STRIDED), Case(24, 40, 260, "float64", "row", a_layout="column", alpha=-1.5), 0),
    (like(2, several=False, F_WIDTH=1), Case(33, 50, 201, "float64", "column", beta=2.0), 0),
    (like(1, several=False, E_MODE=SHIFTED), Case(65, 50, 130, "float64", "column"), 1),
]


@pytest.mark.parametrize(
    ("subject", "case", "pad"), ON_TENSOR_CORES, ids=[f"{case}+{pad}" for _, case, pad in ON_TENSOR_CORES]
)
def test_tensor_cores_are_right(subject: TensorCores, case: Case, pad: int) -> None:
    trial = Trial(subject, case, pad=pad)
    assert not hazards(trial, schedule=case.m % 4)
    assert trial.excess() <= 1
    assert case.dtype != "float32" or roundoffs(trial) < TRUNCATED


#: Rows of E, columns of F and both that the tiles leave, summed by one warp or interleaved among several.
REMAINDERS = [
    (like(2, several=False, TM=8, TN=4), Case(65, 65, 260, "float32", "column", alpha=2.0, beta=-1.0), 0, (1, 1)),
    (like(1, several=True, TM=4, TN=4), Case(65, 65, 131, "float32", "row"), 0, (1, 1)),
    (like(1, several=False, TM=8, TN=4, F_MODE=SHIFTED), Case(65, 65, 131, "float32", "column"), 0, (1, 1)),
    (like(4, several=False, TM=6, TN=3), Case(100, 100, 66, "float32", "row"), 0, (2, 1)),
    (like(2, several=False, TM=4, TN=6), Case(100, 100, 67, "float32", "column"), 0, (0, 2)),
    (like(2, several=True, TM=8, TN=2), Case(66, 33, 260, "float32", "column"), 0, (2, 1)),
    (like(1, several=False, TM=8, TN=5), Case(65, 65, 67, "float32", "row"), 0, (1, 0)),
    (like(2, several=False, E_MODE=PACKED), Case(67, 34, 66, "float32", "row", a_layout="column", beta=0.5), 0, None),
]


@pytest.mark.parametrize(("subject", "case", "pad", "left"), REMAINDERS, ids=[str(case) for _, case, *_ in REMAINDERS])
def test_the_remainder_of_tiles_is_right(
    subject: TensorCores, case: Case, pad: int, left: tuple[int, int] | None
) -> None:
    trial = Trial(subject, case, pad=pad)
    assert max(remainder(trial.kernel.config)) > 0
    assert left is None or remainder(trial.kernel.config) == left
    assert not hazards(trial, schedule=case.k % 4)
    assert trial.excess() <= 1
    assert roundoffs(trial) < TRUNCATED


#: One tile of a warp on its own, which may be longer than wide, and triangles of tiles.
GRAM_ON_TENSOR_CORES = [
    (like(2, several=True, DOWN=1), Case(24, 24, 300, "float32", "gram"), 0),
    (like(4, several=False, DOWN=1), Case(49, 49, 131, "float32", "gram"), 0),
    (like(4, several=True, DOWN=2), Case(64, 64, 131, "float32", "gram"), 0),
    (like(2, several=False, DOWN=3), Case(81, 81, 67, "float32", "gram"), 1),
    (like(4, several=False, DOWN=4), Case(128, 128, 67, "float32", "gram"), 0),
    (like(1, several=True, E_MODE=STRIDED), Case(64, 64, 130, "float32", "gram", alpha=0.5, a_layout="column"), 0),
    # Tiles of 32 rows and 24 columns, read from one stage: a load of four rows would be one of three columns.
    (like(2, several=False, E_MODE=STRIDED, TM=4, TN=3), Case(24, 24, 200, "float32", "gram", a_layout="column"), 0),
    (like(4, several=True, DOWN=1), Case(24, 24, 301, "float16", "gram"), 1),
    (like(8, several=False), Case(48, 48, 300, "bfloat16", "gram", beta=1.0), 0),
    (like(8, several=True, E_MODE=SHIFTED), Case(16, 16, 531, "float16", "gram"), 0),
    (like(4, several=False, E_MODE=SHIFTED), Case(49, 49, 261, "bfloat16", "gram", beta=1.0), 0),
    (like(4, several=True, E_MODE=STRIDED), Case(24, 24, 300, "float16", "gram", a_layout="column"), 0),
    (like(8, several=False, E_MODE=STRIDED), Case(64, 64, 130, "bfloat16", "gram", a_layout="column"), 0),
    (like(2, several=True, DOWN=2), Case(32, 32, 300, "float64", "gram"), 0),
    (like(1, several=False, E_MODE=STRIDED), Case(40, 40, 67, "float64", "gram", a_layout="column"), 0),
]


@pytest.mark.parametrize(
    ("subject", "case", "pad"), GRAM_ON_TENSOR_CORES, ids=[str(case) for _, case, _ in GRAM_ON_TENSOR_CORES]
)
def test_gram_matrices_on_tensor_cores_are_symmetric_to_the_bit(subject: TensorCores, case: Case, pad: int) -> None:
    trial = Trial(subject, case, pad=pad)
    trial.c[:] = np.tril(trial.c) + np.tril(trial.c, -1).T
    assert not hazards(trial, schedule=case.m % 4)
    assert trial.excess() <= 1
    assert case.dtype != "float32" or roundoffs(trial) < TRUNCATED
    assert trial.d.tobytes() == np.ascontiguousarray(trial.d.T).tobytes()


@pytest.mark.parametrize("layout", ["column", "gram"])
def test_float64_is_the_same_by_the_smaller_instructions_of_older_gpus(layout: str) -> None:
    # Two blocks per SM leave each of them no more shared memory than sm_80 has.
    trial = Trial(like(2, several=True, BLOCKS_PER_SM=2), Case(24, 24, 300, "float64", layout))
    results = []
    for target, each in (("sm_80", 4), ("sm_90a", 1)):
        first, *_ = reports = trial.run(target=target)
        assert not [hazard for report in reports for hazard in report.hazards]
        assert trial.excess() <= 1
        results.append((trial.d.tobytes(), first.counters.dmma // each))
    assert results[0] == results[1]


@examples(4)
@given(st.data())
def test_any_product_that_tensor_cores_take_is_right(data: st.DataObject) -> None:
    draw = data.draw
    case = draw(cases((24, 72), (8, 300), ["float32", "float32", "float64", "float16", "bfloat16"]))
    subject = TensorCores(number=draw(st.integers(0, 1000)))
    try:
        trial = Trial(subject, case, pad=draw(st.sampled_from([0, 1, 2, 4])))
    except AssertionError:  # none is offered: 16-bit matrices that are contiguous along k, few FMAs
        reject()
    assert not hazards(trial, schedule=draw(st.integers(0, 3)))
    assert trial.excess() <= 1


@pytest.mark.parametrize(
    ("subject", "case"),
    [
        (like(4, several=False, F_MODE=STRIDED), Case(48, 64, 130, "float16", "row")),  # columns of a lane side by side
        (like(4, several=False), Case(64, 64, 130, "float32", "column")),
        (like(2, several=True), Case(33, 65, 130, "float64", "row")),
    ],
    ids=lambda value: str(value) if isinstance(value, Case) else "",
)
def test_many_sums_are_written_in_whole_sectors(subject: TensorCores, case: Case) -> None:
    trial = Trial(subject, case)
    counters = trial.main(races=False).counters
    written = subject.blocks * case.m * case.n * trial.problem.dtype.accumulator.itemsize
    assert counters.global_store_bytes == written
    # A warp's store of neighbours, where they begin anywhere, ends in a sector that the next one begins.
    assert written / 32 <= counters.global_store_sectors <= 1.3 * written / 32


@pytest.mark.parametrize("k", [1, 5, 63, 1000])
def test_k_groups_share_any_k(k: int) -> None:
    trial = Trial(replace(like(2, several=True), blocks=3), Case(24, 24, k, layout="row"))
    assert not hazards(trial, schedule=k % 4)
    assert roundoffs(trial) < 8


@pytest.mark.parametrize("several", [False, True])
def test_the_order_of_warps_and_blocks_changes_no_bit_of_tensor_cores(several: bool) -> None:
    trial = Trial(replace(like(2, several=several), blocks=3), Case(24, 24, 120))
    results = set()
    for schedule in range(3):
        assert not hazards(trial, schedule=schedule)
        results.add(trial.d.tobytes())
    assert len(results) == 1


@pytest.mark.parametrize("stages", [1, 2])
def test_k_groups_with_fewer_stages_pass_as_many_barriers(stages: int) -> None:
    subject = TensorCores(lambda config: config["U"] > 1 and config["BS"] > 32 * config["U"], blocks=1)
    config = Trial(subject, Case(64, 64, 1)).kernel.config
    barriers = [
        Trial(subject, Case(64, 64, config["BK"] * (k_groups(config) * (stages - 1) + last)))
        .main(races=False)
        .counters.barriers
        for last in (1, k_groups(config))
    ]
    assert barriers[0] == barriers[1] > 0


LARGEST = np.finfo(np.float32).max
#: What is not finite, what is all but infinite, and what that multiplies to nothing, to less, to more, to no number.
SPECIAL = np.array([np.inf, -np.inf, np.nan, LARGEST, -LARGEST, 0, 1e-42, 0.5, 2, -1], np.float32)
SPECIAL.view(np.uint32)[2] = 0x7FFFFFFF  # which rounds to minus zero, as bits go


def by_kind(x: Array) -> Array:
    """Tell whether numbers are infinite, and how, or not numbers, or finite."""
    return np.select([np.isnan(x), x == np.inf, x == -np.inf], [3, 2, 1], 0)


@pytest.mark.parametrize("values", [SPECIAL, SPECIAL[3:]], ids=["all", "finite"])
@pytest.mark.parametrize(
    ("subject", "case"),
    [
        (like(2, several=True), Case(24, 24, 600, layout="row")),
        (like(2, several=False), Case(24, 24, 600, layout="gram")),
        (like(1, several=True, F_MODE=SHIFTED), Case(24, 24, 301)),
        (like(2, several=False, E_MODE=PACKED), Case(26, 33, 300, layout="row", a_layout="column")),
    ],
    ids=lambda value: str(value) if isinstance(value, Case) else "",
)
def test_what_is_not_finite_on_tensor_cores_is_what_it_would_be_elsewhere(
    subject: TensorCores, case: Case, values: Array
) -> None:
    trial = Trial(subject, case)
    trial.a[: len(values), 70] = values
    if case.layout != "gram":
        trial.b[70, : len(values)] = values
    assert not hazards(trial)
    with np.errstate(invalid="ignore", over="ignore"):
        products = trial.a.astype(np.float64)[:, :, None] * trial.b.astype(np.float64)
        exact = products.sum(axis=1)
        kinds = by_kind(exact.astype(np.float32))
    assert set(kinds.flat) == ({0, 1, 2, 3} if len(values) == len(SPECIAL) else {0, 1, 2})
    assert np.array_equal(by_kind(trial.d), kinds)
    finite = kinds == 0
    error = np.abs(trial.d[finite] - exact[finite])
    assert (error <= 8 * 2.0**-24 * np.abs(products).sum(axis=1)[finite]).all()


def test_sums_of_finite_products_that_are_too_large_are_infinite() -> None:
    trial = Trial(like(2, several=True), Case(24, 24, 700))
    trial.b[...] = 1
    trial.a[...] = 0
    trial.a[3, [20, 600]] = 0.75 * LARGEST
    trial.a[4, [20, 600]] = -0.75 * LARGEST
    trial.a[5, [20, 600]] = 0.75 * LARGEST, -0.75 * LARGEST
    trial.a[6, [20, 21]] = 0.5 * LARGEST, 0.25 * LARGEST
    trial.a[7, [20, 600]] = np.inf, -np.inf
    assert not hazards(trial)
    wanted = [0, 0, 0, np.inf, -np.inf, 0, 0.75 * LARGEST, np.nan]
    np.testing.assert_allclose(trial.d[:8], np.tile(np.array(wanted)[:, None], 24), rtol=2.0**-21)
    assert not trial.d[8:].any()


#: Numbers whose upper 11 bits leave out as much as they can, either way, and between them.
CROOKED = np.array([0x3F800FFF, 0x3F801000, 0x3F801001, 0x3FFFFFFF, 0x3FABCFFF], np.uint32).view(np.float32)


@pytest.mark.parametrize("k", [1, 8, 2000])
@pytest.mark.parametrize("numbers", ["positive", "any sign", "crooked"])
def test_tensor_cores_lose_nothing_that_float32_keeps(numbers: str, k: int) -> None:
    trial = Trial(like(2, several=False), Case(24, 24, k))
    rng = np.random.default_rng(k)
    for matrix in (trial.a, trial.b):
        drawn = rng.choice(CROOKED, matrix.shape) if numbers == "crooked" else rng.uniform(0.5, 1, matrix.shape)
        matrix[...] = drawn * rng.choice([-1, 1], matrix.shape) if numbers == "any sign" else drawn
    assert not hazards(trial)
    lost = roundoffs(trial)
    # high + low is short of a number by up to 2 roundoffs, a product without low * low by 4; then sums are rounded.
    assert lost < 9
    if k > 1000:
        products = trial.a.astype(np.float32)[:, :, None] * trial.b.astype(np.float32)
        trial.d[...] = np.cumsum(products, axis=1, dtype=np.float32)[:, -1]
        assert lost < roundoffs(trial) / 4


@pytest.mark.parametrize(("e_size", "f_size"), [(-126, 100), (100, -126), (110, -100), (126, -100), (-70, -50)])
def test_tensor_cores_take_numbers_of_any_size(e_size: int, f_size: int) -> None:
    trial = Trial(like(2, several=False), Case(24, 24, 40))
    rng = np.random.default_rng(40)
    trial.a[...] = rng.uniform(1, 2, trial.a.shape).astype(np.float32) * np.float32(2.0**e_size)
    trial.b[...] = rng.uniform(1, 2, trial.b.shape).astype(np.float32) * np.float32(2.0**f_size)
    assert not hazards(trial)
    assert roundoffs(trial) < 8


@pytest.mark.parametrize(
    ("subject", "case", "pad"),
    [
        (like(4, several=True), Case(64, 64, 0, "float32", "column"), 0),
        (like(2, several=False), Case(64, 64, 0, "float32", "row"), 0),
        (like(8, several=False), Case(64, 64, 0, "bfloat16", "gram"), 0),
        (like(1, several=False, F_MODE=PACKED), Case(70, 70, 0, "float32", "row"), 0),
        (like(2, several=False, DOWN=1), Case(64, 64, 0, "float32", "gram"), 0),
        (like(4, several=True, F_MODE=STRIDED), Case(64, 32, 0, "float16", "row"), 0),
        (like(2, several=True), Case(64, 64, 0, "float64", "column"), 0),
        (like(1, several=True, E_MODE=STRIDED), Case(32, 32, 0, "float64", "row", a_layout="column"), 0),
        (like(8, several=True, E_MODE=SHIFTED), Case(16, 16, 0, "float16", "column"), 1),
        (like(4, several=False, E_MODE=SHIFTED), Case(64, 64, 0, "bfloat16", "gram"), 3),
        (like(4, several=True, F_MODE=SHIFTED), Case(32, 16, 0, "float16", "column"), 2),
    ],
)
def test_the_host_knows_which_banks_meet_for_tensor_cores(subject: TensorCores, case: Case, pad: int) -> None:
    config = Trial(replace(subject, blocks=1), replace(case, k=256), pad=pad).kernel.config
    trial = Trial(replace(subject, blocks=1), replace(case, k=3 * config["BK"] * k_groups(config)), pad=pad)
    config = trial.kernel.config
    passed = 0.0  # of a warp of each group, per k
    for name, count in (("E", config["TM"]), ("F", config["TN"])):
        if name == "F" and triangle(config):
            continue
        reads = Reads.of(config, name, trial.problem)
        passed += count * reads.per_element / 4 * reads.passes(config[f"{name}_PITCH"])
    warps = config["S"] // 32
    wide = trial.problem.dtype.accumulator.itemsize
    # All groups' sums at once where the stages have room for them, else those of half of the groups.
    together = config["BS"] * outputs_of(config) * wide <= config["SHARED_BYTES"] and groups(config) > 2
    sums = (groups(config) - (not together)) * warps * outputs_of(config) * wide // 4
    twice = groups(config) * 4 * max(2, config["V"])  # k's of a last stage's first step, which is loaded again
    expected = passed * warps * (trial.problem.k + twice) + sums
    result = trial.main(races=False).counters.shared_load_wavefronts
    if max(8 * config["TM"] * config["DOWN"] - case.m, 8 * config["TN"] * config["ACROSS"] - case.n) == 0:
        assert result == expected
    else:  # rows beyond the last are the last, which several lanes read at once
        assert 0.9 * expected < result <= expected


#: Before a k-group's first stage, before its next one, and before sums replace the stages.
_FIRST, _NEXT = "ptx::cp_async_wait<STAGES - 1>();\n    ", "ptx::cp_async_wait<STAGES - 2>();\n          "
_LONG, _WITH_REMAINDER = Case(24, 24, 1000), Case(65, 65, 500)
#: Between what threads put into shared memory and what others read of it.
_AT_ONCE = "mine[i * S] = acc[i];\n    "
_REMAINDER = "if (threadIdx.x % 32 == 0) own_corner[i] = sum;\n    }\n    "
_MANY, _ALL = Case(64, 64, 130), Case(128, 128, 130, "float16")
_PLACED = "rows[row * PITCH + column] = sum; });\n      "
PLANTED_ON_TENSOR_CORES = [
    (like(2, several=False), _LONG, "k_groups.cuh", _FIRST + "sync();", _FIRST),
    (like(2, several=True), _LONG, "k_groups.cuh", _FIRST + "sync();", "sync();"),
    (like(2, several=False), _LONG, "k_groups.cuh", _NEXT + "sync();", _NEXT),
    (like(2, several=True), _LONG, "k_groups.cuh", _NEXT + "sync();", _NEXT),
    (like(2, several=False), _LONG, "k_groups.cuh", _NEXT + "sync();", "sync();"),
    (like(2, several=True), _LONG, "k_groups.cuh", _NEXT + "sync();", "sync();"),
    (
        like(4, several=True),
        replace(_LONG, dtype="float16"),
        "inner/mma.cuh",
        "if constexpr (SUM_BYTES > 0) __syncthreads();",
        "",
    ),
    (like(2, several=False), _LONG, "block_reduce.cuh", _AT_ONCE + "__syncthreads();", _AT_ONCE),
    (like(4, several=False), _MANY, "packed_sums.cuh", _PLACED + "__syncthreads();", _PLACED),
    # Where one group of warps has all of D, nothing else holds up those that are done.
    (
        like(8, several=False, S=256, BS=256),
        _ALL,
        "packed_sums.cuh",
        "__syncthreads();  // the stages",
        "// the stages",
    ),
    (like(4, several=True), _WITH_REMAINDER, "remainder.cuh", _REMAINDER + "__syncthreads();", _REMAINDER),
    (
        like(4, several=True),
        _WITH_REMAINDER,
        "remainder.cuh",
        "    __syncthreads();\n  }\n\n private:",
        "  }\n\n private:",
    ),
]


@pytest.mark.parametrize(("subject", "case", "header", "snippet", "instead"), PLANTED_ON_TENSOR_CORES)
def test_a_missing_wait_or_barrier_of_k_groups_is_found(
    subject: TensorCores, case: Case, header: str, snippet: str, instead: str
) -> None:
    trial = Trial(subject, case)
    source = without(trial.source(), header, snippet, instead=instead)
    assert [hazard for report in trial.run(source) for hazard in report.hazards]
