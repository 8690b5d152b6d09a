"""Calls from several threads at once, each on a stream of its own, with torch's tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

_TURNS = 200


def wrong_threads(torch: Any, calls: Sequence[Callable[[], Any]], expected: Sequence[Any]) -> list[int]:
    """Return numbers of the threads that did not end with the expected tensor after many turns of their call."""
    right: set[int] = set()

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(_TURNS):
                result = calls[number]()
            torch.cuda.current_stream().synchronize()
            if torch.equal(result, expected[number]):
                right.add(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [number for number in range(len(calls)) if number not in right]
