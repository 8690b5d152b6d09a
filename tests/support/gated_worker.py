"""A stand-in of the background compiler's workers, which compile when a test says so."""

from __future__ import annotations

import threading

from matmill.jit.background import Arrival, Compiler, Request, Worker


class Gate:
    """What gated workers have in common: the requests that they were sent, and when and how these end.

    Each compiles in no time once the gate is ``opened``, and fails with ``error`` if a test says so.
    """

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.requests: list[Request] = []
        self.error: str | None = None
        self._came = threading.Condition()

    def take(self, request: Request) -> str | None:
        """Compile a request when the gate is open; return what went wrong, or None."""
        with self._came:
            self.requests.append(request)
            self._came.notify_all()
        assert self.opened.wait(60)
        return self.error

    def names(self, least: int) -> list[str]:
        """Return the names of the entries that were requested, once there are as many."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.requests) >= least, 60)
        return [request.name for request in self.requests]

    def worker(self) -> Worker:
        """Return a worker without a process."""
        return _Gated(self)

    def compiler(self) -> Compiler:
        """Return a compiler with such workers."""
        return Compiler(self.worker)


class _Gated(Worker):
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def compile(self, request: Request) -> str | None:
        return self._gate.take(request)

    def close(self, patience: float = 0.0) -> None:
        pass


def wait_for(arrival: Arrival | None) -> None:
    """Wait until all kernels of an arrival are there."""
    assert arrival is not None
    assert arrival.wait(60)
