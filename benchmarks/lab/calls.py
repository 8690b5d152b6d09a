"""Calls of torch programs that are too short for events around one: by a graph, by a loop, on the host alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

#: Rounds enough that half of them are longer than what else a host does for a moment, which may be 50 ms.
_REPLAYED, _LOOP, _ROUNDS = 20, 200, 21
_WARM, _HOST_ROUNDS, _HOST_CALLS = 300, 15, 400

Call = Callable[[], object]


def graph_timer(torch: Any, call: Call) -> Callable[[], float]:
    """Return a timer of one call, by replays of a graph of many."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_REPLAYED):
            call()
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def timer() -> float:
        graph.replay()  # so that the timed one starts behind work that keeps the GPU busy
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3 / _REPLAYED

    return timer


def loop_timer(torch: Any, call: Call) -> Callable[[], float]:
    """Return a timer of one call, by a loop of many and one wait."""

    def timer() -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(_LOOP):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / _LOOP

    return timer


#: How short calls are timed, by the names in a record: seconds per call of a replayed graph and of a plain loop.
TIMERS = {"graph": graph_timer, "plain": loop_timer}
WAYS = tuple(TIMERS)


def by_every_way(torch: Any, calls: Mapping[str, Call]) -> dict[str, dict[str, float]]:
    """Return seconds of each call by graph and by loop, for each way a round-robin of all calls."""
    return {
        way: interleaved({name: timer(torch, call) for name, call in calls.items()}) for way, timer in TIMERS.items()
    }


def interleaved(timers: Mapping[str, Callable[[], float]], rounds: int = _ROUNDS) -> dict[str, float]:
    """Return the median of several rounds, each of which runs every timer once."""
    samples: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            samples[name].append(timer())
    return {name: statistics.median(seconds) for name, seconds in samples.items()}


def host_seconds(calls: Mapping[str, Call], wait: Call) -> dict[str, float]:
    """Return what one of each call costs the host, with the work still to be done: interleaved rounds of many calls.

    Interleaved, because a host has other things to do one second and none the next. The host waits between rounds.
    """
    for call in calls.values():
        for _ in range(_WARM):
            call()
        wait()
    return interleaved({name: partial(_host_round, call, wait) for name, call in calls.items()}, _HOST_ROUNDS)


def _host_round(call: Call, wait: Call) -> float:
    begin = time.perf_counter()
    for _ in range(_HOST_CALLS):
        call()
    seconds = (time.perf_counter() - begin) / _HOST_CALLS
    wait()
    return seconds
