"""The results of atomic operations in memory, for single lanes and for the elements of a bulk reduction.

PTX ISA, "Parallel Synchronization and Communication Instructions: atom" and "Bulk copy: cp.reduce.async.bulk".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from matmill.emulator.arith.bfloat16 import bf16_to_f32, f32_to_bf16
from matmill.emulator.arith.exact import flush
from matmill.emulator.arith.row import Row
from matmill.errors import ArgumentError

UFUNCS: dict[str, Callable[..., Any]] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip

#: NumPy's types of the elements of bulk reductions. "f32.ftz" flushes subnormals to zero.
REDUCED = {
    "u32": "u4", "s32": "i4", "b32": "u4", "u64": "u8", "s64": "i8", "b64": "u8", "f16": "f2", "bf16": "u2",
    "f32": "f4", "f32.ftz": "f4", "f64": "f8",
}  # fmt: skip
_INTEGERS = ("u32", "s32", "u64", "s64")
_GLOBAL = {
    "add": ("u32", "s32", "u64", "f16", "bf16", "f32", "f32.ftz", "f64"),
    **dict.fromkeys(("min", "max"), (*_INTEGERS, "f16", "bf16")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    **dict.fromkeys(("and", "or", "xor"), ("b32", "b64", *_INTEGERS)),
}
_SHARED = {
    "add": ("u32", "s32", "u64"),
    **dict.fromkeys(("min", "max"), ("u32", "s32")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    **dict.fromkeys(("and", "or", "xor"), ("b32", "u32", "s32")),
}


def combine(operation: str, old: Row, b: Row, c: Row | None = None) -> Row:
    """Return the new value of memory after one atomic operation on ``old``."""
    if operation in UFUNCS:
        return np.asarray(UFUNCS[operation](old, b))
    if operation == "exch":
        return b
    if operation == "cas" and c is not None:
        return np.asarray(np.where(old == b, c, old))
    one, zero = old.dtype.type(1), old.dtype.type(0)
    if operation == "inc":
        return np.asarray(np.where(old >= b, zero, old + one))
    return np.asarray(np.where((old == 0) | (old > b), b, old - one))


def check_reduction(operation: str, kind: str, *, shared: bool = False) -> None:
    """Raise ``ArgumentError`` for a bulk reduction to global or shared memory that PTX lacks."""
    known = _SHARED if shared else _GLOBAL
    if kind not in known.get(operation, ()):
        raise ArgumentError(
            argument=f"reduction {operation}",
            got=f"elements of type {kind}",
            wanted=", ".join(known.get(operation, ())) or f"one of {', '.join(known)}",
            fix="Take another type, or load, combine and store.",
        )


def reduced(operation: str, kind: str, old: Row, values: Row) -> Row:
    """Return the new elements after a bulk reduction; ``old`` and ``values`` have the type ``REDUCED[kind]``."""
    if kind == "bf16":
        return f32_to_bf16(np.asarray(combine(operation, bf16_to_f32(old), bf16_to_f32(values)), np.float32))
    if kind == "f32.ftz":
        return flush(combine(operation, flush(old), flush(values)))
    return combine(operation, old, values)
