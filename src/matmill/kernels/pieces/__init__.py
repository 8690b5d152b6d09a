"""The launch that splits float32 matrices into two pieces each, and the layout of the workspace.

    workspace   sizes of the smallest elements │ exponents of A's rows │ of B's columns │ A's pieces │ B's pieces

Each part starts on 256 bytes. Where B is A's transpose in the same memory, they share exponents and pieces. Pieces run
along the dimension in which the matrix is contiguous, or for tf32 along k: wgmma transposes elements of 16 bits alone.

Where elements are too small or too large for their pieces, the product's blocks split elements in registers instead
(``again.cuh``), which needs the matrices themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from matmill.config import Config, Configs
from matmill.dtypes import F16, F32, DType
from matmill.kernel import AuxLaunch, GemmOperands, Geometry, ceil_div
from matmill.kernels.hgemm.tiles import split_tile, with_vector_widths
from matmill.kernels.repack.copies import RepackedMatrix, matrix_copy
from matmill.kernels.shared.outputs import workspace
from matmill.kernels.shared.tiled import VECTOR_BYTES
from matmill.launch import Argument, Value
from matmill.memo import of_each_problem
from matmill.parameters import Parameters
from matmill.problem import Gemm

#: Methods by the number that device code knows them by, from 1; 0 means no pieces.
METHODS = ("fp16x3", "tf32x3")
_THREADS = 512  # of a block
_ALIGN = 256  # bytes, as for allocations
#: The tile of eight warps of a product's block that splits A and B itself; device code has it too.
_AGAIN = split_tile(128, 64, 32, 4, 2, stages=3)
#: The most blocks for each matrix. More would not run at the same time, and every block of a product reads their sizes.
_MOST_BLOCKS = 512
#: Bytes of the sizes of smallest elements, which device code counts as SIZES.
_SIZE_BYTES = 2 * _MOST_BLOCKS * 4
#: The most bytes of the workspace: more than those of two matrices of 30000 x 30000 by fp16x3.
MOST_BYTES = 2**33
#: Elements of a run that stay in the registers of a thread, and threads that may share a run.
_HELD, _RUN_THREADS = 32, (32, 128, 512)
#: Columns of a strip, elements of each that stay in the registers of a block, and blocks that may share a strip.
_STRIP, _COLUMN_HELD, _CLUSTERS = 32, 512, (1, 2, 4, 8)
#: More elements of a column that stay in shared memory, for each thread: two blocks of an SM have 96 KiB each.
_STAGED = 48


def method(config: Config) -> str:
    """Return the method of a configuration with pieces."""
    return METHODS[config["PIECES"] - 1]


def piece_type(by: str) -> DType:
    """Return the type of a piece's elements as wgmma takes them: float16, or float32 for tf32."""
    return F16 if by == "fp16x3" else F32


@dataclass(frozen=True)
class PieceMatrix:
    """A matrix in pieces. ``piece`` is the layout of one of the two, whose runs go along k or across it."""

    piece: RepackedMatrix
    along_k: bool
    scaled: bool

    @classmethod
    def of(cls, problem: Gemm, name: str, by: str) -> PieceMatrix:
        """Return that of matrix ``"A"`` or ``"B"`` of a problem.

        >>> [PieceMatrix.of(Gemm(5, 7, 13), "B", method).piece.runs for method in METHODS]
        [13, 7]
        """
        outer, inner = problem.a_row_col if name == "A" else problem.b_row_col[::-1]
        vector = (problem.m if name == "A" else problem.n) == 1
        along_k = by == "tf32x3" or vector or abs(inner) <= abs(outer)
        piece = matrix_copy(problem, name, k_inner=along_k, itemsize=piece_type(by).itemsize)
        return cls(piece, along_k, by == "fp16x3")

    @property
    def nbytes(self) -> int:
        """Bytes of both pieces."""
        return 2 * self.piece.nbytes

    @property
    def exponent_bytes(self) -> int:
        """Bytes of the exponents of its rows or columns."""
        return 4 * self.scaled * self.piece.count * (self.piece.runs if self.along_k else self.piece.length)

    @property
    def run_threads(self) -> int:
        """Threads that share a run along k: the fewest whose registers hold it, or all of a block."""
        enough = (threads for threads in _RUN_THREADS if threads * _HELD >= self.piece.length)
        return next(enough, _THREADS)

    @property
    def cluster(self) -> int:
        """Blocks that share a strip of columns, because an exponent depends on all of k; 1 for runs along k."""
        shares = (blocks for blocks in _CLUSTERS if blocks * _COLUMN_HELD >= self.piece.runs)
        return 1 if self.along_k else next(shares, _CLUSTERS[-1])

    @property
    def is_held(self) -> bool:
        """Tell whether registers hold the columns of a strip."""
        return self.piece.runs <= _COLUMN_HELD * _CLUSTERS[-1]

    def blocks(self, cluster: int) -> int:
        """Count the blocks that split it, in clusters of that size."""
        piece = self.piece
        if not self.along_k:
            return min(piece.count * ceil_div(piece.length, _STRIP), _MOST_BLOCKS // cluster) * cluster
        if not self.scaled and piece.stride != 1 and piece.run_stride == 1:  # a warp for each 16 x 32 elements
            parts = ceil_div(piece.count * ceil_div(piece.runs, 16) * ceil_div(piece.length, 32), _THREADS // 32)
        else:
            parts = ceil_div(piece.count * piece.runs, _THREADS // self.run_threads)
        return ceil_div(min(parts, _MOST_BLOCKS), cluster) * cluster


@dataclass(frozen=True)
class Pieces:
    """A and B of a problem in pieces, and where the workspace has them, in bytes."""

    a: PieceMatrix
    b: PieceMatrix
    is_shared: bool
    dtype: DType

    @classmethod
    def of(cls, problem: Gemm, by: str) -> Pieces:
        """Return the pieces of a problem as it is launched."""
        a, b = (PieceMatrix.of(problem, name, by) for name in "AB")
        return cls(a, b, problem.gram and a.along_k == b.along_k, piece_type(by))

    @property
    def a_exponents(self) -> int:
        """Offset of A's exponents, in bytes."""
        return _SIZE_BYTES

    @property
    def b_exponents(self) -> int:
        """Offset of B's exponents, in bytes."""
        return self.a_exponents if self.is_shared else self.a_exponents + _aligned(self.a.exponent_bytes)

    @property
    def exponents_between(self) -> int:
        """Count the exponents from A's first to B's first."""
        return (self.b_exponents - self.a_exponents) // 4

    @property
    def a_first(self) -> int:
        """Offset of A's pieces, in bytes."""
        return self.b_exponents + _aligned(self.b.exponent_bytes)

    @property
    def b_first(self) -> int:
        """Offset of B's pieces, in bytes."""
        return self.a_first if self.is_shared else self.a_first + _aligned(self.a.nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of the workspace."""
        return self.b_first + _aligned(self.b.nbytes)

    @property
    def cluster(self) -> int:
        """Blocks of a cluster of the launch."""
        return max(self.a.cluster, self.b.cluster)

    @property
    def staged(self) -> int:
        """Elements of a thread in shared memory, where columns are longer than the registers of a cluster hold."""
        held = all(matrix.along_k or matrix.is_held for matrix in (self.a, self.b))
        return 0 if held else _STAGED

    @property
    def blocks(self) -> tuple[int, int]:
        """Blocks that split A, and B."""
        return self.a.blocks(self.cluster), 0 if self.is_shared else self.b.blocks(self.cluster)


@of_each_problem
def in_pieces(problem: Gemm, by: str) -> Gemm:
    """Return the product that tensor cores see: of elements of the pieces' type, as the workspace has them.

    A batch stride is that from a product's first piece to the next product's.

    >>> product = in_pieces(Gemm(5, 7, 13, precision="fp16x3"), "fp16x3")
    >>> product.dtype.name, product.a_row_col, product.b_row_col
    ('float16', (16, 1), (8, 1))
    """
    pieces = Pieces.of(problem, by)
    return replace(
        problem,
        dtype=pieces.dtype,
        out_dtype=F32,
        gram=False,
        a_strides=pieces.a.piece.strides(outer_first=pieces.a.along_k),
        b_strides=pieces.b.piece.strides(outer_first=not pieces.b.along_k),
        a_batch=2 * pieces.a.piece.copy_batch,
        b_batch=2 * pieces.b.piece.copy_batch,
        a_align=VECTOR_BYTES,
        b_align=VECTOR_BYTES,
        a_start_align=None,
        b_start_align=None,
        precision="high" if pieces.dtype is F16 else "tf32",
    )


def as_split(problem: Gemm, config: Config, operands: GemmOperands) -> tuple[Gemm, GemmOperands]:
    """Return the product of :func:`in_pieces` and its operands. Its workspace begins with the sizes."""
    pieces, room = Pieces.of(problem, method(config)), workspace(operands)
    size = pieces.dtype.itemsize
    return in_pieces(problem, method(config)), replace(
        operands, a=room, b=room, a_first=pieces.a_first // size, b_first=pieces.b_first // size
    )


def again_constants(problem: Gemm) -> dict[str, int]:
    """Return the constants that depend on a problem as it is launched, where the product's blocks split A and B."""
    tile = with_vector_widths(_AGAIN, problem)
    names = ("A_K_INNER", "A_VEC", "B_K_INNER", "B_VEC", "SHARED_BYTES")
    return {f"AGAIN_{name}": tile[name] for name in names}


def why_not_pieces(problem: Gemm, by: str) -> str | None:
    """Say why a problem as it is launched cannot be split, or None."""
    nbytes = Pieces.of(problem, by).nbytes
    return f"pieces take {nbytes} > {MOST_BYTES} bytes" if nbytes > MOST_BYTES else None


def _aligned(nbytes: int) -> int:
    return ceil_div(nbytes, _ALIGN) * _ALIGN


#: Of each matrix: where its pieces start in the workspace, in elements, and its exponents, in words; its layout.
_FIELDS = {
    "first": "Index",
    "exponents": "Index",
    "count": "int",
    "runs": "int",
    "length": "int",
    "pitch": "int",
    "run_stride": "Index",
    "stride": "Index",
    "batch_stride": "Index",
}
_PARAMETERS = Parameters.of(
    A="const float*",
    B="const float*",
    workspace="void*",
    **{f"{matrix}_{name}": kind for matrix in "ab" for name, kind in _FIELDS.items()},
    a_blocks="int",
)


def _geometry(problem: Gemm, config: Config) -> Geometry:
    pieces = Pieces.of(problem, method(config))
    return Geometry(
        grid=(sum(pieces.blocks), 1, 1),
        block=(_THREADS, 1, 1),
        dynamic_shared=4 * _THREADS * pieces.staged,
        cluster=(pieces.cluster, 1, 1),
    )


def _arguments(problem: Gemm, config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    pieces = Pieces.of(problem, method(config))
    values: dict[str, Value | float] = {"A": operands.a, "B": operands.b, "workspace": workspace(operands)}
    starts = ((pieces.a_first, pieces.a_exponents), (pieces.b_first, pieces.b_exponents))
    for name, matrix, (first, exponents) in zip("ab", (pieces.a, pieces.b), starts, strict=True):
        piece = matrix.piece
        of_matrix = (
            first // pieces.dtype.itemsize,
            exponents // 4,
            piece.count,
            piece.runs,
            piece.length,
            piece.pitch,
            piece.run_stride,
            piece.stride,
            piece.batch_stride,
        )
        values |= {f"{name}_{field}": value for field, value in zip(_FIELDS, of_matrix, strict=True)}
    return _PARAMETERS.pack(problem.dtype, **values, a_blocks=pieces.blocks[0])


def _constants(problem: Gemm, config: Config) -> dict[str, int]:
    pieces = Pieces.of(problem, method(config))
    return {
        "PIECES": config["PIECES"],
        "A_K_INNER": int(pieces.a.along_k),
        "B_K_INNER": int(pieces.b.along_k),
        "A_RUN_THREADS": pieces.a.run_threads,
        "B_RUN_THREADS": pieces.b.run_threads,
        "STAGED": pieces.staged,
    }


def _needs_pieces(_problem: Gemm, config: Configs) -> Any:
    return config["PIECES"] > 0


#: Splits A and B of the problem as it is launched, where the config has pieces.
SPLIT: AuxLaunch[Gemm] = AuxLaunch(
    "split",
    __name__,
    Config.of(THREADS=_THREADS),
    _PARAMETERS,
    _geometry,
    _arguments,
    _needs_pieces,
    pdl=True,
    constants=_constants,
)
