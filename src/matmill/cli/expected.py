"""Outputs of an emulated launch beside the ``.npy`` files that they should equal: the first differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from matmill.cli.emulate_arguments import Array, Files, Value
from matmill.cli.files import ANY, load
from matmill.errors import ArgumentError

#: An output's name, the file, the output in the shape of the file, and the file's array.
Pair: TypeAlias = tuple[str, str, Array, Array]
_MOST_SHOWN = 5


@dataclass(frozen=True)
class Expectation:
    """One output beside its file: how many of ``size`` elements differ by more than ``tolerance``, and the first."""

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
            lines += [f"  (tolerance {self.tolerance:.3g} of the largest element: --tolerance)"]
        return "\n".join(lines)


def _index(index: Sequence[int]) -> str:
    return "".join(f"[{n}]" for n in index)


def expectations(pairs: Sequence[Pair], tolerance: float | None) -> Iterator[Expectation]:
    """Compare arrays with what they should be.

    ``tolerance`` is relative to the largest element wanted; by default 0 for integers, and the square root of the
    type's rounding for floats.
    """
    from matmill.testing.findings import different, usual_tolerance  # noqa: PLC0415 — other commands should not pay

    for name, path, got, wanted in pairs:
        allowed = usual_tolerance(wanted.dtype) if tolerance is None else tolerance
        wrong = different(wanted, got, allowed)
        first = tuple(
            {"index": index.tolist(), "got": got[tuple(index)].item(), "wanted": wanted[tuple(index)].item()}
            for index in np.argwhere(wrong)[:_MOST_SHOWN]
        )
        yield Expectation(name, path, got.size, int(wrong.sum()), allowed, first)


def pair(text: str, arguments: Mapping[str, Value], files: Files) -> Pair:
    """Parse ``[INDEX=]FILE.npy``: the argument INDEX, by default the one that is written to a file, and the file.

    Raises :class:`~matmill.errors.ArgumentError`.
    """
    arrays = {name: each for name, each in arguments.items() if isinstance(each, np.ndarray)}
    written = list(dict.fromkeys(files.values())) or [name for name, each in arrays.items() if each.flags.writeable]
    name, separator, path = text.rpartition("=")
    if not separator and len(written) == 1:
        name = written[0]
    if name not in arrays:
        raise ArgumentError(
            argument="--expect",
            got=repr(text),
            wanted=f"INDEX=FILE.npy, where INDEX is an array argument: {', '.join(arrays) or 'there is none'}",
            fix="Arguments count from 0, in the order of --arg.",
        )
    got, wanted = arrays[name], np.asarray(load(Path(path), "--expect", wanted=ANY))
    if wanted.dtype.itemsize == got.dtype.itemsize and wanted.dtype.kind == "V":
        wanted = wanted.view(got.dtype)
    if wanted.size != got.size or (wanted.dtype.kind in "iub") != (got.dtype.kind in "iub"):
        raise ArgumentError(
            argument="--expect",
            got=f"{path}: {wanted.dtype} {wanted.shape}",
            wanted=f"{got.dtype} {got.shape}, as argument {name}",
            fix="Write it with numpy.save in the shape and type of the output.",
        )
    return name, path, got.reshape(wanted.shape), wanted
