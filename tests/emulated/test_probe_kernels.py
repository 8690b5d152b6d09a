"""The probe kernels in the emulator: results right, no hazards, and as many of each instruction as there should be.

The emulator's clock counts stretches of code without a branch, so that cycles tell the trips of a loop and not how much
is in one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from matmill.arch import ARCHES, get
from matmill.config import Config
from matmill.dtypes import F32, F64, DType
from matmill.emulator import Memory, Report, run
from matmill.jit.compile import compile_ptx
from matmill.jit.source import generate
from matmill.kernel import Kernel, P
from matmill.kernels.probe import buffers, lengths, per_lane
from matmill.kernels.probe.chain import ADD, FMA, MULTIPLY, Chain
from matmill.kernels.probe.chase import (
    BEYOND_L1,
    GLOBAL,
    LINE,
    SHARED,
    WORD,
    WORDS,
    Chase,
    addresses,
    ends_at,
    offsets,
    ring,
)
from matmill.kernels.probe.empty import EMPTY
from matmill.kernels.probe.fma import CHAINS, OUTER, MultiplyAdds
from matmill.kernels.probe.matrix import INPUTS, MatrixProducts, matrix, words
from matmill.kernels.probe.shared import READ as READ_SHARED
from matmill.kernels.probe.shared import SharedReads
from matmill.kernels.probe.stream import COPY, MOVE, READ, READ_L2, WRITE, Stream, moved
from support.compiled import resources

Array = NDArray[Any]
TARGETS = ("sm_75", "sm_90a")
_EVERY: tuple[tuple[Kernel[Any], DType], ...] = (
    (ADD, F32), (MULTIPLY, F32), (FMA, F32), (FMA, F64), (GLOBAL, F32), (BEYOND_L1, F32), (SHARED, F32), (CHAINS, F32),
    (CHAINS, F64), (OUTER, F32), (READ, F32), (READ_L2, F32), (COPY, F32), (WRITE, F32), (MOVE, F32),
    (READ_SHARED, F32), (EMPTY, F32),
)  # fmt: skip


def ptx_of(kernel: Kernel[P], dtype: DType = F32, target: str = "sm_90a") -> str:
    return compile_ptx(generate(kernel, dtype), target)


def emulated(kernel: Kernel[P], problem: P, read: Array | None, written: Array, dtype: DType = F32) -> Report:
    """Run a probe kernel on host arrays; nothing may be out of order."""
    memory = Memory()
    target = memory.bind("written", written, access="rw")
    operands = buffers(target if read is None else memory.bind("read", read, access="r"), target)
    report = run(ptx_of(kernel, dtype), kernel.launch(problem, operands), memory)
    assert report.ok, report.hazards
    return report


def _clocked(cycles: int, trips: int) -> bool:
    """Tell whether the clock was read before the first trip of a loop and after the last, by the emulator's count."""
    return trips <= cycles <= trips + 4


def repeated(step: Callable[[Array], Array], start: Array, count: int) -> Array:
    for _ in range(count):
        start = step(start)
    return start


@pytest.mark.parametrize("longer", [0, 1])
@pytest.mark.parametrize(
    ("kernel", "dtype", "counter"),
    [(ADD, F32, "fadd"), (MULTIPLY, F32, "fmul"), (FMA, F32, "ffma"), (FMA, F64, "dfma")],
)
def test_chains_compute_every_link(kernel: Kernel[Chain], dtype: DType, counter: str, longer: int) -> None:
    result = lengths(kernel)[longer]
    length, trips = result.config["LENGTH"], 3
    written = np.full(1 + 32 * dtype.itemsize // 8, -1, np.int64)
    report = emulated(result, Chain(trips), per_lane(dtype, 2.0, 0.99), written, dtype)
    operand, start = dtype.numpy.type(0.99), np.full(32, 2.0, dtype.numpy)
    steps: dict[str, Callable[[Array], Array]] = {
        "fadd": lambda x: x + operand,
        "fmul": lambda x: x * operand,
        # The product of two float32 is exact in float64; of two float64 it is not, and the bits may differ.
        "ffma": lambda x: (x.astype(np.float64) * np.float64(operand) + np.float64(operand)).astype(np.float32),
        "dfma": lambda x: x * operand + operand,
    }
    expected = repeated(steps[counter], start, trips * length)
    np.testing.assert_allclose(written[1:].view(dtype.numpy), expected, rtol=1e-13 if dtype is F64 else 0)
    assert getattr(report.counters, counter) == 32 * trips * length
    assert _clocked(written[0], trips)


@pytest.mark.parametrize("longer", [0, 1])
@pytest.mark.parametrize("kernel", [GLOBAL, BEYOND_L1], ids=["default", "beyond-l1"])
@pytest.mark.parametrize(("start", "warm"), [(0, 0), (5 * LINE, 17)])
def test_a_chase_in_global_memory_follows_its_ring(kernel: Kernel[Chase], start: int, warm: int, longer: int) -> None:
    order = ring(50, seed=4)
    problem = Chase(trips=3, start=start, warm=warm)
    result = lengths(kernel)[longer]
    nodes = np.zeros((50, LINE // 8), np.uint64)
    written = np.full(2, -1, np.int64)
    memory = Memory()
    read = memory.bind("ring", nodes, access="r")
    nodes[:] = addresses(order, read.address)
    operands = buffers(read, memory.bind("result", written, access="rw"))
    report = run(ptx_of(result), result.launch(problem, operands), memory)
    assert report.ok
    assert _clocked(written[0], problem.trips)
    assert written[1] == ends_at(order, problem, result.config, LINE)
    assert report.counters.global_load_requests == problem.steps(result.config)


@pytest.mark.parametrize("longer", [0, 1])
def test_a_chase_in_shared_memory_follows_its_ring(longer: int) -> None:
    order = ring(WORDS, seed=5)
    problem = Chase(trips=5, start=12, warm=7)
    result = lengths(SHARED)[longer]
    written = np.full(2, -1, np.int64)
    report = emulated(result, problem, offsets(order), written)
    assert _clocked(written[0], problem.trips)
    assert written[1] == ends_at(order, problem, result.config, WORD)
    assert report.counters.shared_load_requests == problem.steps(result.config)


@pytest.mark.parametrize("nodes", [1, 2, 97])
def test_a_ring_is_one_cycle(nodes: int) -> None:
    order = ring(nodes, seed=nodes)
    following = addresses(order, base=0)[:, 0] // LINE
    assert (offsets(order) // WORD == following).all()
    at, seen = 0, set()
    for _ in range(nodes):
        seen.add(at)
        at = int(following[at])
    assert (len(seen), at) == (nodes, 0)


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("kernel", [*lengths(CHAINS), *lengths(OUTER)], ids=["chains", "chains2", "outer", "outer2"])
def test_multiply_adds_are_all_made(kernel: Kernel[MultiplyAdds], dtype: DType) -> None:
    problem = MultiplyAdds(trips=2, blocks=2)
    threads = kernel.config["THREADS"]
    written = np.full(2 * threads, np.nan, dtype.numpy)
    a, b = dtype.numpy.type(0.5), dtype.numpy.type(0.25)
    report = emulated(kernel, problem, per_lane(dtype, 0.5, 0.25), written, dtype)
    counters = report.counters
    assert 2 * (counters.ffma + counters.dfma) == problem.operations(kernel.config)
    thread = np.tile(np.arange(threads), 2).astype(np.float64)
    rounds = problem.trips * kernel.config["LENGTH"]
    if kernel.entry == "fma_chains":
        starts = thread % 32 + np.arange(kernel.config["CHAINS"])[:, None]
        expected = repeated(lambda x: x * 0.5 + 0.25, starts, rounds).sum(axis=0)
    else:
        row = sum(float(a) * (thread % 32 + i) for i in range(kernel.config["TM"]))
        column = sum(float(b) * (thread % 4 + j) for j in range(kernel.config["TN"]))
        expected = rounds * row * column
    np.testing.assert_allclose(written, expected, rtol=1e-5)


@pytest.mark.parametrize("kernel", [READ, READ_L2], ids=["default", "beyond-l1"])
@pytest.mark.parametrize(("vectors", "passes"), [(1, 1), (2 * 256 * 4, 1), (2 * 256 * 9 + 77, 3)])
def test_reading_sums_every_word(kernel: Kernel[Stream], vectors: int, passes: int) -> None:
    data = np.random.default_rng(vectors).integers(0, 2**32, (vectors, 4), dtype=np.uint32)
    written = np.full(512, 0xDEADBEEF, np.uint32)
    problem = Stream(vectors, blocks=2, passes=passes)
    report = emulated(kernel, problem, data, written)
    assert written.sum(dtype=np.uint64) % 2**32 == passes * data.sum(dtype=np.uint64) % 2**32
    assert report.counters.global_load_bytes == problem.nbytes


@pytest.mark.parametrize("vectors", [1, 2 * 256 * 4, 2 * 256 * 9 + 77])
def test_copying_and_writing_reach_every_word(vectors: int) -> None:
    data = np.random.default_rng(vectors).integers(0, 2**32, (vectors, 4), dtype=np.uint32)
    target = np.full((vectors + 1, 4), 7, np.uint32)
    report = emulated(COPY, Stream(vectors, blocks=2), data, target[:-1])
    np.testing.assert_array_equal(target[:-1], data)
    assert report.counters.global_load_bytes == report.counters.global_store_bytes == data.nbytes
    report = emulated(WRITE, Stream(vectors, blocks=2, value=0xC0FFEE), None, target[:-1])
    assert (target[:-1] == 0xC0FFEE).all()
    assert report.counters.global_store_bytes == data.nbytes
    assert (target[-1] == 7).all()


@pytest.mark.parametrize(("read", "written"), [(300, 40), (40, 300), (1, 1)])
def test_moving_reads_and_writes_as_many_bytes_as_asked(read: int, written: int) -> None:
    data = np.random.default_rng(read).integers(0, 2**31, (read, 4), dtype=np.uint32)
    target = np.full((written, 4), 7, np.uint32)
    report = emulated(MOVE, moved(16 * read, 16 * written), data, target)
    assert (report.counters.global_load_bytes, report.counters.global_store_bytes) == (16 * read, 16 * written)
    both = min(read, written)
    np.testing.assert_array_equal(target[:both], data[:both])
    assert (target != 7).all()


def test_streams_fill_whole_sectors_in_full_requests() -> None:
    vectors = 2 * 256 * 4
    report = emulated(READ, Stream(vectors, blocks=2), np.zeros((vectors, 4), np.uint32), np.zeros(512, np.uint32))
    assert report.counters.global_load_requests == vectors // 32
    assert report.counters.global_load_sectors == vectors // 2


@pytest.mark.parametrize("longer", [0, 1])
def test_shared_memory_is_read_without_conflict(longer: int) -> None:
    result = lengths(READ_SHARED)[longer]
    problem = SharedReads(trips=3, blocks=2)
    threads, rows = result.config["THREADS"], result.config["ROWS"]
    written = np.zeros(2 * threads, np.uint32)
    report = emulated(result, problem, None, written)
    index = np.arange(rows)[:, None] * threads + np.arange(threads)
    reads = problem.trips * result.config["LENGTH"]
    np.testing.assert_array_equal(written, np.tile((10 * index).sum(axis=0) * reads // rows, 2))
    counters = report.counters
    assert counters.shared_load_bytes == problem.nbytes(result.config)
    assert counters.shared_load_wavefronts == counters.shared_load_wavefronts_ideal == 4 * counters.shared_load_requests


def test_the_empty_kernel_does_nothing() -> None:
    report = emulated(EMPTY, None, None, np.zeros(1, np.uint32))
    counters = report.counters
    assert counters.instructions == 1  # the return
    assert counters.global_load_requests == counters.global_store_requests == 0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("kernel", "dtype"), _EVERY, ids=[f"{k.entry}-{d.name}" for k, d in _EVERY])
def test_every_kernel_compiles_without_spills(kernel: Kernel[Any], dtype: DType, target: str) -> None:
    sizes = lengths(kernel) if "LENGTH" in dict(kernel.config.constants) else (kernel,)
    for result in sizes:
        needs = resources(generate(result, dtype), target)
        assert (needs.spill_loads, needs.spill_stores, needs.stack) == (0, 0, 0)
        assert needs.registers <= 128


@pytest.mark.parametrize("name", ["t4", "a100", "rtx4090", "h200"])
@pytest.mark.parametrize("element", INPUTS)
def test_matrix_kernels_compile_to_the_instruction_or_say_why_not(element: str, name: str) -> None:
    arch = get(name)
    kernel, problem = matrix(element, arch), MatrixProducts(element, trips=1, blocks=1)
    reason = kernel.why_not(problem, arch)
    if arch.capability < (8, 0) and element != "float16":
        assert reason == f"mma.sync of {element} needs compute capability 8.0"
        return
    assert reason is None
    shape = {"float16": "m16n8k16", "bfloat16": "m16n8k16", "tf32": "m16n8k8", "float64": "m8n8k4"}[element]
    if name == "t4":
        shape = "m16n8k8"
    if name == "h200" and element == "float64":
        shape = "m16n8k16"
    short = {"float16": "f16", "bfloat16": "bf16", "tf32": "tf32", "float64": "f64"}[element]
    sums = "f64" if element == "float64" else "f32"
    instruction = f"mma.sync.aligned.{shape}.row.col.{sums}.{short}.{short}.{sums} "
    tiles = kernel.config["TILES"] * kernel.config["LENGTH"]
    ptx = ptx_of(kernel, F32, arch.target)
    assert ptx.count(instruction) == ptx.count("mma.sync") == tiles
    assert resources(generate(kernel, F32), arch.target).spill_stores == 0


@pytest.mark.parametrize("name", ["t4", "a100", "h200"])
@pytest.mark.parametrize("element", INPUTS)
def test_matrix_kernels_compute_every_product(element: str, name: str) -> None:
    arch = get(name)
    kernel, problem = matrix(element, arch), MatrixProducts(element, trips=2, blocks=1)
    if kernel.why_not(problem, arch) is not None:
        return  # the test above says for which
    threads = kernel.config["THREADS"]
    written = np.full(threads, np.nan, np.float64 if element == "float64" else np.float32)
    memory = Memory()
    operands = buffers(
        memory.bind("read", words(element, 2.0, 0.5), access="r"), memory.bind("written", written, access="rw")
    )
    report = run(ptx_of(kernel, F32, arch.target), kernel.launch(problem, operands), memory)
    assert report.ok, report.hazards
    # Every operation counted is half an FMA of 2 and 0.5, that is of 1, and whole numbers add up exactly.
    assert (written == problem.operations(kernel.config) / 2 / threads).all()
    assert report.counters.matrix_flops == problem.operations(kernel.config)


def test_matrix_operations_by_hand() -> None:
    kernel = matrix("float16", get("h200"))
    config: Config = kernel.config
    assert (config["TILES"], config["LENGTH"], config["THREADS"], config["K"]) == (8, 8, 256, 16)
    assert MatrixProducts("float16", trips=3, blocks=5).operations(config) == 2 * 16 * 8 * 16 * 3 * 8 * 8 * 5 * 8


def test_words_hold_two_halves_or_one_value() -> None:
    assert words("bfloat16", 1, -2).tolist() == [0x3F803F80, 0xC000C000]
    assert words("tf32", 1, -2).view(np.float32).tolist() == [1, -2]
    assert words("float64", 1, -2).tolist() == [1, -2]


def test_every_arch_that_compiles_takes_every_launch() -> None:
    for arch in ARCHES.values():
        if arch.compiles:
            assert SHARED.why_not(Chase(1), arch) is None
            assert READ_SHARED.why_not(SharedReads(1, blocks=arch.sms), arch) is None
            assert READ.why_not(Stream(1, blocks=8 * arch.sms), arch) is None


def test_the_emulator_s_clock_is_the_same_in_every_run_and_of_every_length() -> None:
    def cycles(kernel: Kernel[Chain], trips: int) -> int:
        written = np.full(17, -1, np.int64)
        emulated(kernel, Chain(trips), per_lane(F32, 1.0, 0.5), written)
        return int(written[0])

    short, long = lengths(ADD)
    assert cycles(short, 9) == cycles(short, 9) == cycles(long, 9)
    assert cycles(short, 10) - cycles(short, 9) == 1
