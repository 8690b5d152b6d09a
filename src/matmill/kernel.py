"""A kernel on the host's side: its source, constants, ``why_not``, launch geometry and parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from matmill.arch import Arch
from matmill.config import Columns, Config, Configs, Tiles
from matmill.errors import ArgumentError
from matmill.launch import HOPPER, Argument, Dim3, Launch, Pointer, why_not_shape
from matmill.parameters import Parameters
from matmill.problem import Gemm

P = TypeVar("P")
#: The portable cluster size in blocks (CUDA programming guide, "Thread Block Clusters").
_MOST_IN_CLUSTER = 8
#: Configurations that are predicted one by one: arrays of so few take longer.
_FEW = 4


@dataclass(frozen=True)
class GemmOperands:
    """Pointers and scalars of one product. ``c`` and ``d`` may be the same matrix; ``bias`` is the epilogue's.

    ``imaginary`` are the imaginary parts of alpha and beta, which only kernels of complex elements take.
    ``workspace`` is memory for kernels that need it (see :meth:`Kernel.workspace`), aligned to 16 bytes, with arbitrary
    contents. ``counter`` is a 32-bit word for kernels that count their blocks (see :meth:`Kernel.counts`), 0 before and
    after the launch; None means there is none. A starts ``a_first`` elements after ``a``, B ``b_first`` elements after
    ``b``. (A plan binds pointers by name, so a pointer always has the matrix's own address.)
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
    bias: Pointer | None = None
    imaginary: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Geometry:
    """Grid, block and dynamic shared memory (bytes) of a launch; the others are those of ``Launch``."""

    grid: Dim3
    block: Dim3
    dynamic_shared: int = 0
    resident: int = 0
    cluster: Dim3 = (1, 1, 1)
    even: bool = False


class Program(Protocol):
    """One translation unit: an entry point, its constants and its parameters."""

    @property
    def entry(self) -> str:
        """The ``extern "C"`` function."""

    @property
    def package(self) -> str:
        """The Python package whose folder holds the entry point's file."""

    @property
    def file(self) -> str:
        """The file of the entry point."""

    @property
    def config(self) -> Config:
        """The compiled constants."""

    @property
    def parameters(self) -> Parameters | None:
        """The generated parameters, or None for an entry point that spells them out."""


def name_of(program: Program) -> str:
    """Name a program by its folder, and by its file where the folder has several.

    >>> from matmill.registry import PRODUCTION
    >>> name_of(PRODUCTION[0].kernel)
    'kernels.gemm'
    """
    folder = program.package.removeprefix("matmill.")
    return folder if program.file == "kernel.cuh" else f"{folder}.{program.file.removesuffix('.cuh')}"


@dataclass(frozen=True)
class AuxLaunch(Generic[P]):
    """A launch before or after a kernel's own; it is a program of its own.

    ``geometry`` and ``arguments`` get the problem and the constants of the main kernel. ``needed`` tells whether that
    problem and those constants, or each of many, need the launch; None means always. ``pdl`` is the one of its
    ``Launch``. ``constants`` returns constants that depend on the problem and the main kernel's constants, in addition
    to ``config``.
    """

    entry: str
    package: str
    config: Config
    parameters: Parameters
    geometry: Callable[[P, Config], Geometry]
    arguments: Callable[[P, Config, GemmOperands], tuple[Argument, ...]]
    needed: Callable[[P, Configs], Any] | None = None
    pdl: bool = False
    constants: Callable[[P, Config], dict[str, int]] | None = None
    file: str = "kernel.cuh"

    def of_problem(self, problem: P, config: Config) -> AuxLaunch[P]:
        """Return the launch with the constants that depend on the problem and on those of the main kernel."""
        if self.constants is None:
            return self
        return replace(self, config=self.config.replace(**self.constants(problem, config)), constants=None)


@dataclass(frozen=True)
class Kernel(Generic[P]):
    """One entry point of CUDA C++ and what the host needs to launch it.

    ``package`` is the Python package whose folder holds ``file``, the CUDA C++. ``why_not_config`` is the one place
    that knows when the kernel may run: it returns the reason why not, or None. ``geometry`` turns problem and constants
    into a grid, ``arguments`` gives the entry point's arguments for problem, constants and operands. ``parameters``
    declares the generated parameters. It is None where the entry point spells them out, as those of rungs do, to show
    ``__restrict__``.

    ``before`` and ``after`` are the launches around the kernel's own; ``workspace_bytes`` is the size of the workspace
    that they share. Where ``last_block_reduces`` is true and there is a counter, the last block of the kernel does the
    work of the launches in ``after``. ``rewrite`` returns the problem and operands for the entry point after launches
    in ``before`` have copied operands to another layout. ``pdl`` is the one of its ``Launch``.

    ``instruction`` is the instruction that multiplies (``"fma"``, ``"mma.sync"`` or ``"wgmma"``), or empty where it
    depends on the constants. ``work_tiles`` counts the tiles of D that are computed one after the other, and the blocks
    that share each. It is None for kernels without tiles of D. ``sums_in_slices`` tells whether a configuration adds
    the terms of k as a problem's ``slice_k`` says. It is None for a kernel that never does.
    """

    entry: str
    package: str
    config: Config
    geometry: Callable[[P, Config], Geometry]
    arguments: Callable[[P, Config, GemmOperands], tuple[Argument, ...]]
    why_not_config: Callable[[P, Config, Arch], str | None]
    before: tuple[AuxLaunch[P], ...] = ()
    after: tuple[AuxLaunch[P], ...] = ()
    workspace_bytes: Callable[[P, Config], int] | None = None
    last_block_reduces: Callable[[P, Configs], Any] | None = None
    rewrite: Callable[[P, Config, GemmOperands], tuple[P, GemmOperands]] | None = None
    pdl: bool = False
    parameters: Parameters | None = None
    file: str = "kernel.cuh"
    instruction: str = ""
    work_tiles: Callable[[P, Config], tuple[int, int]] | None = None
    sums_in_slices: Callable[[P, Config], bool] | None = None

    def why_not(self, problem: P, arch: Arch) -> str | None:
        """Return why this kernel cannot compute ``problem`` on ``arch``, or None if it can."""
        reason = self.why_not_config(problem, self.config, arch)
        if reason is not None:
            return reason
        if getattr(problem, "slice_k", 0) and not (self.sums_in_slices and self.sums_in_slices(problem, self.config)):
            return "adds the terms of k in another order than batch-invariant sums have"
        aux = (*self._needed(self.before, problem), *self._needed(self.after, problem))
        shapes = (*(launch.geometry for launch in aux), self.geometry)
        return next(filter(None, (_why_not_geometry(shape(problem, self.config), arch) for shape in shapes)), None)

    def workspace(self, problem: P) -> int:
        """Return the bytes of workspace that all launches together need; 0 for most kernels."""
        return 0 if self.workspace_bytes is None else self.workspace_bytes(problem, self.config)

    def counts(self, problem: P) -> bool:
        """Tell whether a counter saves the launches in ``after``."""
        return self.last_block_reduces is not None and bool(self.last_block_reduces(problem, self.config))

    def count_launches(self, problem: P) -> int:
        """Return the number of launches with a counter."""
        return int(self.launches_with(problem, self.config))

    def launches_with(self, problem: P, config: Configs) -> Any:
        """Return the number of launches with a counter, with one configuration or with each of many."""
        before, after = (
            sum(1 if aux.needed is None else 1 * aux.needed(problem, config) for aux in launches)
            for launches in (self.before, self.after)
        )
        counts = self.last_block_reduces is not None and self.last_block_reduces(problem, config)
        return 1 + before + after * (1 - 1 * counts)

    def programs(self, problem: P) -> tuple[Program, ...]:
        """Return the programs of all launches with a counter, in their order."""
        before, after = (
            tuple(one.of_problem(problem, self.config) for one in self._needed(aux, problem))
            for aux in (self.before, () if self.counts(problem) else self.after)
        )
        return (*before, self, *after)

    def launch(self, problem: P, operands: GemmOperands) -> Launch:
        """Return the launch that computes ``problem`` on ``operands``.

        Raises :class:`~matmill.errors.ArgumentError` for a kernel of several launches, which :meth:`launches` returns.
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
        """Return the launches of :meth:`steps`, without their programs."""
        return tuple(launch for _, launch in self.steps(problem, operands))

    def steps(self, problem: P, operands: GemmOperands) -> tuple[tuple[Program, Launch], ...]:
        """Return the launches that compute ``problem`` on ``operands``, in order, each with its program.

        They run on one stream. Raises :class:`~matmill.errors.ArgumentError` if a workspace is needed and ``operands``
        has none.
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
        given, bound = (problem, operands) if self.rewrite is None else self.rewrite(problem, config, operands)
        own = self, _launch(self, self.geometry(problem, config), self.arguments(given, config, bound), pdl=self.pdl)

        def around(aux: tuple[AuxLaunch[P], ...]) -> list[tuple[Program, Launch]]:
            return [
                (one, _launch(one, one.geometry(problem, config), one.arguments(problem, config, operands), one.pdl))
                for one in (needed.of_problem(problem, config) for needed in self._needed(aux, problem))
            ]

        return (*around(self.before), own, *around(() if operands.counter else self.after))

    def _needed(self, aux: tuple[AuxLaunch[P], ...], problem: P) -> tuple[AuxLaunch[P], ...]:
        """Return the launches among ``aux`` that ``problem`` needs."""
        return tuple(one for one in aux if one.needed is None or one.needed(problem, self.config))

    def with_config(self, config: Config) -> Kernel[P]:
        """Return the same kernel with other constants."""
        return replace(self, config=config)


class Prediction(Protocol):
    """The interface of :class:`matmill.kernels.shared.model.Prediction`, which this file may not import."""

    @property
    def seconds(self) -> float:
        """The seconds of all launches."""

    @property
    def terms(self) -> Mapping[str, float]:
        """The parts of that time in seconds, by name."""

    @property
    def pace(self) -> Mapping[str, float]:
        """Cycles per k-step of each unit that the kernel keeps busy, by name."""

    @property
    def bound(self) -> str:
        """The name of the term that bounds the time."""


@dataclass(frozen=True)
class Production(Generic[P]):
    """A production kernel, the configurations worth considering for a problem on an arch, and its cost model.

    ``explain`` returns the model's prediction for a problem on an arch, with one configuration or with each of many.
    ``tile`` names the constants that the host is free to choose; all others follow from the problem. ``among`` returns
    those configurations of ``space`` whose tile is in a set.
    ``general`` returns a configuration that takes the problem and, with the same constants, many others of its element
    type, or None: it answers, if not fast, while a better kernel is being compiled.
    ``least`` returns seconds that no legal configuration undercuts, in much less time than ``explain``.
    """

    kernel: Kernel[P]
    space: Callable[[P, Arch], tuple[Config, ...]]
    explain: Callable[[P, Configs, Arch], Prediction]
    tile: tuple[str, ...] = ()
    among: Callable[[P, Arch, Tiles | None], Columns] | None = None
    general: Callable[[P, Arch], Config | None] | None = None
    least: Callable[[P, Arch], float] | None = None

    @classmethod
    def of(
        cls,
        kernel: Kernel[P],
        among: Callable[[P, Arch, Tiles | None], Columns],
        explain: Callable[[P, Configs, Arch], Prediction],
        tile: tuple[str, ...],
        general: Callable[[P, Arch], Config | None] | None = None,
        *,
        least: Callable[[P, Arch], float] | None = None,
    ) -> Production[P]:
        """Return the production kernel whose space is what ``among`` returns without a set of tiles."""

        def space(problem: P, arch: Arch) -> tuple[Config, ...]:
            return among(problem, arch, None).configs

        return cls(kernel, space, explain, tile, among, general, least)

    def columns(self, problem: P, arch: Arch, tiles: Tiles | None = None) -> Columns:
        """Return the configurations worth considering, or with ``tiles`` those that have one of them."""
        if tiles is not None and not tiles:
            return Columns(())
        if self.among is None:
            return Columns(self.space(problem, arch))
        return self.among(problem, arch, tiles)

    def predict(self, problem: P, configs: Sequence[Config] | Columns, arch: Arch) -> list[float]:
        """Predict the seconds that ``problem`` takes on ``arch`` with each of ``configs``."""
        columns = configs if isinstance(configs, Columns) else Columns(configs)
        if len(columns) <= _FEW:
            try:
                return [self.explain(problem, config, arch).seconds for config in columns.configs]
            except ArithmeticError:  # of an illegal one: arrays have infinities
                pass
        predicted: list[float] = np.broadcast_to(self.explain(problem, columns, arch).seconds, len(columns)).tolist()
        return predicted

    def legal(self, problem: P, arch: Arch, tiles: Tiles | None = None) -> Iterator[Kernel[P]]:
        """Return the kernel with each of :meth:`columns` that is legal for ``problem``."""
        kernels = (self.kernel.with_config(config) for config in self.columns(problem, arch, tiles).configs)
        return (kernel for kernel in kernels if kernel.why_not(problem, arch) is None)


@dataclass(frozen=True)
class Document:
    """The publication that a rung is taken from: its short name, its title, and its address if it is public."""

    key: str
    title: str
    link: str = ""


@dataclass(frozen=True)
class Rung(Generic[P]):
    """One step of a ladder: a kernel, what it changes, and the gain predicted before measuring.

    ``idea`` is the change in a few words, ``base`` the label of the rung that it changes, None for the one before it.
    ``claim`` is what the source document reports, with its GPU and unit, or an empty string. ``tune`` chooses the
    constants for a problem. None keeps the kernel's own: only rungs about the choice itself have it.
    """

    name: str
    source: Document
    idea: str
    changes: str
    predicts: str
    kernel: Kernel[P]
    parameter: int | None = None
    claim: str = ""
    base: str | None = None
    tune: Callable[[P, Arch], Config] | None = None

    def kernel_for(self, problem: P, arch: Arch) -> Kernel[P]:
        """Return the kernel with this rung's constants for ``problem`` on ``arch``."""
        return self.kernel if self.tune is None else self.kernel.with_config(self.tune(problem, arch))

    @property
    def label(self) -> str:
        """The name, with its parameter if it has one: ``ilp(4)``, ``naive``."""
        return self.name if self.parameter is None else f"{self.name}({self.parameter})"


def always(_problem: object, _config: Config, _arch: Arch) -> None:
    """Accept every problem: ``why_not_config`` of a kernel without restrictions."""


def multiples(m: int = 1, n: int = 1, k: int = 1) -> Callable[[Gemm, Config, Arch], str | None]:
    """Return ``why_not_config`` of a kernel that needs m, n and k to be multiples of fixed numbers."""

    def why_not(problem: Gemm, _config: Config, _arch: Arch) -> str | None:
        for name, value, factor in (("m", problem.m, m), ("n", problem.n, n), ("k", problem.k, k)):
            if value % factor:
                return f"{name} = {value} is not a multiple of {factor}"
        return None

    return why_not


def ceil_div(a: int, b: int) -> int:
    """Return a / b, rounded up, for b > 0.

    >>> ceil_div(7, 4)
    2
    """
    return -(-a // b)


def _launch(program: Program, geometry: Geometry, args: tuple[Argument, ...], pdl: bool) -> Launch:  # noqa: FBT001
    return Launch(
        kernel=name_of(program),
        entry=program.entry,
        grid=geometry.grid,
        block=geometry.block,
        args=args,
        dynamic_shared=geometry.dynamic_shared,
        pdl=pdl,
        resident=geometry.resident,
        cluster=geometry.cluster,
        even=geometry.even,
    )


def _why_not_geometry(geometry: Geometry, arch: Arch) -> str | None:
    why = why_not_shape(
        geometry.grid,
        geometry.block,
        geometry.dynamic_shared,
        most_threads=arch.max_threads_per_block,
        most_shared=arch.shared_per_block,
    )
    return why if why is not None or geometry.cluster == (1, 1, 1) else _why_not_cluster(geometry, arch)


def _why_not_cluster(geometry: Geometry, arch: Arch) -> str | None:
    blocks = prod(geometry.cluster)
    if arch.capability < HOPPER:
        return f"clusters need compute capability 9.0: {arch.name} has {'.'.join(map(str, arch.capability))}"
    if blocks > _MOST_IN_CLUSTER:
        return f"{blocks} blocks per cluster > {_MOST_IN_CLUSTER}"
    for axis, extent, size in zip("xyz", geometry.grid, geometry.cluster, strict=True):
        if extent % size:
            return f"grid.{axis} = {extent} is not a multiple of the cluster's {size}"
    return None
