"""The SGEMM ladder: C = alpha * A @ B + beta * C in float32, from three nested loops to pieces on tensor cores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import Geometry, Kernel, Rung
from matmill.kernels.gemm import cost
from matmill.kernels.gemm.tiles import TILES, space, threads, why_not, with_vector_widths
from matmill.kernels.hgemm import tiles as on_mma
from matmill.kernels.pieces import METHODS
from matmill.kernels.shared.tiled import tile_count
from matmill.kernels.wgmma import PRODUCTION, WGMMA
from matmill.kernels.wgmma.tiles import Shape, configured
from matmill.ladders.documents import FORUM, OURS, SLIDES
from matmill.ladders.packed import packed, packed_arguments, reported, tiles
from matmill.precision import error_bound
from matmill.problem import Gemm

_HERE = "matmill.ladders.sgemm"


# -- One output per thread, straight from global memory: down a column, then along a row.

UNCOALESCED: Rung[Gemm] = Rung(
    name="uncoalesced",
    source=OURS,
    idea="warps along columns",
    changes="The starting point of many tutorials: one element of C per thread, and threadIdx.x counts rows. A warp "
    "reads 32 rows of A at one k and writes 32 rows of C.",
    predicts="32 sectors per request of A where one word would do, 33 for two loads: at most 3% of the FMA peak, a "
    "quarter of naive's bound. Each sector of A serves 8 steps of k, if L1 keeps it that long.",
    kernel=Kernel(
        entry="uncoalesced",
        package=_HERE,
        file="uncoalesced.cuh",
        config=Config.of(BM=32, BN=32),
        geometry=tiles(32, 32, (32, 32)),
        arguments=packed_arguments,
        why_not_config=packed(),
    ),
)

NAIVE: Rung[Gemm] = Rung(
    name="naive",
    source=FORUM,
    idea="warps along rows",
    changes="threadIdx.x counts columns: a warp reads one word of A, which all lanes share, and 32 neighbours of B. "
    "32x32 threads per block, one element of C per thread, A and B read from global memory at every step.",
    predicts="Two loads per FMA at one request per clock and SM, against four FMAs: at most 12.5% "
    "of the FMA peak on an SM with 128 lanes, with L1 catching the reuse.",
    claim=reported(8192, {"RTX 4090": 292}, "The source prints 1.88, counting an FMA once."),
    kernel=replace(UNCOALESCED.kernel, entry="naive", file="naive.cuh"),
)


# -- Several neighbouring outputs per thread, summed up in global memory.

_TX, _TY = 32, 8
_MULTI_MILLISECONDS = {1: 6.86, 2: 7.07, 4: 16.2, 8: 19.1}


def _predicts(multi: int) -> str:
    requests = 3 + 1 / multi
    text = (
        f"{requests:g} requests per FMA of a warp, and {8 * multi} sectors of C moved through L2: each load "
        "waits for the store before it, so the round trip to L2 sets the pace"
    )
    return f"{text}." if multi == 1 else f"{text}, and traffic to C is {multi} times that of multi(1)."


def _multi_rung(multi: int) -> Rung[Gemm]:
    return Rung(
        name="multi",
        source=SLIDES,
        idea=f"{multi} sum{'s' * (multi > 1)}, in global memory",
        base="naive" if multi == 1 else None,
        changes=f"One thread makes {multi} neighbouring outputs of a row and adds every term to C in global memory."
        if multi > 1
        else "One output per thread, but every term is added to C in global memory instead of a register.",
        predicts=_predicts(multi),
        claim=reported(1024, {"GTX Titan X": _MULTI_MILLISECONDS[multi]}),
        parameter=multi,
        kernel=Kernel(
            entry="multi",
            package=_HERE,
            file="multi.cuh",
            config=Config.of(MULTI=multi, TX=_TX, TY=_TY),
            geometry=tiles(_TY, _TX * multi, (_TX, _TY)),
            arguments=packed_arguments,
            why_not_config=packed(),
        ),
    )


MULTI: tuple[Rung[Gemm], ...] = tuple(_multi_rung(multi) for multi in _MULTI_MILLISECONDS)


# -- Square tiles of both inputs staged in shared memory.

_SHARED_MILLISECONDS = {
    8: {"GTX Titan X": 3.07, "K40": 8.20, "C2070": 20.0},
    16: {"GTX Titan X": 2.65, "K40": 5.30, "C2070": 12.1},
    32: {"GTX Titan X": 2.67, "K40": 5.18, "C2070": 12.2},
}
_FORUM = " The forum post, same kernel: " + reported(
    8192,
    {"RTX 4090": 324},
    "It prints 1.70, counting an FMA once, and suspects a 32-way bank conflict on the A tile.",
)


def _shared_rung(b: int) -> Rung[Gemm]:
    return Rung(
        name="shared",
        source=SLIDES,
        idea=f"{b}x{b} tiles in shared",
        base="naive" if b == min(_SHARED_MILLISECONDS) else None,
        changes=f"Blocks of {b}x{b} threads stage {b}x{b} tiles of A and B in shared memory, two barriers per step.",
        predicts=f"Global loads fall from 8 to {8 / b:g} bytes per FMA; shared reads replace them, at "
        "1.5 wavefronts per FMA of a warp (the compiler merges four reads of A into one of 2 wavefronts) and "
        "no bank conflict: at most 17% of the FMA peak on an SM with 128 lanes.",
        claim=reported(1024, _SHARED_MILLISECONDS[b]) + (_FORUM if b == 32 else ""),
        parameter=b,
        kernel=Kernel(
            entry="shared",
            package=_HERE,
            file="shared.cuh",
            config=Config.of(B=b),
            geometry=tiles(b, b, (b, b)),
            arguments=packed_arguments,
            why_not_config=packed(m=b, n=b, k=b),
        ),
    )


SHARED: tuple[Rung[Gemm], ...] = tuple(_shared_rung(b) for b in _SHARED_MILLISECONDS)


# -- One tile of A reused for neighbouring tiles of B (Kirk & Hwu).

_GRANULARITY_B = 16
_GRANULARITY_MILLISECONDS = {
    1: {"GTX Titan X": 2.65, "K40": 5.36},
    2: {"GTX Titan X": 2.10, "K40": 4.36},
    4: {"GTX Titan X": 1.89, "K40": 3.92},
}


def _granularity_rung(g: int) -> Rung[Gemm]:
    wavefronts = 1 + 0.5 / g
    return Rung(
        name="granularity",
        source=SLIDES,
        idea=f"a tile of A for {g} of B",
        base="shared(16)" if g == 1 else None,
        changes=f"A block makes {g} neighbouring 16x16 tiles of C, reading its tile of A once for all of them."
        if g > 1
        else "The starting point of the family: shared(16) with one tile of C per block.",
        predicts=f"Per FMA {4 * (1 + g) / (_GRANULARITY_B * g):g} bytes from global memory instead of 0.5, and "
        f"{wavefronts:g} shared wavefronts per warp instead of 1.5: at most {1.5 / wavefronts:.3g} times shared(16)."
        if g > 1
        else "As shared(16): 0.5 bytes from global memory per FMA, 1.5 shared wavefronts per warp.",
        claim=reported(1024, _GRANULARITY_MILLISECONDS[g]),
        parameter=g,
        kernel=Kernel(
            entry="granularity",
            package=_HERE,
            file="granularity.cuh",
            config=Config.of(B=_GRANULARITY_B, G=g),
            geometry=tiles(_GRANULARITY_B, _GRANULARITY_B * g, (_GRANULARITY_B, _GRANULARITY_B)),
            arguments=packed_arguments,
            why_not_config=packed(m=_GRANULARITY_B, n=_GRANULARITY_B * g, k=_GRANULARITY_B),
        ),
    )


GRANULARITY: tuple[Rung[Gemm], ...] = tuple(_granularity_rung(g) for g in _GRANULARITY_MILLISECONDS)


# -- Several rows per thread: independent sums instead of more threads (Volkov).

_ILP_B = 32
_ILP_MILLISECONDS = {
    1: {"GTX Titan X": 2.61, "K40": 5.18},
    2: {"GTX Titan X": 1.67, "K40": 3.46},
    4: {"GTX Titan X": 1.37, "K40": 2.73},
    8: {"GTX Titan X": 1.17, "K40": 2.53},
    16: {"GTX Titan X": 1.79, "K40": 22.89},
}


def _ilp_rung(grain: int) -> Rung[Gemm]:
    wavefronts = 0.5 + 1 / grain
    return Rung(
        name="ilp",
        source=SLIDES,
        idea=f"{grain} row{'s' * (grain > 1)} a thread",
        base="shared(32)" if grain == 1 else None,
        changes=f"Blocks of 32x{_ILP_B // grain} threads make 32x32 tiles of C; each thread owns {grain} rows, "
        f"{_ILP_B // grain} apart, and reads its word of B once for all of them."
        if grain > 1
        else "The starting point of the family: shared(32), one row per thread.",
        predicts=f"Shared wavefronts per FMA of a warp fall from 1.5 to {wavefronts:g}: at most "
        f"{1.5 / wavefronts:.3g} times shared(32), from {_ILP_B // grain} warps per block with {grain} sums each."
        if grain > 1
        else "As shared(32): 1.5 shared wavefronts per FMA of a warp.",
        claim=reported(1024, _ILP_MILLISECONDS[grain]),
        parameter=grain,
        kernel=Kernel(
            entry="ilp",
            package=_HERE,
            file="ilp.cuh",
            config=Config.of(B=_ILP_B, GRAIN=grain),
            geometry=tiles(_ILP_B, _ILP_B, (_ILP_B, _ILP_B // grain)),
            arguments=packed_arguments,
            why_not_config=packed(m=_ILP_B, n=_ILP_B, k=_ILP_B),
        ),
    )


ILP: tuple[Rung[Gemm], ...] = tuple(_ilp_rung(grain) for grain in _ILP_MILLISECONDS)


# -- A row of 64 outputs per thread in registers; only B goes through shared memory.

VOLKOV: Rung[Gemm] = Rung(
    name="volkov",
    source=FORUM,
    idea="64 sums in registers",
    changes="64x4 threads make a 256x64 tile of C, each owning one row x 64 columns in registers. Only B's 64x64 tile "
    "goes through shared memory (rows padded by one); A comes straight from global memory.",
    predicts="One shared wavefront per FMA of a warp, and per 64 of these one load of A that touches 32 "
    "sectors: at most 25% of the FMA peak on an SM with 128 lanes, less what A's loads take. 25.6 FLOP per byte of "
    "tile loaded.",
    claim=reported(
        8192,
        {"RTX 4090": 144},
        "The source prints 3.82 and 12.8 operations per byte, counting an FMA once.",
    ),
    base="ilp(16)",
    kernel=Kernel(
        entry="volkov",
        package=_HERE,
        file="volkov.cuh",
        config=Config.of(BM=256, BN=64, BK=64, TX=64, TY=4),
        geometry=tiles(256, 64, (64, 4)),
        arguments=packed_arguments,
        why_not_config=packed(m=256, n=64, k=64),
    ),
)


# -- 8x8 outputs per thread, held in registers.

REGISTER_TILE: Rung[Gemm] = Rung(
    name="register-tile",
    source=FORUM,
    idea="8x8 sums in registers",
    changes="Each of 16x16 threads keeps an 8x8 block of the 128x128 tile of C in registers and, per k, one column of "
    "A and one row of B.",
    predicts="16 shared reads feed 64 FMAs instead of 64 feeding 64. A's reads are 2-way and B's 4-way "
    "conflicted: 48 wavefronts where 16 would do, so at most 33% of the FMA peak on an SM with 128 lanes.",
    claim=reported(
        8192,
        {"RTX 4090": 54},
        "The source prints 10.2, counting an FMA once, and says reads of A are 2-way, of B 4-way conflicted.",
    ),
    base="shared(32)",
    kernel=Kernel(
        entry="register_tile",
        package=_HERE,
        file="register_tile.cuh",
        config=Config.of(BM=128, BN=128, BK=16, TM=8, TN=8),
        geometry=tiles(128, 128, (16, 16)),
        arguments=packed_arguments,
        why_not_config=packed(m=128, n=128, k=16),
    ),
)


# -- Shared tiles rotated so that no read conflicts; then twice the tile by twice the threads.


def _conflict_free_rung(bm: int) -> Rung[Gemm]:
    return Rung(
        name="conflict-free",
        source=FORUM if bm == 256 else OURS,
        idea="no bank conflicts" if bm == 128 else "tile and threads doubled",
        changes="Both shared tiles are rotated inside each group of 8 columns: A by bit 3 of the row, B by column / "
        "32. Tile and threads are register-tile's."
        if bm == 128
        else "16x32 threads make a 256x128 tile of C. The source takes this step together with the rotation.",
        predicts="16 wavefronts per 64 FMAs instead of 48, so shared memory keeps up with the FMA units; 16 reads "
        "beside 64 FMAs leave at most 80% of the issue slots."
        if bm == 128
        else "42.7 FLOP per byte of tile loaded instead of 32.",
        claim=_CONFLICT_FREE_CLAIM if bm == 256 else "",
        parameter=bm,
        kernel=Kernel(
            entry="conflict_free",
            package=_HERE,
            file="conflict_free.cuh",
            config=Config.of(BM=bm, BN=128, BK=16, TM=8, TN=8),
            geometry=tiles(bm, 128, (16, bm // 8)),
            arguments=packed_arguments,
            why_not_config=packed(m=bm, n=128, k=16),
        ),
    )


_CONFLICT_FREE_CLAIM = reported(
    8192,
    {"RTX 4090": 42},
    "The source prints 13.1 and 21.3 operations per byte, counting an FMA once, and says that no reads conflict. Its "
    '"over 70% of CUTLASS" is 57% by its own times.',
)
CONFLICT_FREE: tuple[Rung[Gemm], ...] = tuple(_conflict_free_rung(bm) for bm in (128, 256))


# -- 16 bytes per load, from global and from shared memory.

VECTORIZED: Rung[Gemm] = Rung(
    name="vectorized",
    source=OURS,
    idea="16 bytes per access",
    changes="Global and shared memory are read 16 bytes at a time. The A tile is transposed on its way into shared "
    "memory, so that a thread's eight rows at one k are two vectors, as its eight columns of B are.",
    predicts="4 shared reads instead of 16 per 64 FMAs: FMAs grow from 80% to 94% of the inner loop's "
    "instructions, and the tiles' global loads and address arithmetic fall four-fold.",
    base="conflict-free(128)",
    kernel=Kernel(
        entry="vectorized",
        package=_HERE,
        file="vectorized.cuh",
        config=Config.of(BM=128, BN=128, BK=8, TM=8, TN=8),
        geometry=tiles(128, 128, (16, 16)),
        arguments=packed_arguments,
        why_not_config=packed(m=128, n=128, k=8),
    ),
)


# -- Tiles that arrive while others compute: cp.async and two shared buffers.

ASYNC_COPY: Rung[Gemm] = Rung(
    name="async-copy",
    source=OURS,
    idea="cp.async, two buffers",
    changes="Tiles go from global to shared memory by cp.async, without passing through registers, into one of two "
    "buffers while the other is computed on. One barrier per step instead of two. The A tile is transposed by copying "
    "it word by word.",
    predicts="The wait for global memory, some 600 cycles per step against 512 of FMA issue per warp scheduler, "
    "disappears behind the arithmetic; registers that held tiles in flight are free.",
    kernel=Kernel(
        entry="async_copy",
        package=_HERE,
        file="async_copy.cuh",
        config=Config.of(BM=128, BN=128, BK=8, TM=8, TN=8),
        geometry=tiles(128, 128, (16, 16)),
        arguments=packed_arguments,
        why_not_config=packed(m=128, n=128, k=8),
    ),
)


# -- Square tiles for warps, and lanes numbered so that their shared reads merge.

WARP_TILES: Rung[Gemm] = Rung(
    name="warp-tiles",
    source=OURS,
    idea="square tiles for warps",
    changes="A 128x256 tile is split among 2x4 warps, each with a 64x64 tile of its own instead of a 16x128 strip, and "
    "each thread owns 16x8 outputs. Lanes are numbered so that lane^1 shares its rows and lane^2 its columns.",
    predicts="6 shared reads per 128 FMAs instead of 8. The hardware merges the quarter-warps of a 16-byte "
    "read in pairs when such neighbours agree on the address, so each read takes 2 passes over the banks: 12 per warp "
    "and k for 128 FMAs, instead of 12 for 64.",
    kernel=Kernel(
        entry="warp_tiles",
        package=_HERE,
        file="warp_tiles.cuh",
        config=Config.of(BM=128, BN=256, BK=8, TM=16, TN=8),
        geometry=tiles(128, 256, (256, 1)),
        arguments=packed_arguments,
        why_not_config=packed(m=128, n=256, k=8),
    ),
)


# -- The whole pipeline, with the tile shape chosen for the problem.


def _why_not(problem: Gemm, config: Config, arch: Arch) -> str | None:
    return packed()(problem, config, arch) or why_not(problem, config)


def _geometry(problem: Gemm, config: Config) -> Geometry:
    return Geometry(
        grid=(tile_count(problem, config), 1, 1), block=(threads(config), 1, 1), dynamic_shared=config["SHARED_BYTES"]
    )


def _tune(problem: Gemm, arch: Arch) -> Config:
    return min(space(problem, arch), key=lambda config: cost.explain(problem, config, arch).seconds)


TUNED: Rung[Gemm] = Rung(
    name="tuned",
    source=OURS,
    idea="read ahead, best tile",
    changes="Five changes at once. A third buffer, fragments of the next k read while this one computes (across the "
    "barrier too), blocks walking C in groups of tiles that share L2, bounds handled for any size, and the tile shape "
    "picked by the cost model: smaller tiles with k split among groups of warps where large ones would leave SMs idle.",
    predicts="Shared-memory latency leaves the critical path: the FMA units stay busy over the barrier. At 1024 the "
    "GPU has 128 tiles of 64x128 to work on instead of 32 of 128x256.",
    kernel=Kernel(
        entry="tuned",
        package=_HERE,
        file="tuned.cuh",
        config=with_vector_widths(TILES[4][0], Gemm(m=128, n=256, k=8)),
        geometry=_geometry,
        arguments=packed_arguments,
        why_not_config=_why_not,
    ),
    tune=_tune,
)


# -- Tensor cores multiply elements that are split in registers: in one sum, then in short ones.

_SPLIT_TILE = on_mma.with_vector_widths(on_mma.split_tile(128, 128, 32, 2, 4, stages=3), Gemm(m=128, n=128, k=32))


def _why_not_tf32(problem: Gemm, config: Config, arch: Arch) -> str | None:
    if arch.capability < (8, 0):
        return f"mma.sync on tf32 needs compute capability 8.0: {arch.name} has {'.'.join(map(str, arch.capability))}"
    return packed(m=128, n=128, k=32)(problem, config, arch)


def _split_geometry(problem: Gemm, config: Config) -> Geometry:
    return Geometry((tile_count(problem, config), 1, 1), (on_mma.threads(config), 1, 1), config["SHARED_BYTES"])


TF32X3: Rung[Gemm] = Rung(
    name="tf32x3",
    source=OURS,
    idea="two tf32 pieces",
    changes="Each element is split in registers into the sum of two tf32 numbers of 11 bits, and of the four products "
    "of two such sums the tensor cores add the three largest. Blocks of 2x4 warps make 128x128 tiles of C.",
    predicts="3 mma.sync do what 32 FMAs of a warp did: of an H200's 495 TFLOP/s of tf32 mma.sync reaches about 62%, "
    "and a third of that is 102. Splitting takes 4 instructions in every warp that reads an element. All of k is one "
    "sum, which each mma.sync cuts off where FMA rounds: errors have one sign, up to 2.25 k units of 2^-24 |A||B|.",
    kernel=Kernel(
        entry="tf32x3",
        package=_HERE,
        file="tf32x3.cuh",
        config=Config(tuple(one for one in _SPLIT_TILE.constants if one[0] != "SUM_K")),
        geometry=_split_geometry,
        arguments=packed_arguments,
        why_not_config=_why_not_tf32,
    ),
)

PROMOTED: Rung[Gemm] = Rung(
    name="promoted",
    source=OURS,
    idea="short sums, then FMA",
    changes="A sum on the tensor cores has 32 terms of k. It starts from zero, and FMA units, which round to nearest, "
    "add it to sums in registers of their own.",
    predicts="One addition for 96 products of pieces costs next to nothing, but another 64 registers of a thread. "
    "Only 32 terms are cut off together: at 1024 the largest possible error falls to "
    f"{error_bound('tf32x3_registers', 1024):.0f} units, and FMA's is 1024.",
    kernel=replace(TF32X3.kernel, entry="promoted", file="promoted.cuh", config=_SPLIT_TILE),
)


# -- Elements are split once, by a launch of their own, and wgmma reads the pieces: then of 16 bits.

#: From the most work per byte to the most tiles.
_SHAPES = (Shape(128, 128, 2), Shape(64, 128, 1), Shape(64, 64, 1))


def _in_pieces(by: str) -> dict[str, Any]:
    """Return the kernel of a rung and its ``tune``: the production kernel on pieces, with one of three tiles."""

    def refused(problem: Gemm, config: Config, arch: Arch) -> str | None:
        return packed()(problem, config, arch) or WGMMA.why_not_config(replace(problem, precision=by), config, arch)

    def tune(problem: Gemm, arch: Arch) -> Config:
        configs = [configured(shape, problem, arch, pieces=1 + METHODS.index(by)) for shape in _SHAPES]
        legal = [config for config in configs if refused(problem, config, arch) is None]
        return min(legal, key=lambda config: PRODUCTION.explain(problem, config, arch).seconds, default=configs[0])

    return {"kernel": replace(WGMMA, why_not_config=refused, before=WGMMA.before[1:], after=()), "tune": tune}


PIECES: Rung[Gemm] = Rung(
    name="pieces",
    source=OURS,
    idea="split once, wgmma",
    changes="A launch ahead splits each element once, not in every warp that reads it, and leaves two tf32 pieces of "
    "A and of B in memory, the lower ones times 2^11. The production kernel multiplies them, at which the hgemm "
    "ladder ends: TMA, wgmma, one block per SM. Products with a lower piece have a sum of their own.",
    predicts="wgmma reaches all of the rate of tf32, a third of which is 165 TFLOP/s on an H200, and no instruction "
    "in the loop splits. The launch ahead moves 12 bytes for each element: a tenth of the product's time at 4096, a "
    "twentieth at 8192. Errors are as in promoted, or less.",
    base="",
    **_in_pieces("tf32x3"),
)

FP16X3: Rung[Gemm] = Rung(
    name="fp16x3",
    source=OURS,
    idea="float16 pieces, scaled",
    changes="Pieces are float16, which has as many bits as tf32 but fewer exponents. So each row of A and each column "
    "of B is divided by a power of two ahead, and sums are multiplied by it behind. The launch ahead also notes how "
    "small elements are: where some are too small for that, the product's blocks do as promoted does instead.",
    predicts="Half as many wgmma, which have 16 terms of k instead of 8, and half of the bytes by TMA: at most 330 "
    "TFLOP/s on an H200. The launch ahead moves 8 bytes for each element instead of 12. Errors do not grow. Where "
    "elements are too small, the time of promoted.",
    **_in_pieces("fp16x3"),
)


# -- The ladder

#: The rungs on FMA units, for every GPU.
ON_FMA: tuple[Rung[Gemm], ...] = (
    UNCOALESCED,
    NAIVE,
    *MULTI,
    *SHARED,
    *GRANULARITY,
    *ILP,
    VOLKOV,
    REGISTER_TILE,
    *CONFLICT_FREE,
    VECTORIZED,
    ASYNC_COPY,
    WARP_TILES,
    TUNED,
)
#: The rungs on tensor cores, by mma.sync on packed operands and by wgmma in pieces.
IN_REGISTERS: tuple[Rung[Gemm], ...] = (TF32X3, PROMOTED)
IN_PIECES: tuple[Rung[Gemm], ...] = (PIECES, FP16X3)
SGEMM = (*ON_FMA, *IN_REGISTERS, *IN_PIECES)
