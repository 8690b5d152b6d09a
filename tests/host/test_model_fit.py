"""Cost models of inner products and of transpose+add: what they say, and that a fit finds what is behind times."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lab.fitting import least
from lab.gemm.inner_search import KIND, read
from lab.gemm.shapes import packed
from lab.model_fit import Found, Samples, Verdict, fit, grouped, judge, write
from lab.models import MODELS
from lab.records import append
from matmill.arch import get
from matmill.config import Config
from matmill.dtypes import ALL, BF16, F64
from matmill.kernels.inner import INNER as KERNEL
from matmill.kernels.inner import cost
from matmill.kernels.inner.cost import Constants
from matmill.kernels.inner.space import space
from matmill.kernels.shared.model import Prediction
from matmill.ladders.inner.subject import GRAM, LAYOUTS, described, gram_of, inner_product
from matmill.problem import Gemm
from support.scripts import run_script

H200 = get("h200")
INNER = MODELS["inner"].model
NAMES = INNER.names
SCRIPT = "fit_model.py"
#: A GPU unlike the one that the estimates are for.
TRUTH = replace(
    cost.DEFAULT,
    read_share=0.96,
    latency=1.1e-6,
    sum_cycles=0.3,
    fma_share=0.9,
    copy_slots=9.0,
    load_slots=1.2,
    code_cycles=4.0,
    warps_half=2.5,
    overlap=2.5,
)
_NOISE = 0.02


SIDES = (
    *((1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (7, 7), (8, 8), (12, 12), (16, 16), (24, 24), (32, 32), (48, 48)),
    *((64, 64), (96, 96), (128, 128), (1, 16), (16, 2), (3, 12), (128, 1), (2, 128), (8, 64), (33, 5), (65, 65)),
    *((17, 31), (100, 20)),
)


def _problems(count: int, seed: int) -> list[Gemm]:
    """Return products of every element type and magnitude of k in turn, of few and many outputs, in every layout."""
    draw = np.random.default_rng(seed)
    result = []
    for index in range(count):
        (m, n), dtype = SIDES[(index + seed) * 7 % len(SIDES)], list(ALL.values())[index % 4]
        k = min(int(10 ** (4 + index // 4 % 6 + draw.uniform(-0.3, 0.3))), 10**10 // (m + n)) // 64 * 64
        layout = (*LAYOUTS, GRAM)[draw.integers(3)]
        k += int(draw.random() < 0.4)
        result.append(
            gram_of(inner_product(m, m, k, dtype)) if layout == GRAM else inner_product(m, n, k, dtype, layout)
        )
    return result


@cache  # several tests have the first problems of one seed
def _configs(problem: Gemm) -> tuple[Config, ...]:
    """Return the legal configurations that the model does not call hopeless, best first."""
    legal = [one for one in space(problem, H200) if KERNEL.with_config(one).why_not(problem, H200) is None]
    seconds = {one: cost.explain(problem, one, H200).seconds for one in legal}
    ranked = sorted(legal, key=seconds.__getitem__)
    return tuple(one for one in ranked if seconds[one] <= 5 * seconds[ranked[0]])


def _measured(problems: list[Gemm], part: str, every: int) -> list[Found[Gemm]]:
    """Return what a search would find on that GPU, had it timed one of so many configurations."""
    noise = np.random.default_rng(3)
    result = []
    for problem in problems:
        configs = _configs(problem)[::every]
        factors = np.exp(noise.normal(0, _NOISE, len(configs))).tolist()
        seconds = [cost.explain(problem, c, H200, TRUTH).seconds * x for c, x in zip(configs, factors, strict=True)]
        result.append(Found(problem, part, exhaustive=True, configs=configs, seconds=tuple(seconds), library=None))
    return result


def _recorded(path: Path, measured: list[Found[Gemm]]) -> None:
    """Write the record of a search."""
    names = [name for name, _ in KERNEL.config.constants], [name for name, _ in KERNEL.config.launch]
    KIND.open(path, 1, dict(zip(("constants", "launch"), names, strict=True)))
    for one in measured:
        rows = [
            [*(value for _, value in (*config.constants, *config.launch)), seconds, 3]
            for config, seconds in zip(one.configs, one.seconds, strict=True)
        ]
        fields = {"problem": described(one.problem), "part": one.part, "exhaustive": one.exhaustive}
        append(path, {**fields, "torch.mm": 1, "configs": rows})


# The model


def _best(problem: Gemm, constants: Constants = cost.DEFAULT) -> Prediction:
    result = [cost.explain(problem, config, H200, constants) for config in space(problem, H200)]
    return min(result, key=lambda prediction: prediction.seconds)


def test_long_products_of_few_outputs_are_bound_by_memory_at_nearly_its_rate() -> None:
    problem = inner_product(3, 3, 50_000_000)
    result = _best(problem)
    assert result.bound == "memory"
    assert 0.8 < problem.least_bytes / result.seconds / H200.dram_bytes_per_s < cost.DEFAULT.read_share
    gram = _best(gram_of(problem))
    assert gram.seconds == pytest.approx(result.seconds / 2, rel=0.1)


def test_wide_ones_are_bound_by_arithmetic_or_issue_and_short_ones_by_what_comes_on_top() -> None:
    wide = inner_product(128, 128, 1_000_000)
    assert _best(wide).bound in {"arithmetic", "issue"}
    # A product is three on the tensor cores.
    by_mma = cost.DEFAULT.mma_share * H200.matrix_flops["tf32"] / 3
    assert wide.flops / _best(wide).seconds < max(cost.DEFAULT.fma_share * H200.fp32_flops, by_mma)
    assert _best(inner_product(3, 3, 10_000)).bound == "overhead"
    # 16-bit elements are half the bytes, and widening them costs instructions.
    narrow, plain = (_best(inner_product(16, 16, 10**7, dtype)) for dtype in (BF16, F64))
    assert narrow["memory"] < plain["memory"] / 3


@cache
def _demands() -> tuple[cost.Demand, ...]:
    problems = [
        inner_product(3, 3, 30_001),
        inner_product(40, 40, 10**6),
        inner_product(12, 12, 10**7, BF16),
        inner_product(64, 64, 10**6),
        inner_product(24, 24, 10**6, F64),
    ]
    return tuple(cost.demand(p, config, H200) for p in problems for config in space(p, H200))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "overlap"])
def test_every_constant_matters_to_some_configuration_in_the_direction_it_should(name: str) -> None:
    # More of these is faster.
    better = name in {"read_share", "fma_share", "l2_bytes", "last_bytes", "crowded"}
    better |= name in {"mma_share", "mma_float64_share", "mma_overlap"}
    more = replace(cost.DEFAULT, **{name: getattr(cost.DEFAULT, name) * 1.5})
    changes = [cost.times(asked, more).seconds - cost.times(asked, cost.DEFAULT).seconds for asked in _demands()]
    assert any(changes)
    # Where memory takes longer, less of the instructions' time shows (``direct_wait``): at most 0.1 us.
    assert all(change <= 1e-7 if better else change >= -1e-7 for change in changes)


def test_runs_that_begin_within_a_line_of_l1_leave_room_for_less() -> None:
    odd, even = inner_product(5, 6, 10**6 + 1, layout="column"), inner_product(5, 6, 10**6, layout="column")
    config = next(config for config in space(odd, H200) if config["BK"] == 128 and config["E_WIDTH"] == 1)
    # 10**6 floats are a multiple of 128 bytes; 512 bytes of others span five cache lines, but for one in 32.
    assert cost.demand(even, config, H200).l1 / cost.demand(odd, config, H200).l1 == pytest.approx(1 + 124 / 512)
    row = inner_product(5, 6, 10**6 + 1)
    packed = next(config for config in space(row, H200) if config["BK"] == 128 and config["E_WIDTH"] == 1)
    held = (5 * (1 + 124 / 512) + 6) / 11  # F's rows are one run
    assert cost.demand(even, packed, H200).l1 / cost.demand(row, packed, H200).l1 == pytest.approx(held)


@pytest.mark.parametrize(
    ("threads", "blocks_per_sm", "gs", "steps"),
    [(128, 1, 132, 3), (256, 1, 132, 2), (256, 2, 132, 2), (256, 3, 132, 5), (256, 1, 1, 1)],
)
def test_the_last_block_takes_more_steps_with_fewer_threads(
    threads: int, blocks_per_sm: int, gs: int, steps: int
) -> None:
    problem = inner_product(16, 16, 10**6)  # 64 vectors of sums, so 2 or 4 threads for each
    config = space(problem, H200)[0].replace(BS=threads, BLOCKS_PER_SM=blocks_per_sm).launched(SPLIT_K=gs)
    assert cost.demand(problem, config, H200).last_block_steps == steps


# Fitting


def test_steps_along_axes_find_a_crooked_valley_s_end_and_keep_to_bounds() -> None:
    def crooked(x: np.ndarray) -> float:
        return float(abs(x[0] - 2) + abs(x[1] - x[0]) + 0.1 * abs(x[2]))

    low, high = np.full(3, -5.0), np.array([5.0, 1.5, 5.0])
    point, value = least(crooked, np.array([-4.0, 4.0, 4.0]), (low, high), shortest=1e-4)
    assert point[1:] == pytest.approx([1.5, 0], abs=0.01)
    assert 1.49 < point[0] < 2.01  # all of these are as low
    assert value == pytest.approx(0.5, abs=0.01)


def test_a_fit_finds_the_constants_behind_noisy_times() -> None:
    samples = Samples(INNER, _measured(_problems(14, 2), "fit", 8), H200)
    result = fit(samples, seed=1, starts=0)
    assert samples.loss(result) < 1.1 * samples.loss(TRUTH) < 0.2 * samples.loss(cost.DEFAULT)
    for name in ("read_share", "latency", "fma_share"):
        assert getattr(result, name) == pytest.approx(getattr(TRUTH, name), rel=0.15), name
    others = judge(INNER, _measured(_problems(12, 3), "judge", 2), H200, result)
    verdict = Verdict.of(others)
    assert (verdict.problems, verdict.searched) == (12, 12)
    assert verdict.error < 2 * _NOISE
    assert verdict.every_error < 2 * _NOISE
    assert verdict.regret is not None
    assert verdict.tenth is not None
    assert 1 <= verdict.regret < 1.03
    assert verdict.regret <= verdict.tenth < 1.1
    before = Verdict.of(judge(INNER, [one.found for one in others], H200, cost.DEFAULT))
    assert before.error > 4 * verdict.error


def test_a_fit_of_some_constants_leaves_the_others_and_stays_within_reach() -> None:
    samples = Samples(INNER, _measured(_problems(8, 2), "fit", 8), H200)
    result = fit(samples, seed=1, starts=1, only=["latency", "sum_cycles"], within=1.1)
    assert samples.loss(result) < samples.loss(cost.DEFAULT)
    for name in NAMES:
        before, after = getattr(cost.DEFAULT, name), getattr(result, name)
        if name in {"latency", "sum_cycles"}:
            assert before / 1.11 < after < before * 1.11
        else:
            assert after == pytest.approx(before, rel=0.005)  # as rounded
    assert result != cost.DEFAULT


def test_the_verdict_is_of_the_choice_and_regret_of_exhaustive_searches_alone() -> None:
    problem = inner_product(3, 3, 10**6)
    configs = _configs(problem)[:3]
    predicted = [cost.explain(problem, config, H200).seconds for config in configs]
    seconds = (predicted[0] * 2, predicted[0] * 1.6, predicted[2] / 3)
    whole = Found(problem, "judge", exhaustive=True, configs=configs, seconds=seconds, library=None)
    (judged,) = judge(INNER, [whole], H200, cost.DEFAULT)
    assert judged.error == pytest.approx(-0.5)
    assert judged.regret == pytest.approx(seconds[0] / min(seconds))
    part = judge(INNER, [replace(whole, exhaustive=False)], H200, cost.DEFAULT)
    assert Verdict.of(part).regret is None
    assert Verdict.of([judged, *part]).searched == 1
    assert list(grouped([judged, *part], lambda one: one.bound)) == [judged.bound]


def test_constants_are_written_beside_the_model(tmp_path: Path) -> None:
    path = tmp_path / "constants.json"
    path.write_bytes(MODELS["inner"].model.path.read_bytes())
    write(path, TRUTH)
    known = json.loads(path.read_text(encoding="utf-8"))["h200"]
    assert Constants(**known["values"]) == TRUTH
    assert known["from"] == json.loads(MODELS["inner"].model.path.read_text(encoding="utf-8"))["h200"]["from"]


def test_the_script_fits_prints_and_writes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.jsonl"
    _recorded(path, [*_measured(_problems(8, 2), "fit", 8), *_measured(_problems(6, 3), "judge", 8)])
    model = tmp_path / "constants.json"
    model.write_bytes(INNER.path.read_bytes())
    entry = replace(MODELS["inner"], model=replace(INNER, path=model))
    monkeypatch.setitem(MODELS, "inner", entry)
    unlike = [name for name in NAMES if getattr(TRUTH, name) != getattr(cost.DEFAULT, name)]
    run_script(monkeypatch, SCRIPT, "inner", path, "--write", "--only", *unlike)
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert any(line.startswith("fit grid") for line in lines)
    assert any(line.startswith("judge grid") for line in lines)
    assert any(line.startswith("bound by memory") for line in lines)
    (shown,) = [line for line in lines if line.startswith("    read_share: ")]
    assert float(shown.split()[1]) == json.loads(model.read_text(encoding="utf-8"))["h200"]["values"]["read_share"]
    before, after = (float(word) for word in (lines[0].split()[1], lines[0].split()[3]))
    assert after < 0.3 * before
    json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
    run_script(monkeypatch, SCRIPT, "inner", path, "--judge-only")
    assert f"read_share: {cost.DEFAULT.read_share!r}" in capsys.readouterr().out
    for options, text in (
        (["--only", "lunch"], "has no lunch; it has read_share, "),
        (["--within", "1"], "no constant any room"),
    ):
        assert run_script(monkeypatch, SCRIPT, "inner", path, *options) == 2
        assert text in capsys.readouterr().err


def test_a_product_of_several_records_counts_once_with_what_is_offered_today(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    (one,) = _measured(_problems(1, 2), "fit", 1)
    part = replace(one, part="judge", exhaustive=False, configs=one.configs[:2], seconds=(1.0, 1.0))
    gone = one.configs[0].replace(BS=7)
    _recorded(path, [part, replace(one, configs=(*one.configs, gone), seconds=(*one.seconds, 1.0)), part])
    assert read([path, path]) == [replace(one, part="judge", library=1)]


def test_an_inner_product_is_read_from_a_record_of_every_kernel(tmp_path: Path) -> None:
    path = tmp_path / "shapes.json"
    problem = packed(3, 3, 64_000, F64)
    configs = _configs(problem)[:3]
    seconds = {f"inner {config}": 1.0 + index for index, config in enumerate(configs)}
    fields = {"batch": 1, "m": 3, "n": 3, "k": 64_000, "dtype": "float64", "layouts": "nn"}
    row = {**fields, "chosen": f"inner {configs[0]}", "seconds": {**seconds, "torch.matmul": 9.0}}
    path.write_text(json.dumps({"records": [row]}), encoding="utf-8")
    (one,) = read([path])
    assert (one.problem, one.configs, one.seconds) == (problem, configs, (1.0, 2.0, 3.0))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "content", [None, b"", b"\xff", b"{", b"3\n", b"[]\n", b"{}\n", b'{"records": [{}]}\n', b"[" * 10**5]
)
def test_files_that_are_no_records_are_told_in_one_line(
    model: str,
    content: bytes | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "records.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert run_script(monkeypatch, SCRIPT, model, path) == 2
    assert "fit_model.py: error: " in capsys.readouterr().err


def test_records_that_lack_fields_are_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for model in ("inner", "transpose_add"):
        header = {"record": f"{model} search", "seed": 1}
        path = tmp_path / f"{model}.jsonl"
        for lines in ([header, {}], [header, 3], [header, {"shape": None, "m": "many"}], [header]):
            path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
            assert run_script(monkeypatch, SCRIPT, model, path) == 2, lines
            assert "fit_model.py: error: " in capsys.readouterr().err
