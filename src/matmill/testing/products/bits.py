"""When a product has the same bits: run again, among other rows, in a batch, in another layout, at another address."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from matmill.testing.products.report import NO, OPEN, YES, Finding
from matmill.testing.products.subject import PLAIN, Array, Form, Sizes, Subject, spelled

#: Sizes of small sums, and of a long one, of which slices may be summed by several blocks.
_SIZES: tuple[Sizes, ...] = ((33, 24, 300), (48, 16, 4096))
_ROWS, _BATCH = (1, 8), 3


def bits(subject: Subject, enough: Callable[[], bool]) -> Iterator[Finding]:
    """Yield which changes of a call change no bit of the result, until it is ``enough``."""
    checks = {"twice": _twice, "rows": _rows, "layouts": _layouts, "addresses": _addresses, "batches": _batches}
    for name, check in checks.items():
        detail = ""
        for sizes in _SIZES:
            if enough():
                detail = detail or "no time left"
                break
            detail = check(subject, sizes, *_operands(sizes))
            if detail:
                break
        verdict = OPEN if detail.startswith(("it ", "no time")) else NO if detail else YES
        yield Finding(name, verdict, detail)


def _operands(sizes: Sizes) -> tuple[Array, Array]:
    m, n, k = sizes
    random = np.random.default_rng(sizes)
    return random.standard_normal((m, k)), random.standard_normal((k, n))


def _different(sizes: Sizes, one: Array, other: Array, what: str = "") -> str:
    """Say how many elements have other bits, or nothing where none has."""
    bits = (np.ascontiguousarray(matrix).view(f"i{matrix.itemsize}") for matrix in (one, other))
    count = int(np.not_equal(*bits).sum())
    return f"{spelled(sizes)}{what}: {count} of {one.size} elements differ" if count else ""


def _twice(subject: Subject, sizes: Sizes, a: Array, b: Array) -> str:
    return _different(sizes, subject.product(a, b), subject.product(a, b))


def _rows(subject: Subject, sizes: Sizes, a: Array, b: Array) -> str:
    whole = subject.product(a, b)
    words = (_different(sizes, whole[:rows], subject.product(a[:rows], b), f", {rows} rows alone") for rows in _ROWS)
    return next(filter(None, words), "")


def _layouts(subject: Subject, sizes: Sizes, a: Array, b: Array) -> str:
    whole = subject.product(a, b)
    forms = ((Form(columns=True), PLAIN), (PLAIN, Form(columns=True)))
    words = (
        _different(sizes, whole, subject.product(a, b, form), f", {which} by columns")
        for form, which in zip(forms, "AB", strict=True)
    )
    return next(filter(None, words), "")


def _addresses(subject: Subject, sizes: Sizes, a: Array, b: Array) -> str:
    return _different(sizes, subject.product(a, b), subject.product(a, b, (Form(start=1), Form(start=1))))


def _batches(subject: Subject, sizes: Sizes, a: Array, b: Array) -> str:
    several = [np.stack([*(np.roll(x, 1 + index, 1) for index in range(_BATCH - 1)), x]) for x in (a, b)]
    try:
        product = subject.product(several[0], several[1])
    except Exception as error:  # noqa: BLE001 — whatever a function of matrices raises for a batch
        return f"it takes no batches: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    return _different(sizes, subject.product(a, b), product[-1], f", {_BATCH} of them")
