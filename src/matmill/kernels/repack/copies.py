"""The aligned copies of matrices: which ones a configuration has, and their sizes."""

from __future__ import annotations

from dataclasses import dataclass

from matmill.config import Config
from matmill.kernel import ceil_div
from matmill.kernels.shared.tensor_cores import ELEMENT_BYTES
from matmill.kernels.shared.tiled import VECTOR_BYTES
from matmill.problem import Gemm

#: Bytes of a cache line, and of runs that are long enough to start on one when they are repacked.
_CACHE_LINE, LONG_RUN = 128, 1024


def repacked(config: Config) -> tuple[str, ...]:
    """Return the matrices that ``config`` repacks; none where it has no such constants.

    >>> from matmill.kernels.hgemm.tiles import LARGEST
    >>> repacked(LARGEST.launched(REPACK_A=0, REPACK_B=1))
    ('B',)
    """
    return tuple(name for name in "AB" if config.get(f"REPACK_{name}"))


@dataclass(frozen=True)
class RepackedMatrix:
    """An aligned copy of a matrix: ``count`` products of ``runs`` contiguous runs of ``length`` elements.

    ``run_stride``, ``stride`` and ``batch_stride`` are those of the matrix itself, in elements: from run to run, within
    a run, from product to product. ``itemsize`` is the bytes of an element.
    """

    count: int
    runs: int
    length: int
    run_stride: int
    stride: int
    batch_stride: int
    itemsize: int = ELEMENT_BYTES

    @property
    def pitch(self) -> int:
        """Elements from one run of the copy to the next: the length rounded up to 16 bytes, or to whole cache lines.

        128 bytes that straddle two cache lines are two requests to L2, so that long runs start on one: on an H200 a
        product of 1000 x 1000 x 1000, whose rows straddle them, takes a third longer than one of 1024.
        """
        unit = (_CACHE_LINE if self.length * self.itemsize >= LONG_RUN else VECTOR_BYTES) // self.itemsize
        return ceil_div(self.length, unit) * unit

    @property
    def pieces(self) -> int:
        """Vectors of 16 bytes of a run; the last one is filled up with zeros."""
        return ceil_div(self.length * self.itemsize, VECTOR_BYTES)

    @property
    def copy_batch(self) -> int:
        """The batch stride of the copy, 0 where all products share one."""
        return self.runs * self.pitch if self.count > 1 else 0

    @property
    def vectors(self) -> int:
        """Vectors of 16 bytes that are written."""
        return self.count * self.runs * self.pieces

    @property
    def nbytes(self) -> int:
        """Bytes of the copy, with what is never written behind its runs."""
        return self.count * self.runs * self.pitch * self.itemsize

    def strides(self, *, outer_first: bool) -> tuple[int, int]:
        """Return (row, column) strides of the copy, whose runs are rows where ``outer_first``, else columns."""
        return (self.pitch, 1) if outer_first else (1, self.pitch)


def repacked_matrix(problem: Gemm, config: Config, name: str) -> RepackedMatrix:
    """Return the aligned copy of matrix ``name``, whose runs are the tile's rows.

    >>> from matmill.dtypes import F16
    >>> from matmill.kernels.hgemm.tiles import LARGEST, with_vector_widths
    >>> odd = Gemm(5, 7, 13, F16, a_align=2, batch=3, b_batch=0)
    >>> config = with_vector_widths(LARGEST, odd, "AB")
    >>> result = repacked_matrix(odd, config, "A")
    >>> (result.count, result.runs, result.length, result.pitch), repacked_matrix(odd, config, "B").count
    ((3, 5, 13, 16), 1)
    """
    k_inner = bool(config[f"{name}_K_INNER"])
    return matrix_copy(problem, name, k_inner=k_inner, itemsize=problem.dtype.itemsize)


def matrix_copy(problem: Gemm, name: str, *, k_inner: bool, itemsize: int) -> RepackedMatrix:
    """Return a copy of matrix ``name`` with elements of ``itemsize`` bytes, whose runs are along k or across it."""
    a = name == "A"
    outer = problem.m if a else problem.n
    row, column = problem.a_row_col if a else problem.b_row_col
    outer_stride, k_stride = (row, column) if a else (column, row)
    batch_stride = problem.batch_strides[0 if a else 1]
    count = problem.batch if batch_stride else 1
    if k_inner:
        runs, length, run_stride, stride = outer, problem.k, outer_stride, k_stride
    else:
        runs, length, run_stride, stride = problem.k, outer, k_stride, outer_stride
    return RepackedMatrix(count, runs, length, run_stride, stride, batch_stride, itemsize)
