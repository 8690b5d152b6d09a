"""FMAs and nothing else: the peak rate of FFMA and DFMA."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from matmill.config import Config
from matmill.kernel import GemmOperands, Geometry, Kernel, always
from matmill.launch import Argument


@dataclass(frozen=True)
class MultiplyAdds:
    """``trips`` rounds by ``blocks`` blocks.

    The kernels read a for each of 32 lanes and then b for each; every thread writes the sum of its values.
    """

    trips: int
    blocks: int

    def operations(self, config: Config) -> int:
        """Return the operations of all threads; an FMA counts as two."""
        independent = config["CHAINS"] * config["TM"] * config["TN"]
        return 2 * self.trips * config["LENGTH"] * independent * self.blocks * config["THREADS"]


def _geometry(problem: MultiplyAdds, config: Config) -> Geometry:
    return Geometry(grid=(problem.blocks, 1, 1), block=(config["THREADS"], 1, 1))


def _arguments(problem: MultiplyAdds, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    return (operands.a, operands.d, np.int32(problem.trips))


CHAINS: Kernel[MultiplyAdds] = Kernel(
    entry="fma_chains",
    package=__name__,
    config=Config.of(LENGTH=16, CHAINS=8, TM=1, TN=1, THREADS=256),
    geometry=_geometry,
    arguments=_arguments,
    why_not_config=always,
)

OUTER: Kernel[MultiplyAdds] = Kernel(
    entry="fma_outer",
    package=__name__,
    config=Config.of(LENGTH=2, CHAINS=1, TM=8, TN=8, THREADS=256),
    geometry=_geometry,
    arguments=_arguments,
    why_not_config=always,
)
