"""``.npy`` files: inputs are memory-mapped, outputs are written completely or not at all."""

from __future__ import annotations

import math
import os
import tempfile
import tokenize
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from matmill.dtypes import BF16, DType
from matmill.errors import ArgumentError

_MAGIC = b"\x93NUMPY"
#: NumPy's exceptions for invalid headers, which it evaluates as Python literals.
_BAD_HEADER = (
    ValueError,
    TypeError,
    LookupError,
    OverflowError,
    SyntaxError,
    MemoryError,
    RecursionError,
    tokenize.TokenError,
)
#: The types of commands that take all, for :func:`load`.
ANY = "any type"
#: The type of bfloat16 in .npy files, which NumPy does not know: untyped or, often, uint16.
_TWO_BYTES = (np.dtype("V2"), np.dtype(np.uint16))


def load(path: Path, argument: str, dtype: DType | None = None, wanted: str = "float32 or float64") -> NDArray[Any]:
    """Return a ``.npy`` file, memory-mapped (or a new array if it is empty, because that cannot be mapped).

    ``dtype`` is the user's type of the elements: two-byte elements without a type, or of uint16, are viewed as it.
    Raises :class:`~matmill.errors.ArgumentError`; ``wanted`` describes the accepted types in its message.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise ValueError("not one, by its first bytes")
            file.seek(0)
            loaded = _mapped(path, file)
    except OSError as error:
        raise _not_npy(path, argument, str(error.strerror), wanted) from error
    except _BAD_HEADER as error:
        raise _not_npy(path, argument, str(error), wanted) from error
    if dtype is None and loaded.dtype == _TWO_BYTES[0] and wanted != ANY:
        raise ArgumentError(
            argument=argument,
            got=f"{path} of elements of two bytes whose type NumPy does not know",
            wanted=wanted,
            fix="Name the type: --dtype bfloat16 (or float16).",
        )
    return loaded if dtype is None else _taken_for(loaded, dtype, path, argument)


def _mapped(path: Path, file: BinaryIO) -> NDArray[Any]:
    """Map the array of a file whose header fits its size: memory is never allocated for missing data.

    Raises ``ValueError``, and NumPy's other exceptions for invalid headers.
    """
    version = np.lib.format.read_magic(file)
    if version not in {(1, 0), (2, 0), (3, 0)}:
        raise ValueError(f"version {version[0]}.{version[1]} of the format")
    # Version 3 is version 2 with field names in UTF-8, and matrices have no fields.
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read(file)
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError(f"elements of {dtype}")
    if any(extent < 0 for extent in shape):
        raise ValueError(f"shape {shape}")
    order: Literal["C", "F"] = "F" if by_columns else "C"
    start, size = file.tell(), os.fstat(file.fileno()).st_size
    whole = start + math.prod(shape) * dtype.itemsize
    if whole == start:
        return np.empty(shape, dtype, order)
    if size < whole:
        raise ValueError(f"cut short: {size} bytes of the {whole} that its header tells of")
    return np.memmap(path, dtype, "r", start, shape, order)


def _taken_for(array: NDArray[Any], dtype: DType, path: Path, argument: str) -> NDArray[Any]:
    if array.dtype == dtype.numpy:
        return array
    if dtype is BF16 and array.dtype in _TWO_BYTES:
        return array.view(dtype.numpy)
    raise ArgumentError(
        argument=argument,
        got=f"{path} with elements of {array.dtype}",
        wanted=f"{dtype.name}, as --dtype says"
        + (", in two bytes without a type or as uint16" if dtype is BF16 else ""),
        fix="Omit --dtype, or convert the file.",
    )


def _not_npy(path: Path, argument: str, got: str, wanted: str) -> ArgumentError:
    return ArgumentError(
        argument=argument,
        got=f"{path}: {got}",
        wanted=f"a .npy file with one array of {wanted}",
        fix="Write it with numpy.save.",
    )


def save(path: Path, array: NDArray[Any]) -> None:
    """Write a ``.npy`` file under a temporary name and rename it, so that no reader sees half of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            np.lib.format.write_array(file, array, allow_pickle=False)
        # mkstemp creates private files; the result gets the permissions of a usual new file.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
