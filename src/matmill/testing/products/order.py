"""The order in which a product adds the terms of k, as the results of masked sums show it.

Of k terms one is M, one is -M, and all others are units too small to change M. A unit that meets M before -M does is
lost, so what a sum lacks is the number of terms below the node of the summation tree where the two meet. The sizes of
enough such nodes are the tree (P. Xie, Y. Gao, Y. Wang, J. Xue, *Revealing Floating-Point Accumulation Orders in
Software/Hardware Implementations*, arXiv 2411.00442). Terms that a tensor core adds at once are lost together: they are
one node's children.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np

from matmill.dtypes import of_numpy
from matmill.testing.products.subject import Array, Sizes, Subject
from matmill.testing.products.terms import in_runs

#: A term of k, or a sum. A sum is a tuple of steps, of which each is a tuple of addends that are added to the sum so
#: far at once; those of the first step are added to nothing.
Tree: TypeAlias = "int | tuple[tuple[Any, ...], ...]"
Pairs: TypeAlias = "list[tuple[int, int]]"

#: M and a unit by element type. M is more than 2**25 times as large as all units together, for float64 2**54 times.
_MASKS = {
    "float16": (2.0**15, 2.0**-24),
    "bfloat16": (2.0**100, 1.0),
    "float32": (2.0**100, 1.0),
    "float64": (2.0**200, 1.0),
}


class NoOrderError(Exception):
    """Masked sums fit no tree: the sum is exact to more bits than masks have, or its order differs between elements."""


def order_of(subject: Subject, sizes: Sizes, terms: Sequence[int] | None = None) -> Tree:
    """Return the tree by which the function adds ``terms`` (all, unless named) of k; the other terms are zeros.

    Raises :class:`NoOrderError` where there is none.
    """
    m, n, k = sizes
    among = list(range(k)) if terms is None else list(terms)
    rows = m >= n

    def measure(pairs: Pairs) -> list[int]:
        result: list[int] = []
        for first in range(0, len(pairs), max(m, n)):
            some = pairs[first : first + max(m, n)]
            masks = _masks(subject, among, k, some)
            ones = np.zeros((k, min(m, n)))
            ones[among] = 1
            mask = np.zeros((max(m, n), k))
            mask[: len(some)] = masks
            product = subject.product(mask, ones) if rows else subject.product(ones.T, mask.T)
            if len(among) > 1 / of_numpy(product.dtype, "the result of f").roundoff:
                raise NoOrderError(f"{product.dtype.name} has no room for the number of {len(among)} terms")
            sums = (product if rows else product.T)[: len(some)].astype(np.float64)
            result += _sizes(sums / _MASKS[subject.dtype.name][1], len(among))
        return result

    return tree_of(among, measure)


def _masks(subject: Subject, terms: Sequence[int], k: int, pairs: Pairs) -> Array:
    most, unit = _MASKS[subject.dtype.name]
    masks = np.zeros((len(pairs), k))
    masks[:, terms] = unit
    for mask, (first, second) in zip(masks, pairs, strict=True):
        mask[first], mask[second] = most, -most
    return masks


def _sizes(sums: Array, count: int) -> list[int]:
    """Return how many terms are below the nodes where M and -M meet, from the units that are left, element by element.

    All elements have the same sum, so they have to agree.
    """
    left = sums[:, 0]
    if not (np.isfinite(sums).all() and (sums == left[:, None]).all()):
        raise NoOrderError("elements of one product are summed in different orders")
    if not ((left == np.floor(left)) & (left >= 0) & (left <= count - 2)).all():
        raise NoOrderError("sums of units are no whole numbers")
    return [count - int(units) for units in left]


def tree_of(terms: Sequence[int], measure: Callable[[Pairs], list[int]]) -> Tree:
    """Return the tree of ``terms`` by the sizes that ``measure`` returns for pairs of them.

    >>> tree_of([0, 1, 2], lambda pairs: [max(pair) + 1 for pair in pairs])
    ((0, 1), (2,))
    """
    level, split = [tuple(sorted(terms))], dict[tuple[int, ...], list[tuple[int, tuple[int, ...]]]]()
    while level:
        pairs = [(part[0], other) for part in level for other in part[1:]]
        sizes = dict(zip(pairs, measure(pairs), strict=True)) if pairs else {}
        for part in level:
            by_size = defaultdict(list)
            for other in part[1:]:
                by_size[sizes[part[0], other]].append(other)
            split[part] = [(size, tuple(by_size[size])) for size in sorted(by_size)]
        level = [part for whole in level for _, part in split[whole]]
    tree, size = _assembled(tuple(sorted(terms)), split)
    if size != len(terms):
        raise NoOrderError("no two terms meet in the last addition")
    return tree


def _assembled(part: tuple[int, ...], split: dict[tuple[int, ...], Any], around: int = 0) -> tuple[Tree, int]:
    """Return the tree of some terms, and the measured size of its root; ``around`` is that of the node above."""
    steps: list[tuple[Tree, ...]] = [(part[0],)]
    below = size = 1
    for size, others in split[part]:
        tree, own = _assembled(others, split, size)
        addends: tuple[Tree, ...] = (tree,)
        if isinstance(tree, tuple) and own == size:
            # What meets at the same node as this sum is not a sum of its own, but some of the node's children.
            addends = tree[0] if len(tree) == 1 else (tree[:-1], *tree[-1])
        below += len(others)
        if size not in {below, around}:
            raise NoOrderError(f"{below} terms are below a node of {size}")
        steps.append(addends)
    if len(steps) == 1:
        return part[0], 1
    return ((*steps[0], *steps[1]), *steps[2:]), size


def leaves(tree: Tree) -> Iterator[int]:
    """Yield the terms of a tree, in the order of its steps."""
    if isinstance(tree, int):
        yield tree
        return
    for step in tree:
        for addend in step:
            yield from leaves(addend)


def _moved(tree: Tree, by: int) -> Tree:
    if isinstance(tree, int):
        return tree + by
    return tuple(tuple(_moved(addend, by) for addend in step) for step in tree)


def describe(tree: Tree) -> list[str]:
    r"""Return the tree in words, a line for each kind of sum; what a sum adds is indented below it.

    >>> print(*describe(((0, 1), (2,), (((3, 4), (5,)),))), sep="\n")
    the sum of two, 3 apart, each
      0…2 one after the other
    """
    if isinstance(tree, int):
        return [f"{tree} alone"]
    apart, each = _halves(tree)
    if apart:
        count, distances = 2 ** len(apart), ", ".join(map(str, apart))
        how = "the sum of two," if count == 2 else f"the sum, by pairs, of {count},"
        return [f"{how} {distances} apart, each", *(f"  {line}" for line in describe(each))]
    parts = [list(same) for _, same in groupby(_parts(tree), key=lambda part: part[0])]
    if len(parts) == 1 and parts[0][0][0] is None:
        return [_chain([step for _, step in parts[0]])]
    lines = ["the sum of"]
    for part in parts:
        shape, first = part[0]
        if shape is None:
            lines.append(f"  {_chain([step for _, step in part])}")
            continue
        inner = describe(first[0])
        if len(first) > 1:
            inner = [f"{len(first)} sums at once, the first of them", *(f"  {line}" for line in inner)]
        lines += [f"  {line}" for line in inner]
        if len(part) > 1:
            starts = [min(leaves(step)) for _, (step, *_) in part]
            lines.append(f"  and {len(part) - 1} more like that, which begin with {in_runs(starts[1:])}")
    return lines


def _halves(tree: Tree) -> tuple[list[int], Tree]:
    """Return the distances of the halves, of their halves and so on, of a sum of two alike, and what is left."""
    apart: list[int] = []
    while isinstance(tree, tuple) and len(tree[-1]) == (2 if len(tree) == 1 else 1):
        first, second = (tree[:-1], tree[-1][0]) if len(tree) > 1 else tree[0]
        if isinstance(first, int) or _shape(first) != _shape(second):
            break
        apart.append(min(leaves(second)) - min(leaves(first)))
        tree = first
    return apart, tree


def _parts(tree: tuple[tuple[Tree, ...], ...]) -> Iterator[tuple[object, tuple[Tree, ...]]]:
    """Yield each step with its shape, which is the same for sums that differ by a distance; of single terms it is None.

    The steps before the first sum are one sum, if that is like it.
    """
    lead = next((index for index, step in enumerate(tree) if index and not isinstance(step[0], int)), 0)
    if lead and _shape(tree[:lead]) == _shape(tree[lead][0]):
        tree = ((tree[:lead],), *tree[lead:])
    for step in tree:
        shapes = tuple(map(_shape, step))
        yield None if set(shapes) == {0} else shapes, step


def _shape(tree: Tree) -> Tree:
    return _moved(tree, -min(leaves(tree)))


def _chain(steps: Sequence[tuple[Any, ...]]) -> str:
    """Describe steps that add single terms."""
    sizes = [len(step) for step in steps]
    terms = [term for step in steps for term in step]
    size = max(sizes)
    if len(terms) == 2:
        return f"{terms[0]} + {terms[1]}"
    # The first two of terms that are added one by one are one step.
    single = size == 1 or (sizes[0] == 2 and set(sizes[1:]) == {1})
    how = "one after the other" if single else f"{size} at once" if len(sizes) == 1 else f"{size} at a time"
    return f"{in_runs(terms)} {how}"
