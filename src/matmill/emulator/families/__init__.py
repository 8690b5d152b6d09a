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
    setmaxnreg,
    special_functions,
    tensormap,
    unsupported,
    warp_exchange,
    wgmma,
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
    "setmaxnreg",
    "special_functions",
    "tensormap",
    "unsupported",
    "warp_exchange",
    "wgmma",
]
