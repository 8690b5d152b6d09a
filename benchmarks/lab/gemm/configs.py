"""Configurations by the names that records have for them."""

from __future__ import annotations

from matmill.config import Config
from matmill.kernel import Kernel
from matmill.problem import Gemm


def config_of(name: str, kernel: Kernel[Gemm]) -> Config:
    """Return the configuration that a record names; its constants of the launch are those that the kernel's own has.

    >>> from matmill.kernels.hgemm import HGEMM
    >>> config_of(str(HGEMM.config), HGEMM) == HGEMM.config
    True
    """
    values = {key: int(value) for key, _, value in (word.partition("=") for word in name.split())}
    launched = {key: values.pop(key) for key, _ in kernel.config.launch}
    return Config.of(**values).launched(**launched)
