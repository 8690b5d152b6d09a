"""Instruction families: importing this package fills the instruction table."""

from __future__ import annotations

from matmill.emulator.families import (
    bits,
    compare,
    convert,
    copies,
    floats,
    integers,
    loads,
    matrices,
    mma,
    moves,
    refused,
    special,
    sync,
    warps,
)

__all__ = [
    "bits", "compare", "convert", "copies", "floats", "integers", "loads", "matrices", "mma", "moves", "refused",
    "special", "sync", "warps",
]  # fmt: skip
