"""XLA's foreign function interface in ctypes: the frame of a call, its buffers, its stream and its errors.

The structures are those of ``xla/ffi/api/c_api.h``. XLA writes the size of each into its first field. Minor versions of
the interface add fields at the ends, major ones change what is read here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any

from matmill.errors import ArgumentError

#: A handler takes the address of a frame, XLA's functions that of their arguments. Both return 0 or the address of an
#: error, which belongs to whom it is returned to.
_FUNCTION = ctypes.CFUNCTYPE(c_void_p, c_void_p)
_MAJOR = 0
_METADATA, _INTERNAL = 1, 13  # XLA_FFI_Extension_Metadata, XLA_FFI_Error_Code_INTERNAL
#: Positions in XLA's table of functions: those that answer for a call, and those that it uses itself.
STREAM, ORDINAL = 4, 17
_ERROR, _ALLOCATE, _FREE = 0, 9, 10
#: The most that XLA lets a handler ask for; its allocators align to more.
_ALIGNMENT = 16


def _structure(name: str, *, head: Any = (("struct_size", c_size_t), ("extension", c_void_p)), **fields: Any) -> Any:
    """Return a structure of XLA's, with the two fields that most begin with."""
    return type(name, (ctypes.Structure,), {"_fields_": [*head, *fields.items()]})


_Buffer = _structure("Buffer", dtype=c_int, data=c_void_p, rank=c_int64, dims=c_void_p)
_Buffers = _structure("Buffers", count=c_int64, kinds=c_void_p, items=c_void_p)
_Attributes = _structure("Attributes", count=c_int64, kinds=c_void_p, names=c_void_p, items=c_void_p)
_Lists = {"operands": _Buffers, "results": _Buffers, "attributes": _Attributes}
_Frame = _structure("CallFrame", api=c_void_p, context=c_void_p, stage=c_int, **_Lists)
_Version = _structure("Version", major=c_int, minor=c_int)
_Api = _structure("Api", version=_Version, internal=c_void_p, functions=c_void_p * (ORDINAL + 1))
_Error = _structure("Error", message=ctypes.c_char_p, code=c_int)
#: Arguments of ``XLA_FFI_Stream_Get``; ``XLA_FFI_DeviceOrdinal_Get`` writes 32 bits of the same field.
_Get = _structure("Get", context=c_void_p, value=c_uint64)
_Allocate = _structure("Allocate", context=c_void_p, nbytes=c_size_t, alignment=c_size_t, data=c_void_p)
_Free = _structure("Free", context=c_void_p, nbytes=c_size_t, data=c_void_p)
_SIZE = (("struct_size", c_size_t),)
_Extension = _structure("Extension", head=_SIZE, kind=c_int, next=c_void_p, metadata=c_void_p)
_Metadata = _structure("Metadata", head=_SIZE, version=_Version, traits=c_uint32)


class _XlaError(Exception):
    """An error of one of XLA's functions, by its address, which becomes the handler's own."""


class Call:
    """A call of a handler, as XLA's frame describes it."""

    def __init__(self, frame: Any) -> None:
        self._frame, self._api = frame, _Api.from_address(frame.api)

    def check(self) -> None:
        """Raise :class:`~matmill.errors.ArgumentError` for another interface than is known here."""
        check_version()
        for structure in (self._frame, self._api):
            _checked(structure)

    def text(self) -> str:
        """Return the call's only attribute, a string."""
        (span,) = _words(self._frame.attributes.items, self._frame.attributes.count)
        return ctypes.string_at(*_words(span, 2)).decode()

    def addresses(self) -> list[int]:
        """Return the addresses of the operands and, last, of the result."""
        return [c_void_p.from_address(item + _Buffer.data.offset).value or 0 for item in self._items()]

    def arrays(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return XLA_FFI_DataType and shape of the operands and, last, of the result."""
        buffers = [_checked(_Buffer.from_address(item)) for item in self._items()]
        return [(x.dtype, tuple(_words(x.dims, x.rank))) for x in buffers]

    def _items(self) -> list[int]:
        operands, results = self._frame.operands, self._frame.results
        return _words(operands.items, operands.count) + _words(results.items, results.count)

    def get(self, function: int) -> int:
        """Return what :data:`STREAM` or :data:`ORDINAL` answers for this call."""
        arguments = _Get(context=self._frame.context)
        self._run(function, arguments)
        return int(arguments.value)

    @contextmanager
    def workspace(self, nbytes: int) -> Iterator[int]:
        """Lend memory of XLA's for work that is enqueued inside: XLA reuses it in the order of the stream."""
        context = self._frame.context
        memory = _Allocate(context=context, nbytes=nbytes, alignment=_ALIGNMENT)
        self._run(_ALLOCATE, memory)
        try:
            yield memory.data
        finally:
            self._run(_FREE, _Free(context=context, nbytes=nbytes, data=memory.data))

    def error(self, message: str) -> int:
        """Return the address of an error for XLA."""
        return self._invoke(_ERROR, _Error(message=message.encode(), code=_INTERNAL))

    def _run(self, function: int, arguments: Any) -> None:
        error = self._invoke(function, arguments)
        if error:
            raise _XlaError(error)

    def _invoke(self, function: int, arguments: Any) -> int:
        arguments.struct_size = ctypes.sizeof(arguments)
        return _FUNCTION(self._api.functions[function])(ctypes.addressof(arguments)) or 0


def _words(address: int, count: int) -> list[int]:
    """Return 64-bit numbers, or addresses, in memory."""
    return _words_type(count).from_address(address)[:] if count else []


@cache
def _words_type(count: int) -> Any:
    return c_int64 * count


def _checked(structure: Any) -> Any:
    """Return a structure of XLA's that has at least the fields it has here."""
    size = ctypes.sizeof(structure)
    if structure.struct_size < size:
        raise _unknown(f"a {type(structure).__name__} of {structure.struct_size} bytes", f"{size} or more")
    return structure


def _unknown(got: str, wanted: str) -> ArgumentError:
    fix = "Install jax 0.10 or 0.11, or call matmill.matmul of NumPy arrays inside jax.pure_callback."
    return ArgumentError(argument="XLA's foreign function interface", got=got, wanted=wanted, fix=fix)


#: Versions of the interface of the XLA libraries that have asked a handler for its own.
_versions: set[tuple[int, int]] = set()


def check_version() -> None:
    """Raise :class:`~matmill.errors.ArgumentError` if an XLA library of this process has another interface."""
    for major, minor in _versions:
        if major != _MAJOR:
            raise _unknown(f"version {major}.{minor}", f"version {_MAJOR}")


def _describe(frame: Any) -> None:
    """Tell XLA the handler's version, if that is what a frame is for, and that no trait holds.

    The version is XLA's own, whatever it is: XLA does not start with a handler that it refuses. Calls are refused then.
    """
    extension = _Extension.from_address(frame.extension)
    if extension.kind == _METADATA:
        version, metadata = _Api.from_address(frame.api).version, _Metadata.from_address(extension.metadata)
        metadata.version.major, metadata.version.minor, metadata.traits = version.major, version.minor, 0
        _versions.add((version.major, version.minor))


def handler(run: Callable[[Call], None]) -> Any:
    """Return a function for XLA that calls ``run``; what that raises becomes an error of the program's."""

    def handle(address: int) -> int:
        frame = _Frame.from_address(address)
        if frame.extension:
            _describe(frame)
            return 0
        call = Call(frame)
        try:
            call.check()
            run(call)
        except _XlaError as error:
            return int(error.args[0])
        except BaseException as error:  # noqa: BLE001 — ctypes would print it, and XLA take the call for done
            return call.error(f"matmill: {error}")
        return 0

    return _FUNCTION(handle)
