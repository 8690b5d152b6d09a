"""What a kernel is to the host: where its source lies, its constants, when it is legal, and its launch geometry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from matmill.arch import Arch
from matmill.config import Config
from matmill.execute import Argument, Dim3, Launch, Pointer
from matmill.problem import Gemm

P = TypeVar("P")


@dataclass(frozen=True)
class GemmOperands:
    """Where the matrices of one product lie, and its scalars. ``c`` and ``d`` may be the same matrix."""

    a: Pointer
    b: Pointer
    c: Pointer
    d: Pointer
    alpha: float = 1.0
    beta: float = 0.0


@dataclass(frozen=True)
class Geometry:
    """Grid and block of a launch, and its dynamic shared memory in bytes."""

    grid: Dim3
    block: Dim3
    dynamic_shared: int = 0


@dataclass(frozen=True)
class Kernel(Generic[P]):
    """One entry point of CUDA C++ and all the host needs to know of it.

    ``package`` is the Python package whose folder holds ``kernel.cuh``. ``legality`` is the one place that knows when
    the kernel may run: it returns the reason against it, or None. ``geometry`` turns problem and constants into a
    launch, ``arguments`` lays out the entry point's parameters.
    """

    entry: str
    package: str
    config: Config
    geometry: Callable[[P, Config], Geometry]
    arguments: Callable[[P, GemmOperands], tuple[Argument, ...]]
    legality: Callable[[P, Config, Arch], str | None]

    def why_not(self, problem: P, arch: Arch) -> str | None:
        """The reason this kernel cannot compute ``problem`` on ``arch``, or None where it can."""
        geometry = self.geometry(problem, self.config)
        return self.legality(problem, self.config, arch) or _over_limits(geometry, arch)

    def launch(self, problem: P, operands: GemmOperands) -> Launch:
        """The launch that computes ``problem`` on ``operands``."""
        geometry = self.geometry(problem, self.config)
        return Launch(
            kernel=self.package.removeprefix("matmill."),
            entry=self.entry,
            grid=geometry.grid,
            block=geometry.block,
            args=self.arguments(problem, operands),
            dynamic_shared=geometry.dynamic_shared,
        )

    def with_config(self, config: Config) -> Kernel[P]:
        """The same kernel with other constants."""
        return replace(self, config=config)


@dataclass(frozen=True)
class Document:
    """A source document that a rung comes from."""

    key: str
    title: str


@dataclass(frozen=True)
class Rung(Generic[P]):
    """One step of a ladder: a kernel, what changes in it, and the gain predicted before measuring.

    ``claim`` is what the source document reports, with its GPU and unit, or an empty string. ``tune`` picks the
    constants for a problem where the rung's idea is to do so; without it they are always the kernel's own.
    """

    name: str
    source: Document
    changes: str
    predicts: str
    kernel: Kernel[P]
    parameter: int | None = None
    claim: str = ""
    tune: Callable[[P, Arch], Config] | None = None

    def kernel_for(self, problem: P, arch: Arch) -> Kernel[P]:
        """The kernel with the constants that this rung uses for ``problem`` on ``arch``."""
        return self.kernel if self.tune is None else self.kernel.with_config(self.tune(problem, arch))

    @property
    def label(self) -> str:
        """The name as users type and read it: ``ilp(4)``, ``naive``."""
        return self.name if self.parameter is None else f"{self.name}({self.parameter})"


def always(_problem: object, _config: Config, _arch: Arch) -> None:
    """Legality of a kernel that takes every problem."""


def multiples(m: int = 1, n: int = 1, k: int = 1) -> Callable[[Gemm, Config, Arch], str | None]:
    """Legality of a kernel whose idea needs m, n and k to be multiples of fixed numbers (and at least one of each)."""

    def legality(problem: Gemm, _config: Config, _arch: Arch) -> str | None:
        for name, value, factor in (("m", problem.m, m), ("n", problem.n, n), ("k", problem.k, k)):
            if value % factor:
                return f"{name} = {value} is not a multiple of {factor}"
        return None

    return legality


def ceil_div(a: int, b: int) -> int:
    """The least integer that is at least a / b, for b > 0.

    >>> ceil_div(7, 4)
    2
    """
    return -(-a // b)


def _over_limits(geometry: Geometry, arch: Arch) -> str | None:
    x, y, z = geometry.block
    if x * y * z > arch.max_threads_per_block:
        return f"{x * y * z} threads per block > {arch.max_threads_per_block}"
    if geometry.dynamic_shared > arch.shared_per_block:
        return f"shared memory {geometry.dynamic_shared} > {arch.shared_per_block} bytes per block"
    for axis, extent, limit in zip("xyz", geometry.grid, (2**31 - 1, 65535, 65535), strict=True):
        if extent > limit:
            return f"grid.{axis} = {extent} > {limit}"
    return None
