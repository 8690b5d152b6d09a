"""Chains of one instruction, each waiting for the one before: the latency of FADD, FMUL, FFMA, DFMA."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from matmill.config import Config
from matmill.kernel import GemmOperands, Geometry, Kernel, always
from matmill.launch import Argument


@dataclass(frozen=True)
class Chain:
    """``trips`` rounds of ``LENGTH`` instructions on one value per lane of a warp.

    The kernel reads the 32 lanes' first values and their 32 operands, and writes the cycles of all rounds as int64,
    followed by the lanes' last values.
    """

    trips: int


def _geometry(_problem: Chain, _config: Config) -> Geometry:
    return Geometry(grid=(1, 1, 1), block=(32, 1, 1))


def _arguments(problem: Chain, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    return (operands.a, operands.d, np.int32(problem.trips))


def _chain(entry: str) -> Kernel[Chain]:
    # 128 and 256 instructions: enough for the loop to hardly matter, and few enough for the instruction cache.
    return Kernel(entry, __name__, Config.of(LENGTH=128), _geometry, _arguments, always)


ADD, MULTIPLY, FMA = _chain("chain_add"), _chain("chain_multiply"), _chain("chain_fma")
