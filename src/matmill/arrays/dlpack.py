"""DLPack capsules, read and created through ctypes.

The structures are those of ``dlpack.h``: https://dmlc.github.io/dlpack/latest/c_api.html. Exports are of version 0 (the
unversioned capsule ``dltensor``), which every consumer still takes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

from matmill.dtypes import DType

#: kDLCPU and kDLCUDAHost: memory that the host reads in place.
HOST = frozenset({1, 3})
#: kDLCUDA and kDLCUDAManaged.
CUDA = frozenset({2, 13})

_NAME = b"dltensor"
_VERSIONED_NAME = b"dltensor_versioned"
_MOST_DIMENSIONS = 64  # NumPy's
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_CODES = {kind: code for code, kind in _KINDS.items()}


class _DLDevice(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", _DELETER))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


# Separate function objects: the attributes of ctypes.pythonapi are shared by the whole process.
_api = ctypes.pythonapi
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", _api))
# A destructor gets a capsule without references. Passed as an address, the capsule is not referenced again.
_raw_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_raw_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))


class Tensor(NamedTuple):
    """The contents of a capsule; ``strides`` in elements, None where packed. Holding it keeps the memory alive."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    kind: int
    device: int
    address: int
    readonly: bool
    capsule: object


def read(capsule: object) -> Tensor:
    """Return the contents of a capsule without consuming it: the capsule's own destructor will release the memory."""
    readonly = False
    if _is_valid(capsule, _VERSIONED_NAME):
        versioned = _Versioned.from_address(_pointer_of(capsule, _VERSIONED_NAME))
        tensor, readonly = versioned.tensor, bool(versioned.flags & _READ_ONLY)
    else:
        tensor = _Managed.from_address(_pointer_of(capsule, _NAME)).tensor
    kind = f"{_KINDS.get(tensor.dtype.code, 'opaque')}{tensor.dtype.bits}"
    if tensor.dtype.lanes != 1:
        kind += f"x{tensor.dtype.lanes}"
    n = tensor.ndim
    if not 0 <= n <= _MOST_DIMENSIONS or (n and not tensor.shape) or any(extent < 0 for extent in tensor.shape[:n]):
        raise BufferError(f"{n} dimensions" + (f", extents {tensor.shape[:n]}" if 0 < n <= _MOST_DIMENSIONS else ""))
    return Tensor(
        shape=tuple(tensor.shape[:n]),
        strides=tuple(tensor.strides[:n]) if tensor.strides else None,
        dtype=kind,
        kind=tensor.device.kind,
        device=tensor.device.index,
        address=(tensor.data or 0) + tensor.byte_offset,
        readonly=readonly,
        capsule=capsule,
    )


_exported: dict[int, tuple[Any, ...]] = {}


def _forget(managed: int) -> None:
    _exported.pop(managed, None)


def _drop_capsule(capsule: int) -> None:
    # A consumer renames the capsule; the name is unchanged only if nobody consumed it.
    if _raw_is_valid(capsule, _NAME):
        _forget(_raw_pointer_of(capsule, _NAME))


_deleter = _DELETER(_forget)
_destructor = _DELETER(_drop_capsule)


class Export:
    """Packed row-major memory that exports DLPack, kept alive until its last consumer releases it.

    ``wait`` is called with the consumer's stream handle and must make that stream wait for the data.
    """

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: DType,
        *,
        device: tuple[int, int],
        keep: object,
        wait: Callable[[int], None] | None = None,
    ) -> None:
        self._address, self._shape, self._dtype, self._device = address, shape, dtype, device
        self._keep, self._wait = keep, wait

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return device type and index."""
        return self._device

    def __dlpack__(self, *, stream: int | None = None, **_wishes: object) -> Any:
        """Return an unversioned capsule, which ``max_version`` and the other arguments of newer consumers permit."""
        # None means the default stream, -1 that the consumer orders the work itself.
        if self._wait is not None and stream != -1:
            self._wait(int(stream or 0))
        extents = (ctypes.c_int64 * max(1, len(self._shape)))(*self._shape)
        code = _CODES[self._dtype.name.rstrip("0123456789")]
        managed = _Managed(
            tensor=_DLTensor(
                data=self._address,
                device=_DLDevice(*self._device),
                ndim=len(self._shape),
                dtype=_DataType(code=code, bits=8 * self._dtype.itemsize, lanes=1),
                shape=ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64)),
            ),
            deleter=_deleter,
        )
        address = ctypes.addressof(managed)
        _exported[address] = (managed, extents, self._keep)
        return _new(address, _NAME, ctypes.cast(_destructor, ctypes.c_void_p))
