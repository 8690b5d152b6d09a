"""Products whose sums are exact: every term is there once, nothing else is read or written, NaN is where it must be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from matmill.testing.products.report import NO, OPEN, YES, Finding
from matmill.testing.products.subject import Array, Sizes, Subject, spelled
from matmill.testing.products.terms import in_words, miscounted

#: Sizes are these and up to one period more, so that m, n and k have every remainder by the period.
_LEAST, _PERIOD = (33, 41, 65), 16
#: Distances from one remainder to the next one of m, n and k, so that few products have all of each.
_STEPS = (1, 5, 11)
#: Long sums of small products. Of cuBLAS 13.1 some of these lose their last terms (docs/correctness.md).
LONG = (8200, 11528, 16136)


def remainders() -> Iterator[Sizes]:
    """Yield small sizes: m, n and k have every remainder by 16 among them. Then tiny ones, several tiles, long sums."""
    for index in range(_PERIOD):
        m, n, k = (low + index * step % _PERIOD for low, step in zip(_LEAST, _STEPS, strict=True))
        yield m, n, k
    yield from ((1, 1, 1), (1, 40, 33), (40, 1, 47), (130, 259, 133), (261, 67, 150))
    yield from ((8, 8, k) for k in LONG)


def signs(sizes: Sizes, seed: int = 0) -> tuple[Array, Array]:
    """Return matrices of 1 and -1: sums are whole numbers, of which a lost or doubled term changes each."""
    m, n, k = sizes
    random = np.random.default_rng([*sizes, seed])
    return random.choice([-1.0, 1.0], (m, k)), random.choice([-1.0, 1.0], (k, n))


def terms(subject: Subject, every: Iterable[Sizes], enough: Callable[[], bool]) -> list[Finding]:
    """Return whether products of these sizes have every term once, and read nothing else, until it is ``enough``."""
    products = 0
    for sizes in every:
        if enough():
            break
        products += 1
        a, b = signs(sizes)
        expected = (a @ b).astype(subject.result.numpy)
        product = subject.product(a, b)
        wrong = np.argwhere(product != expected) if product.shape == expected.shape else np.zeros((1, 2), int)
        if not len(wrong):
            continue
        row, column = (int(index) for index in wrong[0])
        where = f"{spelled(sizes)}: {len(wrong)} of {expected.size} elements, the first of them D[{row}, {column}]"
        if product.shape != expected.shape:
            return [_wrong("terms", f"{spelled(sizes)}: the result's shape is {product.shape}")]
        if np.isnan(product[row, column]):
            return [_wrong("bounds", f"{where}, is NaN: what surrounds the operands was read")]
        return [_wrong("terms", f"{where}: {_missing(subject, sizes, row, column)}")]
    verdict = YES if products else OPEN
    return [Finding(name, verdict, f"{products} products") for name in ("terms", "bounds")]


def _wrong(name: str, detail: str) -> Finding:
    return Finding(name, NO, detail)


def _missing(subject: Subject, sizes: Sizes, row: int, column: int) -> str:
    """Say which terms of an element are not there once."""
    m, n, k = sizes

    def count(first: int, last: int) -> float:
        a = np.zeros((m, k))
        a[:, first:last] = 1
        return float(subject.product(a, np.ones((k, n)))[row, column])

    wrong_terms = miscounted(count, k, subject.result.roundoff)
    return (
        in_words(wrong_terms, k) if wrong_terms else "wrong with elements of either sign, though every term counts once"
    )


def writes(subject: Subject) -> Finding:
    """Return whether ``out=`` is written whole, and nothing around it."""
    if "out" not in subject.takes:
        return Finding("written", OPEN, "it has no out=")
    for sizes in ((33, 41, 65), (40, 8, 300)):
        a, b = signs(sizes)
        out, buffer = subject.written(a, b, fill=float("nan"))
        if np.isnan(out).any():
            row, column = np.argwhere(np.isnan(out))[0]
            return _wrong("written", f"{spelled(sizes)}: D[{row}, {column}] is left as it was")
        beyond = np.isfinite(buffer).sum() - out.size
        if beyond:
            return _wrong("written", f"{spelled(sizes)}: {beyond} elements around D are written")
    return Finding("written", YES)


def special(subject: Subject) -> Finding:
    """Return whether NaN, infinities and their products with zeros reach the elements that they belong to, alone."""
    m, n, k = 19, 21, 37
    inf, nan = float("inf"), float("nan")
    for (row, term), (value, other) in (
        ((0, 0), (nan, 0.0)),
        ((m - 1, k - 1), (nan, 1.0)),
        ((7, k - 1), (inf, 0.0)),
        ((8, 16), (inf, 2.0)),
        ((9, 5), (-inf, -3.0)),
    ):
        for swap in (False, True):
            a, b = signs((m, n, k))
            a[row, term], b[term] = value, other
            with np.errstate(all="ignore"):
                expected = a @ b
            product = subject.product(a, b) if not swap else subject.product(b.T, a.T).T
            wrong = ~((product == expected) | (np.isnan(product) & np.isnan(expected)))
            if wrong.any():
                at = tuple(int(index) for index in np.argwhere(wrong)[0])
                got, wanted = float(product[at]), float(expected[at])
                which = "B" if swap else "A"
                return _wrong("special", f"{value:g} in {which} times {other:g}: got {got:g} for {wanted:g}")
    return Finding("special", YES)


def leaves_c(subject: Subject) -> Finding:
    """Return whether C is left unread where beta is 0."""
    if not {"c", "beta"} <= subject.takes:
        return Finding("beta", OPEN, "it has no c= and beta=")
    a, b = signs((19, 21, 37))
    c = subject.as_result.matrix(np.full((19, 21), np.nan))
    product = subject.product(a, b, c=c, beta=0.0)
    if (product == (a @ b).astype(product.dtype)).all():
        return Finding("beta", YES)
    return _wrong("beta", "NaN of C is in D")


def limits(subject: Subject) -> Iterator[Finding]:
    """Yield whether sums that are too large are infinite, and whether the smallest numbers count."""
    kind = subject.dtype
    large = 2.0 ** (15 if kind.name == "float16" else 127 if kind.itemsize <= 4 else 1023)
    a, b = np.full((8, 24), large), np.ones((24, 8))
    product = subject.product(a, b)
    exact = subject.result.name != kind.name
    inf = bool(np.isposinf(product).all()) or (exact and bool((product == large * 24).all()))
    yield Finding("overflow", YES if inf else NO, "" if inf else f"24 times {large:g} is {float(product[0, 0]):g}")
    tiny = subject.dtype.tiny / 4
    kept = bool((subject.product(np.eye(8) * tiny, np.ones((8, 8))).astype(np.float64) == tiny).all())
    yield Finding("subnormals", YES if kept else NO, "" if kept else f"{tiny:g} is lost")
