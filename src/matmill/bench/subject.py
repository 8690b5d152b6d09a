"""What a ladder measures: arithmetic, or the traffic that a product cannot do without.

All that the runner, the tables, the plots and the pages must know of the difference is one :class:`Subject`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from matmill.arch import Arch
from matmill.bench import units
from matmill.bench.products import described, gram_of, resized, restored
from matmill.bench.sums import Exact, any_sum, random_sum
from matmill.problem import Gemm


@dataclass(frozen=True)
class Subject:
    """Rates and what they refer to, and which products the ladder runs on.

    ``rate`` and ``fraction`` name the fields of a row that hold the rate, in 10^12 of ``unit`` per second, and its
    fraction of ``limit``; ``own`` are the fields that only rows of this subject have. ``resized`` gives a product of
    other sizes, and ``instead`` the product that a rung gets which takes none of those, with the words for its note.
    ``same_bits`` names the rungs that promise the same result in every run.
    """

    unit: str
    limit_name: str
    rate: str
    fraction: str
    amount: Callable[[Gemm], int]
    peak: Callable[[Gemm, Arch], float]
    say: Callable[[float], str]
    exact: Exact
    resized: Callable[[Gemm, int, int, int], Gemm]
    record: Callable[[Gemm], dict[str, Any]]
    problem: Callable[[Mapping[str, Any]], Gemm]
    own: tuple[str, ...] = ()
    instead: Callable[[Gemm], tuple[Gemm, str]] | None = None
    same_bits: frozenset[str] = frozenset()
    cpu_patience: float | None = None

    def known(self, problem: Gemm) -> dict[str, Any]:
        """The fields of a row that follow from the problem."""
        return {"bytes": problem.least_bytes} if "bytes" in self.own else {}

    def rates(self, problem: Gemm, seconds: float, arch: Arch) -> dict[str, Any]:
        """The fields of a row that follow from its time; fractions refer to ``arch``."""
        flops = problem.flops / seconds
        own = self.amount(problem) / seconds
        return {
            "seconds": seconds,
            "tflops": flops / 1e12,
            "peak_fraction": flops / arch.peak(problem.dtype.name),
            self.rate: own / 1e12,
            self.fraction: own / self.peak(problem, arch),
            **self.known(problem),
        }

    def only(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row's record without the fields that belong to other subjects."""
        others = {name for subject in _ALL for name in subject.own} - set(self.own)
        return {name: value for name, value in row.items() if name not in others}


def _packed(problem: Gemm, m: int, n: int, k: int) -> Gemm:
    return Gemm(m=m, n=n, k=k, dtype=problem.dtype)


def _sizes(problem: Gemm) -> dict[str, Any]:
    return {"m": problem.m, "n": problem.n, "k": problem.k}


def _gram_instead(problem: Gemm) -> tuple[Gemm, str]:
    return gram_of(problem), "its F is the transpose of E"


ARITHMETIC = Subject(
    unit="TFLOP/s",
    limit_name="peak",
    rate="tflops",
    fraction="peak_fraction",
    amount=lambda problem: problem.flops,
    peak=lambda problem, arch: arch.peak(problem.dtype.name),
    say=units.rate,
    exact=any_sum,
    resized=_packed,
    record=_sizes,
    problem=lambda record: Gemm(**record),
)

TRAFFIC = replace(
    ARITHMETIC,
    unit="TB/s",
    limit_name="bandwidth",
    rate="tbytes_per_second",
    fraction="bandwidth_fraction",
    amount=lambda problem: problem.least_bytes,
    peak=lambda _problem, arch: arch.dram_bytes_per_s,
    say=lambda rate: f"{units.count(rate * 1e12)}B/s",
    exact=random_sum,
    resized=resized,
    record=described,
    problem=restored,
    own=("bytes", "tbytes_per_second", "bandwidth_fraction"),
    instead=_gram_instead,
    same_bits=frozenset({"two-stage", "gram", "production"}),
    cpu_patience=2.0,
)

_ALL = (ARITHMETIC, TRAFFIC)
_OF = {"inner": TRAFFIC}


def subject_of(ladder: str) -> Subject:
    """What that ladder measures.

    >>> subject_of("inner").unit, subject_of("sgemm").unit
    ('TB/s', 'TFLOP/s')
    """
    return _OF.get(ladder, ARITHMETIC)
