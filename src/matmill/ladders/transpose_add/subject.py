"""The sums of the transpose_add ladder, x transposed plus y, and their matrices.

x has m rows and n columns, y and the result n rows and m columns, all packed row-major: the sizes that users name are
those of x. A :class:`~matmill.problem.Geam` has the rows and columns of the result, so that its m is x's n.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matmill.bench.libraries.transpose_add import transpose_add_peers
from matmill.bench.problems.inputs import alignment
from matmill.bench.problems.options import EmulatorLimit, ProblemOptions, named_case
from matmill.bench.problems.transpose_sums import SumsBySize
from matmill.choose import choose_transpose_add
from matmill.dtypes import BF16, ELEMENTWISE, DType
from matmill.errors import ArgumentError
from matmill.kernels.transpose.add import TRANSPOSE_ADD as TRANSPOSE_ADD_KERNEL
from matmill.ladders.runner.ladder import Ladder, by, production
from matmill.ladders.runner.subject import TRAFFIC_FIELDS, Subject, bytes_per_second
from matmill.ladders.transpose_add.rungs import TRANSPOSE_ADD as TRANSPOSE_ADD_RUNGS
from matmill.problem import Geam, View

#: (m, n) of x, by name: the article's rows of 24300 bfloat16 start on 8 bytes, not on 16.
CASES: dict[str, tuple[int, int]] = {"article": (24300, 11520)}
ARTICLE = CASES["article"]
#: The sizes of an emulated run without options: rows of the result start on 8 bytes in bfloat16, as the article's do,
#: and every rung takes them.
EMULATED = (604, 512)


def case(name: str) -> tuple[int, int]:
    """Return (m, n) of x in a named case; case is ignored.

    Raises :class:`~matmill.errors.UnknownNameError` with the nearest name.

    >>> case("Article")
    (24300, 11520)
    """
    return named_case(name, CASES)


def problem_of_options(options: ProblemOptions, default: tuple[int, int]) -> Geam:
    """Return the sum that the options describe: ``m`` and ``n`` are the rows and columns of x.

    Raises :class:`~matmill.errors.UnknownNameError` with the nearest name, and :class:`~matmill.errors.ArgumentError`
    if there is a ``k``.
    """
    dtype = options.element_type(ELEMENTWISE, BF16)
    if options.k is not None:
        raise ArgumentError(
            argument="--k",
            got=f"{options.k} for ladder transpose_add",
            wanted="--m and --n alone, the rows and columns of x",
            fix="Omit it.",
        )
    m, n = default if options.case is None else case(options.case)
    return transpose_add_problem(options.m or m, options.n or n, dtype)


def transpose_add_problem(m: int, n: int, dtype: DType = BF16) -> Geam:
    """Return the sum for a packed x of m rows and n columns.

    >>> result = transpose_add_problem(24300, 11520)
    >>> result.m, result.n, result.x.align, result.d.align
    (11520, 24300, 16, 8)
    """
    across = View((m, 1), align=alignment(n, m, dtype))
    return Geam(n, m, dtype, View((1, n), align=alignment(m, n, dtype)), across, across)


def sizes(problem: Geam) -> dict[str, int]:
    """Return rows and columns of x."""
    return {"m": problem.n, "n": problem.m}


def resized(problem: Geam, m: int, n: int) -> Geam:
    """Return the sum for an x of other sizes."""
    return transpose_add_problem(m, n, problem.dtype)


def title(problem: Geam) -> str:
    """Return shapes and element type, for headings."""
    return f"x {problem.n}x{problem.m}, y {problem.m}x{problem.n} {problem.dtype.name}"


def described(problem: Geam) -> dict[str, Any]:
    """Return a record's sizes of x and element type, which :func:`restored` reads."""
    return {**sizes(problem), "dtype": problem.dtype.name}


def restored(record: Mapping[str, Any]) -> Geam:
    """Return the sum that a record describes.

    >>> problem = transpose_add_problem(30, 50)
    >>> restored(described(problem)) == problem
    True
    """
    return transpose_add_problem(record["m"], record["n"], ELEMENTWISE[record["dtype"]])


MOVING: Subject[Geam] = Subject(
    unit="TB/s",
    limit_name="bandwidth",
    rate="tbytes_per_second",
    fraction="bandwidth_fraction",
    compared="tbytes_per_second",
    fields=TRAFFIC_FIELDS,
    amount=lambda problem: problem.least_bytes,
    peak=lambda _problem, arch: arch.dram_bytes_per_s,
    say=bytes_per_second,
    inputs=SumsBySize,
    sizes=sizes,
    resized=resized,
    record=described,
    problem=restored,
    title=title,
    counted=(
        *("loads", "sectors per load", "stores", "sectors per store"),
        *("shared loads", "shared stores", "barriers", "races"),
    ),
    counted_title="Counted: global requests of warps, 32-byte sectors per request, shared-memory wavefronts",
    copied=True,
    cpu=False,
)

LADDER: Ladder[Geam] = Ladder(
    name="transpose_add",
    rungs=TRANSPOSE_ADD_RUNGS,
    subject=MOVING,
    problem=problem_of_options,
    sizes={"gpu": ARTICLE, "emulator": EMULATED},
    production=production(
        TRANSPOSE_ADD_KERNEL,
        choose_transpose_add,
        changes="What matmill.transpose_add runs: shifted's kernel for operands of any layout and batches of "
        "them, with the tile and launch that the cost model chooses.",
        predicts="The rungs' best, at every size, type and alignment.",
    ),
    options=frozenset({"case", "dtype"}),
    help="x transposed plus y in one pass. --m and --n are the rows and columns of x; y and the result have n rows and "
    f"m columns, and everything is packed row-major. Sizes default to the article's, x "
    f"{by(ARTICLE, 'x')}, on a GPU and to {by(EMULATED, 'x')} emulated, --dtype to "
    f"{BF16.name}. Cases: {', '.join(CASES)}. Every element is compared bit by bit. Percentages refer to "
    "a copy timed in the same run.",
    # a minute or two on two cores
    too_long=EmulatorLimit(
        20_000_000, 4e-6, "--m, --n", "Take smaller sizes, for instance 2000 x 1000", "x of {m} x {n}"
    ),
    libraries=transpose_add_peers,
    no_libraries="",
)
