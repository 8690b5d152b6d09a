"""Arrays in: what inspect reads and refuses. Arrays out: DLPack exports. And who overlaps whom."""

from __future__ import annotations

import ctypes
import gc
import re
import sys
import weakref
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matmill.arrays import ALLOCATE, dlpack, from_host, inspect, mirrors, overlaps, resolve_stream, self_overlap
from matmill.arrays.operand import Operand
from matmill.dtypes import ALL, BF16, ELEMENTWISE, F32, F64, I8, DType
from matmill.errors import ArgumentError, DeviceError, DTypeError, MatmillError
from support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class OnlyDLPack:
    """An array of no library we know: it speaks DLPack and nothing else."""

    def __init__(self, array: np.ndarray[Any, Any], device: tuple[int, int] | None = None) -> None:
        self._array = array
        self._device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device or self._array.__dlpack_device__()

    def __dlpack__(self, **wishes: Any) -> object:
        if self._device is not None:
            capsule = self._array.__dlpack__()
            managed = dlpack._Managed.from_address(dlpack._pointer_of(capsule, b"dltensor"))
            managed.tensor.device.kind, managed.tensor.device.index = self._device
            return capsule
        return self._array.__dlpack__(**wishes)


def test_numpy_views_keep_shape_strides_and_address() -> None:
    base = np.zeros((4, 6), np.float64)
    view = base[::-1, 1::2].T
    operand = inspect(view, "a")
    assert (operand.shape, operand.strides, operand.dtype) == ((3, 4), (2, -6), F64)
    assert operand.address == base.ctypes.data + (3 * 6 + 1) * 8
    assert operand.device == ("cpu", 0)
    assert not operand.readonly


@pytest.mark.parametrize("dtype", ELEMENTWISE.values(), ids=ELEMENTWISE)
def test_all_element_types_are_read(dtype: DType) -> None:
    base = np.zeros((4, 6), dtype.numpy)
    operand = inspect(base[::-1, ::2], "a")
    assert operand.dtype is dtype
    assert (operand.strides, operand.nbytes) == ((-6, 2), 12 * dtype.itemsize)
    assert operand.address == base.ctypes.data + 18 * dtype.itemsize
    assert overlaps(inspect(base[:2], "a"), inspect(base[1:], "b"))
    assert not overlaps(inspect(base[:, ::2], "a"), inspect(base[:, 1::2], "b"))


def test_readonly_is_seen() -> None:
    x = np.zeros(3, np.float32)
    x.flags.writeable = False
    assert inspect(x, "a").readonly


def test_subclasses_lose_their_own_idea_of_products() -> None:
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix([[1.0, 2.0]])
    assert type(inspect(matrix, "a").owner) is np.ndarray


@pytest.mark.parametrize("x", [[1.0, 2.0], 3.0, np.float32(3), "text", None, object()])
def test_what_is_no_array_is_refused(x: object) -> None:
    with pytest.raises(DTypeError, match=r"^b: got .*wanted an array.*(numpy\.asarray|Pass an array)"):
        inspect(x, "b")


@pytest.mark.parametrize("dtype", [">f4", np.int16, np.uint8, np.complex64, bool, np.longdouble, object])
def test_element_types_outside_the_table_are_refused(dtype: Any) -> None:
    with pytest.raises(DTypeError, match=r"^a: got dtype"):
        inspect(np.zeros(2, dtype), "a")


def test_element_types_may_be_narrowed_to_those_of_an_operation() -> None:
    x = np.zeros(2, np.int8)
    assert inspect(x, "x").dtype is ELEMENTWISE["int8"]
    with pytest.raises(DTypeError, match="dtype int8; wanted float32, float64, float16 or bfloat16"):
        inspect(x, "x", None, ALL)
    with pytest.raises(DTypeError, match=r"dtype int64; wanted .*bfloat16, int8 or int32"):
        inspect(x.astype(np.int64), "x")


def test_masked_arrays_are_refused() -> None:
    with pytest.raises(ArgumentError, match="masked"):
        inspect(np.ma.masked_array(np.zeros(3, np.float32), mask=np.array([False, True, False])), "a")


def test_fields_of_records_lie_at_strides_no_kernel_can_step() -> None:
    records = np.zeros(4, np.dtype([("flag", "u1"), ("value", "f4")]))
    with pytest.raises(ArgumentError, match=r"copy\(\)"):
        inspect(records["value"], "a")


def test_dlpack_on_the_host_is_read_in_place() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    operand = inspect(OnlyDLPack(array), "a")
    assert (operand.shape, operand.strides, operand.address) == ((2, 3), (3, 1), array.ctypes.data)


def test_dlpack_on_a_gpu_is_read_from_the_capsule() -> None:
    array = np.zeros((4, 5), np.float64)[:, ::2]
    operand = inspect(OnlyDLPack(array, device=(2, 0)), "a")
    assert (operand.shape, operand.strides, operand.dtype) == ((4, 3), (5, 2), F64)
    assert operand.address == array.ctypes.data


@pytest.mark.parametrize("dtype", ELEMENTWISE.values(), ids=ELEMENTWISE)
def test_exports_of_every_type_are_read_on_the_host_and_on_a_gpu(dtype: DType) -> None:
    memory = np.arange(12).astype(dtype.numpy).reshape(3, 4)
    for device, kind in (((1, 0), "cpu"), ((2, 3), "cuda")):
        export = Named(memory.ctypes.data, (3, 4), dtype, device=device, keep=memory)
        operand = inspect(export, "a")
        assert (operand.shape, operand.strides, operand.device[0]) == ((3, 4), (4, 1), kind)
        assert (operand.dtype, operand.address) == (dtype, memory.ctypes.data)
    host = inspect(Named(memory.ctypes.data, (3, 4), dtype, device=(1, 0), keep=memory), "a").owner
    np.testing.assert_array_equal(host.astype(np.float64), memory.astype(np.float64))


def test_bfloat16_on_the_host_outlives_its_maker() -> None:
    memory = np.arange(6).astype(BF16.numpy)
    gone = weakref.ref(memory)
    operand = inspect(Named(memory.ctypes.data, (6,), BF16, device=(1, 0), keep=memory), "a")
    del memory
    gc.collect()
    assert operand.owner.astype(np.float32).tolist() == [0, 1, 2, 3, 4, 5]
    del operand
    gc.collect()
    assert gone() is None


class Named(dlpack.Export):
    """An export that says its element type, as arrays do."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: DType, **options: Any) -> None:
        self.dtype = dtype.name
        super().__init__(address, shape, dtype, **options)


class OnlyInterface:
    """An array that speaks ``__cuda_array_interface__`` and nothing else."""

    def __init__(self, **facts: object) -> None:
        plain = {"shape": (3, 4), "typestr": "<f4", "data": (4096, False), "strides": None, "version": 3}
        self.__cuda_array_interface__ = {**plain, **facts}


def _driver(status: int) -> SimpleNamespace:
    """Return a driver's library that finds every address on GPU 1, or gives that status."""

    def ask(ordinal: Any, _attribute: int, _address: object) -> int:
        ordinal._obj.value = 0 if status else 1
        return status

    return SimpleNamespace(cuPointerGetAttribute=ask)


def test_the_driver_says_on_which_gpu_an_interface_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: _driver(0))
    operand = inspect(OnlyInterface(strides=(4, 12)), "a")
    assert (operand.shape, operand.strides, operand.device) == ((3, 4), (1, 3), ("cuda", 1))
    assert inspect(OnlyInterface(), "a").strides == (4, 1)


def test_fields_of_records_on_a_gpu_are_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: _driver(0))
    with pytest.raises(ArgumentError, match=r"^a: got elements at byte strides \(24, 6\)"):
        inspect(OnlyInterface(strides=(24, 6)), "a")


def test_addresses_that_the_driver_does_not_know_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: _driver(1))
    with pytest.raises(DeviceError, match="0x1000, which the NVIDIA driver does not know"):
        inspect(OnlyInterface(), "a")
    assert inspect(OnlyInterface(shape=(0, 4), data=(0, False)), "a").device == ("cuda", 0)

    def absent(_name: str) -> None:
        raise OSError("no such file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    with pytest.raises(DeviceError, match="no NVIDIA driver is installed"):
        inspect(OnlyInterface(), "a")


class FakeTorch:
    """As much of torch as making a result takes: which stream is current when memory is asked for."""

    def __init__(self) -> None:
        self.current = "current"
        self.int8 = "int8"
        self.asked: list[tuple[object, str, object]] = []
        self.cuda = SimpleNamespace(
            default_stream=lambda index: f"default of {index}",
            ExternalStream=lambda handle, device: f"{handle} of {device}",
            stream=self._stream,
        )

    @contextmanager
    def _stream(self, stream: str) -> Iterator[None]:
        self.current, before = stream, self.current
        yield
        self.current = before

    def new_empty(self, shape: int | tuple[int, ...], dtype: object = None) -> SimpleNamespace:
        """Return a tensor; the module serves as one here."""
        self.asked.append((shape, self.current, dtype))
        return SimpleNamespace(data_ptr=lambda: 4096)


def test_results_come_from_the_memory_of_the_stream_that_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", fake)
    operand = Operand((2, 2), (2, 1), F32, ("cuda", 1), 4096, readonly=False, library="torch", owner=None)
    for stream in (None, 0, 1, 77):
        assert ALLOCATE["torch"](fake, operand, (2, 2), stream)[1] == 4096
    assert ALLOCATE["torch"](fake, operand, 100, 77, I8)[1] == 4096
    streams = ["current", "default of 1", "default of 1", "77 of 1"]
    assert fake.asked == [*(((2, 2), stream, None) for stream in streams), (100, "77 of 1", "int8")]


def test_other_devices_are_refused() -> None:
    with pytest.raises(DeviceError, match="device type 8"):
        inspect(OnlyDLPack(np.zeros(3, np.float32), device=(8, 0)), "a")


def test_arrays_that_export_nothing_are_refused() -> None:
    class Sharded(OnlyDLPack):
        def __dlpack__(self, **_wishes: Any) -> object:
            raise BufferError("spans two devices")

    with pytest.raises(DeviceError, match=r"spans two devices.*one device"):
        inspect(Sharded(np.zeros(3, np.float32)), "a")


def test_tracers_are_refused() -> None:
    class Tracer(OnlyDLPack):
        pass

    with pytest.raises(ArgumentError, match=r"jit.*outside"):
        inspect(Tracer(np.zeros(3, np.float32)), "a")


def test_versioned_capsules_say_what_may_not_be_written() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    for readonly in (False, True):
        array.flags.writeable = not readonly
        facts = dlpack.read(array.__dlpack__(max_version=(1, 0)))
        assert (facts.shape, facts.strides, facts.readonly) == ((3, 2), (1, 3), readonly)
        assert facts.address == array.ctypes.data


def test_exports_are_readable_and_outlive_their_maker() -> None:
    memory = np.arange(12, dtype=np.float32)
    gone = weakref.ref(memory)
    waited: list[int] = []
    export = dlpack.Export(memory.ctypes.data, (3, 4), F32, device=(1, 0), keep=memory, wait=waited.append)
    view = np.from_dlpack(export)
    del memory, export
    gc.collect()
    np.testing.assert_array_equal(view, np.arange(12, dtype=np.float32).reshape(3, 4))
    assert waited == [0]
    assert gone() is not None
    del view
    gc.collect()
    assert gone() is None


def test_a_capsule_that_nobody_takes_lets_go() -> None:
    memory = np.zeros(4, np.float32)
    gone = weakref.ref(memory)
    capsule = dlpack.Export(memory.ctypes.data, (4,), F32, device=(1, 0), keep=memory).__dlpack__(stream=-1)
    facts = dlpack.read(capsule)
    assert (facts.shape, facts.strides, facts.dtype, facts.address) == ((4,), None, "float32", memory.ctypes.data)
    del memory, capsule, facts
    gc.collect()
    assert gone() is None


@st.composite
def _view(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    flat = np.frombuffer(_POOL, np.float32)
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    strides = [draw(st.integers(-7, 7)) for _ in shape]
    low = sum(min(0, stride * (extent - 1)) for stride, extent in zip(strides, shape, strict=True))
    high = sum(max(0, stride * (extent - 1)) for stride, extent in zip(strides, shape, strict=True))
    start = draw(st.integers(-low, len(flat) - 1 - high))
    return np.lib.stride_tricks.as_strided(flat[start:], shape, [4 * stride for stride in strides])


_POOL = bytes(4 * 160)


def _elements(x: np.ndarray[Any, Any]) -> list[int]:
    steps = [np.arange(extent) * stride for extent, stride in zip(x.shape, x.strides, strict=True)]
    total = sum(np.ix_(*steps), start=np.array(x.__array_interface__["data"][0]))
    return [int(address) for address in total.ravel()]


@examples(300)
@given(_view(), _view())
def test_overlap_is_exact(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> None:
    assert overlaps(inspect(x, "a"), inspect(y, "b")) == bool(set(_elements(x)) & set(_elements(y)))


@examples(300)
@given(_view())
def test_self_overlap_is_never_missed(x: np.ndarray[Any, Any]) -> None:
    addresses = _elements(x)
    if len(set(addresses)) < len(addresses):
        assert self_overlap(inspect(x, "out"))


def test_mirrors_are_one_memory_seen_both_ways() -> None:
    x = np.zeros((3, 4, 6), np.float32)[:, ::-1, ::2]
    a = inspect(x, "a")
    assert mirrors(a, inspect(x.transpose(0, 2, 1), "b"))
    assert mirrors(inspect(x[0, 0], "a"), inspect(x[0, 0], "b"))
    alike = np.zeros((3, 4, 6), np.float32)[:, ::-1, ::2]
    for other in (x, x.transpose(2, 1, 0), alike.transpose(0, 2, 1), x[:2].transpose(0, 2, 1), x[1].T):
        assert not mirrors(a, inspect(other, "b"))


def test_plain_layouts_do_not_overlap_themselves() -> None:
    base = np.zeros((4, 6, 8), np.float32)
    for view in (base, base.T, base[::2, ::-1, 1:5], base[:0], base[:, :1].transpose(1, 2, 0)):
        assert not self_overlap(inspect(view, "out"))


class _Stream:
    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def test_streams() -> None:
    assert resolve_stream(None) is None
    assert resolve_stream(7) == 7
    assert resolve_stream(_Stream(9)) == 9


@pytest.mark.parametrize("stream", [-1, True, "0", 1.5, object()])
def test_what_is_no_stream_is_refused(stream: object) -> None:
    with pytest.raises(ArgumentError, match=r"^stream: got"):
        resolve_stream(stream)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (None, "__cuda_stream__ gives None, not (0, handle)"),
        (7, "gives 7"),
        ((), "gives ()"),
        ((0,), "gives (0,)"),
        ((0, 7, 8), "gives (0, 7, 8)"),
        ((1, 7), "gives (1, 7), not (0, handle)"),
        ("07", "gives '07'"),
        ((0, None), "with the handle None"),
        ((0, "7"), "with the handle '7'"),
        ((0, -7), "with the handle -7"),
        ((0, True), "with the handle True"),
        ((0, 2**64), "with the handle 18446744073709551616"),
    ],
)
def test_streams_that_do_not_say_which_they_are_are_refused(told: object, words: str) -> None:
    class Stream:
        def __cuda_stream__(self) -> object:
            return told

    with pytest.raises(ArgumentError, match=rf"^stream: got .*{re.escape(words)}"):
        resolve_stream(Stream())


@pytest.mark.parametrize("name", ["__cuda_stream__", "cuda_stream", "ptr"])
@pytest.mark.parametrize("error", [RuntimeError("closed"), KeyError("no"), ZeroDivisionError("none"), OSError("gone")])
def test_streams_that_fail_to_answer_are_refused(name: str, error: Exception) -> None:
    def fail(_self: object) -> None:
        raise error

    for kind in (type("Stream", (), {name: property(fail)}), type("Stream", (), {name: fail})):
        with pytest.raises(ArgumentError, match=r"^stream: got"):
            resolve_stream(kind())
    with pytest.raises(ArgumentError, match=r"^stream: got"):
        resolve_stream(type("Stream", (), {"__cuda_stream__": fail}))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"shape": None}, "shape None; wanted shape: a tuple"),
        ({"shape": (-3, 4)}, r"shape \(-3, 4\); wanted .*from 0 on"),
        ({"shape": (3.0, 4)}, "shape"),
        ({"shape": (True, 4)}, "shape"),
        ({"shape": 12}, "shape 12"),
        ({"shape": (2**63, 4)}, "shape"),
        ({"strides": (16,)}, r"strides \(16,\); wanted strides: a tuple of 2 whole numbers, or None"),
        ({"strides": (16, 4, 4)}, "strides"),
        ({"strides": ("16", 4)}, "strides"),
        ({"strides": 4}, "strides 4"),
        ({"data": None}, "data None; wanted data: an address"),
        ({"data": 4096}, "data 4096"),
        ({"data": (4096,)}, "data"),
        ({"data": (None, False)}, "data"),
        ({"data": (-1, False)}, "data"),
        ({"data": (2**64, False)}, "data"),
        ({"data": (4096, "no")}, "data"),
        ({"data": (0, False)}, "data at address 0"),
        ({"typestr": None}, "typestr None; wanted typestr: a string"),
        ({"typestr": "nonsense"}, "typestr 'nonsense'"),
        ({"typestr": np.float32}, "typestr"),
        ({"version": "3"}, "version '3'"),
        ({"version": 3.5}, "version"),
        ({"stream": "main"}, "stream 'main'"),
        ({"stream": -1}, "stream -1"),
    ],
)
def test_malformed_interfaces_name_the_entry_at_fault(
    facts: dict[str, object], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: _driver(0))
    with pytest.raises(ArgumentError, match=rf"^a: got a __cuda_array_interface__ with {words}") as refused:
        inspect(OnlyInterface(**facts), "a")
    assert refused.value.argument == "a"


@pytest.mark.parametrize("name", ["shape", "typestr", "data"])
def test_interfaces_that_lack_an_entry_say_which(name: str) -> None:
    array = OnlyInterface()
    del array.__cuda_array_interface__[name]
    with pytest.raises(ArgumentError, match=f"^a: got a __cuda_array_interface__ with no {name}"):
        inspect(array, "a")


def test_what_an_interface_may_leave_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: _driver(0))
    array = OnlyInterface(shape=[np.int64(3), 4], data=[4096, 1], stream=7)
    for name in ("version", "strides"):
        del array.__cuda_array_interface__[name]
    operand = inspect(array, "a")
    assert (operand.shape, operand.strides, operand.readonly, operand.stream) == ((3, 4), (4, 1), True, 7)


_ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=4),
    st.sampled_from([np.int64(4), np.float32(2), "<f4", "<f8", "|O", "<f4,<f4", "<U4", object()]),
)
_NESTED = st.one_of(_ODD, st.lists(_ODD, max_size=4), st.lists(_ODD, max_size=4).map(tuple))
_ENTRIES = ("shape", "strides", "typestr", "data", "version", "mask", "stream", "descr")


@examples(300)
@given(changes=st.dictionaries(st.sampled_from(_ENTRIES), _NESTED, max_size=3), lost=st.sets(st.sampled_from(_ENTRIES)))
def test_any_interface_is_read_or_refused(changes: dict[str, object], lost: set[str]) -> None:
    array = OnlyInterface(**changes)
    for name in lost & {*array.__cuda_array_interface__}:
        del array.__cuda_array_interface__[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ctypes, "CDLL", lambda _name: _driver(0))
        operand = None
        with suppress(MatmillError):
            operand = inspect(array, "a")
    assert operand is None or len(operand.shape) == len(operand.strides)


def _failing(error: Exception) -> Callable[[object], object]:
    def fail(_self: object, **_wishes: object) -> object:
        raise error

    return fail


_ERRORS = [RuntimeError("x"), AttributeError("x"), KeyError("x"), OSError("x"), AssertionError(), NotImplementedError()]


@pytest.mark.parametrize("error", _ERRORS, ids=repr)
@pytest.mark.parametrize("protocol", ["__dlpack__", "__dlpack_device__", "__cuda_array_interface__"])
def test_protocols_that_raise_are_refused(protocol: str, error: Exception) -> None:
    sound: dict[str, Any] = {"__dlpack_device__": lambda _self: (2, 0), "__dlpack__": lambda _self, **_wishes: None}
    own = {} if protocol == "__cuda_array_interface__" else sound
    for member in (_failing(error), property(_failing(error))):
        array = type("Array", (), {**own, protocol: member})()
        with pytest.raises(MatmillError, match=r"^a: got"):
            inspect(array, "a")


@examples(200)
@given(device=st.one_of(_NESTED, st.tuples(st.sampled_from([1, 2, 3, 13]), _ODD)), capsule=_NESTED)
def test_any_answer_through_dlpack_is_read_or_refused(device: object, capsule: object) -> None:
    members = {"__dlpack_device__": lambda _self: device, "__dlpack__": lambda _self, **_wishes: capsule}
    with pytest.raises(MatmillError, match=r"^a: got"):
        inspect(type("Array", (), members)(), "a")


@pytest.mark.parametrize(
    ("field", "value"),
    [("ndim", -1), ("ndim", 65), ("ndim", 2**30), ("data", None), ("shape", None), ("byte_offset", 2)],
)
def test_capsules_that_describe_no_array_are_refused(field: str, value: object) -> None:
    class Damaged(OnlyDLPack):
        def __dlpack__(self, **_wishes: Any) -> object:
            capsule = super().__dlpack__()
            managed = dlpack._Managed.from_address(dlpack._pointer_of(capsule, b"dltensor"))
            setattr(managed.tensor, field, value)
            kept.append(capsule)
            return capsule

    kept: list[object] = []
    with pytest.raises(MatmillError, match=r"^a: got"):
        inspect(Damaged(np.zeros((3, 4), np.float32), device=(2, 0)), "a")


def test_capsules_of_another_device_than_was_told_are_refused() -> None:
    class Elsewhere(OnlyDLPack):
        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

    for device in ((1, 0), (2, -1)):
        with pytest.raises(DeviceError, match="its capsule is of device"):
            inspect(Elsewhere(np.zeros(3, np.float32), device=device), "a")


@pytest.fixture
def torch() -> Any:
    """Provide the library, on the host; what needs it is skipped where it is not installed."""
    return pytest.importorskip("torch")


def test_torch_strided_tensors(torch: Any) -> None:
    x = torch.zeros(4, 6)[:, ::2].T
    operand = inspect(x, "a")
    assert (operand.shape, operand.strides, operand.library) == ((3, 4), (2, 6), "torch")
    assert operand.address == x.data_ptr()


def test_torch_a_gradient_would_be_lost(torch: Any) -> None:
    x = torch.zeros(3, requires_grad=True)
    with pytest.raises(ArgumentError, match=r"a\.detach\(\)"):
        inspect(x, "a")
    with torch.no_grad():
        assert inspect(x, "a").shape == (3,)


def test_torch_lazy_and_sparse_tensors(torch: Any) -> None:
    lazy = torch.zeros(3, dtype=torch.complex64).conj().imag
    for x in (lazy, torch.zeros(3, 3).to_sparse()):
        with pytest.raises(ArgumentError, match=r"resolve_neg|to_dense"):
            inspect(x, "a")


def test_torch_dtypes_and_devices(torch: Any) -> None:
    with pytest.raises(DTypeError, match="complex64"):
        inspect(torch.zeros(3, dtype=torch.complex64), "a")
    with pytest.raises(MatmillError, match="meta"):
        inspect(torch.zeros(3, device="meta"), "a")


def test_torch_16_bit_tensors_travel_both_ways(torch: Any) -> None:
    for kind, name in ((torch.float16, "float16"), (torch.bfloat16, "bfloat16")):
        x = torch.arange(24, dtype=torch.float32).reshape(4, 6).to(kind)[:, ::2].T
        operand = inspect(x, "a")
        assert (operand.dtype.name, operand.strides, operand.address) == (name, (2, 6), x.data_ptr())
        np.testing.assert_array_equal(operand.owner.astype(np.float32), x.float().numpy())
        back = from_host(x, operand, operand.owner)
        assert back.dtype is kind
        assert torch.equal(back, x)


def test_torch_exports_are_taken(torch: Any) -> None:
    memory = np.arange(6, dtype=np.float64)
    export = dlpack.Export(memory.ctypes.data, (2, 3), F64, device=(1, 0), keep=memory)
    assert torch.from_dlpack(export).sum().item() == 15


def test_complex_arrays_are_not_told_to_drop_their_imaginary_part() -> None:
    z = np.ones((2, 3), np.complex64)
    with pytest.raises(DTypeError, match=r"a\.real and a\.imag") as raised:
        inspect(z, "a")
    assert "astype" not in str(raised.value)
    assert inspect(z.real, "a").dtype.name == inspect(z.imag, "a").dtype.name == "float32"
