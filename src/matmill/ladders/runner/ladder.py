"""A ladder as one record: its rungs, measurements, options, sizes, libraries and production row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal

from matmill.arch import Arch
from matmill.bench.libraries.blas import LibraryProduct
from matmill.bench.problems.options import EmulatorLimit, ProblemOptions
from matmill.choose import Choice
from matmill.errors import IllegalConfigError
from matmill.kernel import Kernel, P, Rung
from matmill.ladders.documents import OURS
from matmill.ladders.runner.subject import S, Subject
from matmill.problem import Gemm

#: The executors of a ladder.
On = Literal["gpu", "emulator"]
#: Takes the selected rungs, the launch constants and the executor; returns the rungs to run, and notes about them.
Launches = Callable[[Sequence[Any], Mapping[str, int], On], tuple[Sequence[Any], tuple[str, ...]]]
#: Takes the inputs and the addresses of both on the GPU; returns the available libraries, and why others are missing.
Libraries = Callable[[Any, int, int], tuple[Sequence[LibraryProduct], list[str]]]


@dataclass(frozen=True)
class Chosen(Rung[P]):
    """The kernel and constants that matmill would run for a problem on an arch: the last row of a ladder's run."""

    choose: Callable[[P, Arch], Choice[P]] = field(kw_only=True)

    def kernel_for(self, problem: P, arch: Arch) -> Kernel[P]:
        """Return the chosen kernel, or a kernel that says why there is none."""
        try:
            return self.choose(problem, arch).kernel
        except IllegalConfigError:
            return self.kernel


@dataclass(frozen=True)
class Option:
    """An option of one ladder: words of ``metavar``, or a constant of the launch, a whole number."""

    name: str
    help: str
    metavar: str | None = None

    @property
    def constant(self) -> str | None:
        """The launch constant that it sets, or None."""
        return self.name.upper() if self.metavar is None else None


def production(
    kernel: Kernel[P], choose: Callable[[P, Arch], Choice[P]], changes: str, predicts: str
) -> tuple[Rung[P], ...]:
    """Return the last row of a ladder: the kernel that matmill would run."""
    row = Chosen(
        name="production",
        source=OURS,
        idea="what matmill runs",
        changes=changes,
        predicts=predicts,
        kernel=kernel,
        choose=choose,
        base="",
    )
    return (row,)


def _as_tuned(rungs: Sequence[Any], _given: Mapping[str, int], _on: On) -> tuple[Sequence[Any], tuple[str, ...]]:
    """Return the rungs with the launches that they choose themselves."""
    return rungs, ()


def _no_libraries(_inputs: Any, _a: int, _b: int) -> tuple[Sequence[LibraryProduct], list[str]]:
    return (), []


@dataclass(frozen=True)
class Ladder(Generic[S]):
    """The properties of one ladder.

    ``sizes`` are the defaults that ``problem`` takes besides the user's options. ``options`` names the shared options
    that this ladder takes and others do not, ``own`` are options that only it has, and ``help`` is the description of
    its group. ``too_long`` refuses emulation that would take long and was not requested explicitly. ``no_libraries`` is
    the note if ``libraries`` has none. ``same_bits`` names the rows that promise the same bits in every run.

    ``short`` names the rungs that tell the story, if not all of them do. With ``as_on_gpu`` rungs that choose their
    constants take those for the GPU's sizes in the emulator too, unless the user names sizes. ``groups`` names what
    multiplies, by the first rung that it is of ("" for the first of all); ladders without groups are compared with a
    limit, not with a library.
    """

    name: str
    rungs: tuple[Any, ...]
    subject: Subject[S]
    problem: Callable[[ProblemOptions, Any], S]
    sizes: Mapping[On, tuple[int, ...]]
    too_long: EmulatorLimit
    production: tuple[Rung[S], ...] = ()
    options: frozenset[str] = frozenset()
    own: tuple[Option, ...] = ()
    help: str = ""
    launches: Launches = _as_tuned
    libraries: Libraries = _no_libraries
    no_libraries: str = "no cuBLAS to compare with: install torch or CuPy with CUDA"
    same_bits: frozenset[str] = frozenset()
    short: tuple[str, ...] = ()
    as_on_gpu: bool = False
    groups: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[Any, ...]:
        """The rungs, followed by the production kernel, if there is one.

        >>> from matmill.ladders.registry import LADDERS
        >>> [row.name for row in LADDERS["inner"].rows][-2:]
        ['gram', 'production']
        """
        return (*self.rungs, *self.production)

    def base(self, label: str) -> Any:
        """Return the rung that the one with this label grew from, or None where its source is a start of its own.

        >>> from matmill.ladders.registry import LADDERS
        >>> LADDERS["sgemm"].base("ilp(2)").label, LADDERS["sgemm"].base("register-tile").label
        ('ilp(1)', 'shared(32)')
        """
        labels = [rung.label for rung in self.rungs]
        if label not in labels:
            return None
        index = labels.index(label)
        named = self.rungs[index].base
        if named is None:
            return self.rungs[index - 1] if index else None
        return self.rungs[labels.index(named)] if named else None


def by(sizes: tuple[int, ...], times: str = " ") -> str:
    """Format sizes for a text."""
    return times.join(map(str, sizes))


def float32_product(options: ProblemOptions, default: tuple[int, int, int]) -> Gemm:
    """Return the float32 problem that the options describe."""
    m, n, k = options.square(default)
    return Gemm(m=m, n=n, k=k)


#: (m, n, k): on a GPU enough to fill it, in the emulator the least that every rung takes, with several steps of k,
#: which takes about a minute on two cores.
PRODUCT_SIZES: dict[On, tuple[int, ...]] = {"gpu": (4096, 4096, 4096), "emulator": (256, 256, 64)}

SMALLER = "Take smaller sizes, for instance --n 512"
