"""What a kernel is to the host: where its source lies, its constants, when it is legal, and its launch geometry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Generic, Protocol, TypeVar

from matmill.arch import Arch
from matmill.config import Config
from matmill.errors import ArgumentError
from matmill.launch import HOPPER, Argument, Dim3, Launch, Pointer
from matmill.parameters import Parameters
from matmill.problem import Gemm

P = TypeVar("P")
#: Blocks of a cluster that every GPU with clusters takes (CUDA programming guide, "Thread Block Clusters").
_MOST_IN_CLUSTER = 8


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
    """Grid and block of a launch, its dynamic shared memory in bytes; ``resident`` and ``cluster`` as in ``Launch``."""

    grid: Dim3
    block: Dim3
    dynamic_shared: int = 0
    resident: int = 0
    cluster: Dim3 = (1, 1, 1)


class Program(Protocol):
    """What becomes one translation unit: the entry point of a ``kernel.cuh``, its constants and its parameters."""

    @property
    def entry(self) -> str:
        """The ``extern "C"`` function."""

    @property
    def package(self) -> str:
        """The Python package whose folder holds ``kernel.cuh``."""

    @property
    def config(self) -> Config:
        """The constants that are compiled in."""

    @property
    def parameters(self) -> Parameters | None:
        """The fields of the one struct that the entry point takes; None where it has a list of parameters."""


@dataclass(frozen=True)
class AuxLaunch(Generic[P]):
    """One more launch that a kernel needs before or after its own: a program by itself.

    ``geometry`` and ``arguments`` get the problem and the constants of the kernel around which it is launched.
    ``needed`` says for which of these it is; None means always. ``early`` is that of its launches.
    """

    entry: str
    package: str
    config: Config
    parameters: Parameters
    geometry: Callable[[P, Config], Geometry]
    arguments: Callable[[P, Config, GemmOperands], tuple[Argument, ...]]
    needed: Callable[[P, Config], bool] | None = None
    early: bool = False


@dataclass(frozen=True)
class Kernel(Generic[P]):
    """One entry point of CUDA C++ and all the host needs to know of it.

    ``package`` is the Python package whose folder holds ``kernel.cuh``. ``legality`` is the one place that knows when
    the kernel may run: it returns the reason against it, or None. ``geometry`` turns problem and constants into a
    launch, ``arguments`` gives the entry point's arguments. ``parameters`` are the fields of its ``struct Args``; None
    where the entry point has a list of parameters, as rungs do: ``__restrict__``, which is part of what they show,
    does not reach into a struct. ``before`` and ``after`` are the launches around it,
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
    before: tuple[AuxLaunch[P], ...] = ()
    after: tuple[AuxLaunch[P], ...] = ()
    scratch: Callable[[P, Config], int] | None = None
    alone: Callable[[P, Config], bool] | None = None
    seen: Callable[[P, Config, GemmOperands], tuple[P, GemmOperands]] | None = None
    early: bool = False
    parameters: Parameters | None = None

    def why_not(self, problem: P, arch: Arch) -> str | None:
        """The reason this kernel cannot compute ``problem`` on ``arch``, or None where it can."""
        reason = self.legality(problem, self.config, arch)
        if reason is not None:
            return reason
        aux = (*self._needed(self.before, problem), *self._needed(self.after, problem))
        shapes = (*(launch.geometry for launch in aux), self.geometry)
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
        return 1 + len(self._needed(self.before, problem)) + len(self._needed(after, problem))

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
        """The launches of :meth:`steps`, without their programs."""
        return tuple(launch for _, launch in self.steps(problem, operands))

    def steps(self, problem: P, operands: GemmOperands) -> tuple[tuple[Program, Launch], ...]:
        """The launches, to be run in order on one stream, that compute ``problem`` on ``operands``.

        Each comes with the program whose entry point it launches.
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
        own = self, _launch(self, self.geometry(problem, config), self.arguments(*seen), early=self.early)

        def around(aux: tuple[AuxLaunch[P], ...]) -> list[tuple[Program, Launch]]:
            return [
                (one, _launch(one, one.geometry(problem, config), one.arguments(problem, config, operands), one.early))
                for one in self._needed(aux, problem)
            ]

        return (*around(self.before), own, *around(() if operands.counter else self.after))

    def _needed(self, aux: tuple[AuxLaunch[P], ...], problem: P) -> tuple[AuxLaunch[P], ...]:
        """Those that are launched for ``problem``."""
        return tuple(one for one in aux if one.needed is None or one.needed(problem, self.config))

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


def _launch(program: Program, geometry: Geometry, args: tuple[Argument, ...], early: bool) -> Launch:  # noqa: FBT001
    return Launch(
        kernel=program.package.removeprefix("matmill."),
        entry=program.entry,
        grid=geometry.grid,
        block=geometry.block,
        args=args,
        dynamic_shared=geometry.dynamic_shared,
        early=early,
        resident=geometry.resident,
        cluster=geometry.cluster,
    )


def _over_limits(geometry: Geometry, arch: Arch) -> str | None:
    x, y, z = geometry.block
    if x * y * z > arch.max_threads_per_block:
        return f"{x * y * z} threads per block > {arch.max_threads_per_block}"
    if geometry.dynamic_shared > arch.shared_per_block:
        return f"shared memory {geometry.dynamic_shared} > {arch.shared_per_block} bytes per block"
    for axis, extent, limit in zip("xyz", geometry.grid, (2**31 - 1, 65535, 65535), strict=True):
        if extent > limit:
            return f"grid.{axis} = {extent} > {limit}"
    return None if geometry.cluster == (1, 1, 1) else _no_cluster(geometry, arch)


def _no_cluster(geometry: Geometry, arch: Arch) -> str | None:
    blocks = prod(geometry.cluster)
    if arch.capability < HOPPER:
        return f"clusters need compute capability 9.0: {arch.name} has {'.'.join(map(str, arch.capability))}"
    if blocks > _MOST_IN_CLUSTER:
        return f"{blocks} blocks per cluster > {_MOST_IN_CLUSTER}"
    for axis, extent, size in zip("xyz", geometry.grid, geometry.cluster, strict=True):
        if extent % size:
            return f"grid.{axis} = {extent} is not a multiple of the cluster's {size}"
    return None
