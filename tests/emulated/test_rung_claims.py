"""Claims of rungs' entries, counted by the emulator: accesses, sectors, wavefronts, barriers and bytes.

A claim is words of a rung's entry with a number in them, and how the emulator's counters make that number.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import pytest

from matmill.emulator import Counters, Report
from matmill.ladders.registry import LADDERS
from support.recorded import rows_of
from support.rungs import (
    PIPELINED,
    WGMMA,
    halves,
    of,
    sum_of,
    trial_of,
    whole_tiles,
)
from support.strided_sum import check
from support.trial import Case, Trial, problem_of

#: Recorded runs that have the counters of a ladder.
RECORDS = {"sgemm": "sgemm_emulated_256", "hgemm": "hgemm_emulated_256x256x128_float16"}


# What entries claim

#: Numbers that entries write in words.
IN_WORDS = {"one": 1.0, "two": 2.0, "an eighth": 1 / 8, "half": 1 / 2, "no": 0.0}
Counted = Callable[[Counters, Case], float]


@dataclass(frozen=True)
class Claim:
    """Words of a rung's entry, with a number or a ratio of two in brackets, and that number from the counters.

    Words without brackets are a fact, which the counters make true. Where the words compare the rung with another,
    ``against`` names that one, and the number is a ratio. ``line`` is the line of the kernel's file that alone is
    counted, ``whose`` the rung that is counted in place of this one. ``case`` replaces the rung's own whole tiles.
    """

    rung: str
    words: str
    counted: Counted
    against: str = ""
    line: str = ""
    whose: str = ""
    case: Case | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return f"{self.rung}-{self.words[:32]}"

    def number(self) -> float:
        """Return the number that the entry names, or 1 for a fact."""
        ladder, label = self.rung.split("/")
        rung = next(rung for rung in LADDERS[ladder].rungs if rung.label == label)
        match = re.search(self.words, f"{rung.changes} {rung.predicts}")
        assert match is not None, f"{self.rung} no longer claims {self.words!r}"
        values = [IN_WORDS[word.lower()] if word.lower() in IN_WORDS else float(word) for word in match.groups()]
        return (values or [1.0])[0] / (values[1] if len(values) > 1 else 1)


def fmas(case: Case) -> float:
    """Return how many fused multiply-adds of a warp a product has."""
    return case.m * case.n * case.k / 32


def per_fma(counter: str, times: float = 1) -> Counted:
    """Count per fused multiply-add of a warp, or ``times`` as many."""
    return lambda c, case: times * getattr(c, counter) / fmas(case)


def ratio(counter: str, other: str, times: float = 1) -> Counted:
    """Count one for each of another."""
    return lambda c, _case: times * getattr(c, counter) / getattr(c, other)


def count(counter: str) -> Counted:
    """Count."""
    return lambda c, _case: getattr(c, counter)


def inverse(counter: str) -> Counted:
    """Return how seldom something happens."""
    return lambda c, _case: 1 / getattr(c, counter)


def flops_per(counter: str) -> Counted:
    """Return how many operations a product has for each one counted, a whole number."""
    return lambda c, case: round(64 * fmas(case) / getattr(c, counter))


def per_term(c: Counters, case: Case) -> float:
    """Return requests for each term, without the passes over C before and after the steps of k."""
    return (c.global_load_requests + c.global_store_requests) / fmas(case) - 3 / case.k


def sectors_of_c(c: Counters, case: Case) -> float:
    """Return sectors of C moved by a warp for each term, without the passes before and after the steps of k."""
    return 2 * c.global_store_sectors / fmas(case) * case.k / (case.k + 2)


def stores(c: Counters, _case: Case) -> float:
    """Return stores of a thread's results, to global memory or by stmatrix to shared memory."""
    return c.stmatrix_requests + c.global_store_requests


def unstaged(c: Counters, _case: Case) -> bool:
    """Tell whether nothing goes through registers on its way to shared memory."""
    return c.global_load_requests == c.shared_store_requests == 0


def atomics(c: Counters, case: Case) -> bool:
    """Tell whether each of two blocks adds each output once."""
    return c.atomics == 2 * case.m * case.n


def for_each_output(c: Counters, case: Case) -> bool:
    """Tell whether each output reads a row and a column of its own, in float32."""
    return c.global_load_bytes == 8 * case.m * case.n * case.k


def least(c: Counters, case: Case) -> bool:
    """Tell whether each input is read once."""
    return c.global_load_bytes == (case.m + case.n) * case.k * problem_of(case).dtype.itemsize


def boxes(c: Counters, case: Case) -> bool:
    """Tell whether the whole result leaves in boxes of 64 x 64 elements."""
    return c.bulk_stores == case.m * case.n / 64**2 and c.bulk_store_bytes == 2 * case.m * case.n


def requests_of_16_rows(c: Counters, case: Case) -> float:
    """Return how many stores 16 rows of 64 columns take."""
    return 1024 * c.global_store_requests / (case.m * case.n)


def one_input(c: Counters, case: Case) -> bool:
    """Tell whether E alone is read, each sector once."""
    return c.global_load_bytes == 32 * c.global_load_sectors == 4 * case.m * case.k


def triangle(c: Counters, case: Case) -> bool:
    """Tell whether outputs on and above the diagonal alone are summed."""
    return 2 * c.ffma == case.k * case.m * (case.m + 1)


WAVEFRONTS, LOADS, STORES = "shared_load_wavefronts", "global_load_requests", "global_store_requests"
BYTES = per_fma("global_load_bytes", 1 / 32)
SECTORS = ratio("global_load_sectors", LOADS)
CONFLICTS = ratio(WAVEFRONTS, "shared_load_wavefronts_ideal")
PER_MATRIX = ratio(WAVEFRONTS, "ldmatrix_requests", 1 / 4)
TMA, LESS = count("bulk_load_bytes"), inverse("bulk_load_bytes")
HALF_FULL = ratio("global_store_sectors", STORES)
A_OF_VOLKOV = "a = a_row["
#: 16 terms per thread of two blocks: at least a sector apart.
LONG, ROW_MAJOR = Case(2, 3, 64 * 2 * 16), Case(2, 8, 1024, layout="row")
GRAM = Case(9, 9, 1024, layout="gram")
GRID = (("GS", 2), ("BS", 64))


def inner(rung: str, words: str, counted: Counted, against: str = "", case: Case = LONG) -> Claim:
    """Return a claim of the inner ladder, on two blocks of 64 threads."""
    return Claim(f"inner/{rung}", words, counted, against and f"inner/{against}", case=case, options=GRID)


CLAIMS = [
    Claim(
        "sgemm/uncoalesced",
        r"(\d+) for two loads",
        per_fma("global_load_sectors"),
        case=Case(32, 32, 64, layout="row"),
    ),
    Claim("sgemm/naive", "(Two) loads per FMA", per_fma(LOADS)),
    *(Claim(f"sgemm/multi({x})", r"([\d.]+) requests per FMA of a warp", per_term) for x in (1, 2, 4, 8)),
    *(Claim(f"sgemm/multi({x})", r"(\d+) sectors of C", sectors_of_c) for x in (1, 2, 4, 8)),
    *(Claim(f"sgemm/shared({x})", r"fall from 8 to ([\d.]+) bytes per FMA", BYTES) for x in (8, 16, 32)),
    *(Claim(f"sgemm/shared({x})", r"([\d.]+) wavefronts per FMA of a warp", per_fma(WAVEFRONTS)) for x in (8, 16, 32)),
    *(Claim(f"sgemm/granularity({x})", r"([\d.]+) bytes from global memory", BYTES) for x in (1, 2, 4)),
    *(Claim(f"sgemm/granularity({x})", r"([\d.]+) shared wavefronts", per_fma(WAVEFRONTS)) for x in (1, 2, 4)),
    Claim("sgemm/ilp(1)", r"([\d.]+) shared wavefronts per FMA", per_fma(WAVEFRONTS)),
    *(Claim(f"sgemm/ilp({x})", r"fall from 1.5 to ([\d.]+):", per_fma(WAVEFRONTS)) for x in (2, 4, 8, 16)),
    Claim("sgemm/volkov", "(One) shared wavefront per FMA", per_fma(WAVEFRONTS)),
    Claim(
        "sgemm/volkov", r"per (\d+) of these one", lambda c, case: fmas(case) / c.global_load_requests, line=A_OF_VOLKOV
    ),
    Claim("sgemm/volkov", r"touches (\d+) sectors", SECTORS, line=A_OF_VOLKOV),
    Claim("sgemm/register-tile", r"A's reads are (\d)-way", CONFLICTS, line="a[i] = a_words"),
    Claim("sgemm/register-tile", r"B's (\d)-way", CONFLICTS, line="b[j] = b_words"),
    Claim("sgemm/register-tile", r"(\d+) shared reads feed 64", per_fma("shared_load_requests", 64)),
    Claim("sgemm/register-tile", r"(\d+) wavefronts where 16", per_fma(WAVEFRONTS, 64)),
    Claim("sgemm/conflict-free(128)", r"(\d+) wavefronts per 64 FMAs", per_fma(WAVEFRONTS, 64)),
    Claim("sgemm/vectorized", r"(\d+) shared reads instead of 16", per_fma("shared_load_requests", 64)),
    Claim("sgemm/async-copy", "(One) barrier per step instead of (two)", count("barriers"), "sgemm/vectorized"),
    Claim("sgemm/warp-tiles", r"(\d+) shared reads per 128 FMAs", per_fma("shared_load_requests", 128)),
    Claim("sgemm/warp-tiles", r"(\d+) per warp and k for 128 FMAs", per_fma(WAVEFRONTS, 128)),
    Claim("sgemm/tf32x3", r"(\d) mma.sync do what (\d+) FMAs", lambda c, case: c.hmma / fmas(case)),
    Claim("sgemm/fp16x3", "(Half) as many wgmma", count("gmma"), "sgemm/pieces"),
    Claim("sgemm/fp16x3", "(half) of the bytes by TMA", TMA, "sgemm/pieces"),
    Claim("hgemm/hierarchical", r"(\d+) bytes per load", ratio("global_load_bytes", LOADS, 1 / 32)),
    Claim("hgemm/hierarchical", r"(\d+) wavefronts per 8x8 matrix", PER_MATRIX),
    Claim("hgemm/hierarchical", r"(\d+) wavefronts per warp and 16 of k", ratio(WAVEFRONTS, "hmma", 32)),
    Claim("hgemm/vectorized", "(An eighth) of the copy instructions", count(LOADS), "hgemm/hierarchical"),
    Claim("hgemm/swizzled", r"(\d+) wavefront per 8x8 matrix", PER_MATRIX),
    Claim("hgemm/swizzled", r"(\d+) per warp and 16 of k", ratio(WAVEFRONTS, "hmma", 32)),
    Claim("hgemm/tile-shape", r"(\d+) FLOP per byte copied", flops_per("global_load_bytes")),
    Claim("hgemm/tile-shape", r"(\d+) instead of 32 FLOP per byte read", flops_per("shared_load_bytes")),
    Claim("hgemm/double-buffer", "(One) barrier per step instead of (two)", count("barriers"), "hgemm/tile-shape"),
    Claim("hgemm/multistage", "without registers between", unstaged),
    Claim(
        "hgemm/epilogue",
        r"(\d+) store requests for",
        lambda c, case: 1024 * c.global_store_requests / (case.m * case.n),
    ),
    Claim("hgemm/epilogue", r"(\d+) store requests .* instead of (\d+),", count(STORES), "hgemm/any-size"),
    Claim("hgemm/epilogue", "whole sectors only", lambda c, _case: c.global_store_bytes == 32 * c.global_store_sectors),
    Claim("hgemm/wgmma", r"does what (\d+) of mma.sync did", lambda c, case: fmas(case) / 64 / c.gmma),
    Claim("hgemm/warp-specialised", r"takes (\d+) bytes of .* instead of (\d+)", TMA, "hgemm/tma-pipeline"),
    Claim("hgemm/tma-store", r"(\d+) stmatrix per warp replace (\d+)", stores, "hgemm/persistent"),
    Claim("hgemm/tma-store", r"half fill (\d+) sectors", HALF_FULL, whose="hgemm/persistent"),
    Claim(
        "hgemm/tma-store", "stored by TMA in boxes of 64 x 64", lambda c, case: c.bulk_stores == case.m * case.n / 64**2
    ),
    Claim("hgemm/multicast", r"deliver (\d+) instead of (\d+)", TMA, "hgemm/tma-store", options=(("SHARES_B", 1),)),
    Claim("hgemm/multicast", r"of (\d+) bytes .* \((\d+) where", LESS, "hgemm/tma-store", options=(("SHARES_B", 0),)),
    inner("basic", r"(\d+) sectors per request", SECTORS),
    inner("basic", r"m \* n \* GS atomics", atomics),
    inner("basic", "E is read n times and F m times", for_each_output),
    inner("phvm", r"(\d+) sectors per request of float32", SECTORS),
    inner("phvm", r"m \* n \* GS atomics", atomics),
    inner("phvm", "still read n times and F m times", for_each_output),
    # Half of the requests are E's, of 4 sectors; F's elements are 8 apart, one per sector.
    inner("phvm", "row-major F costs n sectors", lambda c, case: SECTORS(c, case) == (4 + 32) / 2, case=ROW_MAJOR),
    *(
        inner(rung, words, least, case=Case(4, 3, 1024, dtype, layout))
        for rung, words in (("one-pass", "Bytes fall to the least"), ("vectorized", "for the same bytes"))
        for dtype, layout in product(("float32", "bfloat16"), ("row", "column"))
    ),
    inner("one-pass", r"same m \* n \* GS atomics", atomics),
    inner("vectorized", r"(\d) times fewer load", inverse(LOADS), "one-pass", Case(4, 4, 4096)),
    inner("vectorized", r"(\d) in float64", inverse(LOADS), "one-pass", Case(4, 4, 4096, "float64")),
    inner("vectorized", r"(\d) in 16-bit types", inverse(LOADS), "one-pass", Case(4, 4, 4096, "bfloat16")),
    inner("two-stage", r"and (\d+) atomics", count("atomics")),
    inner("gram", "the one input is read once", one_input, case=GRAM),
    inner("gram", r"\(m \+ 1\) / \(2 m\) of its FMAs", triangle, case=GRAM),
    Claim("transpose_add/v1", r"(\d) passes where one would do", CONFLICTS),
    Claim("transpose_add/v2", r"(\d) passes. The tile", CONFLICTS),
    Claim("transpose_add/v2", "(Half) as many instructions for y and the result", count(STORES), "transpose_add/v1"),
    Claim("transpose_add/wide", "(An eighth) of v1's instructions", count(STORES), "transpose_add/v1"),
    Claim("transpose_add/wide", "No bank conflict on reads", lambda c, case: CONFLICTS(c, case) == 1),
]


@cache
def counted(name: str, case: Case | None, options: tuple[tuple[str, Any], ...]) -> tuple[Report, Case, Trial | None]:
    """Return the report of the launch of a rung that does the work, and what it computed."""
    ladder, label = name.split("/")
    if ladder == "transpose_add":
        return check(sum_of(label, 512, 256)), Case(512, 256, 1), None
    if case is None:
        sizes = (256, 512, 64) if name in WGMMA else (256, 256, 128) if name in PIPELINED else None
        case = halves(*sizes) if sizes else whole_tiles(name, 4 if name == "hgemm/multistage" else 2)
    trial = trial_of(name, case, **dict(options))
    report = trial.main(races=False)
    assert trial.excess() <= 1
    return report, case, trial


def counters_of(claim: Claim, name: str) -> tuple[Any, Case]:
    """Return the counters of a rung, or of one line of it."""
    report, case, trial = counted(name, claim.case, claim.options if name == claim.rung or claim.case else ())
    if not claim.line:
        return report.counters, case
    assert trial is not None
    text = dict(trial.source().headers)[f"ladders/{name.split('/', maxsplit=1)[0]}/{trial.kernel.file}"]
    (line,) = (number for number, content in enumerate(text.splitlines(), start=1) if claim.line in content)
    return report.by_line[f"{trial.kernel.file}:{line}"], case


@pytest.mark.parametrize("claim", CLAIMS, ids=str)
def test_what_an_entry_claims_is_counted(claim: Claim) -> None:
    measured = claim.counted(*counters_of(claim, claim.whose or claim.rung))
    if claim.against:
        measured /= claim.counted(*counters_of(claim, claim.against))
    assert measured == pytest.approx(claim.number())


@pytest.mark.parametrize("ladder", RECORDS)
def test_recorded_runs_count_what_entries_claim(ladder: str) -> None:
    rows = {f"{ladder}/{label}": row for label, row in rows_of(RECORDS[ladder]).items()}
    for claim in CLAIMS:
        if claim.rung in rows and not (claim.line or claim.options or claim.case):
            names = [claim.whose or claim.rung, *([claim.against] if claim.against else [])]
            sizes = rows[claim.rung]["problem"]
            case = Case(sizes["m"], sizes["n"], sizes["k"])
            values = [claim.counted(Counters(**rows[name]["counters"]), case) for name in names]
            assert values[0] / (values[1] if claim.against else 1) == pytest.approx(claim.number()), claim


def test_every_rung_with_a_number_of_accesses_has_a_claim() -> None:
    claimed = {claim.rung for claim in CLAIMS}
    for ladder in ("sgemm", "hgemm", "inner", "transpose_add"):
        for rung in LADDERS[ladder].rungs:
            accesses = re.search(r"\d [a-z ]*(wavefronts?|sectors|requests?|passes|atomics|stmatrix) ", rung.predicts)
            assert not accesses or f"{ladder}/{rung.label}" in claimed, accesses


@pytest.mark.parametrize("name", [*of("sgemm"), *of("hgemm"), "transpose_add/wide", "transpose_add/shifted"])
def test_lanes_meet_in_banks_where_entries_say_so_alone(name: str) -> None:
    c = counted(name, None, ())[0].counters
    assert c.shared_store_wavefronts == c.shared_store_wavefronts_ideal
    apart = name not in {"sgemm/register-tile", "hgemm/hierarchical", "hgemm/vectorized"}
    assert (c.shared_load_wavefronts == c.shared_load_wavefronts_ideal) == apart
    if name in WGMMA:
        assert (c.hmma, c.ldmatrix_requests, c.global_load_requests) == (0, 0, 0)


def test_lanes_that_share_a_k_ask_for_it_together() -> None:
    for name in ("inner/one-pass", "inner/vectorized", "inner/two-stage"):
        trial = trial_of(name, Case(16, 16, 512), GS=2)
        counts = trial.main(races=False).counters
        assert counts.global_load_sectors * 32 == trial.a.nbytes + trial.b.nbytes
        assert counts.shared_load_wavefronts == 2 * counts.shared_load_wavefronts_ideal
        assert counts.shared_store_wavefronts == counts.shared_store_wavefronts_ideal


def test_no_barrier_of_the_block_is_in_the_loop_of_tma_pipeline() -> None:
    short, long = (trial_of("hgemm/tma-pipeline", halves(128, 128, k)).main(races=False).counters for k in (64, 512))
    assert short.barriers == long.barriers == 4
    assert long.mbarrier_waits > short.mbarrier_waits
