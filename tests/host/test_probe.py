"""The probe on a GPU made of formulas: what it finds must be what the formulas were given, and nonsense is refused."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from matmill import cli
from matmill.arch import Arch, Measured, get, load, user_file
from matmill.bench.probe import run as probing
from matmill.bench.probe.run import Probed, data_sheet, probe, refuse_nonsense
from matmill.bench.probe.samples import ROUNDS, Runs, Spread
from matmill.cli import main
from matmill.cli import probe as command
from matmill.dtypes import F32, DType
from matmill.errors import MatmillError
from matmill.jit.compile import Binary, Resources
from matmill.kernel import Kernel
from matmill.launch import Launch, Pointer
from matmill.runtime import gpu
from matmill.runtime.gpu import GPU
from support.ladder_gpu import FakeGPU

ARCH = replace(get("h200"), l2_bytes=256 * 1024)
CLOCK = 1.9e9
#: What the machine of formulas can do, by the figure's name.
TRUTH = {
    "clock_hz": CLOCK,
    "sigma_add": 4.0,
    "sigma_mul": 4.5,
    "sigma_fma": 5.0,
    "sigma_fma64": 9.0,
    "sigma_s": 30.0,
    "sigma_l1": 40.0,
    "sigma_l2": 250.0,
    "sigma_g": 800.0,
    "fma_flops": 60e12,
    "fma_outer_flops": 55e12,
    "fma64_flops": 30e12,
    "shared_bytes_per_s": 31e12,
    "l2_bytes_per_s": 6e12,
    "read_bytes_per_s": 4e12,
    "copy_bytes_per_s": 3.8e12,
    "write_bytes_per_s": 3.9e12,
    "launch_seconds": 2e-6,
    "matrix_flops, float16": 600e12,
    "matrix_flops, bfloat16": 610e12,
    "matrix_flops, tf32": 300e12,
    "matrix_flops, float64": 60e12,
}
#: Seconds that every launch takes besides, cycles of every chain and of every trip of its loop.
START, CHAIN, TRIP = 3e-6, 500, 20
_CHAINS = {"chain_add": "sigma_add", "chain_multiply": "sigma_mul", "chain_fma": "sigma_fma"}
_INPUTS = ("float16", "bfloat16", "tf32", "float64")
_SHAPES = {8: 16 * 8 * 8, 16: 16 * 8 * 16}


class ProbeGPU(FakeGPU):
    """A GPU made of host memory and of formulas for how long each probe kernel takes.

    ``truth`` are its figures. ``lost`` is the entry point that does not do what it should: a chase ends elsewhere, a
    sum lacks one word, and the longer of two chains takes less time.
    """

    def __init__(self, truth: dict[str, float], lost: str = "", arch: Arch = ARCH) -> None:
        super().__init__(free=2**24)
        self.arch = arch
        self.truth = truth
        self.lost = lost
        self.now = 0.0
        self.events: list[float] = []

    frame = GPU.frame

    def prepare(self, _binary: Binary, launch: Launch) -> Callable[[int, int], None]:
        """Return the empty kernel, the only one that is launched so."""
        assert launch.entry == "empty"

        def enqueue(_config: int, _parameters: int) -> None:
            self.now += self.truth["launch_seconds"]

        return enqueue

    def call(self, name: str, *args: Any) -> Any:
        """Return the driver calls that the probe makes."""
        if name == "cuEventCreate":
            self.events.append(0.0)
            return len(self.events) - 1
        if name == "cuEventRecord":
            self.events[args[0]] = self.now
        if name == "cuEventElapsedTime":
            return 1e3 * (self.events[args[1]] - self.events[args[0]])
        return super().call(name, *args)

    def launch(self, binary: Binary, launch: Launch, stream: object = None) -> None:
        """Take the time that the kernel would, and leave what the probe looks at."""
        assert hasattr(stream, "__cuda_stream__")
        # All blocks are resident, but where the order of addresses is what counts.
        resident = launch.blocks * launch.threads_per_block <= self.arch.sms * self.arch.threads_per_sm
        assert resident or launch.entry in {"stream_copy", "stream_write"}
        constants = {key: int(value) for key, value in (part.split("=") for part in binary.kernel.split())}
        family = launch.entry.split("_", maxsplit=1)[0]
        self.now += START + getattr(self, f"_{family}")(constants, launch, binary.entry)

    def _chain(self, constants: dict[str, int], launch: Launch, dtype: str) -> float:
        _, result, trips = _arguments(launch)
        name = _CHAINS[launch.entry] + ("64" if dtype == "float64" else "")
        sign = -1 if launch.entry == self.lost else 1
        cycles = CHAIN + int(trips) * int(TRIP + 500 * (sign < 0) + sign * constants["LENGTH"] * self.truth[name])
        _at(result, np.int64, 1)[0] = cycles
        return cycles / CLOCK

    def _chase(self, constants: dict[str, int], launch: Launch, _dtype: str) -> float:
        ring, result, start, warm, trips = _arguments(launch)
        assert isinstance(ring, Pointer)
        steps = int(warm) + int(trips) * constants["LENGTH"]
        nbytes, at = self.live[ring.address].nbytes, int(start)
        if launch.entry == "chase_shared":
            following = _at(ring, np.uint32, nbytes // 4).tolist()
            for _ in range(steps):
                at = following[at // 4]
            name = "sigma_s"
        else:
            lines = _at(ring, np.uint64, nbytes // 8).tolist()
            for _ in range(steps):
                at = lines[at // 8] - ring.address
            near = "sigma_l2" if constants["BYPASS_L1"] else "sigma_l1"
            name = "sigma_g" if nbytes > self.arch.l2_bytes else near
        cycles = CHAIN + int(trips) * int(TRIP + constants["LENGTH"] * self.truth[name])
        _at(result, np.int64, 2)[:] = (cycles, at + 4 * (launch.entry == self.lost))
        return cycles / CLOCK

    def _fma(self, constants: dict[str, int], launch: Launch, dtype: str) -> float:
        names = {"fma_chains": "fma64_flops" if dtype == "float64" else "fma_flops", "fma_outer": "fma_outer_flops"}
        each = constants["LENGTH"] * constants["CHAINS"] * constants["TM"] * constants["TN"]
        trips = int(_arguments(launch)[2])
        work = 2 * trips * each * launch.blocks * launch.threads_per_block
        return work / self.truth[names[launch.entry]] + trips * TRIP / CLOCK

    def _matrix(self, constants: dict[str, int], launch: Launch, _dtype: str) -> float:
        trips = int(_arguments(launch)[2])
        warps = launch.blocks * launch.threads_per_block // 32
        work = 2 * _SHAPES[constants["K"]] * trips * constants["LENGTH"] * constants["TILES"] * warps
        return work / self.truth[f"matrix_flops, {_INPUTS[constants['INPUT']]}"] + trips * TRIP / CLOCK

    def _shared(self, constants: dict[str, int], launch: Launch, _dtype: str) -> float:
        trips = int(_arguments(launch)[1])
        nbytes = 16 * trips * constants["LENGTH"] * launch.blocks * launch.threads_per_block
        return nbytes / self.truth["shared_bytes_per_s"] + trips * TRIP / CLOCK

    def _stream(self, constants: dict[str, int], launch: Launch, _dtype: str) -> float:
        if launch.entry == "stream_read":
            _, result, vectors, passes = _arguments(launch)
            threads = launch.blocks * launch.threads_per_block
            _at(result, np.uint32, threads)[:] = 0
            words = 4 * int(vectors) * int(passes) - (launch.entry == self.lost)
            _at(result, np.uint32, 1)[0] = words * 0x5A5A5A5A % 2**32
            name = "l2_bytes_per_s" if constants["BYPASS_L1"] else "read_bytes_per_s"
            # A cold run is divided as a whole: what each launch takes besides is the bandwidth's own.
            return 16 * int(vectors) * int(passes) / self.truth[name] - START * (name == "read_bytes_per_s")
        if launch.entry == "stream_copy":
            return 32 * int(_arguments(launch)[2]) / self.truth["copy_bytes_per_s"] - START
        return 16 * int(_arguments(launch)[1]) / self.truth["write_bytes_per_s"] - START


def _arguments(launch: Launch) -> tuple[Any, ...]:
    return launch.args


def _at(where: object, dtype: Any, count: int) -> NDArray[Any]:
    assert isinstance(where, Pointer)
    size = np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_uint8 * (count * size)).from_address(where.address), dtype)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for no clock and no compiler: a binary says what its constants and element type are."""
    monkeypatch.setattr(probing, "_SETTLE", 0.001)

    def binary(_runs: Runs, kernel: Kernel[Any], dtype: DType = F32) -> Binary:
        return Binary(str(kernel.config), dtype.name, "", b"", "", Resources(32, 0, 0, 0, 0))

    monkeypatch.setattr(Runs, "binary", binary)


def found(machine: ProbeGPU) -> Probed:
    return probe(machine)  # type: ignore[arg-type]  # stands in for the GPU


def test_what_is_found_is_what_the_machine_can_do() -> None:
    machine = ProbeGPU(TRUTH)
    steps: list[tuple[str, int, int]] = []
    result = probe(machine, lambda *step: steps.append(step))  # type: ignore[arg-type]  # stands in for the GPU
    assert set(result.spreads) == set(TRUTH) | {"enqueue_seconds"}
    for name, true in TRUTH.items():
        spread = result.spreads[name]
        assert spread.median == pytest.approx(true, rel=1e-3), name
        assert spread.least <= spread.median <= spread.greatest
    for name in (each.name for each in fields(Measured)):
        if name in TRUTH:
            assert getattr(result.measured, name) == result.spreads[name].median
    assert result.measured.matrix_flops == {
        name: pytest.approx(TRUTH[f"matrix_flops, {name}"], rel=1e-3) for name in _INPUTS
    }
    assert 0 < result.measured.enqueue_seconds < 1e-3
    assert result.measured.driver
    assert steps[0][0] == "settling"
    assert steps[-1] == ("done", 23, 23)
    assert json.loads(json.dumps(result.as_dict()))["measured"] == asdict(result.measured)


def test_all_memory_is_given_back() -> None:
    machine = ProbeGPU(TRUTH)
    found(machine)
    assert machine.live == {}


def test_a_turing_has_one_matrix_rate() -> None:
    slower = {**TRUTH, "fma64_flops": 0.2e12, "fma_flops": 8e12, "fma_outer_flops": 7e12, "shared_bytes_per_s": 4e12}
    slower |= {"read_bytes_per_s": 3e11, "copy_bytes_per_s": 3e11, "write_bytes_per_s": 3e11, "clock_hz": CLOCK}
    slower["matrix_flops, float16"] = 50e12
    result = found(ProbeGPU(slower, arch=replace(get("t4"), l2_bytes=256 * 1024)))
    assert result.measured.matrix_flops == {"float16": pytest.approx(50e12, rel=1e-3)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sigma_l2": 900.0}, "sigma_l2: got 900 cycles, and sigma_g of 800"),
        ({"sigma_s": 300.0}, "sigma_s"),
        ({"sigma_l1": 260.0}, "sigma_l1"),
        ({"fma_flops": 90e12}, "fma_flops: got 9e.13; wanted at most 1.3 times the data sheet's 6.69e.13"),
        ({"read_bytes_per_s": 7e12}, "read_bytes_per_s"),
        ({"matrix_flops, tf32": 700e12}, "matrix_flops, tf32"),
        ({"launch_seconds": 0.0}, "launch_seconds: got 0"),
    ],
)
def test_figures_that_cannot_be_are_refused_by_name(change: dict[str, float], words: str) -> None:
    with pytest.raises(MatmillError, match=words):
        found(ProbeGPU({**TRUTH, **change}))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("chain_add", "sigma_add: got -4"),
        ("chase_global", "sigma_l1: got a chase that ended"),
        ("chase_shared", "sigma_s: got a chase that ended"),
        ("stream_read", "l2_bytes_per_s: got words that sum"),
    ],
)
def test_kernels_that_did_not_do_their_work_are_found_out(entry: str, words: str) -> None:
    machine = ProbeGPU(TRUTH, lost=entry)
    with pytest.raises(MatmillError, match=words):
        found(machine)
    assert machine.live == {}


def test_a_median_outweighs_a_run_that_was_disturbed() -> None:
    assert Spread.of("x", [3.0] * (ROUNDS - 1) + [-50.0]) == Spread(3.0, -50.0, 3.0)
    for samples in ([1.0, -2.0, -3.0], [float("nan")] * 3, [float("inf")] * 3, [0.0]):
        with pytest.raises(MatmillError, match="probe of x"):
            Spread.of("x", samples)


def test_a_gpu_that_tells_no_clock_has_no_limits_to_break() -> None:
    arch = replace(ARCH, boost_hz=0.0, fp32_flops=0.0, fp64_flops=0.0, dram_bytes_per_s=0.0, matrix_flops={})
    refuse_nonsense(arch, {name: Spread(value, value, value) for name, value in TRUTH.items()})


CANNED = Probed(
    get("h200"),
    Measured(
        **{name: value for name, value in TRUTH.items() if "," not in name},
        enqueue_seconds=1e-6,
        date="2026-01-02",
        driver="580.1",
        matrix_flops={"float16": 600e12},
    ),
    {
        name: Spread(value, 0.9 * value, 1.1 * value)
        for name, value in {**TRUTH, "enqueue_seconds": 1e-6}.items()
        if name != "matrix_flops, tf32"
    },
)


@pytest.fixture
def present(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProbeGPU:
    """Provide a GPU that was probed in no time, and a cache folder of one's own."""
    machine = ProbeGPU(TRUTH, arch=get("h200"))
    monkeypatch.setattr(gpu, "unavailable", lambda: None)
    monkeypatch.setattr(gpu.GPU, "get", staticmethod(lambda _index: machine))
    monkeypatch.setattr(command, "probe", lambda _gpu, _report: CANNED)
    monkeypatch.delenv("MATMILL_CACHE", raising=False)
    monkeypatch.setenv("MATMILL_CACHE_DIR", str(tmp_path / "cache"))
    return machine


def test_the_table_has_every_figure_beside_the_data_sheet(
    present: ProbeGPU, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe"]) == cli.OK
    text = capsys.readouterr().out
    lines = {line.split("  ")[0].strip(): line for line in text.splitlines()}
    assert "H200 SXM 141 GB, driver 580.1, 2026-01-02" in text
    assert set(command._TITLES.values()) - set(lines) == {"mma.sync (tf32)"}
    assert lines["latency, global memory"].split()[-8:] == ["800", "cycles", "720", "cycles", "880", "cycles", "-", "-"]
    assert "4.80 TB/s" in lines["global memory, read"]
    assert "83.3%" in lines["global memory, read"]
    assert "66.9 TFLOP/s" in lines["FMA (float32)"]
    assert "89.7%" in lines["FMA (float32)"]
    assert "2.00 us" in lines["launch, on the GPU"]
    assert "1.90 GHz" in lines["clock"]
    path = user_file(present.arch)
    assert path is not None
    assert f"Written: {path}" in text
    assert load(path) == CANNED.measured
    assert max(map(len, text.splitlines())) <= 130


def test_json_goes_to_stdout_and_the_file_where_it_is_asked_for(
    present: ProbeGPU, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.json"
    assert main(["probe", "--json", "--out", str(path)]) == cli.OK
    text = json.loads(capsys.readouterr().out)
    assert text["file"] == str(path)
    assert text["measured"] == asdict(CANNED.measured)
    assert text["samples"]["sigma_g"] == asdict(CANNED.spreads["sigma_g"])
    assert text["data_sheet"] == data_sheet(present.arch)
    assert load(path) == CANNED.measured
    own = user_file(present.arch)
    assert own is not None
    assert not own.exists()


@pytest.mark.usefixtures("present")
def test_where_nothing_can_be_written_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: object) -> Probed:
        raise AssertionError("measured in vain")

    monkeypatch.setattr(command, "probe", never)
    assert main(["probe", "--out", str(tmp_path / "none" / "x.json")]) == cli.USAGE
    assert main(["probe", "--out", str(tmp_path)]) == cli.USAGE
    monkeypatch.setenv("MATMILL_CACHE", "off")
    assert main(["probe"]) == cli.USAGE
    assert "--out: got none, while the cache is switched off" in capsys.readouterr().err


def test_without_a_gpu_it_ends_with_code_3(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu, "unavailable", lambda: "the NVIDIA driver sees no GPU")
    assert main(["probe"]) == cli.NO_GPU
    text = capsys.readouterr()
    assert text.out == ""
    assert "probe: got no GPU: the NVIDIA driver sees no GPU" in text.err
    assert "matmill doctor" in text.err
