"""Why a problem is run as it is: floors, rounds of tiles, reasons of runner-ups, and what a caller could change."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from matmill.analysis.candidates import waves
from matmill.analysis.cause import cause
from matmill.analysis.changes import LEAST_GAIN, changes
from matmill.analysis.explain import Explanation, explain
from matmill.analysis.floor import floor
from matmill.analysis.runner_ups import BOUNDS
from matmill.arch import Arch, get
from matmill.arrays import Operand
from matmill.arrays.operand import CPU, packed_strides
from matmill.choose import call_seconds, choose
from matmill.dtypes import BF16, F16, F32, F64, DType
from matmill.errors import IllegalConfigError
from matmill.kernels.hgemm import HGEMM
from matmill.kernels.hgemm import space as hgemm_space
from matmill.lowering import lower_gemm, lower_transpose
from matmill.precision import METHODS, error_bound
from matmill.problem import Geam, Gemm

H200, A100, T4 = get("h200"), get("a100"), get("t4")


def _operand(shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, index: int) -> Operand:
    return Operand(shape, strides, dtype, CPU, index * 2**44, readonly=False, library="numpy", owner=None)


def _lowered(m: int, n: int, k: int, dtype: DType, *, pitch: int = 0) -> Gemm:
    """Return the problem of a call, with rows of A and B that are ``pitch`` elements apart, or packed."""
    a = _operand((m, k), (pitch or k, 1), dtype, 1)
    b = _operand((k, n), (pitch or n, 1), dtype, 2)
    (only,) = lower_gemm(a, b, None, _operand((m, n), (n, 1), dtype, 4))
    return only.problem


def _transposed_sum() -> Geam:
    shape = (3000, 2000)
    x = _operand(shape, packed_strides(shape), F32, 1)
    d = _operand(shape[::-1], packed_strides(shape[::-1]), F32, 4)
    return lower_transpose(x, d._replace(address=2 * 2**44), d)[0].problem


LARGE, ODD = _lowered(8192, 8192, 8192, BF16), _lowered(8191, 8191, 8191, BF16)
THIN, PLAIN = _lowered(16, 4096, 4096, F16), _lowered(2000, 2000, 2000, F32)
CASES: list[tuple[Gemm | Geam, Arch]] = [
    (LARGE, H200),
    (ODD, H200),
    (THIN, H200),
    (PLAIN, H200),
    (_lowered(1000, 1001, 999, F16), A100),
    (_lowered(512, 512, 512, F64), A100),
    (_lowered(1000, 1001, 999, F16), T4),
    (Gemm(24, 24, 100_000, BF16), T4),
    (Gemm(32, 32, 1_000_000, gram=True, a_strides=(1_000_000, 1)), H200),
    (_transposed_sum(), A100),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1].name}".replace(" ", "-"))
def made(request: pytest.FixtureRequest) -> Explanation:
    """Provide what is said of one of the cases."""
    return explain(*request.param)


def test_no_prediction_is_below_the_floor(made: Explanation) -> None:
    assert made.floor.seconds == max(made.floor.compute_seconds, made.floor.memory_seconds) > 0
    assert all(one.seconds >= made.floor.seconds for one in made.legal)
    assert made.share == made.floor.seconds / made.chosen.seconds


def test_every_other_kernel_and_other_tiles_run_up(made: Explanation) -> None:
    runner_ups = [one.candidate for one in made.runner_ups]
    entries = {one.kernel.entry for one in made.legal}
    assert {one.kernel.entry for one in (made.chosen, *runner_ups)} == entries
    assert made.chosen not in runner_ups
    assert len({one.kernel for one in runner_ups}) == len(runner_ups)
    assert all(one.seconds <= other.seconds for one, other in pairwise(runner_ups))
    for entry in entries - {made.chosen.kernel.entry}:
        (best,) = (one.seconds for one in runner_ups if one.kernel.entry == entry)
        assert best == min(one.seconds for one in made.legal if one.kernel.entry == entry)


def test_reasons_say_what_takes_longer_most_first(made: Explanation) -> None:
    assert made.chosen.bound in BOUNDS
    for one in made.runner_ups:
        seconds = [reason.seconds for reason in one.reasons]
        assert seconds == sorted(seconds, reverse=True)
        assert all(reason.words for reason in one.reasons)
        more = one.candidate.seconds - made.chosen.seconds
        if more > 1e-3 * made.chosen.seconds:
            assert seconds[0] > more / 10
        else:
            assert seconds == [0.0]


def test_changes_are_predicted_by_the_same_models(made: Explanation) -> None:
    gains = [change.gain for change in made.changes]
    assert gains == sorted(gains, reverse=True)
    for change in made.changes:
        choice = choose(change.problem, made.arch)
        assert change.seconds == call_seconds(choice.kernel, change.problem, choice.predicted_seconds)
        assert change.before == made.chosen.call_seconds
        assert change.gain >= LEAST_GAIN


def test_a_large_aligned_product_is_bounded_by_the_tensor_cores() -> None:
    result = explain(LARGE, H200)
    assert result.chosen.kernel.entry == "wgmma_gemm"
    assert (result.floor.bound, result.floor.unit) == ("compute: tensor cores", "tensor cores, bfloat16")
    assert result.floor.seconds == pytest.approx(2 * 8192**3 / H200.matrix_flops["bfloat16"])
    assert result.chosen.bound == "multiply"
    assert result.changes == ()
    (slow,) = (one for one in result.runner_ups if one.candidate.kernel.entry == "hgemm")
    assert "mma.sync does not reach" in slow.reasons[0].words
    assert any(
        dict(one.candidate.config.launch)["EXCHANGED"] != dict(result.chosen.config.launch)["EXCHANGED"]
        for one in result.runner_ups
        if one.candidate.kernel.entry == "wgmma_gemm"
    )


def test_an_odd_product_gains_by_rows_on_16_bytes() -> None:
    result = explain(ODD, H200)
    assert result.chosen.terms["repack"] > 0
    both, *single = (change for change in result.changes if change.kind == "alignment")
    assert both.words == "Rows of A and B on 16 bytes (8192 elements apart instead of 8191)"
    assert {change.words[:9] for change in single} == {"Rows of A", "Rows of B"}
    # Exactly the problem of a call with views of padded arrays, and without the launch that repacks.
    assert both.problem == _lowered(8191, 8191, 8191, BF16, pitch=8192)
    assert explain(both.problem, H200).chosen.terms["repack"] == 0
    # Either is chosen among few tiles, within 1% of the best.
    assert both.gain == pytest.approx(result.chosen.terms["repack"] / result.chosen.seconds, rel=0.12)


def test_a_thin_product_is_bounded_by_memory_and_split_k_costs_a_launch() -> None:
    result = explain(THIN, H200)
    assert result.floor.bound == "memory: DRAM"
    assert result.floor.seconds == THIN.least_bytes / H200.dram_bytes_per_s
    text = [reason.words for one in result.runner_ups for reason in one.reasons]
    assert any("a second launch, which adds the partial sums of" in words for words in text)
    assert any("one round of" in words for words in text)


def test_a_float32_product_gains_by_other_elements_or_tf32() -> None:
    result = explain(PLAIN, H200)
    assert (result.floor.bound, result.floor.unit) == ("compute: FMA units", "FMA units, float32")
    assert [change.kind for change in result.changes][:3] == ["dtype", "precision", "precision"]
    assert result.changes[0].words == "bfloat16 or float16 elements"
    assert result.changes[0].problem.dtype is BF16
    assert result.changes[1].problem == replace(PLAIN, precision="tf32")
    assert result.changes[2].problem == replace(PLAIN, precision="float32_tensor")
    # Older GPUs have no kernel for tf32 alone, and a T4 none for bfloat16 that gains.
    assert [change.problem.precision for change in changes(PLAIN, A100)][:2] == ["default", "float32_tensor"]
    assert [change.words for change in changes(PLAIN, T4)][:1] == ["float16 elements"]


def test_pieces_have_a_price_in_error_bounds() -> None:
    (pieces,) = (change for change in changes(PLAIN, H200) if change.problem.split_methods)
    bounds = [round(error_bound(method, PLAIN.k)) for method in ("fp16x3", "fma")]
    assert f"at most {bounds[0]} units of 2**-24 |A| @ |B| instead of {bounds[1]}" in pieces.words
    assert max(error_bound(method, PLAIN.k) for method in METHODS) == error_bound("fp16x3", PLAIN.k)
    others = replace(PLAIN, out_dtype=F64), replace(PLAIN, precision="tf32"), _lowered(9, 9, 85, F32)
    for problem in (pieces.problem, *others):
        assert not any(change.problem.split_methods and change.kind == "precision" for change in changes(problem, H200))
    assert "tf32" in {change.problem.precision for change in changes(pieces.problem, H200)}


def test_what_older_gpus_cannot_run_is_said() -> None:
    result = explain(_lowered(1000, 1001, 999, F16), A100)
    assert result.chosen.kernel.entry == "hgemm"
    assert any(name.startswith("wgmma_gemm") and "9.0" in reason for name, reason in result.ruled_out.items())
    assert "FMA units, float32" in str(explain(Gemm(24, 24, 100_000, BF16), T4).floor.unit)
    with pytest.raises(IllegalConfigError, match=r"mma\.sync"):
        explain(Gemm(200, 200, 200, BF16), T4)
    with pytest.raises(IllegalConfigError, match=r"mma\.sync"):
        changes(Gemm(200, 200, 200, BF16), T4)


def test_options_that_cost_time_are_among_the_changes() -> None:
    problem = _lowered(2048, 2048, 2048, BF16)
    precise = changes(replace(problem, precision="high"), H200)
    assert [(change.kind, change.problem) for change in precise] == [("precision", problem)]
    wide = changes(replace(problem, out_dtype=F32), H200)
    assert [(change.kind, change.problem) for change in wide] == [("out_dtype", problem)]


def test_rows_on_cache_lines_are_told_where_they_gain_more() -> None:
    both = changes(_lowered(312, 2264, 3936, BF16), H200)[0]
    assert both.words == (
        "Rows of A and B on 128 bytes (A: 3968 elements apart instead of 3936, B: 2304 elements apart instead of 2264)"
    )
    assert (both.problem.a_row_col, both.problem.b_row_col) == ((3968, 1), (2304, 1))


def test_a_layout_that_must_be_repacked_is_among_the_changes() -> None:
    (other,) = (one for one in changes(replace(PLAIN, precision="tf32"), H200) if one.kind == "layout")
    assert other.words == "B stored transposed, column by column"
    assert other.problem.b_row_col == (1, 2000)


def test_rounds_of_tiles_are_counted_on_all_sms() -> None:
    problem = Gemm(1000, 1000, 64, F16)
    tile = next(c for c in hgemm_space(problem, H200) if (c["BM"], c["BN"], c["SPLIT_K"]) == (64, 64, 1))
    result = waves(HGEMM.with_config(tile), problem, H200)
    assert result is not None
    assert (result.tiles, result.slots, result.rounds) == (256, 132, 2)
    assert result.last == (256 - 132) / 132
    assert result.useful == 1000 * 1000 / (2 * 132 * 64 * 64)
    assert result.words == "2 rounds of tiles, the last 94% full"


def test_the_floor_of_a_gram_matrix_counts_one_half() -> None:
    gram = Gemm(4096, 4096, 4096, F64, gram=True, a_strides=(4096, 1))
    whole = floor(replace(gram, gram=False, b_strides=(1, 4096)), H200)
    assert floor(gram, H200).compute_seconds == pytest.approx(whole.compute_seconds * 4097 / 8192)


def test_the_floor_knows_that_tensor_cores_may_split_float32() -> None:
    result = explain(Gemm(128, 128, 1_000_000), H200)
    assert result.floor.unit == "tensor cores, tf32, 3 products for each of float32"
    assert result.floor.flops_per_s == pytest.approx(H200.matrix_flops["tf32"] / 3)


@pytest.mark.parametrize(
    ("problem", "arch", "words"),
    [
        (ODD, H200, "rows of A and B do not start on 16 bytes and are repacked first"),
        (LARGE, H200, "the rate at which tensor cores multiply bounds it"),
        (_lowered(8, 8, 8, F32), H200, "the GPU waits for the host"),
        (_lowered(128, 128, 30000, F16), H200, "a second launch adds the sums of "),
        (_lowered(64, 64, 2048, F16), H200, "the GPU waits for the host"),
        (
            _lowered(1000, 1000, 1000, F16),
            A100,
            "SMs are idle or compute padding (one round of 64 tiles on 108 SMs",
        ),
        (_transposed_sum(), A100, "the bandwidth of memory bounds it"),
    ],
)
def test_the_cause_is_what_costs_most(problem: Gemm | Geam, arch: Arch, words: str) -> None:
    made = explain(problem, arch)
    result = cause(made)
    assert result.words.startswith(words)
    assert 0 < result.seconds <= made.chosen.call_seconds
