"""What a ladder measures: arithmetic, of plain or of matrix units, a product's traffic, or bytes beside a copy's.

All that the runner, the tables, the plots and the pages must know of the difference is one :class:`Subject`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from matmill.arch import Arch
from matmill.bench import units
from matmill.bench.libraries.blas import CupyProduct, TorchProduct
from matmill.bench.problems import hgemm, inner, transpose_add
from matmill.bench.problems.error_bounds import any_sum, random_sum
from matmill.bench.problems.hgemm import HalfInputs
from matmill.bench.problems.inputs import Array, InputsBySize, Matrices
from matmill.kernel import Kernel
from matmill.problem import Geam, Gemm
from matmill.reference import Check

#: What a ladder computes, of either kind.
S = TypeVar("S", Gemm, Geam)

#: What the rate of the matrix units is called.
MATRIX_PEAK = "matrix peak"

_TRAFFIC = ("bytes", "tbytes_per_second", "bandwidth_fraction")
_FLOPS = ("tflops", "peak_fraction")


def _as_any_other(inputs: Matrices, _maker: object, actual: Array) -> Check:
    """The check that asks not what made the result."""
    return inputs.check(actual)


@dataclass(frozen=True)
class Subject(Generic[S]):
    """Rates and what they refer to, and which problems the ladder runs on.

    ``rate`` and ``fraction`` name the fields of a row that hold the rate, in 10^12 of ``unit`` per second, and its
    fraction of ``limit_name``, which ``peak`` gives, or None for a GPU that has none; ``own`` are the fields that rows
    of other subjects need not have, and ``compared`` the one whose ratio to a library's is shown. ``flops`` is None
    where operations are not what counts. ``inputs`` makes from a seed what gives the matrices of a problem. ``sizes``
    are those that users name, ``resized`` gives a problem of others, and ``instead`` the problem that a rung gets which
    takes none of those, with the words for its note. ``check`` compares a result with the matrices of its problem,
    given the kernel or library that made it. ``by_arch`` says that kernels need units which old GPUs have not: the
    emulator then asks what the GPU named could run. ``same_bits`` names the rungs that promise the same result in every
    run. ``cpu`` says whether the CPU's BLAS computes the same, ``cpu_patience`` for how many seconds it may.
    """

    unit: str
    limit_name: str
    rate: str
    fraction: str
    compared: str
    own: tuple[str, ...]
    amount: Callable[[S], int]
    peak: Callable[[S, Arch], float | None]
    say: Callable[[float], str]
    inputs: Callable[[int], Any]
    sizes: Callable[[S], dict[str, int]]
    resized: Callable[..., S]
    record: Callable[[S], dict[str, Any]]
    problem: Callable[[Mapping[str, Any]], S]
    flops: Callable[[S], int] | None = None
    check: Callable[[Any, Any, Array], Check] = _as_any_other
    instead: Callable[[S], tuple[S, str]] | None = None
    by_arch: bool = False
    same_bits: frozenset[str] = frozenset()
    cpu: bool = True
    cpu_patience: float | None = None

    def said(self, problem: S) -> str:
        """The sizes in words, as users name them."""
        return " ".join(f"{name}={size}" for name, size in self.sizes(problem).items())

    def known(self, problem: Any) -> dict[str, Any]:
        """The fields of a row that follow from the problem."""
        return {"bytes": problem.least_bytes} if "bytes" in self.own else {}

    def rates(self, problem: Any, seconds: float, arch: Arch) -> dict[str, Any]:
        """The fields of a row that follow from its time; fractions refer to ``arch``."""
        found: dict[str, Any] = {"seconds": seconds, **self.known(problem)}
        if self.flops is not None:
            flops = self.flops(problem) / seconds
            found |= {"tflops": flops / 1e12, "peak_fraction": flops / arch.peak(problem.dtype.name)}
        own, peak = self.amount(problem) / seconds, self.peak(problem, arch)
        return {**found, self.rate: own / 1e12, self.fraction: None if peak is None else own / peak}

    def only(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row's record without the fields that belong to other subjects."""
        others = {name for subject in _ALL for name in subject.own} - set(self.own)
        return {name: value for name, value in row.items() if name not in others}


def _packed(problem: Gemm, m: int, n: int, k: int) -> Gemm:
    return Gemm(m=m, n=n, k=k, dtype=problem.dtype)


def _sizes(problem: Gemm) -> dict[str, int]:
    return {"m": problem.m, "n": problem.n, "k": problem.k}


def _gram_instead(problem: Gemm) -> tuple[Gemm, str]:
    return inner.gram_of(problem), "its F is the transpose of E"


def _by_its_sums(inputs: HalfInputs, maker: Kernel[Gemm] | TorchProduct | CupyProduct, actual: Array) -> Check:
    acc16 = ("ACC16", 1) in maker.config.constants if isinstance(maker, Kernel) else maker.acc16
    return inputs.check(actual, acc16=acc16)


def _bytes_per_second(rate: float) -> str:
    return f"{units.count(rate * 1e12)}B/s"


ARITHMETIC: Subject[Gemm] = Subject(
    unit="TFLOP/s",
    limit_name="peak",
    rate="tflops",
    fraction="peak_fraction",
    compared="tflops",
    own=_FLOPS,
    amount=lambda problem: problem.flops,
    peak=lambda problem, arch: arch.peak(problem.dtype.name),
    say=units.rate,
    inputs=partial(InputsBySize, exact=any_sum),
    sizes=_sizes,
    resized=_packed,
    record=_sizes,
    problem=lambda record: Gemm(**record),
    flops=lambda problem: problem.flops,
)

TRAFFIC: Subject[Gemm] = replace(
    ARITHMETIC,
    unit="TB/s",
    limit_name="bandwidth",
    rate="tbytes_per_second",
    fraction="bandwidth_fraction",
    own=(*_FLOPS, *_TRAFFIC),
    amount=lambda problem: problem.least_bytes,
    peak=lambda _problem, arch: arch.dram_bytes_per_s,
    say=_bytes_per_second,
    inputs=partial(InputsBySize, exact=random_sum),
    resized=inner.resized,
    record=inner.described,
    problem=inner.restored,
    instead=_gram_instead,
    same_bits=frozenset({"two-stage", "gram", "production"}),
    cpu_patience=2.0,
)

MOVING: Subject[Geam] = Subject(
    unit="TB/s",
    limit_name="bandwidth",
    rate="tbytes_per_second",
    fraction="bandwidth_fraction",
    compared="tbytes_per_second",
    own=_TRAFFIC,
    amount=lambda problem: problem.least_bytes,
    peak=lambda _problem, arch: arch.dram_bytes_per_s,
    say=_bytes_per_second,
    inputs=transpose_add.SumsBySize,
    sizes=transpose_add.sizes,
    resized=transpose_add.resized,
    record=transpose_add.described,
    problem=transpose_add.restored,
    cpu=False,
)

MATRIX: Subject[Gemm] = replace(
    ARITHMETIC,
    limit_name=MATRIX_PEAK,
    peak=lambda problem, arch: arch.matrix_flops.get(problem.dtype.name),
    inputs=partial(InputsBySize, kind=HalfInputs),
    resized=hgemm.resized,
    by_arch=True,
    record=hgemm.described,
    problem=hgemm.restored,
    check=_by_its_sums,
)

_ALL: tuple[Subject[Any], ...] = (ARITHMETIC, MATRIX, TRAFFIC, MOVING)
_OF: dict[str, Subject[Any]] = {"hgemm": MATRIX, "inner": TRAFFIC, "transpose_add": MOVING}


def beside_copy(subject: Subject[S], bytes_per_second: float) -> Subject[S]:
    """``subject`` with fractions of a copy's bandwidth instead of the data sheet's."""
    return replace(subject, limit_name=COPYING, peak=lambda _problem, _arch: bytes_per_second)


#: What a limit is called that was measured.
COPYING = "copy bandwidth"


def subject_of(ladder: str) -> Subject[Any]:
    """What that ladder measures.

    >>> subject_of("inner").unit, subject_of("sgemm").unit
    ('TB/s', 'TFLOP/s')
    """
    return _OF.get(ladder, ARITHMETIC)
