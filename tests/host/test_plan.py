"""Plans on a GPU that only writes down what it is asked: several launches, workspaces, scalars, threads."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from matmill import arch
from matmill.arrays import Operand, inspect
from matmill.choose import Choice
from matmill.config import Config
from matmill.dispatch import plan_cache
from matmill.dispatch.gemm import INNER, MATMUL
from matmill.dispatch.plan_cache import PreparedCall
from matmill.dispatch.validate import Operation, Request
from matmill.dtypes import F32
from matmill.jit.source import Source
from matmill.kernel import AuxLaunch, GemmOperands, Geometry, Kernel, always
from matmill.launch import Argument, Launch, Pointer
from matmill.lowering import lower_gemm
from matmill.parameters import Parameters
from matmill.plan import Plan, Ready
from matmill.problem import Gemm
from matmill.runtime.gpu import GPU
from support.launch_frames import read_launch


@dataclass
class Recorder:
    """A GPU whose kernels note the launch, the stream and the thread; the context is current in between alone."""

    index = 0
    arch = arch.get("h200")
    driver_version = "13000"
    tidied: int = 0
    seen: list[tuple[int, Launch, int]] = field(default_factory=list)
    fails: bool = False
    kept: dict[int, object] = field(default_factory=lambda: {1: "held"})

    def tidy(self) -> None:
        """Count how often what is kept would be let go."""
        self.tidied += 1

    frame = GPU.frame

    def prepare(self, _binary: Any, like: Launch) -> Any:
        """Note its launches."""

        def launched(config: int, parameters: int) -> None:
            thread = threading.get_ident()
            if self.fails:
                raise RuntimeError("the driver says no")
            launch, stream = read_launch(config, parameters, like)
            self.seen.append((thread, launch, stream))

        return launched


def _first(_problem: Gemm, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    return (operands.a, np.int32(5), operands.b, operands.workspace or Pointer("workspace", 0))


def _second(_problem: Gemm, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    where = operands.workspace or Pointer("workspace", 0)
    return (where, operands.d, F32.scalar(operands.alpha), F32.scalar(operands.beta), operands.c)


def _geometry(problem: Gemm, _config: Config) -> Geometry:
    return Geometry((problem.m, problem.batch, 1), (32, 1, 1))


TWICE: Kernel[Gemm] = Kernel(
    "twice",
    "matmill.toy",
    Config(),
    _geometry,
    _first,
    always,
    after=(AuxLaunch("splitk_reduce", "matmill.toy", Config(), Parameters(()), _geometry, _second),),
    workspace_bytes=lambda problem, _config: 4 * problem.m * problem.batch,
)
ALONE: Kernel[Gemm] = Kernel("alone", "matmill.toy", Config(), _geometry, _first, always)
#: Compiled, and never looked at by the recorder.
SOURCE = Source("toy", "twice", 'extern "C" __global__ void twice() {}')


def _ready(stages: Any, kernel: Kernel[Gemm]) -> tuple[Ready[Gemm], ...]:
    sources = (SOURCE,) * (1 + len(kernel.after))
    return tuple(Ready(stage, Choice(kernel, 0.0), sources, "sm_90a") for stage in stages)


def _operands(*shapes: tuple[int, ...]) -> list[Operand]:
    return [inspect(np.zeros(shape, np.float32), "x") for shape in shapes]


def _plan(gpu: Any, kernel: Kernel[Gemm] = TWICE) -> Plan:
    a, b, c, d = _operands((2, 3, 4), (2, 4, 5), (2, 3, 5), (2, 3, 5))
    return Plan(gpu, _ready(lower_gemm(a, b, c, d), kernel))


def test_all_launches_in_order_with_their_addresses() -> None:
    gpu = Recorder()
    plan = _plan(gpu)
    assert plan.workspace == 4 * 3 * 2
    plan.run((100, 200, 300, 400, 500, 0, 0), 0.5, 2.0, 9)
    (_, first, on_first), (_, second, on_second) = gpu.seen
    assert (on_first, on_second) == (9, 9)
    assert (first.entry, second.entry) == ("twice", "splitk_reduce")
    assert first.args == (Pointer("A", 100), np.int32(5), Pointer("B", 200), Pointer("workspace", 500))
    assert second.args == (
        Pointer("workspace", 500),
        Pointer("D", 400),
        np.float32(0.5),
        np.float32(2),
        Pointer("C", 300),
    )
    assert gpu.tidied == 1


def test_kernels_of_one_launch_need_no_workspace() -> None:
    gpu = Recorder()
    plan = _plan(gpu, ALONE)
    assert plan.workspace == 0
    plan.run((1, 2, 3, 4, 0, 0, 0), 1.0, 0.0, 0)
    assert [launch.entry for _, launch, _ in gpu.seen] == ["alone"]


def test_every_place_of_a_stage_is_aimed_at_with_the_same_workspace() -> None:
    a, b, d = _operands((2, 1, 4, 5), (3, 5, 6), (2, 3, 4, 6))
    gpu = Recorder()
    result: Any = gpu
    plan = Plan(result, _ready(lower_gemm(a, b, None, d), TWICE))
    plan.run((1000, 2000, 0, 4000, 77, 0, 0), 1.0, 0.0, 0)
    places = [[arg.address for arg in launch.args if isinstance(arg, Pointer)] for _, launch, _ in gpu.seen]
    assert places == [[1000, 2000, 77], [77, 4000, 0], [1080, 2000, 77], [77, 4288, 0]]


def test_scalars_may_change_from_run_to_run() -> None:
    gpu = Recorder()
    plan = _plan(gpu)
    for alpha, beta in ((1.0, 0.0), (0.5, 2.0), (0.5, 3.0), (1.0, 0.0), (1e300, 0.0)):
        gpu.seen.clear()
        plan.run((1, 2, 3, 4, 5, 0, 0), alpha, beta, 0)
        with np.errstate(over="ignore"):
            assert gpu.seen[1][1].args[2:4] == (np.float32(alpha), np.float32(beta))


def test_a_launch_that_fails_leaves_the_plan_as_it_was() -> None:
    gpu = Recorder(fails=True)
    plan = _plan(gpu)
    with pytest.raises(RuntimeError, match="says no"):
        plan.run((1, 2, 3, 4, 5, 0, 0), 1.0, 0.0, 0)
    gpu.fails = False
    plan.run((1, 2, 3, 4, 5, 0, 0), 1.0, 0.0, 0)
    assert len(gpu.seen) == 2


def test_threads_do_not_write_into_each_others_launches() -> None:
    gpu = Recorder()
    plan = _plan(gpu)

    ready = threading.Barrier(4)  # all at once, or one that has ended would give its number to another

    def work(base: int) -> None:
        ready.wait()
        for i in range(300):
            plan.run((base, base + 1, base + 2, base + 3, base + 4, 0, 0), float(base), float(i % 2), base)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(1000 * i,)) for i in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len(gpu.seen) == 4 * 300 * 2
    bases: dict[int, set[int]] = {}
    for thread_id, launch, stream in gpu.seen:
        addresses = {arg.name: arg.address - stream for arg in launch.args if isinstance(arg, Pointer)}
        expected = {"A": 0, "B": 1, "C": 2, "D": 3, "workspace": 4}
        assert addresses == {name: expected[name] for name in addresses}
        if launch.entry == "splitk_reduce":
            assert launch.args[2] == np.float32(stream)
        bases.setdefault(thread_id, set()).add(stream)
    assert all(len(own) == 1 for own in bases.values())


def test_plans_know_whether_the_inputs_start_at_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "calls", {})
    monkeypatch.setattr(plan_cache, "prepare", lambda stages, _arch: _ready(stages, ALONE))
    monkeypatch.setattr(GPU, "get", lambda _index: Recorder())
    e, other = np.zeros((4, 64), np.float32), np.zeros((4, 64), np.float32)
    a = inspect(e, "a")._replace(address=1 << 20, device=("cuda", 0))
    same, apart = inspect(e.T, "b")._replace(address=1 << 20), inspect(other.T, "b")._replace(address=1 << 21)

    def plan(b: Operand, operation: Operation = MATMUL) -> Plan:
        request = Request(operation, a, b, None, None, 1.0, 0.0, None, a, None)
        call = plan_cache.recall(request, (4, 4))
        return (call if isinstance(call, PreparedCall) else plan_cache.prepared(call, request, 1 << 22)).plan

    gram, plain = plan(same), plan(apart)
    assert [one.ready[0].problem.gram for one in (gram, plain)] == [True, False]
    assert plan(same) is gram
    assert plan(same, INNER) is not gram
