"""The ladder on a GPU, with a GPU that is made of host memory: what is measured, checked, compared and shown."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from matmill import cli
from matmill.arch import get
from matmill.bench.libraries import gemm
from matmill.bench.timing.clock import Clock, Competitor, StreamHandle
from matmill.cli import main
from matmill.errors import LaunchError
from matmill.jit.compile import Binary
from matmill.ladders.memory.rungs import MEMORY, Fill, filled
from matmill.ladders.runner import measured_transfers
from matmill.launch import Launch, Pointer
from matmill.problem import Gemm
from matmill.runtime.memory import Allocation
from support.ladder_runs import FakePeer, use

MILLISECONDS = 2.0
#: Bytes of an allocation that are made rubbish: pages of gigabytes that nobody looks at need not be there.
_POISONED = 1 << 24


class FakeGPU:
    """A GPU made of host memory: enough of the executor for what the benchmarks do with one.

    Kernels are not run: a launch does with NumPy what that kernel would do. ``wrong`` names an entry point whose
    products lack one element.
    """

    def __init__(self, *, wrong: str = "", free: int = 2**34) -> None:
        self.arch = get("h200")
        self.wrong = wrong
        self.free_bytes = free
        self.live: dict[int, NDArray[np.uint8]] = {}

    def empty(self, nbytes: int) -> Allocation:
        """Return memory that holds rubbish."""
        return Allocation(self, nbytes)

    def zeros(self, nbytes: int) -> Allocation:
        """Return host memory of zeros."""
        allocation = self.empty(nbytes)
        ctypes.memset(allocation.address, 0, nbytes)
        return allocation

    def upload(self, array: NDArray[np.float32], _name: str) -> Allocation:
        """Return a copy of an array."""
        allocation = self.empty(array.nbytes)
        allocation.write(array)
        return allocation

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory."""
        memory = np.empty(nbytes, np.uint8)
        memory[:_POISONED] = 0xAA
        self.live[memory.ctypes.data] = memory
        return int(memory.ctypes.data)

    def free(self, address: int) -> None:
        """Forget memory."""
        del self.live[address]

    def synchronize(self) -> None:
        """Wait for nothing: nothing is ever in flight."""

    def launch(self, _binary: Binary, launch: Launch, stream: object = None) -> None:
        """Do what the kernel would."""
        assert stream is None or hasattr(stream, "__cuda_stream__")
        args: tuple[Any, ...] = launch.args
        if launch.entry == "fill":
            where, count, seed = args
            _view(where, (int(count),))[:] = filled(Fill(1, int(count), seed=int(seed)))[0]
            return
        m, n, k = (int(x) for x in args[3:6])
        c = _view(args[2], (m, n))
        product = _view(args[0], (m, k)) @ _view(args[1], (k, n))
        if launch.entry == self.wrong:
            c.flat[:-1] = product.flat[:-1]
        else:
            c[:] = product

    def call(self, name: str, *args: Any) -> Any:
        """Return the driver calls that the benchmarks make."""
        if name in {"cuMemAlloc", "cuMemAllocHost", "cuMemAllocManaged"}:
            return self.allocate(args[0])
        if name in {"cuMemFree", "cuMemFreeHost"}:
            return self.free(args[0])
        if name == "cuMemsetD8":
            ctypes.memset(*args)
        if name in {"cuMemcpyHtoD", "cuMemcpyDtoH"}:
            ctypes.memmove(*args)
        return {"cuEventElapsedTime": MILLISECONDS, "cuMemGetInfo": self.free_bytes, "cuStreamCreate": 7}.get(name)


def _view(where: object, shape: tuple[int, ...]) -> NDArray[np.float32]:
    assert isinstance(where, Pointer)
    buffer = (ctypes.c_float * int(np.prod(shape))).from_address(where.address)
    return np.ctypeslib.as_array(buffer).reshape(shape)


class FakeLibrary(FakePeer):
    """A cuBLAS that is right, unless told otherwise."""

    def __init__(self, a: NDArray[np.float32], b: NDArray[np.float32]) -> None:
        super().__init__("cuBLAS (fake)", a @ b)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGPU:
    fake = FakeGPU()
    use(monkeypatch, fake)
    monkeypatch.setattr(gemm, "cublas", FakeLibrary)
    return fake


def _json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main([*arguments, "--json"])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, result


@pytest.mark.usefixtures("gpu")
def test_rates_follow_from_times(capsys: pytest.CaptureFixture[str]) -> None:
    code, result = _json(["ladder", "sgemm", "--n", "64", "--rungs", "naive,shared(16)"], capsys)
    assert code == cli.OK
    assert result["on"] == "gpu"
    assert result["arch"] == "h200"
    row = result["rows"][0]
    assert row["seconds"] == MILLISECONDS / 1e3
    assert row["tflops"] == pytest.approx(2 * 64**3 / (MILLISECONDS / 1e3) / 1e12)
    assert row["peak_fraction"] == pytest.approx(row["tflops"] / 66.9)
    assert row["library_fraction"] == pytest.approx(1.0)
    assert row["counters"] is None
    assert row["registers"] > 0
    assert [base["name"] for base in result["baselines"]] == ["cuBLAS (fake)", "CPU BLAS (NumPy)"]
    assert all(base["ok"] for base in result["baselines"])


@pytest.mark.usefixtures("gpu")
def test_percentages_refer_to_the_arch_named(capsys: pytest.CaptureFixture[str]) -> None:
    _, result = _json(["ladder", "sgemm", "--n", "64", "--rungs", "naive", "--arch", "titan-x"], capsys)
    assert result["arch"] == "titan-x"
    assert result["rows"][0]["peak_fraction"] == pytest.approx(result["rows"][0]["tflops"] / 6.144)
    assert any("not to the GPU that ran" in note for note in result["notes"])


def test_a_wrong_kernel_is_marked_and_fails_the_run(gpu: FakeGPU, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.wrong = "shared"
    assert main(["ladder", "sgemm", "--n", "64", "--rungs", "naive,shared(16)"]) == cli.FAILED
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("shared(16)") and "WRONG" in line for line in lines)
    assert any(line.startswith("naive") and "ok" in line for line in lines)
    assert any(line.startswith("cuBLAS (fake)") for line in lines)


@pytest.mark.usefixtures("gpu")
def test_a_wrong_library_fails_the_run_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(FakeLibrary, "result", lambda self: self._result * np.float32(1.001))
    code, result = _json(["ladder", "sgemm", "--n", "64", "--rungs", "naive"], capsys)
    assert code == cli.FAILED
    assert result["baselines"][0]["ok"] is False


@pytest.mark.usefixtures("gpu")
def test_without_a_library_the_fraction_is_null_and_the_run_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gemm, "cublas", lambda _a, _b: None)
    code, result = _json(["ladder", "sgemm", "--n", "64", "--rungs", "naive"], capsys)
    assert code == cli.OK
    assert result["rows"][0]["library_fraction"] is None
    assert any("no cuBLAS" in note for note in result["notes"])


@pytest.mark.usefixtures("gpu")
def test_a_rung_at_another_size_is_compared_by_rate(capsys: pytest.CaptureFixture[str]) -> None:
    _, result = _json(["ladder", "sgemm", "--n", "60", "--rungs", "shared(16)"], capsys)
    row = result["rows"][0]
    assert row["problem"] == {"m": 64, "n": 64, "k": 64}
    assert "m = 60 is not a multiple of 16" in row["note"]
    assert row["library_fraction"] == pytest.approx((64 / 60) ** 3)


def test_device_memory_is_given_back(gpu: FakeGPU, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ladder", "sgemm", "--n", "64", "--rungs", "naive,shared(16)"]) == cli.OK
    assert main(["ladder", "memory", "--n", "32"]) == cli.OK
    capsys.readouterr()
    assert gpu.live == {}


@pytest.mark.usefixtures("gpu")
def test_the_memory_ladder_times_every_phase(capsys: pytest.CaptureFixture[str]) -> None:
    code, result = _json(["ladder", "memory", "--m", "32", "--n", "48", "--k", "16"], capsys)
    assert code == cli.OK
    assert [row["rung"] for row in result["rows"]] == ["pageable", "pinned", "unified"]
    for row in result["rows"]:
        assert row["ok"] is True
        phases = row["phases"]
        assert list(phases) == ["copy in", "fill", "kernel", "copy out"]
        assert phases["copy in"]["bytes"] == 4 * (32 * 16 + 16 * 48)
        assert phases["copy out"]["bytes"] == 4 * 32 * 48
        assert phases["kernel"]["flops"] == 2 * 32 * 48 * 16
        assert 0 < sum(phase["seconds"] for phase in phases.values()) < 10 * row["seconds"]


@pytest.mark.parametrize("failing", ["cuMemAllocHost", "cuMemAlloc"])
def test_memory_is_given_back_where_there_is_not_enough(
    gpu: FakeGPU, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    call, left = gpu.call, 1

    def scarce(name: str, *args: object) -> object:
        nonlocal left
        if name == failing:
            if not left:
                raise LaunchError(argument="GPU 0", got="out of memory", wanted="success", fix="Take less.")
            left -= 1
        return call(name, *args)

    monkeypatch.setattr(gpu, "call", scarce)
    rungs = [rung for rung in MEMORY if rung.name == "pinned"]
    with pytest.raises(LaunchError, match="out of memory"):
        measured_transfers.measure_transfers(rungs, Gemm(m=32, n=32, k=32), None, seed=1)
    assert gpu.live == {}


def test_a_clock_without_room_for_its_buffer_makes_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = FakeGPU()
    called: list[str] = []

    def full(_nbytes: int) -> int:
        raise LaunchError(argument="GPU 0", got="out of memory", wanted="success", fix="Take less.")

    monkeypatch.setattr(fake, "allocate", full)
    monkeypatch.setattr(fake, "call", lambda name, *_: called.append(name))
    with pytest.raises(LaunchError):
        Clock(fake, 1024)
    assert called == []


def test_unified_memory_is_left_alone_where_too_little_is_free(
    gpu: FakeGPU, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu.free_bytes = 4 * 3 * 32 * 32 + 1
    code, result = _json(["ladder", "memory", "--n", "32"], capsys)
    assert code == cli.OK
    row = result["rows"][2]
    assert row["rung"] == "unified"
    assert row["ok"] is None
    assert "managed memory" in row["note"]
    assert main(["ladder", "memory", "--n", "32"]) == cli.OK
    assert "not run" in capsys.readouterr().out


def test_a_copy_that_does_not_arrive_is_wrong(gpu: FakeGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    call = gpu.call

    def lossy(name: str, *args: object) -> object:
        return None if name == "cuMemcpyHtoD" else call(name, *args)

    monkeypatch.setattr(gpu, "call", lossy)
    rungs = [rung for rung in MEMORY if rung.name == "pinned"]
    outcome = measured_transfers.measure_transfers(rungs, Gemm(m=32, n=32, k=32), None, seed=1, rounds=1)
    assert outcome.rows[0].ok is False
    assert "not what the host had sent" in outcome.rows[0].note


def test_turns_are_interleaved_and_slow_competitors_get_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fake: Any = FakeGPU()
    with Clock(fake, 1024) as clock:
        seconds = {"slow": 0.1, "fast": 0.01}

        def once(run: Callable[[StreamHandle], None]) -> float:
            run(clock.stream)
            return seconds[order[-1]]

        monkeypatch.setattr(clock, "once", once)
        monkeypatch.setattr(clock, "_settle", lambda *_: None)

        def enqueue(name: str) -> Callable[[StreamHandle], None]:
            return lambda _stream: order.append(name)

        result = clock.compare([Competitor(n, enqueue(n)) for n in seconds], seconds_each=0.5)
    assert [timing.rounds for timing in result] == [5, 40]
    assert [timing.median for timing in result] == [0.1, 0.01]
    slow = [i for i, name in enumerate(order[4:]) if name == "slow"]
    assert max(b - a for a, b in pairwise(slow)) < 14  # spread over the run, not bunched
    assert fake.live == {}
