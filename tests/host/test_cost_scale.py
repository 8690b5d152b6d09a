"""The model of products on many GPUs: NCCL's own numbers where they are known, and how its terms behave."""

from __future__ import annotations

import pytest

from matmill.cost.scale import Links, all_reduce, limits, scaled


def test_latencies_are_those_of_nccl_s_model() -> None:
    # By hand from tuning.cc: a ring of 8 over NVLink takes 14 steps of 0.6 us, a tree over 8 full nodes goes up and
    # down 7 steps of 0.6 us and 3 of 5 us.
    inside, between = all_reduce(4, 8), all_reduce(4, 64)
    assert (inside.algorithm, inside.protocol) == ("ring", "LL")
    assert inside.latency == pytest.approx(6.6e-6 + 14 * 0.6e-6)
    assert (between.algorithm, between.protocol) == ("tree", "LL")
    assert between.latency == pytest.approx(6.8e-6 + 2 * (7 * 0.6e-6 + 3 * 5.0e-6))


def test_large_sums_move_at_the_links_rate() -> None:
    made = all_reduce(1 << 32, 8)
    assert (made.algorithm, made.protocol) == ("ring", "Simple")
    assert (1 << 32) * 2 * 7 / 8 / made.transfer == pytest.approx(Links().nvlink)
    slow = all_reduce(1 << 32, 64, Links(network=5e9))
    assert (1 << 32) * 2 * 63 / 64 / slow.transfer == pytest.approx(8 * 5e9)


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
    found = limits(local, 10**9, 1024)
    assert found.fastest == min(some, key=lambda one: one.seconds).gpus
    at = {one.gpus: one for one in some}
    assert at[found.half_efficient].efficiency >= 0.5 > at[2 * found.half_efficient].efficiency
    assert 1 < found.half_efficient <= found.fastest < 1 << 20
    assert scaled(local, 10, 4, 64).k == 1  # fewer terms than GPUs
