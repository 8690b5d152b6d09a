"""What split-K demands and costs: the launch that adds the partial sums, and what they move."""

from __future__ import annotations

from dataclasses import dataclass

from matmill.config import Configs
from matmill.kernel import ceil_div
from matmill.kernels.splitk import leaves_partials, sums_bytes
from matmill.problem import Gemm


@dataclass(frozen=True)
class ReductionPrice:
    """Seconds of a launch right after another, without its own work, and what that work costs.

    ``step`` are the seconds of each step in which its threads add ``step_slices`` slices, ``l2_bytes`` the bytes of
    partial sums per cycle of each SM.
    """

    launch: float
    step: float
    step_slices: int
    l2_bytes: float


#: Fitted by hand to the 107 split configurations of the kernels gemm and thin in
#: ``benchmarks/results/shapes_h200.json`` and ``thin_h200.json``: L2 alone would be four times as fast, but all blocks
#: store at once, after their last FMA.
FMA_PRICE = ReductionPrice(3.0e-6, 0.3e-6, 64, 5.0)


@dataclass(frozen=True)
class Reduction:
    """Launches that add partial sums (0 or 1), the slices of k that they add, and all bytes of the sums."""

    launches: float
    slices: int
    bytes: float

    @classmethod
    def of(cls, problem: Gemm, config: Configs) -> Reduction:
        """Count them."""
        launches, slices = 1.0 * leaves_partials(problem, config), config.get("SPLIT_K", 1)
        return cls(launches, slices, launches * slices * sums_bytes(problem, config))

    def seconds(self, price: ReductionPrice, sm_hz: float) -> float:
        """Price them on a GPU whose SMs have ``sm_hz`` cycles per second together."""
        steps = ceil_div(self.slices, price.step_slices)
        return self.launches * (price.launch + price.step * steps + self.bytes / (price.l2_bytes * sm_hz))
