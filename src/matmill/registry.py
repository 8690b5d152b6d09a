"""The production kernels that ``choose`` picks from.

A kernel is registered by naming it here; tests, benchmarks and documentation read these tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import Kernel, P
from matmill.kernels.gemm import GEMM, space_where_wide
from matmill.kernels.gemm import cost as gemm_cost
from matmill.kernels.hgemm import HGEMM
from matmill.kernels.hgemm import cost as hgemm_cost
from matmill.kernels.hgemm import space as hgemm_space
from matmill.kernels.inner import INNER
from matmill.kernels.inner import cost as inner_cost
from matmill.kernels.inner.space import space_where_long
from matmill.kernels.short_k import SHORT_K
from matmill.kernels.short_k import cost as short_k_cost
from matmill.kernels.short_k import space as short_k_space
from matmill.kernels.thin import THIN
from matmill.kernels.thin import cost as thin_cost
from matmill.kernels.thin import space as thin_space
from matmill.kernels.transpose import cost as transpose_add_cost
from matmill.kernels.transpose.add import TRANSPOSE_ADD
from matmill.kernels.transpose.slim import TRANSPOSE_SLIM
from matmill.kernels.transpose.slim import space as slim_space
from matmill.kernels.transpose.small import TRANSPOSE_SMALL
from matmill.kernels.transpose.small import space as small_space
from matmill.kernels.transpose.tiles import space as transpose_space
from matmill.kernels.wgmma import WGMMA
from matmill.kernels.wgmma import cost as wgmma_cost
from matmill.kernels.wgmma import space as wgmma_space
from matmill.problem import Geam, Gemm


class Prediction(Protocol):
    """What every cost model returns: the total seconds, the term that decides, and terms of its own."""

    @property
    def seconds(self) -> float:
        """The seconds of all launches."""

    @property
    def bound(self) -> str:
        """The term that decides."""


@dataclass(frozen=True)
class Production(Generic[P]):
    """A production kernel, the configurations worth considering for a problem on an arch, and its cost model.

    ``explain`` gives the model's prediction for a problem with one of these configurations on an arch.
    """

    kernel: Kernel[P]
    space: Callable[[P, Arch], tuple[Config, ...]]
    explain: Callable[[P, Config, Arch], Prediction]

    def predict(self, problem: P, config: Config, arch: Arch) -> float:
        """The seconds that the model predicts."""
        return self.explain(problem, config, arch).seconds

    def legal(self, problem: P, arch: Arch) -> Iterator[Kernel[P]]:
        """The kernel with each configuration that is legal for ``problem``."""
        kernels = (self.kernel.with_config(config) for config in self.space(problem, arch))
        return (kernel for kernel in kernels if kernel.why_not(problem, arch) is None)


#: Kernels for products.
PRODUCTION: tuple[Production[Gemm], ...] = (
    Production(GEMM, space_where_wide, gemm_cost.explain),
    Production(HGEMM, hgemm_space, hgemm_cost.explain),
    Production(WGMMA, wgmma_space, wgmma_cost.explain),
    Production(SHORT_K, short_k_space, short_k_cost.explain),
    Production(INNER, space_where_long, inner_cost.explain),
    Production(THIN, thin_space, thin_cost.explain),
)

#: Kernels for transpose-add, whatever the operands' strides.
TRANSPOSE_ADD_KERNELS: tuple[Production[Geam], ...] = (
    Production(TRANSPOSE_ADD, transpose_space, transpose_add_cost.explain),
    Production(TRANSPOSE_SMALL, small_space, transpose_add_cost.explain),
    Production(TRANSPOSE_SLIM, slim_space, transpose_add_cost.explain),
)
