"""Tensor maps of A, B and D: what TMA copies at a time, in three dimensions of which the last is the batch."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from matmill.config import Config
from matmill.dtypes import F32
from matmill.kernel import GemmOperands, ceil_div
from matmill.kernels.pieces import as_split
from matmill.kernels.shared.tiled import VECTOR_BYTES
from matmill.kernels.wgmma.tiles import ROWS, SPAN, Runs, runs
from matmill.launch import Pointer, TensorMap
from matmill.problem import Gemm

#: Bytes that L2 reads at once. With 256 rows that straddle cache lines take 10 to 20% longer, others as long (an H200,
#: 2026-11-23).
_PROMOTION = 128
#: Rows after which the swizzle of a stage repeats.
PATTERN = 8
#: Elements of a run of D's staging that are one box, widest first, by what divides the run.
_BOXES = (64, 32, 16, 8)


def tensor_maps(problem: Gemm, config: Config, operands: GemmOperands) -> tuple[TensorMap, TensorMap, TensorMap]:
    """Return the maps of A, B and D for the problem as it is launched.

    They are those of repacked operands, or of pieces, where there are such. A map that is not used is B's, which is
    valid: that of an A which goes through registers, and that of a D which TMA does not store. Of what a cluster shares
    a block loads a part: of K-major rows, or of the k of MN-major boxes, eight at a time.
    """
    d = _d_map(problem, config, operands.d) if config["D_TMA"] else None
    if config["PIECES"]:
        problem, operands = as_split(problem, config, operands)

    def of_operand(name: str, rows: int, shared_by: int, pointer: Pointer, first: int) -> TensorMap:
        own = runs(problem, name)
        parts = gcd((rows if own.along_k else config["BK"]) // PATTERN, shared_by)
        box = (config["BK"], rows // parts) if own.along_k else (ROWS, config["BK"] // parts)
        return _map(problem, own, pointer, box, SPAN, first=first, pieces=2 if config["PIECES"] else 1)

    b = of_operand("B", config["BN"], config["CLUSTER_M"], operands.b, operands.b_first)
    a = b
    if not config["A_IN_REGISTERS"]:
        a = of_operand("A", config["BM"], config["CLUSTER_N"], operands.a, operands.a_first)
    return a, b, d or b


def _d_map(problem: Gemm, config: Config, pointer: Pointer) -> TensorMap:
    staged = config["STAGED"]
    wide = ROWS if config["D_TRANSPOSED"] else next(width for width in _BOXES if staged % width == 0)
    box = (wide, staged) if config["D_TRANSPOSED"] else (wide, ROWS)
    span = wide * problem.dtype.itemsize
    whole = _map(problem, runs(problem, "D"), pointer, box, span if span > VECTOR_BYTES else 0)
    if not config["INTERLEAVED"]:
        return whole
    # Every eighth row is a dimension of its own, ahead of the one with eight neighbours.
    (columns, rows, count), (pitch, apart) = whole.sizes, whole.strides
    return replace(
        whole,
        sizes=(columns, rows // 8, 8, count),
        strides=(8 * pitch, pitch, apart),
        box=(wide, 8, 8, 1),
        element_strides=(1, 1, 1, 1),
    )


def _map(
    problem: Gemm,
    own: Runs,
    pointer: Pointer,
    box: tuple[int, int],
    swizzle: int,
    *,
    first: int = 0,
    pieces: int = 1,
) -> TensorMap:
    """Return one matrix where all products share it; its pieces follow one another.

    Distances by which no element is reached may be any legal ones.
    """
    itemsize = problem.dtype.itemsize
    count = pieces * (problem.batch if own.batch_stride else 1)
    packed = ceil_div(own.length * itemsize, VECTOR_BYTES) * VECTOR_BYTES
    pitch = own.pitch * itemsize if own.count > 1 else packed
    batch = own.count * own.pitch if pieces > 1 else own.batch_stride
    apart = batch * itemsize if count > 1 else packed
    element = "tfloat32" if problem.dtype is F32 else problem.dtype.name
    return TensorMap(
        pointer,
        element,
        (own.length, own.count, count),
        (pitch, apart),
        (*box, 1),
        swizzle,
        promotion=_PROMOTION,
        first=first * itemsize,
    )
