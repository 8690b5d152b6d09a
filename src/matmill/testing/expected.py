"""Outputs of an emulated launch beside what they should be: the first differences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matmill.emulator import Hazard
from matmill.testing.findings import different, usual_tolerance

#: An output's name, what it is compared with, the output, and the array that it should equal.
Pair: TypeAlias = tuple[str, str, NDArray[Any], NDArray[Any]]
_MOST_SHOWN = 5


@dataclass(frozen=True)
class Expectation:
    """One output beside what it should be: how many of ``size`` elements differ by more than ``tolerance``.

    ``file`` names what has the elements wanted. ``first`` are the first differences.
    """

    argument: str
    file: str
    size: int
    different: int
    tolerance: float
    first: tuple[dict[str, Any], ...] = ()

    @property
    def ok(self) -> bool:
        """True if no element differs."""
        return not self.different

    def __str__(self) -> str:
        lines = [f"argument {self.argument} equals {self.file} (tolerance {self.tolerance:.3g})"]
        if self.different:
            lines = [
                f"argument {self.argument} differs from {self.file} in {self.different:,} of {self.size:,} elements:"
            ]
            lines += [f"  {_index(each['index'])} is {each['got']}, wanted {each['wanted']}" for each in self.first]
            lines += [f"  and {self.different - len(self.first):,} more"] * (self.different > len(self.first))
            lines += [f"  (tolerance {self.tolerance:.3g} of the largest element)"]
        return "\n".join(lines)

    def hazard(self, kernel: str) -> Hazard:
        """Return the difference as an error of a launch of ``kernel``, for an expectation that is not ok."""
        message = f"argument {self.argument} differs from {self.file} in {self.different:,} of {self.size:,} elements"
        return Hazard("wrong-output", message, kernel, "")


def _index(index: Sequence[int]) -> str:
    return "".join(f"[{n}]" for n in index)


def expectations(pairs: Iterable[Pair], tolerance: float | None) -> Iterator[Expectation]:
    """Compare outputs with what they should be.

    ``tolerance`` is relative to the largest element wanted; by default 0 for integers, and the square root of the
    output type's rounding for floats.
    """
    for name, source, got, wanted in pairs:
        # A reference is often of a wider type than the output.
        allowed = usual_tolerance(got.dtype) if tolerance is None else tolerance
        wrong = different(wanted, got, allowed)
        first = tuple(
            {"index": index.tolist(), "got": got[tuple(index)].item(), "wanted": wanted[tuple(index)].item()}
            for index in np.argwhere(wrong)[:_MOST_SHOWN]
        )
        yield Expectation(name, source, got.size, int(wrong.sum()), allowed, first)
