"""``inner`` and ``gram`` of Dask arrays that are chunked along k: files larger than memory, on one machine or many.

A task multiplies one pair of blocks, with the result in the type of the sums, and a tree of tasks adds these results in
a fixed order. Dask does the rest: it assigns tasks to workers, manages memory, shows progress and repeats the tasks of
a worker that ended. Needs ``matmill[dask]``.

>>> import dask.array as da
>>> import numpy as np
>>> import matmill.dask
>>> x = da.ones((1000, 3), chunks=(100, 3), dtype=np.float32)
>>> matmill.dask.gram(x).compute()
array([[1000., 1000., 1000.],
       [1000., 1000., 1000.],
       [1000., 1000., 1000.]], dtype=float32)
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from matmill import ops
from matmill.dispatch.validate import scalar
from matmill.dtypes import DType, of_numpy
from matmill.errors import ArgumentError, DTypeError, ShapeError, TruncatedFileError, missing_package, size

try:
    import dask.array as da
    from dask.array.utils import meta_from_array
except ModuleNotFoundError as error:
    raise missing_package(error, "matmill.dask", "dask[array,distributed]>=2025.1") from None

__all__ = ["from_npy", "gram", "inner"]

#: Results that one task of the tree adds up.
_FAN_IN = 8
#: Bytes per block of :func:`from_npy`: few enough that a worker holds several, and enough to stream to a GPU.
_BLOCK_BYTES = 64 << 20


def inner(e: Any, f: Any, *, alpha: float = 1.0) -> Any:
    """Return ``alpha * (e @ f)`` as a Dask array (m, n) of one block, for Dask arrays ``e`` (m, k) and ``f`` (k, n).

    Both are chunked along k only. Where their chunks differ, blocks end wherever a chunk of either one ends. m and n
    are limited only by a worker's memory, which must hold the result. Elements are float32, float64, float16 or
    bfloat16; 16-bit ones are summed in float32, and the result is rounded once. Blocks are NumPy's or CuPy's, and each
    product runs as :func:`matmill.matmul` would run it on that worker: on its GPU where it has one, else by NumPy.

    Nothing is computed before ``compute()``, ``persist()`` or ``store()``. The same chunks give the same bits,
    whichever workers of one kind compute them and however often.

    Raises :class:`~matmill.errors.ShapeError`, :class:`~matmill.errors.DTypeError` or
    :class:`~matmill.errors.ArgumentError` at once, before anything is read.

    >>> e = da.ones((2, 1000), chunks=(2, 300))
    >>> inner(e, da.ones((1000, 1), chunks=(500, 1)), alpha=0.5).compute()
    array([[500.],
           [500.]])
    """
    for name, x, extents, whole in (("e", e, "(m, k)", 0), ("f", f, "(k, n)", 1)):
        _check_blocks(name, x, extents, whole)
    dtype = of_numpy(e.dtype, "e")
    if f.dtype != e.dtype:
        raise DTypeError(
            argument="f",
            got=f"dtype {f.dtype}",
            wanted=f"e's {e.dtype}",
            fix="Convert one of them: matmill does not mix element types.",
        )
    _checked_sizes(e, f)
    parts = da.blockwise(
        _product,
        "kmn",
        e,
        "mk",
        f,
        "kn",
        dtype=dtype.accumulator.numpy,
        adjust_chunks={"k": 1},
        meta=_meta(e, 3, dtype.accumulator),
    )
    return _tree_sum(parts, dtype, alpha)


def gram(x: Any, *, alpha: float = 1.0) -> Any:
    """Return ``alpha * (x.T @ x)`` as a Dask array (n, n) of one block, for ``x`` (k, n) chunked along its rows.

    Symmetric to the bit. Everything else is as in :func:`inner`; the number of rows may be unknown, as in arrays that
    come from data frames.

    >>> gram(da.arange(6, chunks=6).reshape(3, 2).astype("float32")).compute()
    array([[20., 26.],
           [26., 35.]], dtype=float32)
    """
    _check_blocks("x", x, "(k, n)", 1)
    dtype = of_numpy(x.dtype, "x")
    parts = da.blockwise(
        _gram,
        "kmn",
        x,
        "km",
        new_axes={"n": x.shape[1]},
        dtype=dtype.accumulator.numpy,
        adjust_chunks={"k": 1},
        meta=_meta(x, 3, dtype.accumulator),
    )
    return _tree_sum(parts, dtype, alpha)


def from_npy(path: str | Path, *, rows: int | None = None) -> Any:
    """Return the array in a ``.npy`` file as a Dask array, whose blocks of ``rows`` each worker reads from the file.

    The file must be where every worker can read it, and hold its rows one after another. Only its header is read now.
    By default a block is 64 MiB. A file that has become shorter raises :class:`~matmill.errors.TruncatedFileError` when
    its blocks are read.
    """
    path = Path(path).absolute()
    opened = np.load(path, mmap_mode="r")
    if not opened.flags.c_contiguous:
        raise ArgumentError(
            argument="path",
            got=f"{path}, stored column after column",
            wanted="rows that are stored one after another",
            fix="Save it with numpy.save(path, numpy.ascontiguousarray(x)).",
        )
    shape, dtype = opened.shape, opened.dtype
    row_bytes = max(1, opened[:1].nbytes)
    rows = max(1, _BLOCK_BYTES // row_bytes) if rows is None else rows
    chunks = da.core.normalize_chunks((rows, *shape[1:]), shape=shape, dtype=dtype)
    empty = np.empty((0,) * len(shape), dtype)
    return da.map_blocks(_read, str(path), opened.offset, chunks=chunks, dtype=dtype, meta=empty)


def _read(path: str, offset: int, block_info: Any = None) -> Any:
    """Return the rows of one block. They are read, not mapped: a map of a shortened file would end the worker."""
    here = block_info[None]
    (start, stop), *others = here["array-location"]
    row = math.prod(end for _, end in others)
    dtype = here["dtype"]
    with Path(path).open("rb") as file:
        file.seek(offset + start * row * dtype.itemsize)
        numbers = np.fromfile(file, dtype, (stop - start) * row)
    if numbers.size != (stop - start) * row:
        needed = offset + stop * row * dtype.itemsize
        raise TruncatedFileError(
            argument="path",
            got=f"{path}, {size(Path(path).stat().st_size)}",
            wanted=f"at least {size(needed)}",
            fix="Write the file anew, and do not change it while it is read.",
        )
    return numbers.reshape(stop - start, *(end for _, end in others))


def _product(e: Any, f: Any) -> Any:
    """Return one block's product, in the type of the sums, with an axis of 1 in front."""
    return ops.matmul(e, f, out_dtype=_sums(e))[None]


def _gram(x: Any) -> Any:
    return ops.matmul(x.T, x, out_dtype=_sums(x))[None]


def _sums(x: Any) -> str | None:
    wider = of_numpy(x.dtype, "x").wider
    return None if wider is None else wider.name


def _tree_sum(parts: Any, dtype: DType, alpha: float) -> Any:
    """Return the sum of ``parts``, scaled and rounded once. The same chunks are added by the same tree."""
    scale = dtype.accumulator.scalar(scalar(alpha, "alpha"))
    return da.reduction(
        parts,
        chunk=_one,
        combine=_add,
        aggregate=partial(_finished, scale=scale, dtype=dtype.numpy),
        axis=0,
        keepdims=False,
        split_every=_FAN_IN,
        dtype=dtype.numpy,
        meta=_meta(parts, 2, dtype),
        concatenate=True,
    )


# Dask passes axis and keepdims by name.


def _one(part: Any, axis: Any, keepdims: Any) -> Any:  # noqa: ARG001 — see above
    return part


def _add(parts: Any, axis: Any, keepdims: Any) -> Any:
    return parts.sum(axis=axis, keepdims=keepdims)


def _finished(parts: Any, axis: Any, keepdims: Any, *, scale: Any, dtype: Any) -> Any:
    total = _add(parts, axis, keepdims)
    return (total if scale == 1 else total * scale).astype(dtype, copy=False)


def _check_blocks(name: str, x: Any, extents: str, whole: int) -> None:
    """Check that a Dask array has two dimensions, and that dimension ``whole`` is in one block."""
    if not isinstance(x, da.Array):
        raise ArgumentError(
            argument=name,
            got=type(x).__name__,
            wanted=f"a Dask array, {extents}",
            fix=f"Pass dask.array.from_array({name}, chunks=...), or use matmill.inner, which takes arrays in memory.",
        )
    if x.ndim != 2:
        raise ShapeError(argument=name, got=f"shape {x.shape}", wanted=f"two dimensions, {extents}", fix="Reshape it.")
    if x.numblocks[whole] != 1:
        raise ShapeError(
            argument=name,
            got=f"{x.numblocks[whole]} blocks along axis {whole}",
            wanted=f"one: {extents} is chunked along k alone",
            fix=f"Pass {name}.rechunk({{{whole}: -1}}), or store it in such chunks.",
        )


def _checked_sizes(e: Any, f: Any) -> None:
    k, rows = e.shape[1], f.shape[0]
    if math.isnan(k) or math.isnan(rows):
        raise ShapeError(
            argument="e, f",
            got="blocks of unknown length",
            wanted="known chunks along k, so that blocks of e and of f can be paired",
            fix="Call compute_chunk_sizes() on both, or to_dask_array(lengths=True) on the data frame.",
        )
    if k != rows:
        raise ShapeError(
            argument="f",
            got=f"shape {f.shape}",
            wanted=f"({k}, n): as many rows as e has columns",
            fix="Add a transpose to one of them, or omit one.",
        )


def _meta(x: Any, ndim: int, dtype: DType) -> Any:
    """Return an empty array of the library that the blocks belong to."""
    return meta_from_array(x, ndim=ndim, dtype=dtype.numpy)
