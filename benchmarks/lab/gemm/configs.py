"""Configurations by the names that records have for them."""

from __future__ import annotations

from matmill.config import Config
from matmill.kernel import Kernel
from matmill.kernels.wgmma import WGMMA
from matmill.problem import Gemm


def config_of(name: str, kernel: Kernel[Gemm]) -> Config:
    """Return the configuration that a record names; its constants of the launch are those that the kernel's own has.

    >>> from matmill.kernels.hgemm import HGEMM
    >>> config_of(str(HGEMM.config), HGEMM) == HGEMM.config
    True
    """
    values = {key: int(value) for key, _, value in (word.partition("=") for word in name.split())}
    if kernel.entry == WGMMA.entry:
        # Older records have no slices of k in clusters, no A in registers, one chain of sums, and D row by row.
        older = {"CLUSTER_K": 1, "CHAINS": 1, "A_IN_REGISTERS": 0, "A_PAIRED": 0, "INTERLEAVED": 0, "D_ONE_RUN": 0}
        values = {**older, **values}
    launched = {key: values.pop(key) for key, _ in kernel.config.launch}
    return Config.of(**values).launched(**launched)
