"""Dimensions of several operands at once: broadcast, joined where strides are regular, cut and looped over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Generic, NamedTuple, TypeAlias

from matmill.errors import ShapeError
from matmill.kernel import P

#: Members of a batch are counted by grid.y, which ends here (CUDA programming guide, compute capabilities).
MOST_BATCHES = 65535

Shape: TypeAlias = tuple[int, ...]
#: Byte offsets of A, B, C and D from their operands' addresses.
Offsets: TypeAlias = tuple[int, int, int, int]


@dataclass(frozen=True)
class SubProblem(Generic[P]):
    """One problem and the offsets at which it is to be computed."""

    problem: P
    offsets: tuple[Offsets, ...]


class Axis(NamedTuple):
    """A dimension: its extent, and its stride in A, B, C and D in elements."""

    extent: int
    strides: tuple[int, int, int, int]

    def at(self, index: int) -> tuple[int, int, int, int]:
        """The distance from the first index to this one, in elements of A, B, C and D."""
        a, b, c, d = self.strides
        return index * a, index * b, index * c, index * d


#: A dimension that is not there.
NO_AXIS = Axis(1, (0, 0, 0, 0))


def broadcast(x: Shape, y: Shape) -> Shape | None:
    """NumPy's rule, with zeros; None where the shapes do not go together."""
    n = max(len(x), len(y))
    pairs = zip((1,) * (n - len(x)) + tuple(x), (1,) * (n - len(y)) + tuple(y), strict=True)
    shape = []
    for p, q in pairs:
        if p != q and 1 not in {p, q}:
            return None
        shape.append(q if p == 1 else p)
    return tuple(shape)


def check_broadcast(shape: Shape, target: Shape, argument: str) -> None:
    """Raises :class:`~matmill.errors.ShapeError` unless ``shape`` broadcasts to exactly ``target``."""
    if broadcast(shape, target) != tuple(target):
        raise ShapeError(
            argument=argument,
            got=f"shape {tuple(shape)}",
            wanted=f"one that broadcasts to the result's {tuple(target)}",
            fix="Reshape it, or insert dimensions of 1.",
        )


def broadcast_batches(x: Shape, y: Shape, names: tuple[str, str]) -> Shape:
    """All dimensions but the last two of two shapes, broadcast. Raises :class:`~matmill.errors.ShapeError`."""
    batch = broadcast(x[:-2], y[:-2])
    if batch is None:
        raise ShapeError(
            argument=", ".join(names),
            got=f"shapes {tuple(x)} and {tuple(y)}",
            wanted=f"batch dimensions {tuple(x[:-2])} and {tuple(y[:-2])} that broadcast",
            fix="Each pair, counted from the right, must be equal or hold a 1.",
        )
    return batch


def broadcast_strides(shape: Shape, strides: Sequence[int], rank: int) -> tuple[int, ...]:
    """Strides of ``shape`` broadcast to ``rank`` dimensions: zero where there is one element or no dimension."""
    own = tuple(0 if extent == 1 else stride for extent, stride in zip(shape, strides, strict=True))
    return (0,) * (rank - len(own)) + own


def canonical(strides: tuple[int, int], rows: int, columns: int) -> tuple[int, int]:
    """Strides with those that are never stepped over replaced by packed ones, so that fewer kernels are needed."""
    column = strides[1] if columns > 1 else 1
    return (strides[0] if rows > 1 else max(1, columns) * abs(column)), column


def collapse(axes: Iterable[Axis]) -> list[Axis]:
    """Axes without those of extent 1, neighbours joined where all operands step over them as over one."""
    joined: list[Axis] = []
    for axis in axes:
        if axis.extent == 1:
            continue
        if joined and joined[-1].strides == axis.at(axis.extent):
            joined[-1] = Axis(joined[-1].extent * axis.extent, axis.strides)
        else:
            joined.append(axis)
    return joined


def cut(extent: int, most: int) -> list[tuple[int, range]]:
    """An extent in pieces of at most ``most``: how long they are, and where those of one length start.

    >>> cut(10, 4)
    [(4, range(0, 8, 4)), (2, range(8, 9, 4))]
    """
    whole, rest = divmod(extent, most)
    pieces = [(most, range(0, whole * most, most)), (rest, range(whole * most, whole * most + 1, most))]
    return [(length, starts) for length, starts in pieces if length and starts]


def grids(
    axes: Sequence[Axis],
    sizes: Offsets,
    starts: Iterable[Offsets] = ((0, 0, 0, 0),),
    *,
    most: int = MOST_BATCHES,
) -> Iterator[tuple[Axis, tuple[Offsets, ...]]]:
    """One axis, the longest, in runs of at most ``most``, each with the offsets at which it is launched.

    The other axes are looped over, from each of ``starts`` (in elements). ``sizes`` are the bytes of an element of A,
    B, C and D.
    """
    longest = max(axes, key=lambda axis: axis.extent, default=NO_AXIS)
    loops = [axis for axis in axes if axis is not longest]
    indices = list(product(*(range(axis.extent) for axis in loops)))
    firsts = [total([start, *map(Axis.at, loops, index)]) for start in starts for index in indices]
    for batch, numbers in cut(longest.extent, most):
        offsets = tuple(total([first, longest.at(n)], sizes) for first in firsts for n in numbers)
        if offsets:
            yield Axis(batch, longest.strides if batch > 1 else NO_AXIS.strides), offsets


def total(steps: Iterable[Sequence[int]], sizes: Offsets = (1, 1, 1, 1)) -> Offsets:
    """Steps in A, B, C and D, added up and times ``sizes``."""
    a, b, c, d = (sum(column) * size for column, size in zip(zip(*steps, strict=True), sizes, strict=True))
    return a, b, c, d


def lowest_bit(start: int, steps: Iterable[int], size: int) -> int:
    """The largest power of two that divides an address and all steps of ``size`` bytes from it."""
    bits = start
    for step in steps:
        bits |= abs(step) * size
    return bits & -bits
