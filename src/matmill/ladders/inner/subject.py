"""The products of the inner ladder: few outputs and a long k, F row-major, column-major or the transpose of E.

E and F are A and B of the problem; E is packed row-major.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from matmill.bench.libraries.gemm import peers
from matmill.bench.problems.error_bounds import random_sum
from matmill.bench.problems.inputs import ALLOCATED, InputsBySize, alignment
from matmill.bench.problems.options import EmulatorLimit, ProblemOptions, named_case
from matmill.choose import choose
from matmill.dtypes import ALL, F32, DType
from matmill.errors import ArgumentError, unknown_name
from matmill.kernels.inner import INNER as INNER_KERNEL
from matmill.ladders.inner.launches import paper_launch
from matmill.ladders.inner.rungs import INNER as INNER_RUNGS
from matmill.ladders.runner.ladder import Ladder, Option, production
from matmill.ladders.runner.subject import (
    ARITHMETIC,
    FLOPS_FIELDS,
    TRAFFIC_FIELDS,
    Subject,
    bytes_per_second,
    sizes_and_type,
)
from matmill.lowering import NARROW
from matmill.problem import Gemm

#: Layouts of F that a user may ask for.
LAYOUTS = ("row", "column")
#: The value in a record for an F that is the transpose of E, in the same memory.
GRAM = "gram"

#: The paper's products by name, (m, n, k). Its MTXC has k = 2e9 and needs 112 GB in float32, more than its GPU with 40
#: GB holds: most likely 2e8 is meant.
CASES: dict[str, tuple[int, int, int]] = {
    "MTXA": (3, 3, 50_000_000),
    "MTXB": (5, 5, 300_000_000),
    "MTXC": (7, 7, 2_000_000_000),
    "MTXC-2e8": (7, 7, 200_000_000),
    "MTX1": (5, 5, 30_000_000),
    "MTX2": (7, 7, 30_000_000),
    "MTX3": (9, 9, 30_000_000),
}


#: k of the product that is emulated without options: all rungs together take up to ten seconds on two cores.
EMULATED_K = 100_000


def case(name: str) -> tuple[int, int, int]:
    """Return (m, n, k) of a case of the paper; case is ignored.

    Raises :class:`~matmill.errors.UnknownNameError` with the nearest name.

    >>> case("mtx1")
    (5, 5, 30000000)
    """
    return named_case(name, CASES)


def product_of_options(options: ProblemOptions, default: tuple[int, int, int]) -> Gemm:
    """Return the product that the options describe; m or n alone sets both.

    Raises :class:`~matmill.errors.UnknownNameError` with the nearest name.
    """
    dtype, layout = options.element_type(ALL, F32), options.layout or LAYOUTS[0]
    if layout not in LAYOUTS:
        raise unknown_name("--layout", layout, LAYOUTS)
    if options.case is not None:
        m, n, k = case(options.case)
    else:
        m, n, k = options.n or default[0], options.m or default[1], default[2]
    for name, extent in (("--m", options.m or m), ("--n", options.n or n)):
        if extent > NARROW:
            raise ArgumentError(
                argument=name,
                got=str(extent),
                wanted=f"at most {NARROW}: the ladder's products have few outputs and a long k",
                fix="Take `matmill ladder sgemm` for products of other shapes.",
            )
    return inner_product(options.m or m, options.n or n, options.k or k, dtype, layout)


def inner_product(m: int, n: int, k: int, dtype: DType = F32, layout: str = "row") -> Gemm:
    """Return E (m, k), row-major, times F (k, n), whose rows or columns are packed according to ``layout``.

    >>> inner_product(3, 5, 1000, layout="column").b_row_col
    (1, 1000)
    """
    row = layout == "row"
    runs, length = (k, n) if row and n > 1 else (n, k)  # one column is contiguous along k either way
    return Gemm(
        m=m,
        n=n,
        k=k,
        dtype=dtype,
        b_strides=(n, 1) if row else (1, k),
        a_align=alignment(m, k, dtype),
        b_align=alignment(runs, length, dtype),
        d_align=alignment(m, n, dtype),
        a_start_align=ALLOCATED,
        b_start_align=ALLOCATED,
    )


def gram_of(problem: Gemm) -> Gemm:
    """Return the product of the same E and its transpose.

    >>> gram_of(inner_product(3, 5, 1000)).n
    3
    """
    plain = inner_product(problem.m, problem.m, problem.k, problem.dtype)
    return replace(plain, gram=True, b_strides=None, b_align=plain.a_align)


def resized(problem: Gemm, m: int, n: int, k: int) -> Gemm:
    """Return a product of other sizes with the same element type and layout."""
    return inner_product(m, n, k, problem.dtype, layout_of(problem))


def layout_of(problem: Gemm) -> str:
    """Return ``row``, ``column`` or ``gram``.

    >>> layout_of(inner_product(3, 5, 1000, layout="column")), layout_of(gram_of(inner_product(3, 5, 1000)))
    ('column', 'gram')
    """
    if problem.gram:
        return GRAM
    return "row" if problem.b_row_col == (problem.n, 1) else "column"


def described(problem: Gemm) -> dict[str, Any]:
    """Return a record's sizes, element type and layout, which :func:`restored` reads."""
    sizes = {"m": problem.m, "n": problem.n, "k": problem.k}
    return {**sizes, "dtype": problem.dtype.name, "layout": layout_of(problem)}


def restored(record: Mapping[str, Any]) -> Gemm:
    """Return the product that a record describes.

    >>> problem = inner_product(3, 5, 1000, layout="column")
    >>> restored(described(problem)) == problem
    True
    """
    gram = record["layout"] == GRAM
    layout = "row" if gram else record["layout"]
    problem = inner_product(record["m"], record["n"], record["k"], ALL[record["dtype"]], layout)
    return gram_of(problem) if gram else problem


def _gram_fallback(problem: Gemm) -> tuple[Gemm, str]:
    return gram_of(problem), "its F is the transpose of E"


TRAFFIC: Subject[Gemm] = replace(
    ARITHMETIC,
    unit="TB/s",
    limit_name="bandwidth",
    rate="tbytes_per_second",
    fraction="bandwidth_fraction",
    fields=(*FLOPS_FIELDS, *TRAFFIC_FIELDS),
    amount=lambda problem: problem.least_bytes,
    peak=lambda _problem, arch: arch.dram_bytes_per_s,
    say=bytes_per_second,
    inputs=partial(InputsBySize, exact=random_sum),
    resized=resized,
    record=described,
    problem=restored,
    title=lambda problem: f"{sizes_and_type(problem)}, F {layout_of(problem)}-major",
    counted=("read over least", "sectors per load", "sectors per store", "atomics", "barriers", "races"),
    counted_title="Counted in all launches: bytes read over the least, 32-byte sectors per global request, atomics",
    fallback=_gram_fallback,
    cpu_patience=2.0,
)

LADDER: Ladder[Gemm] = Ladder(
    name="inner",
    rungs=INNER_RUNGS,
    subject=TRAFFIC,
    problem=product_of_options,
    sizes={"gpu": CASES["MTXA"], "emulator": (3, 3, EMULATED_K)},
    production=production(
        INNER_KERNEL,
        choose,
        changes="What matmill.inner runs: tile, loads and launch as the cost model chooses them for the product.",
        predicts="The rungs' best, at every size, type and layout.",
    ),
    options=frozenset({"case", "dtype"}),
    own=(
        Option("layout", f"how F is stored (default: {LAYOUTS[0]})", "|".join(LAYOUTS)),
        Option("gs", "blocks of the grid, of the paper's rungs basic and phvm"),
        Option("bs", "threads per block of basic and phvm, a multiple of 32"),
    ),
    help="D = E F for few outputs and a long k. --n defaults to m; sizes by themselves default to MTXA on a GPU and "
    f"m=n=3, k=1e5 emulated, --dtype to {F32.name}. Cases, of the paper: {', '.join(CASES)}. Percentages refer "
    "to the data sheet's memory bandwidth.",
    # some minutes on two cores
    too_long=EmulatorLimit(50_000_000, 1.3e-5, "--k", "Take a smaller --k, for instance 1e5"),
    launches=paper_launch,
    libraries=peers,
    same_bits=frozenset({"two-stage", "gram", "production"}),
)
