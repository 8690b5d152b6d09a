"""Which rungs a user means, and the nearest problem a rung can take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Literal, Protocol, TypeVar

from matmill.arch import Arch
from matmill.bench.ladder.subject import ARITHMETIC, S, Subject
from matmill.bench.problems.inner import EMULATED_LAUNCH
from matmill.config import Config
from matmill.errors import ArgumentError, unknown_name
from matmill.kernel import Rung
from matmill.ladders.documents import S3
from matmill.problem import Gemm

_MOST_BLOCKS = 2**31 - 1


class Named(Protocol):
    """What every ladder's rungs have in common."""

    @property
    def name(self) -> str:
        """The rung's name without its parameter."""

    @property
    def label(self) -> str:
        """The rung's name with its parameter, where it has one."""


R = TypeVar("R", bound=Named)


def pick(rungs: Sequence[R], names: str | None) -> tuple[R, ...]:
    """The rungs that a comma-separated list names, in the ladder's order; all of them for None.

    ``ilp`` names every rung of that name, ``ilp(4)`` one of them. Raises
    :class:`~matmill.errors.UnknownNameError` with the nearest name.
    """
    if names is None:
        return tuple(rungs)
    wanted = [part.strip().lower() for part in names.split(",") if part.strip()]
    if not wanted:
        raise ArgumentError(
            argument="--rungs", got=repr(names), wanted="names with commas between", fix="See `matmill ladder --list`."
        )
    for name in wanted:
        if not any(name in (rung.name, rung.label) for rung in rungs):
            # Plain names and those with parameters, each once, in order.
            known = dict.fromkeys(word for rung in rungs for word in (rung.name, rung.label))
            raise unknown_name("--rungs", name, known)
    return tuple(rung for rung in rungs if rung.name in wanted or rung.label in wanted)


def of_paper(rungs: Sequence[Rung[Gemm]]) -> list[Rung[Gemm]]:
    """The rungs from the paper, which leaves their launch open."""
    return [rung for rung in rungs if rung.source == S3]


def launched(rungs: Sequence[Rung[Gemm]], constants: Mapping[str, int]) -> tuple[tuple[Rung[Gemm], ...], str]:
    """``rungs``, those of the paper with ``constants`` (GS, BS) as their launch, and words that say so, if any do."""
    papers = of_paper(rungs)
    if not constants or not papers:
        return tuple(rungs), ""
    said = ", ".join(f"{name} = {value}" for name, value in constants.items())
    found = tuple(_with_constants(rung, constants) if rung in papers else rung for rung in rungs)
    return found, f"{', '.join(rung.label for rung in papers)}: launched with {said}"


def for_emulator(rungs: Sequence[Rung[Gemm]], **constants: int) -> tuple[tuple[Rung[Gemm], ...], str]:
    """As :func:`launched`, with the emulator's defaults for what ``constants`` do not name."""
    return launched(rungs, {**EMULATED_LAUNCH, **constants})


def paper_launch(
    rungs: Sequence[Rung[Gemm]], given: Mapping[str, int], on: Literal["gpu", "emulator"]
) -> tuple[Sequence[Rung[Gemm]], tuple[str, ...]]:
    """The rungs to run ``on`` a GPU or the emulator, those of the paper with ``given`` GS and BS, and notes on them.

    Raises :class:`~matmill.errors.ArgumentError` where no rung takes them, or no GPU.
    """
    _check_launch(given, of_paper(rungs))
    found, said = for_emulator(rungs, **given) if on == "emulator" else launched(rungs, given)
    return found, (said,) if said else ()


def _check_launch(given: Mapping[str, int], papers: Sequence[Rung[Gemm]]) -> None:
    if not given:
        return
    if not papers:
        raise ArgumentError(
            argument=f"--{next(iter(given)).lower()}",
            got="rungs that choose their own launch",
            wanted="basic or phvm among --rungs",
            fix="Name one of them, or omit the option.",
        )
    bs, gs = given.get("BS", 32), given.get("GS", 1)
    if bs % 32 or bs > 1024:
        raise ArgumentError(
            argument="--bs", got=str(bs), wanted="a multiple of 32, at most 1024", fix="Blocks are whole warps."
        )
    if gs > _MOST_BLOCKS:
        raise ArgumentError(argument="--gs", got=str(gs), wanted=f"at most {_MOST_BLOCKS}", fix="Take fewer blocks.")


def _with_constants(rung: Rung[Gemm], constants: Mapping[str, int]) -> Rung[Gemm]:
    """``rung`` with some of its constants fixed, whatever it would choose for a problem."""

    def tune(problem: Gemm, arch: Arch) -> Config:
        return rung.kernel_for(problem, arch).config.replace(**constants)

    return replace(rung, tune=tune)


def nearest(rung: Rung[Any], problem: S, arch: Arch, subject: Subject[Any] = ARITHMETIC) -> tuple[S | None, str]:
    """The problem closest to ``problem`` that ``rung`` takes, and the reason it did not take the one asked for.

    The reason is empty where it did. The problem that the subject has instead is tried first, then sizes at the
    multiples of powers of two around the one asked for, the smallest change first. Gives None where none of these
    is legal.
    """
    reason = rung.kernel_for(problem, arch).why_not(problem, arch)
    if reason is None:
        return problem, ""
    if subject.instead is not None:
        other, said = subject.instead(problem)
        if rung.kernel_for(other, arch).why_not(other, arch) is None:
            return other, said
    asked = tuple(subject.sizes(problem).values())
    for sizes in sorted(product(*map(_neighbours, asked)), key=_change_from(asked)):
        other = subject.resized(problem, *sizes)
        if rung.kernel_for(other, arch).why_not(other, arch) is None:
            return other, reason
    return None, reason


def _change_from(asked: tuple[int, ...]) -> Callable[[tuple[int, ...]], float]:
    """Relative change of the sizes, summed; shrinking costs a shade more, so that ties round up."""

    def change(sizes: tuple[int, ...]) -> float:
        return sum(abs(new - old) / old + (1e-9 if new < old else 0) for new, old in zip(sizes, asked, strict=True))

    return change


def _neighbours(size: int) -> list[int]:
    """``size`` and the multiples of 2, 4, … 1024 next to it on either side, positive ones only.

    >>> _neighbours(100)[:6]
    [64, 96, 100, 104, 112, 128]
    """
    found = {size}
    for factor in (2**i for i in range(1, 11)):
        below = size // factor * factor
        found.update({below, below + factor} if size % factor else {size})
    found.discard(0)
    return sorted(found)
