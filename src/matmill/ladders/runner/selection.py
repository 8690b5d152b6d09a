"""Selects the rungs that a user names, and the nearest problem that a rung takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, Protocol, TypeVar

from matmill.arch import Arch
from matmill.errors import ArgumentError, unknown_name
from matmill.kernel import Rung
from matmill.ladders.runner.subject import ARITHMETIC, S, Subject


class Named(Protocol):
    """The names that every ladder's rungs have."""

    @property
    def name(self) -> str:
        """The rung's name without its parameter."""

    @property
    def label(self) -> str:
        """The rung's name with its parameter, if it has one."""


R = TypeVar("R", bound=Named)


def pick(rungs: Sequence[R], names: str | None) -> tuple[R, ...]:
    """Return the rungs that a comma-separated list names, in the ladder's order; all of them for None.

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


def nearest(rung: Rung[Any], problem: S, arch: Arch, subject: Subject[Any] = ARITHMETIC) -> tuple[S | None, str]:
    """Return the problem closest to ``problem`` that ``rung`` takes, and the reason why it does not take ``problem``.

    The reason is empty if it does. The subject's alternative is tried first, then sizes at multiples of powers of two
    around the requested one, the smallest change first. The problem is None if none of these is legal.
    """
    reason = rung.kernel_for(problem, arch).why_not(problem, arch)
    if reason is None:
        return problem, ""
    if subject.fallback is not None:
        other, why = subject.fallback(problem)
        if rung.kernel_for(other, arch).why_not(other, arch) is None:
            return other, why
    wanted = tuple(subject.sizes(problem).values())
    for sizes in sorted(product(*map(_neighbours, wanted)), key=_change_from(wanted)):
        other = subject.resized(problem, *sizes)
        if rung.kernel_for(other, arch).why_not(other, arch) is None:
            return other, reason
    return None, reason


def _change_from(wanted: tuple[int, ...]) -> Callable[[tuple[int, ...]], float]:
    """Return the relative change of the sizes, summed. Shrinking costs a little more, so that ties round up."""

    def change(sizes: tuple[int, ...]) -> float:
        return sum(abs(new - old) / old + (1e-9 if new < old else 0) for new, old in zip(sizes, wanted, strict=True))

    return change


def _neighbours(size: int) -> list[int]:
    """Return ``size`` and the multiples of 2, 4, … 1024 next to it on either side, without those that are not positive.

    >>> _neighbours(100)[:6]
    [64, 96, 100, 104, 112, 128]
    """
    sizes = {size}
    for factor in (2**i for i in range(1, 11)):
        below = size // factor * factor
        sizes.update({below, below + factor} if size % factor else {size})
    sizes.discard(0)
    return sorted(sizes)
