"""The CUDA stream of a call: the one that the caller passed, else the array library's current one."""

from __future__ import annotations

import sys
from typing import Any

from matmill.arrays.operand import Operand
from matmill.errors import ArgumentError

DEFAULT = 0


def resolve_stream(stream: object) -> int | None:
    """Return the handle of the stream that a caller passed, or None.

    Accepts an int (a ``cudaStream_t``) and any object with ``__cuda_stream__()``, ``cuda_stream`` (torch) or ``ptr``
    (CuPy). Raises :class:`~matmill.errors.ArgumentError` for anything else.
    """
    if stream is None:
        return None
    try:
        handle = _handle(stream)
    except Exception as error:
        raise _no_stream(f"{stream!r}, which fails to name its handle: {str(error) or type(error).__name__}") from error
    if isinstance(handle, bool) or not isinstance(handle, int) or not 0 <= handle < _HANDLES:
        raise _no_stream(repr(stream) if handle is stream else f"{stream!r} with the handle {handle!r}")
    return int(handle)


_HANDLES = 2**64
_VERSION = 0  # of the protocol, the only one so far


def _handle(stream: object) -> Any:
    """Return a stream object's handle, or the object itself if it has none."""
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        answer = protocol() if callable(protocol) else protocol
        if not isinstance(answer, tuple | list) or len(answer) != 2 or answer[0] != _VERSION:
            raise ValueError(f"__cuda_stream__ gives {answer!r}, not ({_VERSION}, handle)")
        return answer[1]
    for name in ("cuda_stream", "ptr"):  # torch's name, CuPy's name
        if hasattr(stream, name):
            return getattr(stream, name)
    return stream


def _no_stream(got: str) -> ArgumentError:
    return ArgumentError(
        argument="stream",
        got=got,
        wanted="None, a stream handle as a non-negative int, or an object with __cuda_stream__()",
        fix="Pass the array library's stream object, or leave it out to use its current stream.",
    )


def current_stream(library: str, device: int, operand: Operand | None = None) -> int:
    """Return the handle of the stream on which ``library`` is enqueueing work for GPU ``device`` now."""
    if library == "torch":
        handle: int = sys.modules["torch"]._C._cuda_getCurrentRawStream(device)  # noqa: SLF001 — 0.1 µs; the public function takes 5
        return handle
    if library == "cupy":
        cuda = sys.modules["cupy"].cuda
        with cuda.Device(device):
            return int(cuda.get_current_stream().ptr)
    # JAX orders its streams through DLPack; other libraries name their stream in the interface.
    return (operand.stream if operand is not None else None) or DEFAULT
