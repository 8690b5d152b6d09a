"""The compiler in the background: one compilation a kernel whoever asks, failures told once, and no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from matmill.errors import CompileError, UnknownNameError
from matmill.jit import background
from matmill.jit import compile as compiling
from matmill.jit.background import Compiler, Request, Worker
from matmill.jit.cache import DiskCache
from matmill.jit.compile import entry_name, is_cached
from matmill.jit.source import Source
from support.gated_worker import Gate, wait_for

TARGET = "sm_90a"


def _source(number: int) -> Source:
    text = f'extern "C" __global__ void scale(float* x) {{ x[threadIdx.x] *= {number}.0f; }}\n'
    return Source(f"tests.scale{number}", "scale", text)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskCache:
    """Provide an empty cache, into which kernels are compiled in the background."""
    monkeypatch.setenv("MATMILL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("MATMILL_COMPILE", "background")
    result = background.store()
    assert result == DiskCache(tmp_path)
    return result


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    """Provide a compiler with processes."""
    result = Compiler()
    yield result
    result.close()


def _request(store: DiskCache, number: int) -> Request:
    return Request(store.folder, _source(number), TARGET)


def test_kernels_arrive_in_the_cache(store: DiskCache, compiler: Compiler) -> None:
    requests = [_request(store, number) for number in range(3)]
    arrival = compiler.request(requests)
    wait_for(arrival)
    assert arrival is not None
    assert arrival.over
    assert all(is_cached(request.source, TARGET) for request in requests)
    assert store.listed() == {request.name for request in requests}
    assert sorted(path.name for path in store.folder.iterdir()) == sorted(store.listed())  # no locks are left


def test_what_does_not_compile_is_told_once_and_not_tried_again(store: DiskCache, compiler: Compiler) -> None:
    wrong = Request(store.folder, Source("tests.wrong", "wrong", "nonsense"), TARGET)
    right = _request(store, 1)
    wait_for(compiler.request([wrong, right]))
    assert store.listed() == {right.name}
    with pytest.warns(
        RuntimeWarning, match=r"tests\.wrong was not compiled for sm_90a: kernel tests\.wrong: got source"
    ):
        assert compiler.request([wrong]) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiler.request([wrong]) is None
    with pytest.raises(CompileError, match=r"tests\.wrong: got a failure in the background"):
        compiler.request([wrong], strict=True)


def test_a_worker_that_is_killed_fails_its_kernel_alone(store: DiskCache) -> None:
    workers: list[Worker] = []

    def start() -> Worker:
        workers.append(Worker())
        return workers[-1]

    compiler = Compiler(start)
    wait_for(compiler.request([_request(store, 1)]))
    workers[0]._process.kill()
    workers[0]._process.wait()
    wait_for(compiler.request([_request(store, 2)]))
    wait_for(compiler.request([_request(store, 3)]))
    assert len(workers) == 2
    assert store.listed() == {_request(store, number).name for number in (1, 3)}
    with pytest.warns(RuntimeWarning, match=r"tests\.scale2 was not compiled"):
        assert compiler.request([_request(store, 2)]) is None
    compiler.close()


def test_a_kernel_that_two_threads_ask_for_is_requested_once(store: DiskCache) -> None:
    gate = Gate()
    compiler = gate.compiler()
    with ThreadPoolExecutor(8) as pool:
        arrivals = list(pool.map(lambda _: compiler.request([_request(store, 1), _request(store, 2)]), range(8)))
    gate.opened.set()
    for arrival in arrivals:
        wait_for(arrival)
    assert sorted(request.source.kernel for request in gate.requests) == ["tests.scale1", "tests.scale2"]


def test_what_is_urgent_comes_next(store: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_most_workers", lambda: 1)
    gate = Gate()
    compiler = gate.compiler()
    arrivals = [compiler.request([_request(store, number)]) for number in range(2)]
    assert gate.names(1) == [_request(store, 0).name]
    arrivals += [compiler.request([_request(store, 2)], urgent=True)]
    gate.opened.set()
    for arrival in arrivals:
        wait_for(arrival)
    assert gate.requests == [_request(store, number) for number in (0, 2, 1)]


def test_what_follows_an_arrival_runs_once_whenever_it_is_asked_for(store: DiskCache) -> None:
    gate, calls = Gate(), []
    arrival = gate.compiler().request([_request(store, 1), _request(store, 2)])
    assert arrival is not None
    arrival.then(lambda: calls.append("before"))
    assert (calls, arrival.over) == ([], False)
    gate.opened.set()
    wait_for(arrival)
    arrival.then(lambda: calls.append("after"))
    assert (calls, arrival.over) == (["before", "after"], True)


def test_threads_that_need_a_kernel_at_once_compile_it_once(store: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    count, compile_unit = [], compiling._compile

    def counted(source: Source, target: str) -> Any:
        count.append(source)
        time.sleep(0.05)  # long enough that the others come meanwhile
        return compile_unit(source, target)

    monkeypatch.setattr(compiling, "_compile", counted)
    with ThreadPoolExecutor(4) as pool:
        units = list(pool.map(lambda _: compiling.stored_unit(_source(1), TARGET, store), range(4)))
    assert len(count) == 1
    assert all(unit == units[0] for unit in units)


@pytest.mark.skipif(not Path("/proc/locks").is_file(), reason="this system does not tell who waits for a lock")
def test_a_process_waits_for_the_one_that_compiles_its_kernel(store: DiskCache, compiler: Compiler) -> None:
    request = _request(store, 2)
    with store.locked(compiling._key(request.source, TARGET)):
        arrival = compiler.request([request])
        assert arrival is not None
        wait_until(lambda: any(_is_blocked(worker) for worker in compiler._workers))
        assert not arrival.over
        store.put(compiling._key(request.source, TARGET), {}, b"\x7fELF of the first", b"ptx")
    wait_for(arrival)
    assert compiling.stored_unit(request.source, TARGET, store).cubin == b"\x7fELF of the first"


def _is_blocked(worker: Worker) -> bool:
    """Tell whether a worker's process waits for a lock of a file."""
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and f" {worker._process.pid} " in line for line in lines)


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for what other processes do."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_lock_goes_with_its_holder(store: DiskCache) -> None:
    code = (
        "import sys, time; from pathlib import Path; from matmill.jit.cache import DiskCache\n"
        "with DiskCache(Path(sys.argv[1])).locked('key'): print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(store.folder)], stdout=subprocess.PIPE, env=_env()
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        holder.kill()
    assert len(list(store.folder.iterdir())) == 1
    with store.locked("key"):
        pass
    assert list(store.folder.iterdir()) == []
    (store.folder / f"lock-{64 * '0'}").write_bytes(b"")  # of another that was killed
    assert store.clear() == 0
    assert list(store.folder.iterdir()) == []


def test_a_lock_has_one_holder_though_its_file_comes_and_goes(store: DiskCache) -> None:
    holders, most = [], []

    def hold(number: int) -> None:
        for _ in range(50):
            with store.locked("key"):
                holders.append(number)
                time.sleep(0)  # so that others run
                most.append(len(holders))
                holders.remove(number)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(hold, range(6)))
    assert set(most) == {1}
    assert list(store.folder.iterdir()) == []


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


#: Starts a worker, says its number, and goes on with what a test appends.
_PROGRAM = """
import os, sys, threading
from pathlib import Path
from matmill.jit import background
from matmill.jit.source import Source
there = threading.Event()
source = Source("tests.one", "one", 'extern "C" __global__ void one(float* x) { *x = 1.0f; }')
compiler = background.compiler()
compiler.request([background.Request(Path(sys.argv[1]), source, "sm_90a")]).then(there.set)
there.wait()
print(compiler._workers[0]._process.pid, flush=True)
"""


@pytest.mark.parametrize("end", ["sys.exit(3)", "os.kill(os.getpid(), 9)", "os._exit(3)"])
def test_no_worker_outlives_its_program(end: str, store: DiskCache) -> None:
    # A child that the program forks must not keep the worker either.
    program = f"{_PROGRAM}\nimport time\nif os.fork() == 0:\n    time.sleep(600)\nprint(os.getpid())\n{end}"
    command = [sys.executable, "-c", program, str(store.folder)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_env(), start_new_session=True, text=True
    ) as done:
        assert done.stdout is not None
        worker = int(done.stdout.readline())
        try:
            wait_until(lambda: done.poll() is not None)
            assert done.returncode in {3, -signal.SIGKILL}
            wait_until(lambda: not _alive(worker))
        finally:
            os.killpg(done.pid, signal.SIGKILL)  # the child


def test_a_forked_child_has_workers_of_its_own(store: DiskCache) -> None:
    program = (
        f"{_PROGRAM}\nimport warnings\nwarnings.simplefilter('ignore')\nchild = os.fork()\n"
        "if child == 0:\n"
        "    own = background.compiler()\n"
        "    assert own is not compiler and not own._workers\n"
        "    other = Source('tests.two', 'two', 'extern \"C\" __global__ void two(float* x) { *x = 2.0f; }')\n"
        "    there.clear()\n"
        "    own.request([background.Request(Path(sys.argv[1]), other, 'sm_90a')]).then(there.set)\n"
        "    there.wait()\n"
        "    os._exit(len(own.failures))\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "third = Source('tests.three', 'three', 'extern \"C\" __global__ void three(float* x) { *x = 3.0f; }')\n"
        "there.clear()\n"
        "compiler.request([background.Request(Path(sys.argv[1]), third, 'sm_90a')]).then(there.set)\n"
        "there.wait()\n"
        "assert not compiler.failures\n"
    )
    command = [sys.executable, "-c", program, str(store.folder)]
    subprocess.run(command, env=_env(), check=True, stdout=subprocess.DEVNULL, timeout=100)
    assert DiskCache(store.folder).size()[0] == 3


def test_workers_end_when_there_is_nothing_to_do(store: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_IDLE", 0.05)
    compiler, before = Compiler(), set(threading.enumerate())
    for number in (1, 2):
        wait_for(compiler.request([_request(store, number)]))
        wait_until(lambda: not compiler._threads and not compiler._workers)
    wait_until(lambda: set(threading.enumerate()) <= before)
    assert len(store.listed()) == 2


def test_calls_wait_where_kernels_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATMILL_COMPILE", "background")
    monkeypatch.setenv("MATMILL_CACHE_DIR", str(tmp_path / "file" / "cache"))
    (tmp_path / "file").write_text("in the way")
    assert background.store() is None
    monkeypatch.setenv("MATMILL_CACHE", "off")
    assert background.store() is None
    monkeypatch.delenv("MATMILL_CACHE")
    monkeypatch.setenv("MATMILL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("MATMILL_COMPILE", "wait")
    assert background.store() is None
    monkeypatch.setenv("MATMILL_COMPILE", "later")
    with pytest.raises(UnknownNameError, match="MATMILL_COMPILE"):
        background.store()


def test_a_cache_lists_what_it_is_told_of_and_what_it_puts(store: DiskCache) -> None:
    first, second = (entry_name(_source(number), TARGET) for number in (1, 2))
    store.put(compiling._key(_source(1), TARGET), {}, b"", b"")
    assert DiskCache(store.folder).listed() == {first}
    store.listed().add(second)
    assert DiskCache(store.folder).listed() == {first, second}
    store.clear()
    assert store.listed() == set()
