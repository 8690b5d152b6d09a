"""The compiler in the background: kernels arrive in the cache on disk while calls go on with others.

Worker processes compile: each is a fresh interpreter, which knows nothing of a GPU, and reads sources from its input
until that ends. So none is left when this process ends, in whatever way; a kernel that a worker has in hand is finished
before. A thread waits for each worker. Both end when there is nothing to do for some seconds. Where several processes,
or ranks, want a kernel, the lock of its cache entry lets one of them compile it.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from matmill.errors import CompileError, MatmillError
from matmill.jit.cache import DiskCache
from matmill.jit.child import start_child
from matmill.jit.compile import entry_name, stored_unit
from matmill.jit.source import Source
from matmill.settings import cache_dir, compiles_in_background

#: Seconds without work after which a worker ends, those that a thread then waits for its end, and the most workers.
_IDLE, _PATIENCE, _MOST = 10.0, 5.0, 4
_CHILD = "from matmill.jit import background; background.answer_parent()"


class Request(NamedTuple):
    """A translation unit for a target, and the cache folder that its machine code is wanted in."""

    folder: Path
    source: Source
    target: str

    @property
    def name(self) -> str:
        """The name of its entry in the cache."""
        return entry_name(self.source, self.target)


class Arrival:
    """Kernels that are being compiled. It is ``over`` once each of them is in the cache or has failed."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names)
        self._calls: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    @property
    def over(self) -> bool:
        """True once nothing is being compiled any more."""
        return not self._names

    def then(self, call: Callable[[], None]) -> None:
        """Call when it is over, from another thread, or now if it is."""
        with self._lock:
            if self._names:
                self._calls.append(call)
                return
        call()

    def wait(self, patience: float) -> bool:
        """Wait until it is over, or for so many seconds; tell which of both."""
        over = threading.Event()
        self.then(over.set)
        return over.wait(patience)

    def end(self, name: str) -> None:
        """Take note that one of the kernels has arrived or failed."""
        with self._lock:
            self._names.discard(name)
            calls = [] if self._names else self._calls
            self._calls = [] if calls else self._calls
        for call in calls:
            call()


class Worker:
    """A process that compiles. Raises ``OSError`` wherever it cannot be started, or is gone."""

    def __init__(self) -> None:
        self._process = start_child(_CHILD)

    def compile(self, request: Request) -> str | None:
        """Compile a unit into the cache; return what went wrong, or None."""
        source, target, folder = asdict(request.source), request.target, str(request.folder)
        line = json.dumps({"source": source, "target": target, "folder": folder}).encode() + b"\n"
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None  # noqa: S101 — start_child asks for both, which mypy cannot know
        assert stdout is not None  # noqa: S101 — see above
        while line:
            line = line[stdin.write(line) :]
        answer = stdout.readline()
        if not answer:
            raise ChildProcessError(f"the compiler's process ended with code {self._process.wait()}")
        error: str | None = json.loads(answer)
        return error

    def close(self, patience: float = 0.0) -> None:
        """Close the pipes, upon which the process ends with what it has in hand, and wait for it so many seconds."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=patience)


class Compiler:
    """Requests of this process, and the workers that serve them. ``failures`` are the errors by entry."""

    def __init__(self, start: Callable[[], Worker] = Worker) -> None:
        self.failures: dict[str, str] = {}
        self._said: set[str] = set()
        self._start = start
        self._changed = threading.Condition()
        self._queue: deque[Request] = deque()
        self._arrivals: dict[str, list[Arrival]] = {}  # by entry that is being compiled
        self._workers: list[Worker] = []
        self._threads = self._idle = 0
        self._closed = False

    def request(self, requests: Iterable[Request], *, strict: bool = False, urgent: bool = False) -> Arrival | None:
        """Ask for units that the cache lacks; return their arrival, or None if none of them is to be waited for.

        Those that are ``urgent`` are compiled before all that nobody has begun. What has failed in this process is not
        compiled again: it is warned of once, or if ``strict`` raised as :class:`~matmill.errors.CompileError`.
        """
        wanted = {request.name: request for request in requests}
        for name in self.failures.keys() & wanted.keys():
            self._report(wanted.pop(name), self.failures[name], strict=strict)
        if not wanted or self._closed:
            return None
        arrival = Arrival(wanted)
        with self._changed:
            for name, request in wanted.items():
                if name not in self._arrivals:
                    self._arrivals[name] = []
                    (self._queue.appendleft if urgent else self._queue.append)(request)
                self._arrivals[name].append(arrival)
            self._changed.notify(len(self._queue))
            for _ in range(min(len(self._queue) - self._idle, _most_workers() - self._threads)):
                with suppress(RuntimeError):  # no further thread may start: the program ends, or has too many
                    threading.Thread(target=self._serve, name="matmill compiler", daemon=True).start()
                    self._threads += 1
        return arrival

    def close(self) -> None:
        """Let all workers end with what they have in hand, and serve nobody any more."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            workers, self._workers = self._workers, []
            self._changed.notify_all()
        for worker in workers:
            worker.close()

    def _report(self, request: Request, reason: str, *, strict: bool) -> None:
        kernel, target = request.source.kernel, request.target
        if strict:
            raise CompileError(
                argument=f"kernel {kernel}",
                got=f"a failure in the background: {reason}",
                wanted=f"machine code for {target}",
                fix="Run `matmill doctor`, which checks the compiler.",
            )
        if request.name not in self._said:
            self._said.add(request.name)
            warnings.warn(
                f"Products go on with other kernels, because {kernel} was not compiled for {target}: {reason} "
                "Please report it; `matmill doctor` prints the versions.",
                RuntimeWarning,
                stacklevel=3,
            )

    def _serve(self) -> None:
        """Serve requests until there are none for a while: the main function of a thread."""
        worker = None
        while (request := self._next()) is not None:
            try:
                worker = worker or self._started()
                error = worker.compile(request)
            except Exception as broken:  # noqa: BLE001 — it is gone, its pipes are closed, or there is no Python to start
                error = f"{broken}."
                self._without(worker)
                worker = None
            if self._closed:
                return
            self._end(request, error)
        self._without(worker)

    def _next(self) -> Request | None:
        with self._changed:
            self._idle += 1
            asked = self._changed.wait_for(lambda: self._queue or self._closed, _IDLE)
            self._idle -= 1
            if asked and not self._closed:
                return self._queue.popleft()
            self._threads -= 1
            return None

    def _started(self) -> Worker:
        worker = self._start()
        with self._changed:
            self._workers.append(worker)
        return worker

    def _without(self, worker: Worker | None) -> None:
        if worker is not None:
            with self._changed:
                if worker in self._workers:
                    self._workers.remove(worker)
            worker.close(_PATIENCE)

    def _end(self, request: Request, error: str | None) -> None:
        name = request.name
        if error is None:
            DiskCache(request.folder).listed().add(name)
        else:
            self.failures[name] = error
        with self._changed:
            arrivals = self._arrivals.pop(name)
        for arrival in arrivals:
            arrival.end(name)


@cache
def _most_workers() -> int:
    return max(1, min(_MOST, len(os.sched_getaffinity(0)) // 2))


#: This process's compiler. A child after a fork, which has none of its parent's threads, begins with a new one.
_current = [Compiler()]


def compiler() -> Compiler:
    """Return this process's compiler."""
    return _current[0]


def _begin_anew() -> None:
    for worker in _current[0]._workers:  # noqa: SLF001 — without the lock, which a thread of the parent may hold
        worker.close()  # this process's ends of the pipes: with them open, the worker would outlive the parent
    _current[0] = Compiler()


os.register_at_fork(after_in_child=_begin_anew)
atexit.register(lambda: compiler().close())


def store() -> DiskCache | None:
    """Return the cache into which kernels are compiled in the background, or None where calls wait for the compiler."""
    folder = cache_dir() if compiles_in_background() else None
    return DiskCache(folder) if folder is not None and _writable(folder) else None


@cache
def _writable(folder: Path) -> bool:
    return DiskCache(folder).writable()


def answer_parent() -> None:
    """Compile what comes as lines of JSON, and answer each with an error or null: the main function of a worker."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a compiler prints is no answer
    with suppress(BrokenPipeError, KeyboardInterrupt):
        for line in sys.stdin:
            answers.write(json.dumps(_compiled(json.loads(line))) + "\n")
            answers.flush()
    os._exit(0)  # without flushing into a pipe that is closed


def _compiled(request: dict[str, Any]) -> str | None:
    """Compile a request of :meth:`Worker.compile` into its folder; return what went wrong, or None."""
    fields = request["source"]
    source = Source(**{**fields, "headers": tuple((name, text) for name, text in fields["headers"])})
    try:
        stored_unit(source, request["target"], DiskCache(Path(request["folder"])))
    except MatmillError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 — a worker goes on, and its parent warns
        return f"{type(error).__name__}: {error}."
    kept = Path(request["folder"], entry_name(source, request["target"])).is_file()
    return None if kept else "its machine code was not kept. Is the disk full?"
