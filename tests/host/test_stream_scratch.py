"""What streams have of their own, on a GPU that only counts what it gives."""

from __future__ import annotations

import ctypes
import threading
from itertools import count

import pytest

from matmill.errors import LaunchError
from matmill.kernels.splitk import MOST_ADDED_BY_ONE
from matmill.runtime import stream_scratch
from matmill.runtime.gpu import GPU
from matmill.runtime.stream_scratch import Scratch

_FAR = 2**20


class Memory:
    """An allocation by its address."""

    def __init__(self, address: int) -> None:
        self.address = address


class Counting:
    """A GPU and its driver. Streams have the number of their handle, unless ``numbers`` says otherwise."""

    index = 0
    words = staticmethod(lambda status: f"status {status}")
    last = None
    check = GPU.check

    def __init__(self) -> None:
        self.given: list[int] = []
        self.asked: list[int] = []
        self.capturing: set[int] = set()
        self.numbers: dict[int, int] = {}
        self.status = 0
        self.inside = 0
        self._addresses = count(_FAR, _FAR)

    def zeros(self, nbytes: int) -> Memory:
        """Note how much."""
        self.given.append(nbytes)
        return Memory(next(self._addresses))

    def enter(self) -> bool:
        """Return the context was not current before."""
        self.inside += 1
        return True

    def leave(self) -> None:
        """Go back to the other one."""
        self.inside -= 1

    def is_capturing(self, stream: int, address: int) -> int:
        """Answer as the driver does: 32 bits alone are written."""
        assert self.inside
        self.asked.append(stream)
        ctypes.c_uint32.from_address(address).value = stream in self.capturing
        return self.status

    def stream_id(self, stream: int, address: int) -> int:
        """Answer as the driver does."""
        assert self.inside
        ctypes.c_uint64.from_address(address).value = self.numbers.get(stream, 2**40 + stream)
        return 0


@pytest.fixture
def gpu() -> Counting:
    """Provide a GPU whose streams are asked for."""
    return Counting()


@pytest.fixture
def found(gpu: Counting, monkeypatch: pytest.MonkeyPatch) -> Scratch:
    """Provide what its streams have."""
    monkeypatch.setattr(stream_scratch, "load", lambda: None)
    monkeypatch.setattr(stream_scratch, "is_capturing", lambda _library: gpu.is_capturing)
    monkeypatch.setattr(stream_scratch, "stream_id", lambda _library: gpu.stream_id)
    return Scratch(gpu)  # type: ignore[arg-type]  # stands in for the GPU


def test_a_stream_always_finds_the_same_and_no_other_does(found: Scratch) -> None:
    streams = [found.find(stream) for stream in (7, 8, 0, 7, 8, 0)]
    assert streams[:3] == streams[3:]
    assert len({address for own in streams for address in own}) == 6
    assert not [address for own in streams for address in own if address % 16]


def test_nothing_is_asked_of_the_default_stream(gpu: Counting, found: Scratch) -> None:
    assert found.find(0) == found.find(0)
    assert gpu.asked == []
    found.find(7)
    assert (gpu.asked, gpu.inside) == ([7], 0)


def test_a_handle_that_comes_again_is_another_stream(gpu: Counting, found: Scratch) -> None:
    first = found.find(7)
    gpu.numbers[7] = 1
    second = found.find(7)
    assert not set(first) & set(second)
    gpu.numbers[8] = 1
    assert found.find(8) == second


def test_every_captured_launch_has_a_counter_of_its_own_and_no_room(gpu: Counting, found: Scratch) -> None:
    own = found.find(7)
    gpu.capturing.add(7)
    captured = [found.find(7) for _ in range(10_000)]  # more than are allocated at a time
    assert {room for room, _ in captured} == {0}
    counters = [counter for _, counter in captured]
    assert len({*counters, own[1]}) == 10_001
    assert own[0] not in counters
    gpu.capturing.clear()
    assert found.find(7) == own


def test_programs_that_make_streams_without_end_take_no_memory_without_end(gpu: Counting, found: Scratch) -> None:
    rooms = [found.find(stream)[0] for stream in range(1, 1001)]
    assert 0 < len([room for room in rooms if room]) <= 64
    assert rooms[0]
    assert not rooms[-1]
    assert sum(gpu.given) <= 64 * MOST_ADDED_BY_ONE + 2**17
    assert len({found.find(stream)[1] for stream in range(1, 1001)}) == 1000


def test_threads_that_meet_a_stream_together_find_the_same(found: Scratch) -> None:
    barrier = threading.Barrier(8)
    answers = []

    def ask() -> None:
        barrier.wait()
        answers.append(tuple(found.find(stream) for stream in range(5)))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert len(set(answers)) == 1


def test_a_stream_that_the_driver_does_not_know_is_an_error(gpu: Counting, found: Scratch) -> None:
    gpu.status = 400
    with pytest.raises(LaunchError, match="status 400, from cuStreamIsCapturing"):
        found.find(7)
    assert gpu.inside == 0
