"""The options that describe a problem, and the defaults of sizes and types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import TypeVar

from matmill.dtypes import DType, long_name
from matmill.errors import ArgumentError, unknown_name

Sizes = TypeVar("Sizes", bound=tuple[int, ...])


@dataclass(frozen=True)
class ProblemOptions:
    """The options of ``matmill ladder`` that describe a problem; None for those that the user omits."""

    m: int | None = None
    n: int | None = None
    k: int | None = None
    case: str | None = None
    dtype: str | None = None
    layout: str | None = None

    def square(self, default: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return (m, n, k): ``n`` alone sets all three; otherwise missing sizes are those of ``default``.

        >>> ProblemOptions(n=512, k=64).square((4096, 4096, 4096)), ProblemOptions(k=64).square((4096, 4096, 4096))
        ((512, 512, 64), (4096, 4096, 64))
        """
        m, n, k = (self.n,) * 3 if self.n else default
        return self.m or m, n, self.k or k

    def element_type(self, known: Mapping[str, DType], default: DType) -> DType:
        """Return the type that ``dtype`` names.

        Raises :class:`~matmill.errors.UnknownNameError` with the nearest name.
        """
        return known[long_name(self.dtype or default.name, known)]


def named_case(name: str, cases: Mapping[str, Sizes]) -> Sizes:
    """Return the sizes of a case, ignoring case.

    Raises :class:`~matmill.errors.UnknownNameError` with the nearest name.
    """
    case = {known.lower(): sizes for known, sizes in cases.items()}.get(name.lower())
    if case is None:
        raise unknown_name("--case", name, cases)
    return case


@dataclass(frozen=True)
class EmulatorLimit:
    """The cost of a whole ladder in the emulator, and the most work that it starts without ``--on emulator``.

    Work is the product of all sizes, ``most`` of it is the limit, and ``seconds`` is the time per unit of all rungs
    together on one core (AMD EPYC, 2026-11-24). ``argument`` names the options to change, ``got`` formats the sizes,
    ``fix`` proposes smaller ones.
    """

    most: int
    seconds: float
    argument: str
    fix: str
    got: str = "m={m} n={n} k={k}"

    def about(self, sizes: Mapping[str, int], share: float) -> float:
        """Return roughly the seconds of a ``share`` of the rungs; a slow rung may take five times its share.

        >>> round(EmulatorLimit(10**8, 3.4e-6, "--n", "Take less.").about({"m": 256, "n": 256, "k": 256}, 1.0))
        57
        """
        return self.seconds * prod(sizes.values()) * share

    def check(self, sizes: Mapping[str, int]) -> None:
        """Raise :class:`~matmill.errors.ArgumentError` if ``sizes`` are too much work."""
        if prod(sizes.values()) > self.most:
            raise ArgumentError(
                argument=self.argument,
                got=f"{self.got.format(**sizes)} on a machine without a usable GPU",
                wanted=f"{' * '.join(sizes)} of at most {self.most:.0e}, which the emulator does in minutes",
                fix=f"{self.fix}, or --on emulator to wait for it.",
            )


@contextmanager
def fitting_in_memory(**sizes: int) -> Iterator[None]:
    """Raise an :class:`~matmill.errors.ArgumentError` that names the sizes if an allocation fails."""
    try:
        yield
    except (MemoryError, ValueError) as error:  # ValueError: more bytes than fit in an address
        raise ArgumentError(
            argument=", ".join(f"--{name}" for name in sizes),
            got=f"{', '.join(map(str, sizes.values()))}, and {error}",
            wanted="matrices that fit in this machine's memory",
            fix="Take smaller sizes.",
        ) from error
