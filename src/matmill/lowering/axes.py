"""Dimensions of several operands at once: broadcast, joined where strides are regular, split and looped over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, Generic, NamedTuple, TypeAlias, overload

from matmill.errors import ShapeError
from matmill.kernel import P

#: The most products in a batch: grid.y counts them and ends at 65535 (CUDA programming guide, compute capabilities). As
#: a multiple of 16 it keeps the alignment of the operands in the next launch.
MOST_BATCHES = 65520

Shape: TypeAlias = tuple[int, ...]
#: Byte offsets of A, B, C and D from their operands' addresses.
Offsets: TypeAlias = tuple[int, int, int, int]
#: An operand's slot: its number among a plan's addresses, and bytes from there.
Slot: TypeAlias = tuple[int, int]


class Axis(NamedTuple):
    """A dimension: its extent, and its stride in A, B, C and D in elements."""

    extent: int
    strides: tuple[int, int, int, int]

    def at(self, index: int) -> tuple[int, int, int, int]:
        """Return the distance from index 0 to ``index``, in elements of A, B, C and D."""
        a, b, c, d = self.strides
        return index * a, index * b, index * c, index * d


@dataclass(frozen=True)
class Lattice(Sequence[Offsets]):
    """Offsets in bytes: from each of ``firsts`` along ``axes``, the last one fastest. Iteration computes them.

    >>> list(Lattice(((0, 0, 0, 0), (64, 0, 0, 0)), (Axis(2, (4, 8, 0, 0)),)))
    [(0, 0, 0, 0), (4, 8, 0, 0), (64, 0, 0, 0), (68, 8, 0, 0)]
    """

    firsts: tuple[Offsets, ...]
    axes: tuple[Axis, ...] = ()

    @property
    def only_origin(self) -> bool:
        """True if there is only one offset, the operands' addresses themselves."""
        return not self.axes and self.firsts == ((0, 0, 0, 0),)

    @property
    def steps(self) -> tuple[Offsets, ...]:
        """Offsets of which all offsets are sums."""
        return (*self.firsts, *(axis.strides for axis in self.axes))

    def __len__(self) -> int:
        return len(self.firsts) * prod(axis.extent for axis in self.axes)

    @overload
    def __getitem__(self, index: int) -> Offsets: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Offsets]: ...
    def __getitem__(self, index: int | slice) -> Offsets | Sequence[Offsets]:
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        rest = range(len(self))[index]
        steps = []
        for axis in reversed(self.axes):
            rest, along = divmod(rest, axis.extent)
            steps.append(axis.at(along))
        return total((self.firsts[rest], *steps))

    def __iter__(self) -> Iterator[Offsets]:
        for first in self.firsts:
            for index in product(*(range(axis.extent) for axis in self.axes)):
                yield total((first, *map(Axis.at, self.axes, index)))


@dataclass(frozen=True)
class SubProblem(Generic[P]):
    """One problem and the offsets at which it is to be computed.

    ``slots`` are those of A, B, C, D and the workspace, where stages exchange operands through the workspace: empty
    means that each has its own. ``instead`` are stages that compute the same in another way, which may take less time.
    """

    problem: P
    offsets: Lattice
    slots: tuple[Slot, ...] = ()
    instead: tuple[SubProblem[Any], ...] = ()

    @property
    def reserved(self) -> int:
        """Bytes at the start of the workspace that other stages read or have written."""
        return self.slots[-1][1] if self.slots else 0

    def own_addresses(self, addresses: tuple[int, ...]) -> tuple[int, ...]:
        """Return a plan's addresses with those of this stage's own operands."""
        own = [addresses[slot] + first for slot, first in self.slots]
        return (*own, *addresses[len(own) :])


#: An axis of extent 1, in place of a missing dimension.
NO_AXIS = Axis(1, (0, 0, 0, 0))


def broadcast(x: Shape, y: Shape) -> Shape | None:
    """Broadcast shapes by NumPy's rule, zeros included, or return None if they are not compatible."""
    n = max(len(x), len(y))
    pairs = zip((1,) * (n - len(x)) + tuple(x), (1,) * (n - len(y)) + tuple(y), strict=True)
    shape = []
    for p, q in pairs:
        if p != q and 1 not in {p, q}:
            return None
        shape.append(q if p == 1 else p)
    return tuple(shape)


def check_broadcast(shape: Shape, target: Shape, argument: str) -> None:
    """Raise :class:`~matmill.errors.ShapeError` unless ``shape`` broadcasts to exactly ``target``."""
    if broadcast(shape, target) != tuple(target):
        raise ShapeError(
            argument=argument,
            got=f"shape {tuple(shape)}",
            wanted=f"one that broadcasts to the result's {tuple(target)}",
            fix="Reshape it, or insert dimensions of 1.",
        )


def broadcast_batches(x: Shape, y: Shape, names: tuple[str, str]) -> Shape:
    """Return all dimensions but the last two of two shapes, broadcast. Raises :class:`~matmill.errors.ShapeError`."""
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
    """Return strides of ``shape`` broadcast to ``rank`` dimensions: zero for extent 1 and for missing dimensions."""
    own = tuple(0 if extent == 1 else stride for extent, stride in zip(shape, strides, strict=True))
    return (0,) * (rank - len(own)) + own


def canonical(strides: tuple[int, int], rows: int, columns: int) -> tuple[int, int]:
    """Replace strides of dimensions with extent 1 by packed ones, so that fewer kernels are compiled."""
    column = strides[1] if columns > 1 else 1
    return (strides[0] if rows > 1 else max(1, columns) * abs(column)), column


def collapse(axes: Iterable[Axis]) -> list[Axis]:
    """Merge neighbouring axes whose strides are regular in all operands, and drop those of extent 1."""
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
    """Split an extent into pieces of at most ``most``. Return each length with the starts of its pieces.

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
) -> Iterator[tuple[Axis, Lattice]]:
    """Yield one axis, the longest, in pieces of at most ``most``, each with the offsets at which it is launched.

    The other axes are looped over, from each of ``starts`` (in elements). ``sizes`` are the bytes of an element of A,
    B, C and D.
    """
    longest = max(axes, key=lambda axis: axis.extent, default=NO_AXIS)
    loops = [axis for axis in axes if axis is not longest]
    starts = tuple(starts)
    for batch, numbers in cut(longest.extent, most):
        walked = [*loops, Axis(len(numbers), longest.at(numbers.step))]
        firsts = tuple(total((start, longest.at(numbers.start)), sizes) for start in starts)
        looped = tuple(Axis(axis.extent, total([axis.strides], sizes)) for axis in walked if axis.extent > 1)
        yield Axis(batch, longest.strides if batch > 1 else NO_AXIS.strides), Lattice(firsts, looped)


def total(steps: Iterable[Sequence[int]], sizes: Offsets = (1, 1, 1, 1)) -> Offsets:
    """Return the sums of steps in A, B, C and D, times ``sizes``."""
    a, b, c, d = (sum(column) * size for column, size in zip(zip(*steps, strict=True), sizes, strict=True))
    return a, b, c, d


def lowest_bit(start: int, steps: Iterable[int], size: int) -> int:
    """Return the largest power of two that divides an address and all steps of ``size`` bytes from it."""
    bits = start
    for step in steps:
        bits |= abs(step) * size
    return bits & -bits
