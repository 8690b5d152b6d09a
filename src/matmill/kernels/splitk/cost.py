"""The demand and the cost of split-K: the launch that adds the partial sums, and the bytes that they move."""

from __future__ import annotations

from dataclasses import dataclass

from matmill.config import Configs
from matmill.kernel import ceil_div
from matmill.kernels.shared.model import Prices, larger
from matmill.kernels.splitk import LOADED_SLICES, reduction_ways, sums_bytes
from matmill.problem import Gemm


@dataclass(frozen=True)
class Reduction:
    """Launches that add partial sums (0 or 1), their steps, and the bytes of the sums, which are stored and loaded."""

    launches: float
    steps: float
    bytes: float

    @classmethod
    def of(cls, problem: Gemm, config: Configs) -> Reduction:
        """Count launches, steps and bytes. In one step the threads of an output load 16 slices each."""
        slices, ways = config.get("SPLIT_K", 1), reduction_ways(problem, config)
        launches = 1.0 * (ways > 0)
        steps = launches * ceil_div(slices, LOADED_SLICES * larger(ways, 1))
        return cls(launches, steps, 2 * launches * slices * sums_bytes(problem, config))

    def seconds(self, prices: Prices, sm_hz: float) -> float:
        """Return their time on a GPU whose SMs have ``sm_hz`` cycles per second together."""
        moved = self.bytes / (prices.reduction_bytes * sm_hz)
        return self.launches * prices.second + self.steps * prices.reduction_step + moved
