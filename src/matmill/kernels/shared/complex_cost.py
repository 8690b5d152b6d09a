"""Cost of copies of complex matrices and of small products of them: the time of their bytes."""

from __future__ import annotations

from matmill.arch import Arch
from matmill.config import Configs
from matmill.kernels.shared.model import PRICES, Prediction, Prices
from matmill.problem import ComplexCopy, Gemm


def explain(problem: ComplexCopy | Gemm, _config: Configs, arch: Arch, prices: Prices = PRICES) -> Prediction:
    """Return the predicted time of ``problem`` on ``arch``, with its one term."""
    memory = problem.least_bytes / (prices.copy_share * arch.dram_bytes_per_s)
    return Prediction(prices.launch + memory, {"memory": memory}, ("memory",))
