"""Operands: :func:`inspect` reads an array of any library as address, shape, strides, element type and device."""

from __future__ import annotations

import ctypes
import sys
from array import array
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from matmill.arrays import cuda_interface, dlpack
from matmill.arrays.cures import cure
from matmill.driver import load as load_driver
from matmill.dtypes import BF16, BY_TO, ELEMENTWISE, PRODUCTS, DType, named, of_numpy
from matmill.errors import ArgumentError, DeviceError, DTypeError, MatmillError, by_copy

DeviceId: TypeAlias = tuple[str, int]
CPU: DeviceId = ("cpu", 0)

_POINTER_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_PLAIN = "Pass a plain tensor"
_INVALID_VALUE = 1  # CUDA_ERROR_INVALID_VALUE: the address is not CUDA's


class Operand(NamedTuple):
    """One array as the pipeline sees it.

    ``strides`` are in elements, of either sign. ``device`` is ``("cpu", 0)`` or ``("cuda", index)``. ``library`` is the
    name of the array's library. ``owner`` keeps the memory alive; on the CPU it is a NumPy view of it. ``stream`` is
    the handle of the CUDA stream on which the array is being written, if ``__cuda_array_interface__`` has one.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: DeviceId
    address: int
    readonly: bool
    library: str
    owner: Any
    stream: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all elements; elements that share memory count each time."""
        count = self.dtype.itemsize
        for extent in self.shape:
            count *= extent
        return count

    @property
    def transposed(self) -> Operand:
        """The operand with its last two dimensions exchanged, in the same memory."""
        shape, strides = ((*sizes[:-2], *sizes[-2:][::-1]) for sizes in (self.shape, self.strides))
        view = self.owner.swapaxes(-2, -1) if self.device == CPU and len(shape) > 1 else self.owner
        return self._replace(shape=shape, strides=strides, owner=view)


_new: Callable[[type[Operand], tuple[Any, ...]], Operand] = tuple.__new__

Table: TypeAlias = Mapping[str, DType]
Reader: TypeAlias = Callable[[Any, str, "int | None", Table], Operand]
_readers: dict[type, Reader] = {}


def inspect(x: object, argument: str, stream: int | None = None, dtypes: Table = ELEMENTWISE) -> Operand:
    """Return the :class:`Operand` of an array; nothing is copied.

    ``argument`` is the array's name in messages. ``stream`` is the handle of the CUDA stream the array will be used on:
    a library that tracks its own work (JAX) makes that stream wait for it. ``dtypes`` are the accepted element types.

    Raises :class:`~matmill.errors.DTypeError` for an object that is not an array and for other element types or byte
    orders, :class:`~matmill.errors.DeviceError` for memory that is neither the host's nor an NVIDIA GPU's, and
    :class:`~matmill.errors.ArgumentError` for arrays whose memory does not hold their values (masked, lazily negated).

    >>> inspect(np.zeros((2, 3), np.float32).T, "a").strides
    (1, 3)
    """
    reader = _readers.get(type(x))
    if reader is None:
        reader = _reader_for(x, argument)
        _readers[type(x)] = reader
    return reader(x, argument, stream, dtypes)


def is_conjugated(x: Any, operand: Operand) -> bool:
    """Tell whether an array's values are the conjugates of the elements in its memory, as torch's ``conj`` leaves them.

    :func:`inspect` does not look: whoever accepts complex types asks.
    """
    return operand.dtype.part is not None and operand.library == "torch" and bool(x.is_conj())


def refuse_conjugated(x: Any, operand: Operand, argument: str) -> None:
    """Raise :class:`~matmill.errors.ArgumentError` for an array of conjugates, to which nothing is written."""
    if is_conjugated(x, operand):
        raise _refusal(argument, "a lazily conjugated view", "a tensor that holds its values", "resolve_conj")


def _reader_for(x: object, argument: str) -> Reader:
    modules = {base.__module__.partition(".")[0] for base in type(x).__mro__}
    if isinstance(x, np.ndarray):
        return _masked if isinstance(x, np.ma.MaskedArray) else _numpy
    if "torch" in modules and hasattr(x, "data_ptr"):
        return _torch_reader(type(x))
    if "cupy" in modules and hasattr(x, "__cuda_array_interface__"):
        return _cupy
    if any(base.__name__ == "Tracer" for base in type(x).__mro__):
        raise ArgumentError(
            argument=argument,
            got="a tracer, which stands for an array inside jit, grad or vmap",
            wanted="an array that has its values",
            fix="Use the function of the same name in matmill.jax, or call outside of the transformed function.",
        )
    # A library with both protocols says more through DLPack: the device, and when the data is ready.
    if not isinstance(x, np.generic | type):  # a class has its instances' methods, but no values
        if _speaks(x, "__dlpack__") and _speaks(x, "__dlpack_device__"):
            return _dlpack
        if _speaks(x, cuda_interface.NAME):
            return _cuda_array_interface
        if isinstance(x, memoryview | array):
            return _buffer
    raise DTypeError(
        argument=argument,
        got=f"{type(x).__module__}.{type(x).__qualname__}",
        wanted="an array (NumPy, torch, CuPy, JAX, or any with DLPack or __cuda_array_interface__)",
        fix=by_copy(argument, cure(x, argument)),
    )


def _speaks(x: object, protocol: str) -> bool:
    """Tell whether an array has that attribute. One that raises counts: its reader then says what is wrong."""
    try:
        return hasattr(x, protocol)
    except Exception:  # noqa: BLE001 — the array's own code, which may raise anything
        return True


def _numpy(x: np.ndarray[Any, Any], argument: str, _stream: int | None, dtypes: Table) -> Operand:
    return _of_view(x, argument, dtypes, "numpy", readonly=not x.flags.writeable)


def _buffer(x: Any, argument: str, _stream: int | None, dtypes: Table) -> Operand:
    view = np.asarray(x)
    return _of_view(view, argument, dtypes, "numpy", readonly=not view.flags.writeable)


def _masked(_x: object, argument: str, _stream: int | None, _dtypes: Table) -> Operand:
    raise _refusal(argument, "a masked array", "an array without a mask", "filled")


def _of_view(x: np.ndarray[Any, Any], argument: str, dtypes: Table, library: str, *, readonly: bool) -> Operand:
    """Return the operand of host memory that NumPy sees as ``x``."""
    dtype = of_numpy(x.dtype, argument, dtypes)
    strides = _in_elements(x.shape, x.strides, dtype, x.ctypes.data, argument, library=library)
    # np.matrix and other subclasses index and multiply differently.
    view = x if type(x) is np.ndarray else x.view(np.ndarray)
    return Operand(x.shape, strides, dtype, CPU, x.ctypes.data, readonly, library, view)


def _in_elements(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, address: int, argument: str, *, library: str = ""
) -> tuple[int, ...]:
    """Convert byte strides to elements.

    Raises :class:`~matmill.errors.ArgumentError` where an address is not a multiple of the element's size (record
    fields).
    """
    size = dtype.itemsize
    if address % size or any(stride % size for stride, extent in zip(strides, shape, strict=True) if extent > 1):
        raise ArgumentError(
            argument=argument,
            got=f"elements at byte strides {tuple(strides)} from address {address:#x}",
            wanted=f"addresses that are multiples of the element's {size} bytes",
            fix=by_copy(argument, f"Copy it first: {argument}.{'clone' if library == 'torch' else 'copy'}()."),
        )
    return tuple(stride // size for stride in strides)


def _torch_reader(kind: type) -> Reader:
    """Return the reader for a class of torch tensors. It is created for the first tensor, when torch is loaded."""
    torch = sys.modules["torch"]
    own, plain = (getattr(one, "__torch_dispatch__", None) for one in (kind, torch.Tensor))
    if own is not plain:
        return _torch_wrapper
    rows = {getattr(torch, name): dtype for name, dtype in PRODUCTS.items()}
    cuda: dict[int, DeviceId] = {}
    strided, forward_ad = torch.strided, torch.autograd.forward_ad
    tracing = torch._C._is_tracing  # noqa: SLF001 — what the public `torch.jit.is_tracing` calls

    def read(x: Any, argument: str, _stream: int | None, dtypes: Table) -> Operand:
        kind = x.dtype
        dtype = rows.get(kind)
        if dtype is None or dtype.name not in dtypes:
            dtype = named(str(kind).removeprefix("torch."), argument, dtypes, conversion=BY_TO)
        try:
            if x.layout is not strided or x.is_neg():
                raise _indirect(x, argument)
            shape, strides, address = x.shape, x.stride(), x.data_ptr()
            if x.requires_grad or forward_ad._current_level >= 0 or tracing():  # noqa: SLF001 — see below
                _check_unrecorded(x, argument)
            if not address and not x.is_meta and x.numel():
                raise _more_than_memory(argument, "a tensor without memory", _PLAIN)
            if x.is_cuda:
                index = x.get_device()
                device = cuda.get(index) or cuda.setdefault(index, ("cuda", index))
                # Bypasses the generated constructor, which takes twice as long.
                return _new(Operand, (shape, strides, dtype, device, address, False, "torch", x, None))
            return _torch_on_host(x, argument, dtype, dtypes)
        except RuntimeError as error:
            if x.is_nested:
                raise _indirect(x, argument) from error
            raise _more_than_memory(argument, "a tensor inside vmap or a torch.func transformation", _PLAIN) from error

    return read


def _torch_on_host(x: Any, argument: str, dtype: DType, dtypes: Table) -> Operand:
    if x.device.type != "cpu":
        raise _unreachable(argument, f"a tensor on {x.device}")
    if not x.numel():
        return _of_view(np.empty(x.shape, dtype.numpy), argument, dtypes, "torch", readonly=False)
    # Tensor.numpy() would share the storage with NumPy permanently: torch could no longer resize it, as FSDP does.
    memory = _Interface(x.detach(), x.data_ptr(), x.shape, x.stride(), dtype.itemsize)
    return _of_view(np.asarray(memory).view(dtype.numpy), argument, dtypes, "torch", readonly=False)


def _torch_wrapper(x: Any, argument: str, _stream: int | None, _dtypes: Table) -> Operand:
    """Return the error for tensors with ``__torch_dispatch__`` (FakeTensor, DTensor, ...), which name their class."""
    if getattr(x, "is_nested", None) is True:
        raise _indirect(x, argument)
    raise _more_than_memory(argument, f"a {type(x).__name__}, whose class has its own operators", _PLAIN)


def _check_unrecorded(x: Any, argument: str) -> None:
    """Refuse tensors whose operations torch records."""
    torch = sys.modules["torch"]
    if x.requires_grad and torch.is_grad_enabled():
        shared = f"Pass {argument}.detach(), which shares its memory"
        raise _more_than_memory(argument, "a tensor that requires grad", shared)
    # torch has no public name for this variable: -1 outside every `dual_level`.
    forward_ad = torch.autograd.forward_ad
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None:  # noqa: SLF001 — see above
        primal = f"Pass torch.autograd.forward_ad.unpack_dual({argument}).primal"
        raise _more_than_memory(argument, "a tensor with a forward-mode tangent", primal)
    if torch._C._is_tracing():  # noqa: SLF001 — see the reader
        raise _more_than_memory(argument, "a tensor inside torch.jit.trace", "Call outside of it")


def _more_than_memory(argument: str, got: str, instead: str) -> ArgumentError:
    """Return the error for tensors that carry more than values (derivatives, tangents), which would be ignored."""
    other = "omit out=" if argument == "out" else "use the functions of matmill.torch, which are"
    return ArgumentError(
        argument=argument,
        got=got,
        wanted="a tensor that is no more than its values, because these functions are not recorded or transformed",
        fix=f"{instead}, or {other}.",
    )


def _indirect(x: Any, argument: str) -> ArgumentError:
    """Return the error for tensors whose values are not the strided elements of their memory."""
    if x.is_nested:
        return _refusal(argument, "a nested tensor", "a strided tensor", "to_padded_tensor")
    if x.layout is not sys.modules["torch"].strided:
        return _refusal(argument, f"a tensor with layout {x.layout}", "a strided tensor", "to_dense")
    return _refusal(argument, "a lazily negated view", "a tensor that holds its values", "resolve_neg")


def _refusal(argument: str, got: str, wanted: str, method: str) -> ArgumentError:
    fix = by_copy(argument, f"Pass {argument}.{method}().")
    return ArgumentError(argument=argument, got=got, wanted=wanted, fix=fix)


def _cupy(x: Any, argument: str, _stream: int | None, dtypes: Table) -> Operand:
    dtype = of_numpy(x.dtype, argument, dtypes)
    strides = _in_elements(x.shape, x.strides, dtype, x.data.ptr, argument)
    return Operand(x.shape, strides, dtype, ("cuda", x.device.id), x.data.ptr, readonly=False, library="cupy", owner=x)


def _cuda_array_interface(x: Any, argument: str, _stream: int | None, dtypes: Table) -> Operand:
    interface = cuda_interface.read(x, argument)
    if interface.masked:
        return _masked(x, argument, None, dtypes)
    shape, address = interface.shape, interface.address
    dtype = of_numpy(interface.dtype, argument, dtypes)
    steps = interface.strides
    if steps is None:
        steps = tuple(stride * dtype.itemsize for stride in packed_strides(shape))
    strides = _in_elements(shape, steps, dtype, address, argument)
    if not address and 0 not in shape:
        raise cuda_interface.malformed(argument, f"data at address 0, of shape {shape}", "an address")
    device = ("cuda", _device_of(address, argument) if address else 0)  # an array without elements may have no device
    return Operand(shape, strides, dtype, device, address, interface.readonly, _library(x), x, interface.stream)


def _device_of(address: int, argument: str) -> int:
    """Return the GPU of an address. The driver knows it, the interface does not say."""
    ordinal = ctypes.c_int()
    try:
        library = load_driver()
    except OSError as error:
        raise _unreachable(argument, f"an array for CUDA, where no NVIDIA driver is installed ({error})") from error
    where = (ctypes.byref(ordinal), _POINTER_DEVICE_ORDINAL, ctypes.c_uint64(address))
    if library.cuPointerGetAttribute(*where) == _INVALID_VALUE:
        raise _unreachable(argument, f"address {address:#x}, which the NVIDIA driver does not know")
    return ordinal.value


def _dlpack(x: Any, argument: str, stream: int | None, dtypes: Table) -> Operand:
    library = _library(x)
    readonly = library == "jax"  # JAX arrays are immutable, and other arrays may share their buffer
    try:
        if readonly:
            named(str(x.dtype), argument, dtypes)  # the library's own message for other types would differ
            _check_present(x, argument)
        kind, _ = x.__dlpack_device__()
        if kind in dlpack.HOST:
            view = _host_view(x)
            return _of_view(view, argument, dtypes, library, readonly=readonly or not view.flags.writeable)
        tensor = _on_cuda(x, kind, argument, stream)
    except MatmillError:
        raise
    except Exception as error:
        raise DeviceError(
            argument=argument,
            got=f"a {library} array whose __dlpack__ exports no memory: {str(error) or type(error).__name__}",
            wanted="an array whose values are in one device's memory",
            fix="Pass an array that lives, undivided, on one device.",
        ) from error
    dtype = named(tensor.dtype, argument, dtypes)
    strides = packed_strides(tensor.shape) if tensor.strides is None else tensor.strides
    if tensor.address % dtype.itemsize:
        _in_elements(tensor.shape, strides, dtype, tensor.address, argument)
    device, readonly = ("cuda", tensor.device), readonly or tensor.readonly
    return Operand(tensor.shape, strides, dtype, device, tensor.address, readonly, library, tensor)


def _check_present(x: Any, argument: str) -> None:
    """Refuse JAX arrays whose memory was released."""
    if getattr(x, "is_deleted", bool)():  # tracers have no such method
        raise ArgumentError(
            argument=argument,
            got="a deleted JAX array: it was donated to a function, or its delete() was called",
            wanted="an array that still has its memory",
            fix=f"Use what the function returned, or pass a copy to it: {argument}.copy() before the call.",
        )


def _on_cuda(x: Any, kind: object, argument: str, stream: int | None) -> dlpack.Tensor:
    """Return the DLPack contents of an array on a device of ``kind``, which must be memory that CUDA reaches."""
    if kind not in dlpack.CUDA:
        raise _unreachable(argument, f"an array on DLPack device type {kind!r}")
    # 1 is DLPack's name for the default stream; 0 would be ambiguous.
    tensor = dlpack.read(x.__dlpack__(stream=stream or 1))
    if tensor.kind not in dlpack.CUDA or tensor.device < 0 or not (tensor.address or 0 in tensor.shape):
        raise ValueError(f"its capsule is of device {tensor.kind, tensor.device} and address {tensor.address:#x}")
    return tensor


def _host_view(x: Any) -> np.ndarray[Any, Any]:
    """Return a NumPy view of host memory with DLPack; bfloat16 too, which NumPy's own reader refuses."""
    if str(getattr(x, "dtype", "")).rpartition(".")[2] != BF16.name:
        return np.from_dlpack(x)
    tensor = dlpack.read(x.__dlpack__())
    strides = packed_strides(tensor.shape) if tensor.strides is None else tensor.strides
    memory = _Interface(tensor, tensor.address, tensor.shape, strides, BF16.itemsize, readonly=tensor.readonly)
    return np.asarray(memory).view(BF16.numpy)


class _Interface:
    """Memory with NumPy's array interface: ``strides`` are in elements of ``itemsize`` untyped bytes.

    NumPy has no type string for bfloat16, so the caller views the elements as their type. ``owner`` is kept alive.
    """

    def __init__(
        self,
        owner: object,
        address: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        itemsize: int,
        *,
        readonly: bool = False,
    ) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "shape": tuple(shape),
            "strides": tuple(itemsize * stride for stride in strides),
            "typestr": f"|V{itemsize}",
            "data": (address, readonly),
            "version": 3,
        }


@lru_cache(maxsize=1024)
def packed_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return row-major strides in elements.

    >>> packed_strides((2, 3, 4))
    (12, 4, 1)
    """
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def _library(x: object) -> str:
    name = type(x).__module__.partition(".")[0]
    return "jax" if name == "jaxlib" else name


def _unreachable(argument: str, got: str) -> DeviceError:
    return DeviceError(
        argument=argument,
        got=got,
        wanted="memory of the host or of an NVIDIA GPU",
        fix=by_copy(argument, f"Copy {argument} to the host or to a CUDA device first."),
    )
