"""Textures, surfaces and arrays in arrays of objects and in records, replaced by handles and addresses for kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.errors import ArgumentError
from matmill.launch import Pointer
from matmill.textures import Surface, Texture

#: The class of a parameter whose C++ type is a handle.
HANDLES: dict[str, type[Texture | Surface]] = {
    **dict.fromkeys(("cudaTextureObject_t", "CUtexObject"), Texture),
    **dict.fromkeys(("cudaSurfaceObject_t", "CUsurfObject"), Surface),
}


def with_handles(name: str, array: NDArray[Any], handle: Callable[[str, object], Pointer]) -> NDArray[Any]:
    """Copy an array of textures, surfaces and arrays, or of records with such members, with handles in their place."""

    def address(where: str, value: object) -> int:
        if value is None or isinstance(value, str | bool | int | float):
            raise ArgumentError(
                argument=where,
                got=f"a {type(value).__name__} in an array of objects",
                wanted="a Texture, a Surface or an array",
                fix="Give the array the element type that the kernel has.",
            )
        return handle(where, value).address

    return replaced(name, array, _with_numbers(array.dtype), address)


def replaced(
    name: str, array: NDArray[Any], dtype: np.dtype[Any], function: Callable[[str, object], object]
) -> NDArray[Any]:
    """Return a copy of ``array`` as ``dtype`` with ``function(its name, it)`` in place of each object."""
    copy = np.zeros(array.shape, dtype)
    for key in array.dtype.names or ():
        part = array[key]
        inner = part.dtype.hasobject
        copy[key] = replaced(f"{name}.{key}", part, dtype[key].base, function) if inner else part
    if array.dtype.names is None:
        for index in np.ndindex(array.shape):
            copy[index] = function(f"{name}{''.join(f'[{n}]' for n in index)}", array[index])
    return copy


def _with_numbers(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return an element type with a handle in place of each object; both have 8 bytes."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((_with_numbers(base), shape))
    if dtype.fields is None:
        return np.dtype(np.uint64) if dtype.hasobject else dtype
    members = [(key, _with_numbers(dtype.fields[key][0]), dtype.fields[key][1]) for key in dtype.fields]
    names, formats, offsets = zip(*members, strict=True)
    layout = {"names": names, "formats": formats, "offsets": offsets, "itemsize": dtype.itemsize}
    return np.dtype(layout, align=dtype.isalignedstruct)  # type: ignore[call-overload,no-any-return] # a plain dict
