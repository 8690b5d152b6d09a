"""The entries of an array's ``__cuda_array_interface__``, checked before use.

https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from matmill.errors import ArgumentError, by_copy

NAME = "__cuda_array_interface__"

#: Extents and strides are below 2**63, addresses below 2**64.
_FARTHEST = 2**63


class Facts(NamedTuple):
    """The interface's entries, with types as it defines them; ``strides`` in bytes, None where packed."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: np.dtype[Any]
    address: int
    readonly: bool
    stream: int | None
    masked: bool


def read(x: object, argument: str) -> Facts:
    """Return the interface of an array.

    Raises :class:`~matmill.errors.ArgumentError`, which names the entry at fault.
    """
    try:
        facts = dict(getattr(x, NAME))
    except Exception as error:
        raise malformed(argument, f"{type(error).__name__} ({error})", "a dictionary") from error

    def entry(name: str, wanted: str, fits: Callable[[Any], bool]) -> Any:
        value = facts.get(name)
        if not fits(value):
            raise malformed(argument, f"{name} {value!r}" if name in facts else f"no {name}", f"{name}: {wanted}")
        return value

    entry("version", "a whole number, or none", lambda v: v is None or _whole(v, 0))
    shape = entry("shape", "a tuple of whole numbers from 0 on", lambda v: _wholes(v, 0))
    steps = f"a tuple of {len(shape)} whole numbers, or None"
    strides = entry("strides", steps, lambda v: v is None or (_wholes(v, -_FARTHEST) and len(v) == len(shape)))
    address, readonly = entry("data", "an address, and whether it is read-only", _is_data)
    stream = entry("stream", "the handle of a CUDA stream, or None", lambda v: v is None or _whole(v, 0))
    return Facts(
        tuple(map(int, shape)),
        None if strides is None else tuple(map(int, strides)),
        _dtype(entry("typestr", "a string", lambda v: isinstance(v, str)), argument),
        int(address),
        bool(readonly),
        None if stream is None else int(stream),
        facts.get("mask") is not None,
    )


def malformed(argument: str, got: str, wanted: str) -> ArgumentError:
    """Return the error for an entry that breaks the interface's definition."""
    return ArgumentError(
        argument=argument,
        got=f"a {NAME} with {got}",
        wanted=wanted,
        fix=by_copy(argument, f"The class of {argument} is at fault: copy its values to another library's array."),
    )


def _dtype(typestr: str, argument: str) -> np.dtype[Any]:
    try:
        return np.dtype(typestr)
    except (TypeError, ValueError, SyntaxError, RecursionError) as error:
        raise malformed(argument, f"typestr {typestr!r}", "typestr: one of numpy.dtype.str") from error


def _is_data(value: object) -> bool:
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    return _whole(value[0], 0) and isinstance(value[1], bool | int | np.bool_)


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and least <= int(value) < 2 * _FARTHEST


def _wholes(values: object, least: int) -> bool:
    return isinstance(values, tuple | list) and all(_whole(each, least) and each < _FARTHEST for each in values)
