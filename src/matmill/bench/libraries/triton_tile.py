"""Transpose+add in idiomatic Triton: the compiler transposes a tile of x in registers, and sizes are autotuned.

Triton is optional, and imported by the first call.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from matmill.kernel import ceil_div

#: triton.language after Triton's import: its compiler looks names up in the kernel's module.
tl: Any = None

_SIZES = ((32, 32, 4), (32, 64, 4), (64, 32, 4), (64, 64, 4), (64, 64, 8), (64, 128, 8), (128, 64, 8), (128, 128, 8))


# Triton's compiler visits annotations too, and knows only its own names.
def _source(  # type: ignore[no-untyped-def] # noqa: ANN202, PLR0917 — a kernel's parameters are positional
    x_start,  # noqa: ANN001 — here and below
    y_start,  # noqa: ANN001
    out_start,  # noqa: ANN001
    rows,  # noqa: ANN001
    columns,  # noqa: ANN001
    x_row,  # noqa: ANN001
    y_row,  # noqa: ANN001
    out_row,  # noqa: ANN001
    x_batch,  # noqa: ANN001
    y_batch,  # noqa: ANN001
    out_batch,  # noqa: ANN001
    WIDE: tl.constexpr,  # noqa: N803 — constants of a kernel, here and below
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
):
    batch = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(columns, COLUMNS)
    row = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS).to(tl.int64)
    column = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS).to(tl.int64)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    transposed = (column[:, None] < columns) & (row[None, :] < rows)
    # In x's layout: neighbouring lanes read neighbouring elements, and tl.trans moves them through shared memory.
    x = tl.load(x_start + batch * x_batch + column[:, None] * x_row + row[None, :], mask=transposed)
    y = tl.load(y_start + batch * y_batch + row[:, None] * y_row + column[None, :], mask=inside)
    total = tl.trans(x.to(WIDE)) + y.to(WIDE)
    target = out_start + batch * out_batch + row[:, None] * out_row + column[None, :]
    tl.store(target, total.to(out_start.dtype.element_ty), mask=inside)


@cache
def _tile() -> Any:
    """Return the kernel, which Triton compiles when it first runs."""
    global tl
    triton, tl = import_module("triton"), import_module("triton.language")
    configs = [triton.Config({"ROWS": rows, "COLUMNS": columns}, num_warps=warps) for rows, columns, warps in _SIZES]
    return triton.autotune(configs, key=["rows", "columns"])(triton.jit(_source))


def transpose_add(x: Any, y: Any, out: Any) -> None:
    """Compute ``out = x.transpose(-2, -1) + y`` for tensors of two or three dimensions whose rows are contiguous.

    x and y have as many matrices as out, or one that all share. Runs on torch's current stream.
    """
    tile = _tile()
    rows, columns = out.shape[-2:]
    batch = out.shape[0] if out.ndim == 3 else 1
    wide = {"torch.float16": tl.float32, "torch.bfloat16": tl.float32}.get(str(out.dtype))
    own = getattr(tl, str(out.dtype).removeprefix("torch."))

    def grid(sizes: Any) -> tuple[int, int]:
        return ceil_div(rows, sizes["ROWS"]) * ceil_div(columns, sizes["COLUMNS"]), batch

    pitches = (x.stride(-2), y.stride(-2), out.stride(-2))
    batches = (t.stride(0) if t.ndim == 3 else 0 for t in (x, y, out))
    tile[grid](x, y, out, rows, columns, *pitches, *batches, WIDE=wide or own)
