"""Products whose best kernel is not compiled: another one answers, once, and right, until the best one arrives."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import matmill
from matmill import ops, plan
from matmill.choose import choose, choose_general, choose_usable
from matmill.dispatch import plan_cache
from matmill.dtypes import ALL, ELEMENTWISE, F32
from matmill.errors import CompileError
from matmill.jit import background
from matmill.jit.background import Arrival
from matmill.jit.cache import DiskCache
from matmill.jit.compile import Binary, entry_name
from matmill.jit.source import Source, generate
from matmill.kernel import Kernel
from matmill.problem import Gemm
from support.compiled import in_ptx_alone
from support.examples import examples
from support.executors import Emulated
from support.fake_gpu import FakeGPU, Tensors
from support.gated_worker import Gate, wait_for
from support.strided import H200, ROW, Layout
from support.strided_product import StridedProduct
from support.strided_sum import Layouts, StridedSum

Array = NDArray[Any]


class Compiled:
    """What calls compile themselves, and wait for."""

    def __init__(self, store: DiskCache) -> None:
        self.store = store
        self.waited: list[str] = []

    def __call__(self, source: Source, target: str) -> Binary:
        """Do as ``compile_source``."""
        name = entry_name(source, target)
        if name not in self.store.listed():
            self.waited.append(source.kernel)
            self.store.listed().add(name)
        return in_ptx_alone(source, target)


@pytest.fixture
def gate(device: FakeGPU, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gate]:
    """Provide workers that compile when a test says so, into an empty cache."""
    assert device.launches == []
    result = Gate()
    compiler = result.compiler()
    monkeypatch.setattr(background, "_current", [compiler])
    monkeypatch.setattr(background, "store", lambda: DiskCache(tmp_path))
    monkeypatch.setattr(plan_cache, "_outdated", {})
    yield result
    result.opened.set()
    compiler.close()


@pytest.fixture
def compiled(gate: Gate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Compiled:
    """Provide what calls compile themselves."""
    assert gate.requests == []
    result = Compiled(DiskCache(tmp_path))
    monkeypatch.setattr(plan, "compile_source", result)
    return result


def _matrix(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(-9, 9, shape).astype(np.float32)


#: Two products with kernels of their own.
_FIRST, _SECOND = (64, 200, 64), (20, 40, 30)


def _product(tensors: Tensors, m: int, n: int, k: int) -> str:
    """Compute a product, check it, and return its kernel."""
    a, b = _matrix(1, m, k), _matrix(2, k, n)
    assert (matmill.matmul(tensors(a), tensors(b)).base == a @ b).all()
    return tensors.device.launches[-1][0].kernel


def _best(m: int, n: int, k: int) -> Kernel[Gemm]:
    return choose(Gemm(m, n, k), H200).kernel


def _entries(m: int, n: int, k: int) -> list[str]:
    """Return the names of the best kernel's programs in the cache."""
    programs = _best(m, n, k).programs(Gemm(m, n, k))
    return [entry_name(generate(program, F32), H200.target) for program in programs]


def _general() -> str:
    choice = choose_general(Gemm(*_SECOND), H200)
    assert choice is not None
    return entry_name(generate(choice.kernel, F32), H200.target)


def _arrive(gate: Gate) -> None:
    """Let everything arrive that was requested."""
    gate.opened.set()
    arrivals = [call.arrival for call in plan_cache.calls.values() if call.arrival is not None]
    for arrival in arrivals:
        wait_for(arrival)


def _prepared_kernels() -> list[tuple[str, Any]]:
    calls = plan_cache.calls.values()
    return [(one.choice.kernel.entry, one.choice.kernel.config) for call in calls for one in call.plan.ready]


def test_a_first_call_waits_for_its_kernel_and_a_general_one(
    gate: Gate, compiled: Compiled, tensors: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait, waits = Arrival.wait, []

    def counted(arrival: Arrival, patience: float) -> bool:
        waits.append(list(compiled.waited))
        gate.opened.set()
        return wait(arrival, 10 * patience)

    monkeypatch.setattr(Arrival, "wait", counted)
    for _ in range(3):
        _product(tensors, *_FIRST)
    assert waits == [["kernels.short_k"]]  # both are compiled at the same time
    assert compiled.waited == waits[0]
    assert gate.names(1) == [_general()]
    assert [call.arrival for call in plan_cache.calls.values()] == [None]
    assert _product(tensors, *_SECOND) == "kernels.gemm"  # as all others will that come now
    _arrive(gate)
    assert gate.names(2) == [_general(), *_entries(*_SECOND)]
    assert compiled.waited == waits[0]


def test_another_kernel_answers_until_the_best_one_arrives(gate: Gate, compiled: Compiled, tensors: Tensors) -> None:
    compiled.store.listed().add(_general())
    for _ in range(3):
        assert _product(tensors, *_SECOND) == "kernels.gemm"
    best = _best(*_SECOND)
    assert gate.names(1) == _entries(*_SECOND)
    assert len(plan_cache.calls) == 1
    _arrive(gate)
    assert plan_cache.calls == {}
    for _ in range(3):
        assert _product(tensors, *_SECOND) == "kernels.short_k"
    assert _prepared_kernels() == [(best.entry, best.config)]
    assert (len(gate.requests), compiled.waited) == (1, [])
    assert plan_cache._outdated == {}


def test_host_arrays_are_answered_too(gate: Gate, compiled: Compiled, device: FakeGPU) -> None:
    compiled.store.listed().add(_general())
    m, n, k = _SECOND
    a, b = _matrix(1, m, k), _matrix(2, k, n)
    assert (matmill.matmul(a, b) == a @ b).all()
    _arrive(gate)
    assert (matmill.matmul(a, b) == a @ b).all()
    assert [launch.kernel for launch, _ in device.launches] == ["kernels.gemm", "kernels.short_k"]
    assert compiled.waited == []


def test_the_best_of_the_compiled_kernels_answers(gate: Gate, compiled: Compiled, tensors: Tensors) -> None:
    compiled.store.listed().add(_general())
    problem, best = Gemm(*_FIRST), _best(*_FIRST)
    second = choose_usable(problem, H200, lambda kernel, _problem: kernel.config.constants != best.config.constants)
    assert second is not None
    programs = second.kernel.programs(problem)
    compiled.store.listed().update(entry_name(generate(program, F32), H200.target) for program in programs)
    _product(tensors, *_FIRST)
    assert _prepared_kernels() == [(second.kernel.entry, second.kernel.config)]
    assert len(gate.names(1)) == 1
    assert compiled.waited == []


def test_a_kernel_without_one_of_its_programs_is_not_compiled(gate: Gate, compiled: Compiled, tensors: Tensors) -> None:
    product = (33, 500, 700)
    own, reduction = _entries(*product)
    compiled.store.listed().update([_general(), own])
    _product(tensors, *product)
    assert gate.names(1) == [reduction]
    assert compiled.waited == []
    assert _prepared_kernels() != [(_best(*product).entry, _best(*product).config)]


def test_those_who_need_the_best_kernel_wait_for_it_or_its_arrival(
    gate: Gate, compiled: Compiled, tensors: Tensors
) -> None:
    compiled.store.listed().add(_general())
    assert _product(tensors, *_SECOND) == "kernels.gemm"
    m, n, k = _SECOND
    operands = tensors(_matrix(1, m, k)), tensors(_matrix(2, k, n))
    arrival = plan_cache.awaited(*ops.matmul_call(*operands))
    assert arrival is not None
    assert len(gate.names(1)) == 1  # that of the call before
    call = plan_cache.completed(*ops.matmul_call(*operands))
    assert call.plan.ready[0].choice.kernel.config == _best(m, n, k).config
    assert compiled.waited == ["kernels.short_k"]
    assert plan_cache.awaited(*ops.matmul_call(*operands)) is None
    gate.opened.set()
    wait_for(arrival)
    assert plan_cache.completed(*ops.matmul_call(*operands)) is call


def test_a_kernel_that_has_failed_is_an_error_for_those_who_need_it(
    gate: Gate, compiled: Compiled, tensors: Tensors
) -> None:
    compiled.store.listed().add(_general())
    gate.error = "gremlins."
    m, n, k = _SECOND
    call = ops.matmul_call(tensors(_matrix(1, m, k)), tensors(_matrix(2, k, n)))
    gate.opened.set()
    wait_for(plan_cache.awaited(*call))
    with pytest.raises(CompileError, match="a failure in the background: gremlins"):
        plan_cache.awaited(*call)


def test_calls_of_many_threads_request_a_kernel_once(gate: Gate, compiled: Compiled, tensors: Tensors) -> None:
    compiled.store.listed().add(_general())
    m, n, k = _SECOND
    pairs = [(tensors(_matrix(seed, m, k)), tensors(_matrix(seed + 9, k, n))) for seed in range(4)]
    device = tensors.device
    with ThreadPoolExecutor(4) as pool:
        calls = [ops.matmul_call(*pair) for pair in pairs]
        plans = list(pool.map(lambda call: plan_cache.prepared(call[0], call[1], 1 << 20), calls))
    assert device.launches == []
    assert all(plan.arrival is not None for plan in plans)
    _arrive(gate)
    assert len(gate.names(1)) == 1
    assert compiled.waited == []


def test_a_failure_is_warned_of_once_and_the_other_kernel_stays(
    gate: Gate, compiled: Compiled, tensors: Tensors
) -> None:
    compiled.store.listed().add(_general())
    gate.error = "it is full of gremlins."
    assert _product(tensors, *_SECOND) == "kernels.gemm"
    _arrive(gate)
    with pytest.warns(RuntimeWarning, match=r"kernels\.short_k was not compiled for sm_90a: it is full of gremlins\."):
        assert _product(tensors, *_SECOND) == "kernels.gemm"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for m in (_SECOND[0], _SECOND[0] + 4):  # whose best kernel is the same
            assert _product(tensors, m, *_SECOND[1:]) == "kernels.gemm"
    assert len(gate.names(1)) == 1
    assert [call.arrival for call in plan_cache.calls.values()] == [None, None]
    assert compiled.waited == []


def test_a_captured_graph_keeps_its_kernels(gate: Gate, compiled: Compiled, tensors: Tensors) -> None:
    compiled.store.listed().add(_general())
    assert _product(tensors, *_SECOND) == "kernels.gemm"
    tensors.device.capturing.add(33)  # the stream of these tensors
    _arrive(gate)
    for _ in range(2):
        assert _product(tensors, *_SECOND) == "kernels.gemm"
    tensors.device.capturing.clear()
    assert _product(tensors, *_SECOND) == "kernels.short_k"


def test_where_bits_must_not_change_calls_wait(
    gate: Gate, compiled: Compiled, tensors: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled.store.listed().add(_general())
    monkeypatch.setattr(sys.modules["torch"], "are_deterministic_algorithms_enabled", lambda: True, raising=False)
    assert _product(tensors, *_SECOND) == "kernels.short_k"
    assert (len(compiled.waited), gate.requests) == (1, [])


def test_everything_waits_if_it_is_asked_to(
    gate: Gate, compiled: Compiled, tensors: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled.store.listed().add(_general())
    monkeypatch.setattr(background, "store", lambda: None)  # as with MATMILL_COMPILE=wait
    assert _product(tensors, *_SECOND) == "kernels.short_k"
    assert (len(compiled.waited), gate.requests) == (1, [])


def test_nothing_answers_that_takes_longer_than_a_compiler(
    gate: Gate, compiled: Compiled, tensors: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled.store.listed().add(_general())
    monkeypatch.setattr(plan, "_WORTH_COMPILING", 1e-9)
    assert _product(tensors, *_SECOND) == "kernels.short_k"
    assert (len(compiled.waited), gate.requests) == (1, [])


LAYOUTS = st.builds(
    Layout, transposed=st.booleans(), pad=st.integers(0, 2), step=st.integers(1, 2), start=st.integers(0, 1)
)


@given(
    dtype=st.sampled_from(["float32", "float64", "float16", "bfloat16"]),
    shape=st.tuples(*[st.integers(1, 70)] * 3),
    layouts=st.tuples(*[LAYOUTS] * 3),
    epilogue=st.sampled_from([{}, {"c": ROW}, {"bias": "row", "activation": "relu"}, {"batch": 2}]),
)
@examples(6)
def test_the_general_kernel_takes_all_layouts_of_its_type(
    dtype: str, shape: tuple[int, int, int], layouts: tuple[Layout, ...], epilogue: dict[str, Any]
) -> None:
    a, b, d = layouts
    product = StridedProduct(shape, a, b, d, dtype=ALL[dtype], **epilogue)
    general, plain = (choose_general(one, H200) for one in (product.problem, Gemm(8, 8, 8, ALL[dtype])))
    assert general is not None
    assert plain is not None
    assert general.kernel.config == plain.kernel.config
    Emulated().check(product, general.kernel, races=False, twice=False)


@given(
    dtype=st.sampled_from(["float64", "float32", "bfloat16", "int8"]),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 70), st.integers(1, 70)),
    layouts=st.tuples(LAYOUTS, st.none() | LAYOUTS, st.builds(Layout, pad=st.integers(0, 2), start=st.integers(0, 1))),
    scalars=st.sampled_from([(1.0, 1.0), (2.0, -1.0)]),
)
@examples(6)
def test_the_general_kernel_of_sums_takes_all_extents_and_alignments(
    dtype: str, shape: tuple[int, int, int], layouts: Layouts, scalars: tuple[float, float]
) -> None:
    product = StridedSum(shape, ELEMENTWISE[dtype], layouts, scalars)
    general = choose_general(product.problem, H200)
    assert general is not None
    Emulated().check(product, general.kernel, races=False, twice=False)
