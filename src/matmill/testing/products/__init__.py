"""What any function that multiplies matrices computes: its terms, their order, its errors and its bits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from matmill.dtypes import ALL, long_name
from matmill.errors import unknown_name
from matmill.testing.products import exact
from matmill.testing.products.accuracy import errors
from matmill.testing.products.bits import bits
from matmill.testing.products.order import NoOrderError, describe, order_of
from matmill.testing.products.report import NEEDED, NO, OPEN, PROPERTIES, YES, Audit, Finding
from matmill.testing.products.subject import Sizes, Subject, spelled
from matmill.testing.products.terms import in_runs

#: Sizes of products whose order is asked, and the terms: all of a short sum; of a long one neighbours, then some
#: from all over it. 16-bit results count so many units exactly.
_ORDERS: tuple[tuple[Sizes, range], ...] = (
    ((64, 8, 64), range(64)),
    ((64, 8, 4096), range(64)),
    ((64, 8, 4096), range(0, 4096, 64)),
)


def audit(
    f: Callable[..., Any],
    *,
    dtype: str = "float32",
    device: str = "",
    name: str = "",
    require: Sequence[str] = (),
    seconds: float = 60.0,
) -> Audit:
    """Return what a function ``f(a, b)`` that multiplies two matrices computes.

    Operands are NumPy's arrays, or with a ``device`` (``"cuda"``, ``"cpu"``) torch's tensors, of ``dtype``; around them
    memory is NaN. A function that declares ``out=``, or ``c=`` and ``beta=`` as BLAS has them, is called with these
    too, and one that takes three dimensions with batches.

    The product is wrong unless every term is there once, nothing else is read or written, NaN and infinities are where
    IEEE 754 has them, and no error is above 2 k u |A| |B|. Other properties are reported, its order of summation and
    when its bits are the same among them; those that ``require`` names, it needs as well
    (:data:`~matmill.testing.products.report.PROPERTIES`). What there is no time left for after some ``seconds`` is not
    asked.

    >>> import numpy as np
    >>> audit(lambda a, b: a[:, :-1] @ b[:-1]).wrong[0].detail
    '33 x 41 x 65: 1353 of 1353 elements, the first of them D[0, 0]: lost: 64 (of 0…64)'
    >>> audit(np.matmul).ok
    True
    """
    for needed in require:
        if needed not in PROPERTIES:
            raise unknown_name("require", needed, list(PROPERTIES))
    subject = Subject(f, name or getattr(f, "__qualname__", str(f)), ALL[long_name(dtype, ALL, "dtype")], device)
    end = time.monotonic() + seconds
    findings: list[Finding] = []
    for check in _checks(subject, lambda: time.monotonic() > end):
        try:
            findings += check()
        except Exception as error:  # noqa: BLE001 — whatever a function raises for operands that it should take
            sizes = f"{error.__notes__[0]}: " if getattr(error, "__notes__", ()) else ""
            said = f"{sizes}{type(error).__name__}: {error}".splitlines()[0]
            findings.append(Finding("takes", NO, said))
    return Audit(subject.name, subject.dtype.name, tuple(findings), (*NEEDED, *require))


def _checks(subject: Subject, enough: Callable[[], bool]) -> Iterator[Callable[[], Iterable[Finding]]]:
    yield lambda: exact.terms(subject, exact.remainders(), enough)
    yield lambda: [exact.writes(subject), exact.special(subject), exact.leaves_c(subject)]
    yield lambda: errors(subject)
    yield lambda: exact.limits(subject)
    yield lambda: [order(subject, enough)]
    yield lambda: bits(subject, enough)


def order(subject: Subject, enough: Callable[[], bool]) -> Finding:
    """Return the order in which the function adds the terms of a short sum and of a long one, in words."""
    lines: list[str] = []
    for sizes, terms in _ORDERS:
        if enough():
            return Finding("order", OPEN, "no time left", tuple(lines))
        try:
            tree = order_of(subject, sizes, terms)
        except NoOrderError as reason:
            return Finding("order", NO, f"{spelled(sizes)}: {reason}", tuple(lines))
        some = "" if len(terms) == sizes[2] else f", terms {in_runs(terms)}"
        lines += [f"{spelled(sizes)}{some}:", *(f"  {line}" for line in describe(tree))]
    return Finding("order", YES, more=tuple(lines))
