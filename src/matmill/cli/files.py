"""``.npy`` files: inputs memory-mapped, outputs whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.dtypes import BF16, DType
from matmill.errors import ArgumentError

_MAGIC = b"\x93NUMPY"
#: What a .npy file says of types that NumPy does not know, and what bfloat16 is often kept as.
_TWO_BYTES = (np.dtype("V2"), np.dtype(np.uint16))


def load(path: Path, argument: str, dtype: DType | None = None, wanted: str = "float32 or float64") -> NDArray[Any]:
    """A ``.npy`` file, memory-mapped (an empty array, which cannot be mapped, is read).

    ``dtype`` is the type of elements that the user says the file has: elements of two bytes without a type, or of
    uint16, are taken for it. Raises :class:`~matmill.errors.ArgumentError`; ``wanted`` are the types in its words.
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
    except OSError as error:
        raise _not_npy(path, argument, str(error.strerror), wanted) from error
    if start != _MAGIC:
        raise _not_npy(path, argument, "not one, by its first bytes", wanted)
    try:
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError:
            array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise _not_npy(path, argument, str(error), wanted) from error
    loaded: NDArray[Any] = array
    return loaded if dtype is None else _taken_for(loaded, dtype, path, argument)


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
        fix="Leave --dtype away, or convert the file.",
    )


def _not_npy(path: Path, argument: str, got: str, wanted: str) -> ArgumentError:
    return ArgumentError(
        argument=argument,
        got=f"{path}: {got}",
        wanted=f"a .npy file with one {wanted} array",
        fix="Write it with numpy.save.",
    )


def save(path: Path, array: NDArray[Any]) -> None:
    """Writes a ``.npy`` file beside its final name and moves it there, so that no reader sees half of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            np.lib.format.write_array(file, array, allow_pickle=False)
        # mkstemp makes private files; the result gets the permissions any new file would.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
