"""Tiles of the warp-specialised kernel in ``kernels/wgmma``: the host's side of its arithmetic.

Stages hold 128 bytes of k. An operand is K-major (k is contiguous) or, with 16-bit elements, MN-major; rows or columns
start on 16 bytes, as TMA needs, or are repacked. A problem may be computed with A and B exchanged: then the kernel gets
B's transpose as A and A's transpose as B, and D's transpose is what it stores (:func:`exchanged`). Few rows of A then
become the short side of a tile.

An A of 16 bits whose rows start anywhere needs no copy where its fragments go through registers
(``A_IN_REGISTERS``, ``unaligned.cuh``): threads copy it to shared memory, and consumers shift its elements.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from matmill.arch import Arch
from matmill.config import Config, Configs
from matmill.dtypes import BF16, F16, F32
from matmill.kernel import ceil_div
from matmill.kernels.pieces import METHODS, again_constants, in_pieces, method, why_not_pieces
from matmill.kernels.repack.copies import LONG_RUN
from matmill.kernels.shared.exchange import as_launched, exchanged
from matmill.kernels.shared.tiled import VECTOR_BYTES, why_not_extents
from matmill.kernels.splitk import batch_invariant_slices
from matmill.launch import HOPPER
from matmill.memo import of_each_problem
from matmill.precision import SHORTEST_K
from matmill.problem import NO_EPILOGUE, Epilogue, Gemm

#: Bytes of k in a row of a stage, which is the span of the swizzle.
SPAN = 128
#: Bytes of k of a wgmma.
K_BYTES = 32
#: Rows or columns of a box of an MN-major operand, and rows of a wgmma.
ROWS = 64
#: Columns of the narrowest and of the widest tile.
_LEAST_BN, _WIDEST = 8, 256
#: Columns of the narrowest tile whose float32 rows are staged: shorter ones are mostly ends, which leave one by one.
_LEAST_STAGED = 32
#: Shared memory of a block of Hopper, and what its alignment to 1024 bytes may take of it.
_SHARED, _ALIGN = 232448, 1024
#: Bytes off a whole span by which rows of D that follow each other have to be apart, to be staged as they are.
_APART = 4
#: The most stages: more hide no further latency.
_MOST_STAGES = 16
#: Eighths of the SMs that get clusters of more than two blocks at once. On an H200 14 clusters of 8 ran at once and 16
#: did not, 27 of 4 did and 31 did not.
_LARGE_CLUSTERS, _EIGHTHS = 7, 8
#: Products of so many columns, at the most, and how many must be in flight.
_IN_FLIGHT = ((32, 4), (64, 2))
#: Stages that D's staging leaves room for, if it can.
_ENOUGH_STAGES = 4
#: k-steps of a sum that ``precision="high"``, or a product of pieces, adds to a separate float32 sum: 128 of k, 64 of
#: tf32.
_PROMOTED_STEPS = 2
#: Registers of the producer's threads and of the consumers', by the number of consumer warp groups. Together they are
#: what the launch bounds give: 168 of 384 threads, 128 of 512. One group alone needs none of the producer's.
_REGISTERS = {1: (0, 0), 2: (40, 232), 3: (32, 160)}
#: Sums of a thread beyond which two consumers take eight more registers each from the producer.
_MANY_SUMS, _HEAVY = 144, (24, 240)
#: Sums of a thread with which a kernel does not spill.
_MOST_SUMS = {1: 192, 2: 192, 3: 96}
_16_BITS = (F16, BF16)
#: Copies of an unaligned A count bytes of a run in 32 bits.
_MOST_COPIED = 2**30


@dataclass(frozen=True)
class Shape:
    """A tile: rows, columns, consumer warp groups, whether these alternate at tiles, blocks of a cluster along m, n.

    ``cluster_k`` is the slices of k that the blocks of a cluster have, of one tile.
    """

    bm: int
    bn: int
    consumers: int
    pingpong: bool = False
    cluster: tuple[int, int] = (1, 1)
    cluster_k: int = 1

    @property
    def sums(self) -> int:
        """Accumulators of a thread."""
        return self.bm * self.bn // (128 * (1 if self.pingpong else self.consumers))

    @property
    def chains(self) -> int:
        """Sums that a thread has of each output, so that enough narrow products are in flight."""
        in_flight = next((count for columns, count in _IN_FLIGHT if self.bn <= columns), 1)
        return max(1, in_flight // (1 if self.pingpong else self.consumers))

    @property
    def staged(self) -> int:
        """Columns of a 16-bit D in the staging buffer at a time: all, or a part that leaves room for enough stages."""
        parts = [self.bn // count for count in range(1, 6) if self.bn % (16 * count) == 0] or [self.bn]
        stage = _stage_bytes(self.bm, self.bn, a_along_k=True, in_registers=False)
        room = _SHARED - _ALIGN - _ENOUGH_STAGES * stage
        return next((part for part in parts if self.consumers * ROWS * part * F16.itemsize <= room), parts[-1])


def suits(bm: Any, bn: Any, m: Any, n: Any) -> Any:
    """Tell whether tiles are less than twice as wide and less than four times as high as D, or the least."""
    return ((bn < 2 * n) | (bn == _LEAST_BN)) & ((bm < 4 * m) | (bm == ROWS))


def _shapes() -> Iterator[Shape]:
    """Yield the tiles that are considered: cooperative ones, those of consumers that alternate, and narrow ones."""
    pairs = (1, 1), (2, 1), (1, 2)
    for rows, consumers, least, most in ((128, 2, 64, 256), (256, 2, 64, 144), (192, 3, 96, 192)):
        for columns, cluster in product(range(least, most + 1, 16), pairs):
            if (rows, columns) != (192, 176):  # its staging leaves room for three stages
                yield Shape(rows, columns, consumers, cluster=cluster)
    for rows, columns, cluster in product((128, 64), (96, 128, 192, 256), pairs[:2]):
        if rows * columns < 128 * 256:
            yield Shape(rows, columns, 2, pingpong=True, cluster=cluster)
    # For few rows or columns of D: blocks that load a quarter of their operands.
    for columns, cluster in product((*range(8, ROWS, 8), *range(ROWS, 129, 16)), (*pairs, (2, 2), (4, 1), (1, 4))):
        yield Shape(ROWS, columns, 1, cluster=cluster)
    for columns, cluster in product((8, 16, 24, 32, 48), pairs[:2]):
        yield Shape(2 * ROWS, columns, 2, cluster=cluster)


#: Tiles of every size in steps of 16 columns, or 8 where they are narrow.
SHAPES: tuple[Shape, ...] = tuple(_shapes())
#: Tiles of each kind, which documents and tests show: cooperative ones, alternating consumers, one consumer.
EXAMPLES: tuple[Shape, ...] = (
    *(Shape(rows, columns, 2) for rows, columns in ((128, 256), (256, 128))),
    Shape(192, 192, 3),
    *(Shape(128, columns, 2) for columns in (224, 208, 192, 160, 128)),
    Shape(128, 256, 2, cluster=(2, 1)),
    Shape(256, 128, 2, cluster=(1, 2)),
    *(Shape(128, columns, 2, pingpong=True) for columns in (192, 128)),
    Shape(128, 208, 2, cluster=(2, 1)),
    Shape(128, 192, 2, pingpong=True, cluster=(2, 1)),
    *(Shape(64, columns, 2, pingpong=True) for columns in (256, 192, 128)),
    Shape(128, 64, 2),
    Shape(64, 128, 1),
    Shape(128, 64, 2, cluster=(1, 2)),
    Shape(64, 128, 1, cluster=(2, 1)),
    *(Shape(64, columns, 1) for columns in (96, 64, 32, 16, 8)),
)


@dataclass(frozen=True)
class Runs:
    """A matrix as TMA copies it: ``count`` runs of ``length`` elements, in each product of a batch.

    Elements of a run are ``stride`` apart, runs ``pitch``, products ``batch_stride``. ``align`` is that of each run,
    in bytes. ``along_k`` says that runs run along k (K-major), for A and B, or along columns, for D.
    """

    length: int
    count: int
    stride: int
    pitch: int
    batch_stride: int
    align: int
    along_k: bool

    @property
    def by_tma(self) -> bool:
        """Whether runs are contiguous, start on 16 bytes, and follow each other at positive distances."""
        contiguous = self.stride == 1 or self.length == 1
        ordered = (self.pitch > 0 or self.count == 1) and self.batch_stride >= 0
        return contiguous and ordered and self.align >= VECTOR_BYTES


@of_each_problem
def runs(problem: Gemm, name: str) -> Runs:
    """Return matrix ``"A"``, ``"B"`` or ``"D"`` along the dimension in which it is contiguous, or nearly so.

    wgmma transposes 16-bit elements alone: of others A and B are taken along k, whatever their strides.

    >>> from matmill.dtypes import F16
    >>> runs(Gemm(2, 3, 4, F16), "B")
    Runs(length=3, count=4, stride=1, pitch=3, batch_stride=12, align=16, along_k=False)
    """
    a_batch, b_batch, _, d_batch = problem.batch_strides
    # The other dimension first, then that along which runs are preferred.
    if name == "A":
        (across, along), extents = problem.a_row_col, (problem.m, problem.k)
        batch, align = a_batch, problem.a_align
    elif name == "B":
        (along, across), extents = problem.b_row_col, (problem.n, problem.k)
        batch, align = b_batch, problem.b_align
    else:
        (across, along), extents = problem.d_row_col, (problem.m, problem.n)
        batch, align = d_batch, problem.d_align
    if name != "D" and problem.dtype not in _16_BITS:
        preferred = True
        if extents[0] > 1:  # contiguous along the other dimension, a vector has runs of one element anywhere
            align = gcd(align, across * problem.dtype.itemsize)
    elif min(extents) > 1:
        preferred = abs(along) < abs(across) or abs(along) == 1
    else:  # a vector is contiguous either way
        preferred = extents[1] > 1 or across != 1
    if preferred:
        return Runs(extents[1], extents[0], along, across, batch, align, along_k=True)
    return Runs(extents[0], extents[1], across, along, batch, align, along_k=False)


@of_each_problem
def unaligned(problem: Gemm) -> tuple[str, ...]:
    """Return the operands that TMA cannot read: these are repacked, or A goes through registers.

    >>> from matmill.dtypes import F16
    >>> unaligned(Gemm(64, 64, 63, F16, a_align=2)), unaligned(Gemm(64, 64, 64, F16))
    (('A',), ())
    """
    return tuple(name for name in "AB" if not runs(problem, name).by_tma)


@of_each_problem
def straddling(problem: Gemm) -> tuple[str, ...]:
    """Return the operands whose rows straddle cache lines, and are long enough that repacked ones do not.

    Their stages take twice as many requests to L2: on an H200 7880 x 7880 x 7880 takes 1.45 ms repacked and 1.65 as it
    is, and 8192 x 8192 x 8192 1.38.

    >>> from matmill.dtypes import F16
    >>> straddling(Gemm(512, 7880, 1024, F16)), straddling(Gemm(512, 72, 72, F16))
    (('B',), ())
    """
    itemsize = problem.dtype.itemsize
    by_name = {name: runs(problem, name) for name in "AB"}
    return tuple(
        name
        for name, own in by_name.items()
        if own.pitch * itemsize % SPAN and own.count > 1 and own.length * itemsize >= LONG_RUN
    )


def boxed(columns: Any) -> Any:
    """Return the columns of a tile in whole boxes of an MN-major B."""
    return ceil_div(columns, ROWS) * ROWS


def fills_boxes(columns: int) -> bool:
    """Tell whether a tile fills four fifths of the boxes of an MN-major B, at the least."""
    return bool(5 * columns >= 4 * boxed(columns))


def why_not_registers(launched: Gemm, shape: Shape) -> str | None:
    """Say why fragments of A cannot go through registers, or None."""
    return why_not_fragments(launched) or why_not_fragments_of_shape(shape)


def why_not_fragments(launched: Gemm) -> str | None:
    """Say why fragments of A cannot go through registers, whatever the tile, or None."""
    a, most = runs(launched, "A"), max(launched.m, launched.k)
    reasons = (
        (launched.dtype not in _16_BITS, f"{launched.dtype.name} has no unaligned fragments"),
        (a.stride != 1 and a.length > 1, "elements of A are apart along both dimensions"),
        (most >= _MOST_COPIED, f"{most} rows or columns of A are more than its copies count"),
        (launched.precision == "high", "promoted sums need the registers of A's fragments"),
    )
    return next((words for holds, words in reasons if holds), None)


def why_not_fragments_of_shape(shape: Shape) -> str | None:
    """Say why a tile cannot take fragments of A through registers, or None."""
    reasons = (
        (shape.bm > 2 * ROWS, f"registers hold fragments of 64 rows of A for each of two warp groups, not {shape.bm}"),
        (shape.cluster[1] > 1, "another block loads a part of A"),
        # Measured 1.2 to 1.5 times as slow on an H200.
        (shape.pingpong, "loads of A's fragments would wait for the products of the same warp group"),
    )
    return next((words for holds, words in reasons if holds), None)


def configured(
    shape: Shape,
    problem: Gemm,
    arch: Arch,
    *,
    swap: bool = False,
    slices: int = 1,
    repack: Collection[str] = (),
    in_registers: bool = False,
    pieces: int = 0,
) -> Config:
    """Return the constants of a shape for a problem.

    ``swap`` exchanges A and B, ``slices`` is the number of split-K slices, ``repack`` names operands that are repacked,
    and ``in_registers`` says that A's fragments go through registers, of the problem as it is launched. ``pieces`` is
    the number of the method by which float32 elements are split, or 0.
    """
    again: dict[str, int] = {}
    launched = exchanged(problem) if swap else problem
    if pieces:
        again = again_constants(launched)
        launched = in_pieces(launched, METHODS[pieces - 1])
    config = constants(shape, facts(launched, swap), slices > 1, in_registers, pieces)
    if again:
        config = config.replace(**again)
    repacks = {f"REPACK_{name}": int(name in repack) for name in "AB"}
    return config.launched(EXCHANGED=int(swap), SPLIT_K=slices, SMS=arch.sms, **repacks)


class Facts(NamedTuple):
    """All that a tile's constants depend on in a problem as it is launched.

    Of A and B: whether they are K-major, and whether A's rows start on 4 bytes. Of D: whether its rows are contiguous,
    can be stored by TMA, every eighth at a time, or leave as float32 off 16 bytes or in pairs; the latter two also of
    partial sums. ``d_run`` are the columns of a 16-bit D that TMA cannot store and whose rows follow each other
    directly, or 0. Of sums: the k-steps of those that are promoted, or of a slice of batch-invariant ones, 0 for none,
    and whether all terms of a slice are added in order.
    """

    itemsize: int
    float32: bool
    has_c: bool
    promoted: int
    slice_steps: int
    in_order: bool
    epilogue: Epilogue
    a_along_k: bool
    a_paired: bool
    b_along_k: bool
    d_along_k: bool
    d_by_tma: bool
    eighth_rows: bool
    d_run: int
    off: tuple[bool, bool]
    paired: tuple[bool, bool]


@of_each_problem
def facts(launched: Gemm, swap: bool) -> Facts:  # noqa: FBT001 — kept by position
    """Return the facts about a problem as it is launched; ``swap`` tells whether A and B are exchanged."""
    a, b, d = (runs(launched, name) for name in "ABD")
    itemsize = launched.dtype.itemsize
    # TMA stores whole 16 bytes, also behind the end of a row.
    d_by_tma = d.by_tma and d.length * itemsize % VECTOR_BYTES == 0
    packed_rows = d.along_k and d.stride == 1 and d.pitch == d.length <= _WIDEST
    apart = d.length * itemsize % SPAN  # rows nearly whole spans apart would meet in the same banks
    packed_rows = packed_rows and _APART < apart < SPAN - _APART
    return Facts(
        itemsize,
        launched.d_dtype is F32,
        launched.has_c,
        _PROMOTED_STEPS * (launched.precision == "high"),
        launched.slice_k * itemsize // SPAN if 0 < launched.slice_k < launched.k else 0,
        launched.slice_k > 0,
        launched.epilogue,
        a.along_k,
        a.along_k and a.align >= 4,
        b.along_k,
        d.along_k,
        d_by_tma,
        _eighth_rows(launched, d),
        d.length if packed_rows and not d_by_tma and launched.d_dtype is not F32 else 0,
        (
            _off_vectors(launched, d, swap=swap, partial_sums=False),
            _off_vectors(launched, d, swap=swap, partial_sums=True),
        ),
        (_paired(launched, d, swap=swap, partial_sums=False), _paired(launched, d, swap=swap, partial_sums=True)),
    )


@lru_cache(maxsize=8192)
def constants(shape: Shape, facts: Facts, partial_sums: bool, in_registers: bool, pieces: int) -> Config:  # noqa: FBT001 — kept by position
    """Return the compiled constants of :func:`configured`."""
    float32 = partial_sums or facts.float32
    staged = shape.staged
    if in_registers and shape.bn == _WIDEST:  # room for another stage
        staged = min(staged, ROWS)
    if float32:
        off = shape.bn >= _LEAST_STAGED and facts.off[partial_sums]
        staged = (staged // 2 if shape.bn > ROWS else staged) * off  # large tiles have room for as many bytes of rows
    # Staging has room for what is before the first 16 bytes. Three consumers, and clusters with A in registers, spill.
    fitting = shape.consumers < 3 and not (in_registers and shape.cluster != (1, 1))
    one_run = fitting and not float32 and 0 < facts.d_run < shape.bn
    if one_run:
        staged = shape.bn
    direct = staged == 0
    producer, consumer = _REGISTERS[shape.consumers]
    if shape.consumers == 2 and shape.sums > _MANY_SUMS:
        producer, consumer = _HEAVY
    epilogue = NO_EPILOGUE if partial_sums else facts.epilogue
    promoted = _PROMOTED_STEPS if pieces else facts.promoted
    if facts.slice_steps and not partial_sums and shape.cluster_k == 1:  # no other block has a slice
        promoted = facts.slice_steps
    columns = shape.bn if facts.b_along_k else boxed(shape.bn)
    stage = _stage_bytes(shape.bm, columns, facts.a_along_k, in_registers=in_registers)
    values = dict(
        BM=shape.bm,
        BN=shape.bn,
        BK=SPAN // facts.itemsize,
        CONSUMERS=shape.consumers,
        PINGPONG=int(shape.pingpong),
        CLUSTER_M=shape.cluster[0],
        CLUSTER_N=shape.cluster[1],
        CLUSTER_K=shape.cluster_k,
        GROUP_M=_group(shape),
        A_K_INNER=int(facts.a_along_k),
        B_K_INNER=int(facts.b_along_k),
        A_IN_REGISTERS=int(in_registers),
        # Two elements of k are one load where rows start on 4 bytes.
        A_PAIRED=int(in_registers and facts.a_paired),
        INTERLEAVED=int(in_registers and facts.a_along_k and (float32 or facts.eighth_rows)),
        CHAINS=1 if in_registers or pieces or facts.promoted or facts.in_order else shape.chains,
        STAGED=staged,
        D_TRANSPOSED=int(not float32 and not facts.d_along_k),
        D_TMA=int(not float32 and facts.d_by_tma),
        D_ONE_RUN=int(one_run),
        D_PAIRED=int(direct and facts.paired[partial_sums]),
        FLOAT32_D=int(float32),
        PARTIAL_SUMS=int(partial_sums),
        HAS_C=int(facts.has_c and not partial_sums),
        PROMOTED=promoted,
        PIECES=pieces,
        PRODUCER_REGISTERS=producer,
        CONSUMER_REGISTERS=consumer,
        **epilogue.constants,
    )
    staging = staging_bytes(values)
    stages = min(_MOST_STAGES, (_SHARED - _ALIGN - staging) // stage)
    return Config.of(**values, STAGES=stages, SHARED_BYTES=stages * stage + staging)


def _eighth_rows(launched: Gemm, d: Runs) -> bool:
    """Tell whether TMA stores every eighth row of D at a time: whole groups of eight aligned rows."""
    whole = d.length * launched.dtype.itemsize % VECTOR_BYTES == 0 and d.count % 8 == 0
    return d.along_k and d.by_tma and whole


def staging_bytes(config: Config | Mapping[str, int]) -> int:
    """Count the bytes in which warp groups stage 64 rows of D each. The device asserts the same number.

    Rows of float32 are whole spans, or an odd number of 32 bytes apart.
    """
    staged, size = config["STAGED"], F16.itemsize
    if config["FLOAT32_D"] and staged:
        size = F32.itemsize
        staged = staged if staged * size % SPAN == 0 and not config["INTERLEAVED"] else staged | _LEAST_BN
    return config["CONSUMERS"] * ROWS * staged * size


def _off_vectors(launched: Gemm, d: Runs, *, swap: bool, partial_sums: bool) -> bool:
    """Tell whether rows of a float32 D are contiguous and start off 16 bytes."""
    if partial_sums:
        return not swap and launched.n * F32.itemsize % VECTOR_BYTES > 0
    return d.along_k and d.stride == 1 and d.align < VECTOR_BYTES


def _paired(launched: Gemm, d: Runs, *, swap: bool, partial_sums: bool) -> bool:
    """Tell whether float32 elements of two columns can be stored at once."""
    if launched.n % 2:
        return False
    return not swap if partial_sums else d.along_k and d.stride == 1 and d.align >= 8


def _group(shape: Shape) -> int:
    """Count the rows of tiles of a raster group.

    Blocks that run at the same time then cover about as many rows as columns.

    On an H200 groups of 16 are 1% faster than groups of 8 on 4096 x 4096 x 4096, and 5% slower on 8192 and 16384.
    """
    return 16 if shape.bm == ROWS else 8 // shape.cluster[0]


def _stage_bytes(rows: int, columns: int, a_along_k: bool, *, in_registers: bool) -> int:  # noqa: FBT001 — A's layout
    """Count the bytes of a stage and its barriers. The device asserts the same number."""
    of_a = rows * SPAN
    if in_registers:  # 16 bytes more for each run of A
        of_a += VECTOR_BYTES * (rows if a_along_k else ROWS)
    return of_a + columns * SPAN + 16


def cluster_blocks(config: Configs) -> Any:
    """Count the blocks of a cluster: neighbours that share operands, or slices of one tile."""
    return config["CLUSTER_M"] * config["CLUSTER_N"] * config["CLUSTER_K"]


def clusters_at_once(sms: int, blocks: Any) -> Any:
    """Count the clusters of so many blocks that run at the same time: SMs of a GPC may be left over by large ones."""
    return np.maximum(1, sms * np.where(blocks > 2, _LARGE_CLUSTERS, _EIGHTHS) // (_EIGHTHS * blocks))


def threads(config: Config) -> int:
    """Count the threads per block: a producer warp group and the consumers."""
    return 128 * (1 + config["CONSUMERS"])


def cluster_tiles(m: Any, n: Any, config: Configs) -> Any:
    """Count the tiles of one product of m x n, as it is launched, in clusters."""
    return ceil_div(m, config["BM"] * config["CLUSTER_M"]) * ceil_div(n, config["BN"] * config["CLUSTER_N"])


def as_multiplied(problem: Gemm, config: Config) -> Gemm:
    """Return the problem as the tensor cores see it: as it is launched, in pieces where the config has them."""
    launched = as_launched(problem, config)
    return in_pieces(launched, method(config)) if config.get("PIECES") else launched


def work_tiles(problem: Gemm, config: Config) -> int:
    """Count the work tiles of all products and slices, in clusters, of the problem as it is launched."""
    return int(cluster_tiles(problem.m, problem.n, config)) * problem.batch * config["SPLIT_K"]


def shared_work_tiles(problem: Gemm, config: Config) -> tuple[int, int]:
    """Count the work tiles of a problem, and the blocks of the cluster that shares each."""
    return work_tiles(as_launched(problem, config), config), cluster_blocks(config)


def why_not_wgmma(problem: Gemm, arch: Arch) -> str | None:
    """Say why Hopper's tensor cores cannot multiply the problem's elements on ``arch``, or None."""
    if arch.capability[0] != HOPPER[0]:
        return f"wgmma needs compute capability 9.0: {arch.name} has {'.'.join(map(str, arch.capability))}"
    if problem.dtype in _16_BITS:
        return "tf32 is a precision of float32" if problem.precision == "tf32" else None
    if problem.dtype is not F32:
        return f"{problem.dtype.name} is not float16, bfloat16 or float32"
    if problem.d_dtype is not F32:
        return f"D of {problem.d_dtype.name} has wider sums than tensor cores of float32"
    if problem.precision != "tf32" and not problem.split_methods:
        return "wgmma rounds float32 to tf32, which precision='tf32' allows, or multiplies pieces of it"
    return None


def sums_in_slices(problem: Gemm, config: Config) -> bool:
    """Tell whether blocks, or a block one after the other, have the slices of batch-invariant sums."""
    slices, own = batch_invariant_slices(problem), config["SPLIT_K"] * config["CLUSTER_K"]
    if config["PIECES"] or config["CHAINS"] > 1:  # the pieces that suffice depend on all rows
        return False
    if slices == 1 or own == 1:
        return own == 1 and (slices == 1 or config["PROMOTED"] * config["BK"] == problem.slice_k)
    return own == slices and ceil_div(problem.k, config["BK"]) * config["BK"] == slices * problem.slice_k


def why_not(problem: Gemm, config: Config, arch: Arch) -> str | None:
    """Say why the kernel cannot compute ``problem`` with ``config`` on ``arch``, or None."""
    reason = why_not_wgmma(problem, arch) or why_not_extents(problem)
    if reason is not None:
        return reason
    if problem.k == 0:
        return "k = 0 leaves nothing to load"
    if reason := _why_not_precision(problem, config):
        return reason
    launched = as_multiplied(problem, config)
    wanted = configured(
        _shape_of(config), problem, arch, swap=bool(config["EXCHANGED"]), slices=config["SPLIT_K"],
        repack=[name for name in "AB" if config[f"REPACK_{name}"]], in_registers=bool(config["A_IN_REGISTERS"]),
        pieces=config["PIECES"],
    )  # fmt: skip
    if (config["STAGED"] > 0) != (wanted["STAGED"] > 0):
        staged = "passes through shared memory" if wanted["STAGED"] else "is stored from registers"
        return f"STAGED = {config['STAGED']} does not fit D, which {staged}"
    return (
        _why_not_operands(launched, config)
        or _why_not_tile(config)
        or _why_not_work(launched, config)
        or next(
            (
                f"{name} = {value} does not fit the problem, which needs {wanted[name]}"
                for name, value in config.constants
                if name in _OF_PROBLEM and value != wanted[name]
            ),
            None,
        )
    )


def _why_not_precision(problem: Gemm, config: Config) -> str | None:
    """Say why a configuration has another precision than the problem, or cannot split it, or None."""
    if not config["PIECES"]:
        return f"precision {problem.precision!r} multiplies pieces" if problem.split_methods else None
    by = method(config)
    if by not in problem.split_methods:
        return f"precision {problem.precision!r} does not allow pieces by {by}"
    if problem.k < SHORTEST_K:
        return f"FMA is as exact for k < {SHORTEST_K}, and needs no pieces"
    if config["SPLIT_K"] > 1 or config["REPACK_A"] or config["REPACK_B"] or config["A_IN_REGISTERS"]:
        return "pieces are aligned, and the blocks of a cluster may have slices of their k"
    return why_not_pieces(as_launched(problem, config), by)


#: Constants that follow from the problem.
_OF_PROBLEM = frozenset(
    [
        "BK",
        "A_K_INNER",
        "B_K_INNER",
        "A_PAIRED",
        "INTERLEAVED",
        "D_TRANSPOSED",
        "D_TMA",
        "D_ONE_RUN",
        "D_PAIRED",
        "FLOAT32_D",
        "PARTIAL_SUMS",
        "HAS_C",
        "PROMOTED",
        "AGAIN_A_K_INNER",
        "AGAIN_A_VEC",
        "AGAIN_B_K_INNER",
        "AGAIN_B_VEC",
        "AGAIN_SHARED_BYTES",
        "BIAS",
        "ACTIVATION",
    ]
)


def _shape_of(config: Config) -> Shape:
    return Shape(
        config["BM"],
        config["BN"],
        config["CONSUMERS"],
        bool(config["PINGPONG"]),
        (config["CLUSTER_M"], config["CLUSTER_N"]),
        config["CLUSTER_K"],
    )


def _why_not_operands(launched: Gemm, config: Config) -> str | None:
    if config["A_IN_REGISTERS"]:
        if config["REPACK_A"]:
            return "A goes through registers as it is, or is repacked"
        if reason := why_not_registers(launched, _shape_of(config)):
            return reason
    for name in unaligned(launched):
        if not config[f"REPACK_{name}"] and not (name == "A" and config["A_IN_REGISTERS"]):
            return f"TMA needs rows of {name} that are contiguous and start on 16 bytes, or repacked ones"
    if not config["B_K_INNER"] and not fills_boxes(config["BN"]):
        return f"BN = {config['BN']} leaves most of a box of an MN-major B empty, which has {ROWS} columns"
    return None


def _why_not_tile(config: Config) -> str | None:
    sums = _shape_of(config).sums * (2 if config["PROMOTED"] else 1)
    if sums > _MOST_SUMS[config["CONSUMERS"]]:
        return f"{sums} accumulators per thread > {_MOST_SUMS[config['CONSUMERS']]}"
    if sums == _MOST_SUMS[config["CONSUMERS"]] and (what := _epilogue_spills(config)):
        return f"{sums} accumulators per thread leave no registers for {what}"
    if config["PROMOTED"] and config["A_IN_REGISTERS"]:
        return "promoted sums need the registers of A's fragments"
    if config["CLUSTER_K"] > 1 and (config["PINGPONG"] or config["CLUSTER_M"] * config["CLUSTER_N"] > 1):
        return "a cluster shares operands or has the slices of one tile, which one group of consumers computes"
    least = 2 * config["PROMOTED"] if config["PIECES"] else 2
    if config["STAGES"] < least:
        return f"{config['STAGES']} stages < {least} leave nothing in flight"
    return None


def _epilogue_spills(config: Config) -> str | None:
    """Say why the epilogue would spill at the largest accumulator count, or None."""
    clusters = config["CLUSTER_M"] * config["CLUSTER_N"] > 1
    alternating, activation = config["PINGPONG"], config["ACTIVATION"]
    ordinary = config["STAGED"] and not config["D_TMA"]
    k_major = config["A_K_INNER"] and config["B_K_INNER"]
    reasons = (
        (ordinary and alternating and (clusters or (config["A_K_INNER"] and not k_major)), "ordinary stores of D"),
        (ordinary and not alternating and activation, "ordinary stores of D and an activation"),
        (
            ordinary and config["FLOAT32_D"] and activation and config["HAS_C"],
            "a staged float32 D, C and an activation",
        ),
        (alternating and not config["STAGED"] and not k_major, "float32 D of MN-major operands"),
        (alternating and config["D_TRANSPOSED"] and activation, "transposed D and an activation"),
        (alternating and clusters and activation, "clusters and an activation"),
        (config["PIECES"], "the product of whole elements"),
    )
    return next((words for holds, words in reasons if holds), None)


def _why_not_work(launched: Gemm, config: Config) -> str | None:
    steps = ceil_div(launched.k, config["BK"])
    slices = config["SPLIT_K"] * config["CLUSTER_K"]
    if slices > steps:
        return f"{slices} slices of {steps} k-steps"
    if min(config["SPLIT_K"], config["CLUSTER_K"]) > 1:
        return "slices of k are blocks of a cluster, or of a workspace"
    total = work_tiles(launched, config) * cluster_blocks(config)
    if total >= 2**31:
        return f"{total} work tiles are more than are counted in 32 bits"
    return None
