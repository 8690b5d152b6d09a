"""Arrays with a letter for each axis to matrices: what an einsum of two of them multiplies, sums and copies.

Letters of both arrays are batches or terms, letters of one are rows or columns, and axes whose strides are regular in
all arrays are one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import prod
from typing import TypeAlias

from matmill.lowering.axes import NO_AXIS, Axis, Shape, collapse

#: Extent and stride by letter, for axes whose extent is not 1. A letter twice has a diagonal's stride.
Axes: TypeAlias = dict[str, tuple[int, int]]
#: Shape and strides.
View: TypeAlias = tuple[Shape, tuple[int, ...]]
#: Letters, shape and strides.
Term: TypeAlias = tuple[str, Shape, tuple[int, ...]]


def letter_axes(letters: str, shape: Shape, strides: tuple[int, ...]) -> Axes:
    """Return extent and stride by letter, as :data:`Axes` has them."""
    axes: Axes = {}
    for letter, extent, stride in zip(letters, shape, strides, strict=True):
        if extent != 1:
            axes[letter] = extent, stride + axes.get(letter, (0, 0))[1]
    return axes


def arrange(output: str, term: Term) -> View:
    """Return the shape and the strides of an array with its axes in the order of ``output``.

    >>> arrange("ki", ("iik", (3, 3, 4), (12, 4, 1)))
    ((4, 3), (1, 16))
    """
    axes = letter_axes(*term)
    view = [axes.get(letter, (1, 0)) for letter in output]
    return tuple(extent for extent, _ in view), tuple(stride for _, stride in view)


@lru_cache(maxsize=1024)
def preparation(output: str, *terms: Term, rounded: bool) -> tuple[list[tuple[int, str, bool]], bool]:
    """Return what comes before a product, as long as it is no product of two views, and whether to swap the two.

    That is the position of each factor to sum or to copy first, the letters that are left, and whether it is a copy.
    Sums that are ``rounded`` to a shorter type than theirs are not taken one after the other.

    >>> a = "ij", (2, 3), (3, 1)
    >>> preparation("ik", a, ("jk", (3, 4), (4, 1)), rounded=False)
    ([], False)
    >>> preparation("k", a, ("jk", (3, 4), (4, 1)), rounded=False)
    ([(0, 'j', False)], False)
    >>> preparation("", a, ("ji", (3, 2), (2, 1)), rounded=False)
    ([(1, 'ij', True)], False)
    """
    sides = [letter_axes(*term) for term in terms]
    summed = (sides[0].keys() | sides[1].keys()) - set(output)
    regular = len(_terms(output, *sides)) < 2
    for own, other in ((0, 1), (1, 0)):
        alone = summed - sides[other].keys()
        stepwise = not (sides[other] or regular or rounded)
        if alone and stepwise:
            alone = {max(sorted(alone), key=lambda letter: sides[own][letter][0])}
        if alone and (sides[other] or stepwise):
            return [(own, "".join(letter for letter in sides[own] if letter not in alone), False)], False
    if not regular:
        by_size = sorted((0, 1), key=lambda own: -prod(extent for extent, _ in sides[own].values()))
        kept = next((own for own in by_size if len(_terms(output, sides[own], {})) < 2), None)
        order = _descending(sides[0] | sides[1], sides[by_size[0] if kept is None else kept])
        terms_last = "".join(letter for letter in order if letter in summed)
        first = ["".join(letter for letter in side if letter not in summed) + terms_last for side in sides]
        return [(own, first[own], True) for own in (0, 1) if own != kept], False
    # The columns of a packed result are contiguous.
    last = next((letter for letter in reversed(output) if letter in sides[0] | sides[1]), "")
    columns = (sides[1].keys() - sides[0].keys()) & set(output)
    return [], bool(columns) and last in sides[0].keys() - sides[1].keys()


def _descending(letters: Iterable[str], axes: Axes) -> list[str]:
    """Sort letters by their strides, the longest first."""
    return sorted(letters, key=lambda letter: -abs(axes.get(letter, (0, 0))[1]))


def _joined(letters: Iterable[str], a: Axes, b: Axes, d: Axes) -> list[Axis]:
    """Return the axes of letters of A, B and the result D; neighbours with regular strides are one."""
    every = a | b
    strides = [(every[letter][0], [axes.get(letter, (0, 0))[1] for axes in (a, b, d)]) for letter in letters]
    return collapse(Axis(extent, (of_a, of_b, 0, of_d)) for extent, (of_a, of_b, of_d) in strides)


def _terms(output: str, a: Axes, b: Axes) -> list[Axis]:
    """Return the axes to sum over, joined as far as any order allows."""
    letters = [letter for letter in a | b if letter not in output]
    if not all((a | b)[letter][0] for letter in letters):
        return [Axis(0, NO_AXIS.strides)]
    return min((_joined(_descending(letters, axes), a, b, {}) for axes in (a, b)), key=len)


@lru_cache(maxsize=1024)
def matrix_views(*terms: Term) -> tuple[View, View, View]:
    """Return shapes and strides of batches of matrices whose product has the elements of D in place.

    Of several axes of rows, or of columns, the longest is the matrix's. The others are batches that share B, or A.

    >>> x, y = ("bij", (2, 3, 4), (12, 4, 1)), ("bkj", (2, 5, 4), (20, 4, 1))
    >>> matrix_views(x, y, ("bik", (2, 3, 5), (15, 5, 1)))
    (((2, 3, 4), (12, 4, 1)), ((2, 4, 5), (20, 1, 4)), ((2, 3, 5), (15, 5, 1)))
    """
    a, b, d = (letter_axes(*term) for term in terms)
    order = [letter for letter in _descending(d, d) if letter in a or letter in b]
    rows = _joined((letter for letter in order if letter not in b), a, b, d)
    columns = _joined((letter for letter in order if letter not in a), a, b, d)
    batch = _joined((letter for letter in order if letter in a and letter in b), a, b, d)
    m, n = (max(axes, key=lambda axis: axis.extent, default=NO_AXIS) for axes in (rows, columns))
    (k,) = _terms("".join(d), a, b) or [NO_AXIS]
    outer = [*batch, *(axis for axis in (*rows, *columns) if axis is not m and axis is not n)]

    def view(which: int, *matrix: Axis) -> View:
        # NumPy broadcasts matrices that a batch shares without copies.
        extents = [
            axis.extent if which == 3 or axis.strides[which] or not any(axis.strides[:2]) else 1 for axis in outer
        ]
        extents += [axis.extent for axis in matrix]
        return tuple(extents), tuple(axis.strides[which] for axis in (*outer, *matrix))

    return view(0, m, k), view(1, k, n), view(3, m, n)
