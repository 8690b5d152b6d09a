"""Reads of shared memory without bank conflicts: its bandwidth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from matmill.config import Config
from matmill.kernel import GemmOperands, Geometry, Kernel, always
from matmill.launch import Argument


@dataclass(frozen=True)
class SharedReads:
    """``trips`` rounds of ``LENGTH`` reads of 16 bytes per thread, by ``blocks`` blocks.

    Every thread writes the sum of the words it read as uint32, modulo 2**32.
    """

    trips: int
    blocks: int

    def nbytes(self, config: Config) -> int:
        """Return the bytes that all threads read."""
        return 16 * self.trips * config["LENGTH"] * self.blocks * config["THREADS"]


def _geometry(problem: SharedReads, config: Config) -> Geometry:
    return Geometry(grid=(problem.blocks, 1, 1), block=(config["THREADS"], 1, 1))


def _arguments(problem: SharedReads, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    return (operands.d, np.int32(problem.trips))


READ: Kernel[SharedReads] = Kernel(
    entry="shared_read",
    package=__name__,
    config=Config.of(LENGTH=32, ROWS=4, THREADS=256),
    geometry=_geometry,
    arguments=_arguments,
    why_not_config=always,
)
