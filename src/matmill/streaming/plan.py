"""Splits an inner product too long for the GPU along k: pure arithmetic, no memory and no device.

E is m vectors along k and F n of them: E's rows, F's columns. Each chunk of both is packed into page-locked memory, E
before F. Each matrix keeps its order in memory, or the nearest to it: vector after vector, each starting on 16 bytes,
or k after k without gaps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from matmill.dtypes import DType
from matmill.errors import LaunchError, size
from matmill.problem import Gemm, Strides

#: Bytes of all buffers together, on the host and again on the GPU, however much memory either has: the chunks follow
#: from it, and so does the order in which sums are rounded.
BUDGET = 192 << 20
#: One being filled from the arrays, one in flight to the GPU, one being summed.
BUFFERS = 3
#: The most bytes of E and F in one chunk; inputs of no more bytes are not split.
CHUNK = BUDGET // BUFFERS
_MOST_CHUNK = 256 << 20
#: Chunks are halved if memory is short, but not below this: smaller ones would cost more for their number than for
#: their bytes.
_LEAST_CHUNK = 1 << 20
#: Lengths are multiples of a cache line in bytes, more than the kernels' 16-byte loads need.
_LINE = 128
_VECTOR = 16


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


@dataclass(frozen=True)
class Packed:
    """The layout of one matrix in a buffer: at ``offset`` bytes, ``vectors`` along k of ``length`` elements.

    ``pitch`` is the distance in elements between vectors if they follow each other (``along_k``), else from one k to
    the next.
    """

    offset: int
    vectors: int
    length: int
    along_k: bool
    pitch: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix as it is stored in the buffer; rows are ``pitch`` elements apart."""
        return (self.vectors, self.length) if self.along_k else (self.length, self.vectors)


@dataclass(frozen=True)
class Chunk:
    """A range of k: its matrices' layout in a buffer (``f`` is None for a Gram matrix), and its product."""

    start: int
    stop: int
    e: Packed
    f: Packed | None
    nbytes: int
    problem: Gemm


@dataclass(frozen=True)
class StreamPlan:
    """Chunks of ``length`` (the last may be shorter) that go through :data:`BUFFERS` buffers.

    ``e_along_k`` and ``f_along_k`` say which matrices are copied vector by vector. For a Gram matrix (``gram``) only E
    is copied.
    """

    m: int
    n: int
    k: int
    dtype: DType
    gram: bool
    e_along_k: bool
    f_along_k: bool
    length: int

    @property
    def count(self) -> int:
        """The number of chunks."""
        return -(-self.k // self.length)

    @property
    def buffer_bytes(self) -> int:
        """Bytes that one buffer must hold."""
        return self.chunk(0).nbytes

    @property
    def payload(self) -> int:
        """Bytes of E and F without padding, which ``progress`` counts."""
        return self.payload_of(self.k)

    def payload_of(self, length: int) -> int:
        """Return the bytes of E and F, without padding, for that many k."""
        return (self.m + (0 if self.gram else self.n)) * length * self.dtype.itemsize

    def chunk(self, index: int) -> Chunk:
        """Return chunk ``index``. Chunks cover 0..k in order, each k once.

        >>> from matmill.dtypes import F32
        >>> plan = StreamPlan(3, 2, 100, F32, gram=False, e_along_k=True, f_along_k=True, length=64)
        >>> [(c.start, c.stop, c.e.pitch, c.f.offset, c.nbytes) for c in map(plan.chunk, range(plan.count))]
        [(0, 64, 64, 768, 1280), (64, 100, 36, 512, 800)]
        """
        start = index * self.length
        stop = min(self.k, start + self.length)
        e, f, nbytes, problem = _layout(self, stop - start)
        return Chunk(start, stop, e, f, nbytes, problem)


def plan_stream(
    m: int,
    n: int,
    k: int,
    dtype: DType,
    *,
    e_strides: Strides | None = None,
    f_strides: Strides | None = None,
    gram: bool = False,
    budget: int = BUDGET,
    free: int | None = None,
) -> StreamPlan:
    """Return chunks of about equal length whose buffers take at most ``budget`` bytes together.

    The plan depends on sizes, element type, budget and the order in memory of E (m, k) and F (k, n), which their
    strides tell (in any unit; packed rows by default). It determines the order in which sums are rounded: the same plan
    gives the same bits. If the GPU has fewer than ``budget`` bytes ``free``, the budget is halved until it fits.

    Raises :class:`~matmill.errors.LaunchError` if that leaves buffers of less than 1 MiB, and if ``budget`` does not
    hold one cache line of every row.
    """
    allowed = budget
    while free is not None and allowed > max(0, free):
        allowed //= 2
    e_along = _along_k(m, *(e_strides or (k, 1)))
    f_along = _along_k(n, *(f_strides or (n, 1))[::-1])
    unit = _LINE // dtype.itemsize
    plan = StreamPlan(m, n, k, dtype, gram, e_along, f_along, unit)
    per_unit = plan.payload_of(unit)
    least = max(per_unit, _LEAST_CHUNK if allowed < budget else 0)
    room = min(allowed // BUFFERS, _MOST_CHUNK)
    if room < least:
        raise LaunchError(
            argument="e, f",
            got=f"{size(budget if free is None else min(budget, free))} of GPU memory to stream through",
            wanted=f"at least {size(BUFFERS * least)}",
            fix="Free GPU memory, or use executor='cpu'.",
        )
    longest = room // max(1, per_unit) * unit
    parts = max(1, -(-k // longest))
    length = max(unit, _up(-(-k // parts), unit))
    return StreamPlan(m, n, k, dtype, gram, e_along, f_along, length)


def _along_k(vectors: int, stride: int, k_stride: int) -> bool:
    """Tell whether the strides of a matrix are nearer to vector after vector than to k after k."""
    return vectors == 1 or abs(k_stride) < abs(stride)


@lru_cache(maxsize=64)
def _layout(plan: StreamPlan, length: int) -> tuple[Packed, Packed | None, int, Gemm]:
    """Return the layout that chunks of one length share. A stream has two: the full chunk's and the last one's."""
    size = plan.dtype.itemsize

    def pack(vectors: int, offset: int, *, along_k: bool) -> tuple[Packed, int, Strides, int]:
        pitch = _up(length * size, _VECTOR) // size if along_k else vectors
        end = offset + (vectors if along_k else length) * pitch * size
        step = pitch * size | _VECTOR
        return Packed(offset, vectors, length, along_k, pitch), end, (pitch, 1) if along_k else (1, pitch), step & -step

    e, end, a_strides, a_align = pack(plan.m, 0, along_k=plan.e_along_k)
    problem = Gemm(
        m=plan.m,
        n=plan.n,
        k=length,
        dtype=plan.dtype,
        a_strides=a_strides,
        a_align=a_align,
        a_start_align=_VECTOR,
        gram=plan.gram,
    )
    if plan.gram:
        return e, None, end, replace(problem, b_align=a_align, b_start_align=_VECTOR)
    f, end, (column, row), b_align = pack(plan.n, _up(end, _LINE), along_k=plan.f_along_k)
    return e, f, end, replace(problem, b_strides=(row, column), b_align=b_align, b_start_align=_VECTOR)
