"""Instruction families: importing this package fills the instruction table."""

from __future__ import annotations

from matmill.emulator.families import (
    atomics,
    barriers,
    bits,
    cluster,
    compare,
    convert,
    cp_async,
    floats,
    integers,
    ldmatrix,
    loads,
    mbarrier,
    mma,
    moves,
    special_functions,
    unsupported,
    warp_exchange,
)

__all__ = [
    "atomics",
    "barriers",
    "bits",
    "cluster",
    "compare",
    "convert",
    "cp_async",
    "floats",
    "integers",
    "ldmatrix",
    "loads",
    "mbarrier",
    "mma",
    "moves",
    "special_functions",
    "unsupported",
    "warp_exchange",
]
