"""The measure of a ladder: arithmetic (of FMA units or of tensor cores), the traffic of a product, or moved bytes.

The runner, the tables, the plots and the pages read all of it from one :class:`Subject`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from matmill.arch import Arch
from matmill.bench import units
from matmill.bench.problems.error_bounds import any_sum
from matmill.bench.problems.inputs import Array, InputsBySize, Matrices
from matmill.problem import Geam, Gemm
from matmill.reference import Check

#: The problem type of a ladder.
S = TypeVar("S", Gemm, Geam)

#: The name of the tensor cores' rate in tables.
TENSOR_CORE_PEAK = "tensor-core peak"
#: The name of a copy's bandwidth, timed in the same run, in tables.
COPYING = "copy bandwidth"

TRAFFIC_FIELDS = ("bytes", "tbytes_per_second", "bandwidth_fraction")
FLOPS_FIELDS = ("tflops", "peak_fraction")


def _whoever_made_it(inputs: Matrices, _maker: object, actual: Array) -> Check:
    """Return the check that does not depend on the maker of the result."""
    return inputs.check(actual)


@dataclass(frozen=True)
class Subject(Generic[S]):
    """Rates and their limits, and the problems of a ladder.

    ``rate`` and ``fraction`` name two fields of a row: the rate in 10^12 ``unit`` per second, and its fraction of
    ``limit_name``. ``peak`` returns that limit, or None for a GPU without one. ``fields`` are the fields that rows of
    other subjects omit. The ratio to a library refers to the field ``compared``. ``flops`` is None if operations do not
    count.

    ``title`` describes a problem for headings. ``inputs`` returns the inputs for a seed, which have the matrices of a
    problem. ``sizes`` are those that users name; ``resized`` returns a problem of other sizes. ``fallback`` returns the
    problem for a rung that takes none of these sizes, with the text of its note. ``record`` and ``problem`` turn a
    problem into a record and back. ``check`` compares a result with the matrices of its problem, given the kernel or
    library that made it.

    ``counted`` names the columns of the emulator's table, and ``counted_title`` is its heading; ``counted_async`` names
    those of a table of the rows that use TMA, wgmma or mbarriers. ``copied`` says that a copy is timed in the same run
    and that percentages refer to it. ``by_arch`` says that kernels need instructions that old GPUs lack, so that the
    emulator runs only what the named GPU could run. ``cpu`` says whether the CPU's BLAS computes the same,
    ``cpu_patience`` is the most seconds that it may take. ``error_bound`` returns the bound of errors in units of
    2^-24 |A||B|, in which tables then show errors; None for one that is no multiple of these.
    """

    unit: str
    limit_name: str
    rate: str
    fraction: str
    compared: str
    fields: tuple[str, ...]
    amount: Callable[[S], int]
    peak: Callable[[S, Arch], float | None]
    say: Callable[[float], str]
    inputs: Callable[[int], Any]
    sizes: Callable[[S], dict[str, int]]
    resized: Callable[..., S]
    record: Callable[[S], dict[str, Any]]
    problem: Callable[[Mapping[str, Any]], S]
    title: Callable[[S], str]
    counted: tuple[str, ...]
    counted_title: str
    counted_async: tuple[str, ...] = ()
    flops: Callable[[S], int] | None = None
    check: Callable[[Any, Any, Array], Check] = _whoever_made_it
    fallback: Callable[[S], tuple[S, str]] | None = None
    copied: bool = False
    by_arch: bool = False
    cpu: bool = True
    cpu_patience: float | None = None
    error_bound: Callable[[S], float] | None = None

    def format_sizes(self, problem: S) -> str:
        """Format the sizes as users name them."""
        return " ".join(f"{name}={size}" for name, size in self.sizes(problem).items())

    def derived_fields(self, problem: Any) -> dict[str, Any]:
        """Return the fields of a row that depend on the problem."""
        return {"bytes": problem.least_bytes} if "bytes" in self.fields else {}

    def rates(self, problem: Any, seconds: float, arch: Arch) -> dict[str, Any]:
        """Return the fields of a row that depend on its time; fractions refer to ``arch``."""
        fields: dict[str, Any] = {"seconds": seconds, **self.derived_fields(problem)}
        if self.flops is not None:
            flops = self.flops(problem) / seconds
            fields |= {"tflops": flops / 1e12, "peak_fraction": flops / arch.peak(problem.dtype.name)}
        speed, peak = self.amount(problem) / seconds, self.peak(problem, arch)
        return {**fields, self.rate: speed / 1e12, self.fraction: None if peak is None else speed / peak}

    def own_fields(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row's record without the fields that belong to other subjects."""
        others = {*FLOPS_FIELDS, *TRAFFIC_FIELDS} - set(self.fields)
        return {name: value for name, value in row.items() if name not in others}


def _packed(problem: Gemm, m: int, n: int, k: int) -> Gemm:
    return Gemm(m=m, n=n, k=k, dtype=problem.dtype)


def _sizes(problem: Gemm) -> dict[str, int]:
    return {"m": problem.m, "n": problem.n, "k": problem.k}


def sizes_and_type(problem: Gemm) -> str:
    """Format a product's sizes and element type."""
    return f"m={problem.m} n={problem.n} k={problem.k} {problem.dtype.name}"


def bytes_per_second(rate: float) -> str:
    """Format a rate in TB/s."""
    return units.quantity(rate * 1e12, "B/s")


def counted_columns(arithmetic: str) -> tuple[str, ...]:
    """Return the columns of a ladder that targets the peak: how often it executes that arithmetic, and its loads."""
    fed = ("sectors per load", "sectors per store", "shared loads", "shared stores and cp.async")
    return (arithmetic, *fed, "barriers", "races")


ARITHMETIC: Subject[Gemm] = Subject(
    unit="TFLOP/s",
    limit_name="peak",
    rate="tflops",
    fraction="peak_fraction",
    compared="tflops",
    fields=FLOPS_FIELDS,
    amount=lambda problem: problem.flops,
    peak=lambda problem, arch: arch.peak(problem.dtype.name),
    say=units.rate,
    inputs=partial(InputsBySize, exact=any_sum),
    sizes=_sizes,
    resized=_packed,
    record=_sizes,
    problem=lambda record: Gemm(**record),
    title=sizes_and_type,
    counted=counted_columns("ffma"),
    counted_title="Counted: 32-byte sectors per global request, shared-memory wavefronts",
    flops=lambda problem: problem.flops,
)


def beside_copy(subject: Subject[S], bytes_per_second: float) -> Subject[S]:
    """Return ``subject`` with fractions of a copy's measured bandwidth, not of the data sheet's."""
    return replace(subject, limit_name=COPYING, peak=lambda _problem, _arch: bytes_per_second)
