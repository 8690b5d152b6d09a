"""The routes through a GPU, without one: its memory and launches are the emulator's, all else is the real code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from matmill import arch, plan
from matmill.arrays import dlpack
from matmill.arrays import operand as operand_module
from matmill.choose import Choice, choose_stage
from matmill.dispatch import backends, plan_cache
from matmill.dtypes import ALL
from matmill.errors import AliasError, ArgumentError, DeviceError, ShapeError
from matmill.launch import Launch, Pointer
from matmill.lowering import SubProblem
from matmill.reference import check
from support.epilogues import error
from support.fake_gpu import Buffer, DeviceArray, FakeGPU, Tensors

Array = NDArray[Any]


def _random(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_numpy_arrays_travel(device: FakeGPU) -> None:
    a, b, c = _random(0, 20, 30), _random(1, 30, 40), _random(2, 20, 40)
    for _ in range(2):
        result = matmill.matmul(a, b, c=c, alpha=0.5, beta=2)
        assert check(result, a, b, c, alpha=0.5, beta=2).ok
    assert len(device.launches) == 2
    assert device.uploaded == [a.nbytes, b.nbytes, c.nbytes] * 2


def test_strided_views_travel_as_they_lie(device: FakeGPU) -> None:
    a, b = _random(0, 20, 60)[::-1, ::2], _random(1, 40, 30).T[:, ::-1]
    assert check(matmill.matmul(a, b), a, b).ok
    assert device.uploaded == [(20 * 60 - 1) * 4, b.nbytes]


def test_sparse_and_broadcast_views_travel_packed(device: FakeGPU) -> None:
    a, b = _random(0, 20, 300)[:, ::10], np.broadcast_to(_random(1, 30, 1), (3, 30, 8))
    assert check(matmill.matmul(a, b), a, b).ok
    assert device.uploaded == [a.nbytes, 30 * 4]


def test_alpha_and_beta_of_one_plan_may_change(device: FakeGPU) -> None:
    a, b, c = _random(0, 20, 30), _random(1, 30, 40), _random(2, 20, 40)
    out = np.empty_like(c)
    for alpha, beta in ((1, 0), (2, 1), (2, 3), (1, 0), (0, 1)):
        matmill.matmul(a, b, c=c, alpha=alpha, beta=beta, out=out)
        assert check(out, a, b, c, alpha=alpha, beta=beta).ok
    assert len(device.launches) == 5


def test_outer_batches_are_looped_over(device: FakeGPU) -> None:
    a, b = _random(0, 3, 1, 10, 12), _random(1, 2, 12, 14)
    assert check(matmill.matmul(a, b), a, b).ok
    assert len(device.launches) == 2


def test_dlpack_arrays_stay_and_the_result_is_exported(device: FakeGPU) -> None:
    a, b = _random(0, 20, 30), _random(1, 30, 40)
    x, y = DeviceArray(device, a), DeviceArray(device, b)
    device.uploaded.clear()
    result: Any = matmill.matmul(x, y, stream=5)
    assert (result.shape, result.dtype, result.device) == ((20, 40), "float32", 0)
    assert device.uploaded == []
    assert (x.waits, y.waits) == ([5], [5])
    assert [stream for _, stream in device.launches] == [5]
    assert device.orders == [(5, 77)]
    assert device.waits == 0
    # The exports of both inputs outlive the kernel, whatever becomes of the arrays.
    ((held, stream),) = device.held
    assert (len(held), stream) == (2, 5)
    assert all(isinstance(owner, dlpack.Tensor) for owner in held)
    words = device.memory.allocations[-1].words[4].view(np.float32).reshape(20, 40)
    assert check(words, a, b).ok


def test_epilogues_travel(device: FakeGPU) -> None:
    a, b, c = (_random(i, *shape).astype(np.float16) for i, shape in enumerate(((20, 30), (30, 40), (20, 40))))
    wide, column = c.astype(np.float32), _random(3, 40, 1).astype(np.float16)[::-2]
    for _ in range(2):
        result = matmill.matmul(a, b, c=wide, beta=2, bias=column, activation="silu", out_dtype="float32")
        assert result.dtype == np.float32
        assert error(result, a, b, wide, beta=2, bias=column, activation="silu") <= 1
    assert device.uploaded == [a.nbytes, b.nbytes, wide.nbytes, (column.size * 2 - 1) * 2] * 2


def test_long_narrow_products_with_an_epilogue_are_not_streamed(
    device: FakeGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "CHUNK", 1000)
    e, f, bias = _random(0, 3, 900), _random(1, 900, 5), _random(2, 5)
    assert error(matmill.matmul(e, f, bias=bias), e, f, bias=bias) <= 1
    assert device.uploaded == [e.nbytes, f.nbytes, bias.nbytes]


def test_wide_results_of_dlpack_arrays_are_exported_as_what_they_are(device: FakeGPU) -> None:
    a, b, bias = (_random(i, *shape).astype(np.float16) for i, shape in enumerate(((20, 30), (30, 40), (40,))))
    x, y, z = (DeviceArray(device, array) for array in (a, b, bias))
    before = len(device.memory.allocations)
    result = matmill.matmul(x, y, bias=z, out_dtype=np.float32, stream=5)
    assert (result.shape, result.dtype, z.waits) == ((20, 40), "float32", [5])
    ((held, _),) = device.held
    assert len([owner for owner in held if isinstance(owner, dlpack.Tensor)]) == 3
    words = device.memory.allocations[before].words[4].view(np.float32).reshape(20, 40)
    assert error(words, a, b, bias=bias) <= 1


class InterfaceArray:
    """An array of a library that names the stream of each array, in emulated device memory."""

    def __init__(self, device: FakeGPU, array: Array, stream: int | None) -> None:
        self.buffer = device.upload(array, "array")
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (self.buffer.address, False),
            "version": 3,
            "stream": stream,
        }


def test_arrays_of_one_library_on_several_streams_wait_for_each_other(
    device: FakeGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operand_module, "_device_of", lambda _address, _argument: 0)
    a, b, c = _random(0, 20, 30), _random(1, 30, 40), _random(2, 20, 40)
    x, y, z = (InterfaceArray(device, array, stream) for array, stream in ((a, 5), (b, 6), (c, None)))
    out = InterfaceArray(device, np.empty_like(c), 5)
    matmill.matmul(x, y, c=z, beta=1, out=out)
    assert [stream for _, stream in device.launches] == [5]
    assert device.orders == [(6, 5), (5, 6)]
    result = out.buffer.data.view(np.float32).reshape(20, 40)
    assert check(result, a, b, c, beta=1).ok


# -- several launches and a workspace; arrays of a library with streams of its own -----------------------------------


def _three_blocks(monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    """Run the inner kernel on a GPU so small that three blocks are its whole grid, whatever the problem."""

    def chosen(stage: SubProblem[Any], on: arch.Arch) -> Choice[Any]:
        choice = choose_stage(stage, on)
        if choice.kernel.entry != "inner":
            return choice
        return replace(
            choice, kernel=choice.kernel.with_config(choice.kernel.config.launched(SPLIT_K=3, LAST_BLOCK=last))
        )

    monkeypatch.setattr(plan, "choose_stage", chosen)


@pytest.fixture
def two_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the partial sums of three blocks by a second launch."""
    _three_blocks(monkeypatch, 0)


@pytest.fixture
def last_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the partial sums of three blocks by the last of them."""
    _three_blocks(monkeypatch, 1)


@pytest.mark.usefixtures("last_block")
@pytest.mark.parametrize("dtype", ALL)
def test_host_arrays_through_the_last_block(device: FakeGPU, dtype: str) -> None:
    e, f, c = (_random(i, *shape).astype(ALL[dtype].numpy) for i, shape in enumerate(((4, 900), (900, 3), (4, 3))))
    for _ in range(2):
        assert check(matmill.inner(e, f, c=c, alpha=0.5, beta=2, executor="gpu"), e, f, c, alpha=0.5, beta=2).ok
    assert [launch.entry for launch, _ in device.launches] == ["inner"] * 2


@pytest.mark.usefixtures("last_block")
def test_every_stream_has_room_of_its_own(device: FakeGPU) -> None:
    a, b = _random(0, 4, 900), _random(1, 900, 3)
    for stream in (5, 6, 5):
        matmill.matmul(DeviceArray(device, a), DeviceArray(device, b), stream=stream)
    result = [_pointers(launch, "workspace", "counter") for launch, _ in device.launches]
    assert result[0] == result[2]
    assert not set(result[0]) & set(result[1])


@pytest.mark.usefixtures("last_block")
def test_what_a_graph_captures_has_a_counter_and_a_tensor_of_its_own(device: FakeGPU, tensors: Tensors) -> None:
    e, f = _random(0, 4, 900), _random(1, 900, 3)
    x, y = tensors(e), tensors(f)
    for turn in range(4):
        device.capturing = {33} if turn % 2 else set()
        assert check(matmill.inner(x, y).base, e, f).ok
    room = 3 * 12 * 4
    assert tensors.made == [(12, "float32"), (12, "float32"), (room, "uint8")] * 2
    free, captured, again, other = (_pointers(launch, "workspace", "counter") for launch, _ in device.launches)
    assert free == again
    assert not {*free} & {*captured, *other}
    assert captured[1] != other[1]


def _pointers(launch: Launch, *names: str) -> tuple[int, ...]:
    result = {arg.name: arg.address for arg in launch.args if isinstance(arg, Pointer)}
    return tuple(result[name] for name in names)


@pytest.mark.usefixtures("two_launches")
@pytest.mark.parametrize("dtype", ALL)
def test_host_arrays_through_two_launches(device: FakeGPU, dtype: str) -> None:
    e, f, c = (_random(i, *shape).astype(ALL[dtype].numpy) for i, shape in enumerate(((4, 900), (900, 3), (4, 3))))
    result = matmill.inner(e, f, c=c, alpha=0.5, beta=2, executor="gpu")
    assert check(result, e, f, c, alpha=0.5, beta=2).ok
    assert [launch.entry for launch, _ in device.launches] == ["inner", "splitk_reduce"]
    device.uploaded.clear()
    assert check(matmill.inner(e[:, ::-1], e[:, ::-1].T, executor="gpu"), e, e.T).ok
    assert device.uploaded == [e.nbytes]  # one matrix, and one copy of it
    sparse = np.full((4, 9000), np.nan, e.dtype)
    sparse[:, ::10] = e
    assert check(matmill.inner(sparse[:, ::10], sparse[:, ::10].T, executor="gpu"), e, e.T).ok


@pytest.mark.usefixtures("two_launches")
def test_a_workspace_of_our_own_is_held_until_the_kernels_have_run(device: FakeGPU) -> None:
    a, b = _random(0, 4, 900), _random(1, 900, 3)
    matmill.matmul(DeviceArray(device, a), DeviceArray(device, b), stream=5)
    assert [launch.entry for launch, _ in device.launches] == ["inner", "splitk_reduce"]
    ((held, _stream),) = device.held
    (workspace,) = (owner for owner in held if isinstance(owner, Buffer))
    assert (workspace.address,) == _pointers(device.launches[1][0], "workspace")


@pytest.mark.usefixtures("two_launches")
@pytest.mark.parametrize("dtype", ALL)
def test_tensors_stay_in_place_and_lend_the_workspace(device: FakeGPU, tensors: Tensors, dtype: str) -> None:
    kind = ALL[dtype].numpy
    e, f, c = (_random(i, *shape).astype(kind) for i, shape in enumerate(((4, 901), (901, 3), (4, 3))))
    x, y, z = tensors(e), tensors(f), tensors(c)
    for turn in range(2):
        result = matmill.inner(x, y, c=z, alpha=0.5, beta=1.0 + turn)
        assert check(result.base, e, f, c, alpha=0.5, beta=1.0 + turn).ok
    workspace = 3 * 4 * 3 * ALL[dtype].accumulator.itemsize
    assert tensors.made == [(12, dtype), (workspace, "int8")] * 2
    assert [(launch.entry, stream) for launch, stream in device.launches] == [("inner", 33), ("splitk_reduce", 33)] * 2
    assert (device.held, device.orders, device.waits, device.uploaded) == ([], [], 0, [])
    out = np.full((3, 4), np.nan, kind).T
    target = tensors(out)
    assert matmill.inner(x, y, out=target) is target
    assert check(out, e, f).ok
    gram = matmill.inner(x, tensors(e.T))
    assert check(gram.base, e, e.T).ok
    assert gram.base.tobytes() == gram.base.T.copy().tobytes()


def test_tensors_on_a_named_stream_are_held_until_the_kernel_has_run(device: FakeGPU, tensors: Tensors) -> None:
    a, b = _random(0, 20, 30), _random(1, 30, 40)
    x, y = tensors(a), tensors(b)
    for _ in range(2):
        out = np.full((20, 40), np.nan, np.float32)
        matmill.matmul(x, y, out=tensors(out), stream=5)
        assert check(out, a, b).ok
    assert [stream for _, stream in device.launches] == [5, 5]
    assert device.held == [((x, y), 5)] * 2
    assert device.orders == []


def test_what_was_found_of_one_layout_is_not_used_for_another(tensors: Tensors) -> None:
    pool = _random(0, 5000)
    base = pool[:1200].reshape(3, 400)
    results = []
    for a, b in (
        (base, pool[1200:2800].reshape(400, 4)),
        (base, pool[1201:2801].reshape(400, 4)),
        (base[:, ::2], pool[1200:2000].reshape(200, 4)),
        (base, base.T),
        (base, pool[1200:2400].reshape(3, 400).T),
        (base, base[::-1].T),
    ):
        results.append(matmill.inner(tensors(a), tensors(b)).base)
        assert check(results[-1], a, b).ok
    assert len(plan_cache.calls) == 6


def test_refusals_are_not_forgotten_with_the_verdict(tensors: Tensors) -> None:
    e, f = _random(0, 3, 40), _random(1, 40, 4)
    x, y = tensors(e), tensors(f)
    out = np.zeros((3, 4), np.float32)
    matmill.inner(x, y, out=tensors(out))
    for _ in range(2):
        with pytest.raises(AliasError, match="overlaps e"):
            matmill.inner(x, y, out=tensors(e.reshape(-1)[:12].reshape(3, 4)))
        with pytest.raises(ArgumentError, match="beta"):
            matmill.inner(x, y, beta=1)
        with pytest.raises(ArgumentError, match="alpha"):
            matmill.inner(x, y, alpha=True)
        with pytest.raises(DeviceError, match="executor"):
            matmill.inner(x, y, executor="cpu")
        with pytest.raises(ShapeError, match="Use matmul"):
            matmill.inner(tensors(e[0]), y)
    assert check(matmill.matmul(x, y, executor="gpu").base, e, f).ok


def test_the_default_stream_has_a_name_in_dlpack(device: FakeGPU) -> None:
    x = DeviceArray(device, _random(0, 4, 4))
    matmill.matmul(x, x)
    assert x.waits == [1, 1]
    assert [stream for _, stream in device.launches] == [0]


def test_host_and_device_do_not_mix(device: FakeGPU) -> None:
    x = DeviceArray(device, _random(0, 4, 4))
    with pytest.raises(DeviceError, match=r"^b: got an array on the host; wanted one on GPU 0"):
        matmill.matmul(x, _random(1, 4, 4))
    with pytest.raises(DeviceError, match=r"^executor: got 'emulator' with arrays on GPU 0"):
        matmill.matmul(x, x, executor="emulator")
    assert device.launches == []


def test_a_library_without_a_namespace_is_refused_before_the_launch(
    device: FakeGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = DeviceArray(device, _random(0, 4, 4))
    monkeypatch.delattr(DeviceArray, "__array_namespace__")
    with pytest.raises(ArgumentError, match=r"Pass out="):
        matmill.matmul(x, x)
    assert device.launches == []


def test_empty_results_are_not_launched(device: FakeGPU) -> None:
    assert matmill.matmul(np.zeros((0, 3), np.float32), np.zeros((3, 4), np.float32)).shape == (0, 4)
    assert device.launches == []
