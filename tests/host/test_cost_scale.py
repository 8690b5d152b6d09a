"""The model of products on many GPUs: NCCL's own numbers where they are known, and how its terms behave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from matmill.analysis.scale import Links, all_reduce, limits, scaled


def test_latencies_are_those_of_nccl_s_model() -> None:
    # By hand from tuning.cc, and 1.8 us that were measured besides: a ring of 8 over NVLink takes 14 steps of 0.6 us, a
    # tree over 8 full nodes goes up and down 7 steps of 0.6 us and 3 of 5 us.
    inside, between = all_reduce(4, 8), all_reduce(4, 64)
    assert (inside.algorithm, inside.protocol) == ("ring", "LL")
    assert inside.latency == pytest.approx(1.8e-6 + 6.6e-6 + 14 * 0.6e-6)
    assert (between.algorithm, between.protocol) == ("tree", "LL")
    assert between.latency == pytest.approx(1.8e-6 + 6.8e-6 + 2 * (7 * 0.6e-6 + 3 * 5.0e-6))


def test_large_sums_move_at_the_links_rate() -> None:
    result = all_reduce(1 << 32, 8)
    assert (result.algorithm, result.protocol) == ("ring", "Simple")
    assert (1 << 32) * 2 * 7 / 8 / result.transfer == pytest.approx(0.82 * Links().nvlink)
    slow = all_reduce(1 << 32, 64, Links(network=5e9))
    assert (1 << 32) * 2 * 63 / 64 / slow.transfer == pytest.approx(0.82 * 8 * 5e9)


def test_all_reduces_of_two_gpus_are_predicted_as_recorded() -> None:
    record = Path(__file__).parents[2] / "benchmarks" / "results" / "ranks_h100x2.json"
    tasks = json.loads(record.read_text(encoding="utf-8"))["tasks"]
    rows = [task for name, task in tasks.items() if name.startswith("all_reduce")]
    ratios = [row["seconds"]["all_reduce"] / all_reduce(row["bytes"], 2).seconds for row in rows]
    assert len(ratios) == 11
    assert min(ratios) > 0.95
    assert max(ratios) < 1.15


@pytest.mark.parametrize("gpus", [2, 3, 8, 9, 64, 100, 1000])
def test_more_bytes_never_take_less_time(gpus: int) -> None:
    times = [all_reduce(1 << power, gpus).seconds for power in range(2, 34)]
    assert times == sorted(times)


def test_more_gpus_pay_until_the_latency_is_all_that_is_left() -> None:
    def local(k: int) -> float:
        return 5e-6 + k * 1e-9

    one = scaled(local, 10**9, 1024, 1)
    assert (one.reduction, one.efficiency, one.seconds) == (None, 1.0, local(10**9))
    some = [scaled(local, 10**9, 1024, 1 << power) for power in range(21)]
    result = limits(local, 10**9, 1024)
    assert result.fastest == min(some, key=lambda one: one.seconds).gpus
    at = {one.gpus: one for one in some}
    assert at[result.half_efficient].efficiency >= 0.5 > at[2 * result.half_efficient].efficiency
    assert 1 < result.half_efficient <= result.fastest < 1 << 20
    assert scaled(local, 10, 4, 64).k == 1  # fewer terms than GPUs
