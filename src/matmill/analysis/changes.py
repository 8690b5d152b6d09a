"""Changes of a product's call that would save time, with the times that the cost models predict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import isclose
from typing import Any

from matmill.arch import Arch
from matmill.choose import Choice, call_seconds, choose
from matmill.dtypes import BF16, F16, F32, F64, DType
from matmill.errors import IllegalConfigError
from matmill.invariant import resliced
from matmill.kernel import ceil_div
from matmill.kernels.shared.tiled import VECTOR_BYTES
from matmill.lowering.axes import lowest_bit
from matmill.precision import METHODS, SHORTEST_K, error_bound
from matmill.problem import Gemm

#: The least gain that is mentioned.
LEAST_GAIN = 0.03
#: If two changes gain the same within this share, only the smaller change is mentioned.
_ALIKE = 0.01
#: Multiples to which sizes are padded.
_MULTIPLES = (8, 64)
#: Bytes of a cache line, the alignment with the cheapest loads.
_CACHE_LINE = 128
#: The most operations with padded sizes, relative to those without.
_MOST_PADDING = 1.25
#: Other element types to compute with.
_NARROWER: dict[DType, tuple[DType, ...]] = {F32: (BF16, F16), F64: (F32,)}


@dataclass(frozen=True)
class Change:
    """A change of the call, in words, and the time per call of calls in a row: ``seconds`` instead of ``before``.

    ``kind`` is ``alignment``, ``sizes``, ``layout``, ``dtype``, ``precision`` or ``out_dtype``.
    """

    kind: str
    words: str
    problem: Gemm
    seconds: float
    before: float

    @property
    def gain(self) -> float:
        """The share of the time that the change saves."""
        return 1 - self.seconds / self.before


def changes(problem: Gemm, arch: Arch) -> tuple[Change, ...]:
    """Return the changes that save at least :data:`LEAST_GAIN` of a call's time, best first.

    A time is the GPU's or the host's, whichever is longer, per call of calls in a row (``choose.call_seconds``). Raises
    :class:`~matmill.errors.IllegalConfigError` if no kernel takes the problem as it is.

    >>> from matmill.arch import get
    >>> changes(Gemm(4096, 4096, 4096, BF16), get("h200"))
    ()
    >>> odd = Gemm(4096, 4096, 4096, BF16, a_strides=(4097, 1), a_align=2)
    >>> [change.words for change in changes(odd, get("h200"))]
    ['Rows of A on 16 bytes (4096 elements apart instead of 4097)']
    """
    before = _of_call(choose(problem, arch), problem)
    faster: list[tuple[_Idea, float]] = []
    for idea in (*_aligned(problem), *_resized(problem), *_transposed(problem), *_typed(problem)):
        seconds = _seconds(resliced(idea.problem), arch)
        gains = seconds is not None and seconds <= (1 - LEAST_GAIN) * before
        if seconds is not None and gains and not any(_instead(other, idea, time / seconds) for other, time in faster):
            faster.append((idea, seconds))
    result = [Change(idea.kind, idea.words, idea.problem, seconds, before) for idea, seconds in faster]
    return tuple(sorted(_types_joined(result), key=lambda change: change.seconds))


def _types_joined(changes: list[Change]) -> list[Change]:
    """Return the changes, with those to types that take equally long merged into one."""
    types = [change for change in changes if change.kind == "dtype"]
    if len(types) != 2 or not isclose(types[0].seconds, types[1].seconds):
        return changes
    both = replace(types[0], words=f"{types[0].problem.dtype.name} or {types[1].words}")
    return [both if change is types[0] else change for change in changes if change is not types[1]]


@dataclass(frozen=True)
class _Idea:
    """A change whose gain is not computed yet; ``parts`` are the matrices or extents that it changes."""

    kind: str
    words: str
    problem: Gemm
    parts: frozenset[str] = frozenset()


def _instead(other: _Idea, idea: _Idea, times: float) -> bool:
    """Tell whether ``other``, which takes ``times`` as long, is as good as ``idea`` and a smaller change."""
    if idea.kind not in {"alignment", "sizes", "layout"} or times > 1 + _ALIKE:
        return False
    return other.kind == "alignment" if idea.kind == "sizes" != other.kind else other.parts <= idea.parts


def _seconds(problem: Gemm, arch: Arch) -> float | None:
    """Return the seconds of a call, or None if no kernel takes the problem."""
    try:
        return _of_call(choose(problem, arch), problem)
    except IllegalConfigError:
        return None


def _of_call(choice: Choice[Gemm], problem: Gemm) -> float:
    return call_seconds(choice.kernel, problem, choice.predicted_seconds)


def _extents(problem: Gemm, name: str) -> tuple[int, int]:
    return {"A": (problem.m, problem.k), "B": (problem.k, problem.n), "D": (problem.m, problem.n)}[name]


def _row_col(problem: Gemm, name: str) -> tuple[int, int]:
    return {"A": problem.a_row_col, "B": problem.b_row_col, "D": problem.d_row_col}[name]


def _by_rows(problem: Gemm, name: str) -> bool:
    """Tell whether the rows of a matrix are contiguous, or nearly so."""
    row, column = _row_col(problem, name)
    rows, columns = _extents(problem, name)
    return rows == 1 or (columns > 1 and abs(column) <= abs(row))


def _stored(problem: Gemm, name: str, *, by_rows: bool, multiple: int = 1) -> Gemm:
    """Return the problem with one matrix in another layout: contiguous, with an aligned start and padded runs.

    The distance between runs is a multiple of ``multiple``, in elements.
    """
    rows, columns = _extents(problem, name)
    length, count = (columns, rows) if by_rows else (rows, columns)
    pitch = ceil_div(length, multiple) * multiple
    key = name.lower()
    batch = problem.batch_strides["ABCD".index(name)] and pitch * count
    steps = [pitch] * (count > 1) + [batch] * (problem.batch > 1)
    size = _itemsize(problem, name)
    fields: dict[str, Any] = {
        f"{key}_strides": (pitch, 1) if by_rows else (1, pitch),
        f"{key}_batch": batch,
        f"{key}_align": lowest_bit(VECTOR_BYTES, steps, size),
    }
    if name != "D":
        start = max(VECTOR_BYTES, getattr(problem, f"{key}_start_align") or 0)
        fields[f"{key}_start_align"] = lowest_bit(start, [batch] * (problem.batch > 1), size)
    if problem.gram:
        fields |= {f"b{field[1:]}": value for field, value in fields.items() if key == "a" and field != "a_strides"}
    return replace(problem, **fields)


def _itemsize(problem: Gemm, name: str) -> int:
    return (problem.d_dtype if name == "D" else problem.dtype).itemsize


def _vector(problem: Gemm, name: str) -> int:
    return VECTOR_BYTES // _itemsize(problem, name)


def _matrices(problem: Gemm) -> tuple[str, ...]:
    """Return the matrices whose layout can be changed independently."""
    return ("A", "D") if problem.gram else ("A", "B", "D")


def _aligned(problem: Gemm) -> Iterator[_Idea]:
    """Yield alignment of rows (or columns) to 16 bytes and to cache lines, for single matrices and for several."""
    aligns = {"A": problem.a_align, "B": problem.b_align, "D": problem.d_align}
    names = [name for name in _matrices(problem) if aligns[name] < VECTOR_BYTES]
    straddling = [name for name in _matrices(problem) if name != "D" and _pitch(problem, name) % _CACHE_LINE]
    for nbytes, matrices in ((VECTOR_BYTES, names), (_CACHE_LINE, straddling)):
        groups = (group for count in range(1, len(matrices) + 1) for group in combinations(matrices, count))
        for group in groups:
            changed, texts = problem, {}
            for name in group:
                by_rows = _by_rows(problem, name)
                changed = _stored(changed, name, by_rows=by_rows, multiple=nbytes // _itemsize(problem, name))
                texts[name] = _apart(problem, changed, name, by_rows=by_rows)
            along = dict.fromkeys("rows" if _by_rows(problem, name) else "columns" for name in group)
            alike = len(set(texts.values())) == 1
            how = texts[group[0]] if alike else ", ".join(f"{name}: {one}" for name, one in texts.items())
            words = f"{' and '.join(along).capitalize()} of {_listed(group)} on {nbytes} bytes ({how})"
            yield _Idea("alignment", words, changed, frozenset(group))


def _pitch(problem: Gemm, name: str) -> int:
    """Return the bytes from row to row, or from column to column."""
    return _row_col(problem, name)[0 if _by_rows(problem, name) else 1] * _itemsize(problem, name)


def _listed(names: Sequence[object]) -> str:
    """Format names as a list with commas and an ``and``."""
    *others, last = map(str, names)
    return f"{', '.join(others)} and {last}" if others else last


def _apart(problem: Gemm, changed: Gemm, name: str, *, by_rows: bool) -> str:
    """Describe the layout that the change gives a matrix."""
    along = 0 if by_rows else 1
    old, new = _row_col(problem, name)[along], _row_col(changed, name)[along]
    if min(map(abs, _row_col(problem, name))) > 1:
        return "contiguous"
    return f"{new} elements apart instead of {old}" if new != old else "an aligned start"


def _resized(problem: Gemm) -> Iterator[_Idea]:
    """Yield sizes padded with zeros to multiples, for each extent and for all."""
    extents = {"m": problem.m, "n": problem.n, "k": problem.k}
    for multiple in _MULTIPLES:
        padded = {name: ceil_div(extent, multiple) * multiple for name, extent in extents.items()}
        names = [name for name, extent in extents.items() if padded[name] != extent]
        for group in dict.fromkeys([*((name,) for name in names), tuple(names)]):
            sizes: dict[str, Any] = {name: padded[name] for name in group}
            changed = replace(problem, **sizes)
            if not sizes or changed.flops > _MOST_PADDING * problem.flops:
                continue
            changed = replace(changed, c_strides=None, c_batch=problem.c_batch and changed.m * changed.n)
            for name in _matrices(problem):
                changed = _stored(changed, name, by_rows=_by_rows(problem, name))
            words = f"{_listed(group)} padded with zeros to {_listed([*sizes.values()])}"
            yield _Idea("sizes", words, changed, frozenset(group))


def _transposed(problem: Gemm) -> Iterator[_Idea]:
    """Yield the transposed layout of each matrix."""
    for name in _matrices(problem):
        by_rows = not _by_rows(problem, name)
        if min(_extents(problem, name)) > 1:
            changed = _stored(problem, name, by_rows=by_rows, multiple=_vector(problem, name))
            way = "row by row" if by_rows else "transposed, column by column"
            pitch = _row_col(changed, name)[0 if by_rows else 1]
            length = _extents(problem, name)[1 if by_rows else 0]
            padded = "" if pitch == length else f", {pitch} elements apart"
            yield _Idea("layout", f"{name} stored {way}{padded}", changed, frozenset(name))


def _typed(problem: Gemm) -> Iterator[_Idea]:
    """Yield other element types, and another precision of the same type."""
    for dtype in _NARROWER.get(problem.dtype, ()):
        changed = replace(problem, dtype=dtype, out_dtype=None, precision="default")
        for name in _matrices(problem):
            changed = _stored(changed, name, by_rows=_by_rows(problem, name))
        yield _Idea("dtype", f"{dtype.name} elements", changed)
    if problem.dtype is F32 and (problem.precision == "default" or problem.split_methods):
        words = 'precision="tf32", which rounds elements to 10 bits of mantissa'
        yield _Idea("precision", words, replace(problem, precision="tf32"))
    if problem.dtype is problem.d_dtype is F32 and problem.precision == "default" and problem.k >= SHORTEST_K:
        bound, before = (max(error_bound(by, problem.k) for by in methods) for methods in (METHODS, ("fma",)))
        words = (
            'precision="float32_tensor", which multiplies pieces: errors of at most '
            f"{bound:.0f} units of 2**-24 |A| @ |B| instead of {before:.0f}"
        )
        yield _Idea("precision", words, replace(problem, precision="float32_tensor"))
    if problem.precision == "high":
        words = 'precision="default", whose sums are less exact'
        yield _Idea("precision", words, replace(problem, precision="default"))
    if problem.out_dtype is not None:
        words = f"No out_dtype, which leaves D in {problem.dtype.name}"
        yield _Idea("out_dtype", words, replace(problem, out_dtype=None))
