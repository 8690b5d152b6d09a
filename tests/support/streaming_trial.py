"""Products to stream: matrices of many layouts, their plans, and the result through a device of host memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.dtypes import ALL, DType
from matmill.streaming import StreamPlan, plan_stream, stream_inner
from support.lazy_device import STEPS, LazyDevice

Array = NDArray[Any]
MIB = 1 << 20

#: The ways of ``stored`` in memory.
WAYS = ["rows", "columns", "wide", "backwards", "sparse"]


def numbers(shape: tuple[int, int], dtype: DType, seed: int = 0) -> Array:
    """Return whole numbers so small that their sums are exact."""
    result: Array = np.random.default_rng([seed, *shape]).integers(-2, 3, shape).astype(dtype.numpy)
    return result


def stored(values: Array, how: str, folder: Path | None = None) -> Array:
    """Return the same matrix in another order, or from a file."""
    if how.startswith("file"):
        assert folder is not None
        path = folder / f"{len(list(folder.iterdir()))}.npy"
        inner = stored(values, how.removeprefix("file "))
        # ml_dtypes' bfloat16 has no name in a .npy file.
        np.save(path, inner.view(np.uint16) if values.itemsize == 2 else inner)
        mapped: Array = np.load(path, mmap_mode="r")
        return mapped.view(values.dtype)
    if how == "columns":
        return np.asfortranarray(values)
    if how == "wide":
        rows, columns = values.shape
        room = np.full((rows, columns + 7), 99, values.dtype)
        room[:, 3 : 3 + columns] = values
        return room[:, 3 : 3 + columns]
    if how == "backwards":
        return np.ascontiguousarray(values[::-1, ::-1])[::-1, ::-1]
    if how == "sparse":
        room = np.full((2 * values.shape[0], 3 * values.shape[1]), 99, values.dtype)
        room[::2, ::3] = values
        return room[::2, ::3]
    assert how == "rows"
    return np.ascontiguousarray(values)


def streamed(e: Array, f: Array, device: LazyDevice | None = None, *, budget: int = 60_000, **options: Any) -> Array:
    """Return the product through buffers of ``budget`` bytes in all."""
    used = device or LazyDevice()
    result = stream_inner(used, plan_for(e, f, budget), STEPS, e, f, **options)
    assert used.rests()
    return result


def plan_for(e: Array, f: Array, budget: int) -> StreamPlan:
    """Return the plan for E and F with their strides; a Gram matrix where both are one memory."""
    dtype = next(one for one in ALL.values() if one.numpy == e.dtype)
    gram = f.base is not None and f.T.strides == e.strides and f.ctypes.data == e.ctypes.data
    return plan_stream(
        e.shape[0],
        f.shape[1],
        e.shape[1],
        dtype,
        e_strides=(e.strides[0], e.strides[1]),
        f_strides=(f.strides[0], f.strides[1]),
        gram=gram,
        budget=budget,
    )


def exact(e: Array, f: Array) -> NDArray[np.float64]:
    """Return the product of whole numbers."""
    return e.astype(np.float64) @ f.astype(np.float64)
