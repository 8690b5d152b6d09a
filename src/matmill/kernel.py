"""What a kernel is to the host: where its source lies, its constants, when it is legal, and its launch geometry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from matmill.arch import Arch
from matmill.config import Config
from matmill.errors import ArgumentError
from matmill.execute import Argument, Dim3, Launch, Pointer
from matmill.problem import Gemm

P = TypeVar("P")


@dataclass(frozen=True)
class GemmOperands:
    """Where the matrices of one product lie, and its scalars. ``c`` and ``d`` may be the same matrix.

    ``workspace`` is memory for kernels that need some (see :meth:`Kernel.workspace`), aligned to 16 bytes; what it
    holds before and after is of no interest. ``counter`` is a 32-bit word for kernels that count their blocks (see
    :meth:`Kernel.counts`), 0 before the launch and after it, or None where there is none. ``a_first`` and ``b_first``
    are how many elements after ``a`` and ``b`` the matrices begin: pointers themselves are those of the six names that
    a plan aims, and of nothing between.
    """

    a: Pointer
    b: Pointer
    c: Pointer
    d: Pointer
    alpha: float = 1.0
    beta: float = 0.0
    workspace: Pointer | None = None
    counter: Pointer | None = None
    a_first: int = 0
    b_first: int = 0


@dataclass(frozen=True)
class Geometry:
    """Grid and block of a launch, its dynamic shared memory in bytes, and ``resident`` as in ``Launch``."""

    grid: Dim3
    block: Dim3
    dynamic_shared: int = 0
    resident: int = 0


@dataclass(frozen=True)
class Stage(Generic[P]):
    """One more launch that a kernel needs before or after its own: another entry point of the same source.

    ``needed`` says for which problems and constants it is made; None means always. ``early`` is that of its launches.
    """

    entry: str
    geometry: Callable[[P, Config], Geometry]
    arguments: Callable[[P, Config, GemmOperands], tuple[Argument, ...]]
    needed: Callable[[P, Config], bool] | None = None
    early: bool = False


@dataclass(frozen=True)
class Kernel(Generic[P]):
    """One entry point of CUDA C++ and all the host needs to know of it.

    ``package`` is the Python package whose folder holds ``kernel.cuh``. ``legality`` is the one place that knows when
    the kernel may run: it returns the reason against it, or None. ``geometry`` turns problem and constants into a
    launch, ``arguments`` lays out the entry point's parameters. ``before`` and ``after`` are the launches around it,
    if it needs any, and ``scratch`` the bytes of workspace through which they speak with each other. ``alone`` says for
    which problems and constants the last block of the launch does what the launches after it do, given a counter that
    tells it so. ``seen`` is what the entry point gets to see of problem and operands, where launches before it have
    changed how those lie. ``early`` is that of its launch.
    """

    entry: str
    package: str
    config: Config
    geometry: Callable[[P, Config], Geometry]
    arguments: Callable[[P, GemmOperands], tuple[Argument, ...]]
    legality: Callable[[P, Config, Arch], str | None]
    before: tuple[Stage[P], ...] = ()
    after: tuple[Stage[P], ...] = ()
    scratch: Callable[[P, Config], int] | None = None
    alone: Callable[[P, Config], bool] | None = None
    seen: Callable[[P, Config, GemmOperands], tuple[P, GemmOperands]] | None = None
    early: bool = False

    def why_not(self, problem: P, arch: Arch) -> str | None:
        """The reason this kernel cannot compute ``problem`` on ``arch``, or None where it can."""
        reason = self.legality(problem, self.config, arch)
        if reason is not None:
            return reason
        stages = (*self._made(self.before, problem), *self._made(self.after, problem))
        shapes = (*(stage.geometry for stage in stages), self.geometry)
        return next(filter(None, (_over_limits(shape(problem, self.config), arch) for shape in shapes)), None)

    def workspace(self, problem: P) -> int:
        """Bytes of workspace that the launches need; 0 for most kernels."""
        return 0 if self.scratch is None else self.scratch(problem, self.config)

    def counts(self, problem: P) -> bool:
        """Whether the launches can do with a counter what takes one more launch without."""
        return self.alone is not None and self.alone(problem, self.config)

    def count_launches(self, problem: P) -> int:
        """How many launches there are, given a counter."""
        after = () if self.counts(problem) else self.after
        return 1 + len(self._made(self.before, problem)) + len(self._made(after, problem))

    def launch(self, problem: P, operands: GemmOperands) -> Launch:
        """The one launch that computes ``problem`` on ``operands``.

        Raises :class:`~matmill.errors.ArgumentError` for a kernel of several launches, of which one alone would be no
        answer: :meth:`launches` gives them all.
        """
        launches = self.launches(problem, operands)
        if len(launches) != 1:
            raise ArgumentError(
                argument=f"kernel {self.entry}",
                got=f"one launch asked of a kernel of {len(launches)}",
                wanted="all of them, in order",
                fix="Use Kernel.launches().",
            )
        return launches[0]

    def launches(self, problem: P, operands: GemmOperands) -> tuple[Launch, ...]:
        """The launches, to be run in order on one stream, that compute ``problem`` on ``operands``.

        Their entry points are all in the source that this kernel generates.
        Raises :class:`~matmill.errors.ArgumentError` where a workspace is needed and ``operands`` has none.
        """
        needed = self.workspace(problem)
        if needed and operands.workspace is None:
            raise ArgumentError(
                argument="workspace",
                got="none",
                wanted=f"{needed} bytes for kernel {self.entry}",
                fix="Allocate Kernel.workspace(problem) bytes and pass their pointer in GemmOperands.",
            )
        if not needed:
            operands = replace(operands, workspace=None)
        if not self.counts(problem):
            operands = replace(operands, counter=None)
        config = self.config
        seen = (problem, operands) if self.seen is None else self.seen(problem, config, operands)
        own = self._launch(self.entry, self.geometry(problem, config), self.arguments(*seen), early=self.early)
        before, after = (
            tuple(
                self._launch(
                    stage.entry,
                    stage.geometry(problem, config),
                    stage.arguments(problem, config, operands),
                    early=stage.early,
                )
                for stage in self._made(stages, problem)
            )
            for stages in (self.before, () if operands.counter else self.after)
        )
        return (*before, own, *after)

    def _made(self, stages: tuple[Stage[P], ...], problem: P) -> tuple[Stage[P], ...]:
        """Those of the stages that are made for ``problem``."""
        return tuple(stage for stage in stages if stage.needed is None or stage.needed(problem, self.config))

    def _launch(self, entry: str, geometry: Geometry, args: tuple[Argument, ...], *, early: bool = False) -> Launch:
        return Launch(
            kernel=self.package.removeprefix("matmill."),
            entry=entry,
            grid=geometry.grid,
            block=geometry.block,
            args=args,
            dynamic_shared=geometry.dynamic_shared,
            early=early,
            resident=geometry.resident,
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
    """Legality of a kernel whose idea needs m, n and k to be multiples of fixed numbers."""

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
