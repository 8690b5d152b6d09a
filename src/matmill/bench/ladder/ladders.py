"""Every ladder as one record: its rungs, what it measures, its options, sizes, libraries and production row.

To add a ladder, write its rungs in :mod:`matmill.ladders` and its record here. The command line, the runners, the
tables, the plots and the pages read :data:`LADDERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal

from matmill.arch import Arch
from matmill.bench.ladder.selection import paper_launch
from matmill.bench.ladder.subject import ARITHMETIC, MATRIX, MOVING, TRAFFIC, S, Subject
from matmill.bench.libraries.blas import LibraryProduct
from matmill.bench.libraries.gemm import cublas_of_copies, half_peers, peers
from matmill.bench.libraries.transpose_add import transpose_add_peers
from matmill.bench.problems import hgemm, inner, transpose_add
from matmill.bench.problems.asked import Asked, EmulatorLimit
from matmill.choose import Choice, choose, choose_transpose_add
from matmill.dtypes import BF16, F16, F32
from matmill.errors import IllegalConfigError
from matmill.kernel import Kernel, P, Rung
from matmill.kernels.hgemm import HGEMM as HGEMM_KERNEL
from matmill.kernels.inner import INNER as INNER_KERNEL
from matmill.kernels.transpose.add import TRANSPOSE_ADD as TRANSPOSE_ADD_KERNEL
from matmill.ladders.documents import OURS
from matmill.ladders.hgemm.rungs import HGEMM as HGEMM_RUNGS
from matmill.ladders.inner.rungs import INNER as INNER_RUNGS
from matmill.ladders.memory.rungs import MEMORY as MEMORY_RUNGS
from matmill.ladders.sgemm.rungs import SGEMM as SGEMM_RUNGS
from matmill.ladders.transpose_add.rungs import TRANSPOSE_ADD as TRANSPOSE_ADD_RUNGS
from matmill.problem import Geam, Gemm

#: Where a ladder runs.
On = Literal["gpu", "emulator"]
#: From the rungs picked, the launch constants given and where to run to the rungs to run and notes on them.
Launches = Callable[[Sequence[Any], Mapping[str, int], On], tuple[Sequence[Any], tuple[str, ...]]]
#: From the inputs and the addresses of both on the GPU to the libraries at hand, and why others are not.
Libraries = Callable[[Any, int, int], tuple[Sequence[LibraryProduct], list[str]]]


@dataclass(frozen=True)
class Chosen(Rung[P]):
    """What matmill would run, kernel and constants, for a problem on an arch: the last row of a ladder's run."""

    choose: Callable[[P, Arch], Choice[P]] = field(kw_only=True)

    def kernel_for(self, problem: P, arch: Arch) -> Kernel[P]:
        """The choice, or, where there is none, a kernel that says why not."""
        try:
            return self.choose(problem, arch).kernel
        except IllegalConfigError:
            return self.kernel


@dataclass(frozen=True)
class Option:
    """An option that one ladder alone has: words of ``metavar``, or a constant of the launch, a whole number."""

    name: str
    help: str
    metavar: str | None = None

    @property
    def constant(self) -> str | None:
        """The launch constant that it sets, or None."""
        return self.name.upper() if self.metavar is None else None


def _production(
    kernel: Kernel[P], choose: Callable[[P, Arch], Choice[P]], changes: str, predicts: str
) -> tuple[Rung[P], ...]:
    row = Chosen(name="production", source=OURS, changes=changes, predicts=predicts, kernel=kernel, choose=choose)
    return (row,)


def _as_tuned(rungs: Sequence[Any], _given: Mapping[str, int], _on: On) -> tuple[Sequence[Any], tuple[str, ...]]:
    """The rungs with the launches that they choose themselves."""
    return rungs, ()


def _no_libraries(_asked: Any, _a: int, _b: int) -> tuple[Sequence[LibraryProduct], list[str]]:
    return (), []


@dataclass(frozen=True)
class Ladder(Generic[S]):
    """All that is special to a ladder.

    ``sizes`` are those of a run that names none, as ``problem`` takes them besides what the user asks for. ``options``
    names the shared options that this ladder takes and others do not, ``own`` are options that it alone has, and
    ``help`` is the description of its group. ``too_long`` refuses work that nobody asked the emulator for.
    ``no_libraries`` is said where ``libraries`` finds none. ``same_bits`` names the rows that promise the same result
    in every run.
    """

    name: str
    rungs: tuple[Any, ...]
    subject: Subject[S]
    problem: Callable[[Asked, Any], S]
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

    @property
    def rows(self) -> tuple[Any, ...]:
        """The rungs, and the production kernel that they lead to after them, if there is one.

        >>> [row.name for row in INNER.rows][-2:]
        ['gram', 'production']
        """
        return (*self.rungs, *self.production)


def _by(sizes: tuple[int, ...], times: str = " ") -> str:
    return times.join(map(str, sizes))


def _float32_product(asked: Asked, default: tuple[int, int, int]) -> Gemm:
    m, n, k = asked.square(default)
    return Gemm(m=m, n=n, k=k)


#: (m, n, k) on a GPU large enough to fill it; emulated the least that every rung takes as it is, with several steps of
#: k, which ends within half a minute on two cores.
_PRODUCT_SIZES: dict[On, tuple[int, ...]] = {"gpu": (4096, 4096, 4096), "emulator": (256, 256, 64)}

_SMALLER = "Take smaller sizes, for instance --n 512"

SGEMM: Ladder[Gemm] = Ladder(
    name="sgemm",
    rungs=SGEMM_RUNGS,
    subject=ARITHMETIC,
    problem=_float32_product,
    sizes=_PRODUCT_SIZES,
    # some minutes on two cores
    too_long=EmulatorLimit(200_000_000, 3.4e-6, "--m, --n, --k", _SMALLER),
    options=frozenset({"sweep"}),
    libraries=cublas_of_copies,
)

HGEMM: Ladder[Gemm] = Ladder(
    name="hgemm",
    rungs=HGEMM_RUNGS,
    subject=MATRIX,
    problem=hgemm.asked_product,
    sizes={"gpu": _PRODUCT_SIZES["gpu"], "emulator": hgemm.EMULATED},
    production=_production(
        HGEMM_KERNEL,
        choose,
        changes="What matmill.matmul runs: float32-sums' pipeline for operands of any layout and batches of "
        "them, with the tile and the split of k that the cost model chooses.",
        predicts="The rungs' best with float32 sums, at every size, type and layout.",
    ),
    options=frozenset({"dtype", "sweep"}),
    help="C = A B of 16-bit floats on the tensor cores. Sizes default to m, n, k "
    f"{_by(_PRODUCT_SIZES['gpu'])} on a GPU and {_by(hgemm.EMULATED)} emulated, --dtype "
    f"({' or '.join(hgemm.HALVES)}) to {F16.name}. Of float16, the rungs below float32-sums sum in float16, as the "
    "ladder's source does, and are checked as such. Percentages refer to the tensor cores' rate by the data sheet, "
    "with float32 sums.",
    # some minutes on two cores
    too_long=EmulatorLimit(200_000_000, 3.6e-6, "--m, --n, --k", _SMALLER),
    libraries=half_peers,
)

MEMORY: Ladder[Gemm] = Ladder(
    name="memory",
    rungs=MEMORY_RUNGS,
    subject=ARITHMETIC,
    problem=_float32_product,
    sizes=_PRODUCT_SIZES,
    too_long=EmulatorLimit(2_000_000_000, 1.7e-7, "--m, --n, --k", _SMALLER),
)

INNER: Ladder[Gemm] = Ladder(
    name="inner",
    rungs=INNER_RUNGS,
    subject=TRAFFIC,
    problem=inner.asked_product,
    sizes={"gpu": inner.CASES["MTXA"], "emulator": (3, 3, inner.EMULATED_K)},
    production=_production(
        INNER_KERNEL,
        choose,
        changes="What matmill.inner runs: tile, loads and launch as the cost model chooses them for the product.",
        predicts="The rungs' best, at every size, type and layout.",
    ),
    options=frozenset({"case", "dtype"}),
    own=(
        Option("layout", f"how F is stored (default: {inner.LAYOUTS[0]})", "|".join(inner.LAYOUTS)),
        Option("gs", "blocks of the grid, of the paper's rungs basic and phvm"),
        Option("bs", "threads per block of basic and phvm, a multiple of 32"),
    ),
    help="D = E F for few outputs and a long k. --n defaults to m; sizes by themselves default to MTXA on a GPU and "
    f"m=n=3, k=1e5 emulated, --dtype to {F32.name}. Cases, of the paper: {', '.join(inner.CASES)}. Percentages refer "
    "to the data sheet's memory bandwidth.",
    # some minutes on two cores
    too_long=EmulatorLimit(50_000_000, 1.3e-5, "--k", "Take a smaller --k, for instance 1e5"),
    launches=paper_launch,
    libraries=peers,
    same_bits=frozenset({"two-stage", "gram", "production"}),
)

TRANSPOSE_ADD: Ladder[Geam] = Ladder(
    name="transpose_add",
    rungs=TRANSPOSE_ADD_RUNGS,
    subject=MOVING,
    problem=transpose_add.asked_problem,
    sizes={"gpu": transpose_add.ARTICLE, "emulator": transpose_add.EMULATED},
    production=_production(
        TRANSPOSE_ADD_KERNEL,
        choose_transpose_add,
        changes="What matmill.transpose_add runs: shifted's kernel for operands of any layout and batches of "
        "them, with the tile and launch that the cost model chooses.",
        predicts="The rungs' best, at every size, type and alignment.",
    ),
    options=frozenset({"case", "dtype"}),
    help="x transposed plus y in one pass. --m and --n are the rows and columns of x; y and the result have n rows and "
    f"m columns, and everything is packed row-major. Sizes default to the article's, x "
    f"{_by(transpose_add.ARTICLE, 'x')}, on a GPU and to {_by(transpose_add.EMULATED, 'x')} emulated, --dtype to "
    f"{BF16.name}. Cases: {', '.join(transpose_add.CASES)}. Every element is compared bit by bit. Percentages refer to "
    "a copy timed in the same run.",
    # a minute or two on two cores
    too_long=EmulatorLimit(
        20_000_000, 4e-6, "--m, --n", "Take smaller sizes, for instance 2000 x 1000", "x of {m} x {n}"
    ),
    libraries=transpose_add_peers,
    no_libraries="",
)

LADDERS: dict[str, Ladder[Any]] = {ladder.name: ladder for ladder in (SGEMM, HGEMM, MEMORY, INNER, TRANSPOSE_ADD)}
