"""The HGEMM ladder: D = alpha * A @ B + beta * C on the tensor cores, from tiles at three levels to any size.

The rungs on wgmma continue it where Hopper has instructions of its own. Their order is that of Shankhdhar's fast.cu
(2024), whose figures their predictions name.
"""

from __future__ import annotations

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import Geometry, Rung, ceil_div
from matmill.ladders.documents import BLOG, OURS
from matmill.ladders.hgemm.common import kernel, narrow_or_wide, staged, tiled
from matmill.ladders.hgemm.hopper import block_per_sm, hopper_kernel, hopper_staged, resident, specialised
from matmill.ladders.hgemm.pipelined import any_kernel, best_tile, largest_tile
from matmill.problem import Gemm

# -- Tiles for the block, the warp and the tensor core.

_HIERARCHICAL_CONFIG = staged(BM=256, BN=128, BK=64, WARPS_M=4, WARPS_N=2)

HIERARCHICAL: Rung[Gemm] = Rung(
    name="hierarchical",
    source=BLOG,
    idea="tiles at three levels",
    changes="A 256x128 tile of D per block, k in steps of 64 through shared memory; 8 warps with 64x64 each in "
    "registers; ldmatrix feeds mma.sync of 16x8x16 (two of 16x8x8 on Turing). Copies are one element at a time.",
    predicts="2 bytes per load leave memory idle between copies, and ldmatrix takes 8 wavefronts per 8x8 matrix where "
    "1 would do: 256 wavefronts per warp and 16 of k for 32 multiplications, eight times what a shared memory of 128 "
    "bytes a clock needs for them.",
    claim="At 8192: 8% of cuBLAS on T4, with float16 sums.",
    kernel=kernel("hierarchical", "hierarchical.cuh", _HIERARCHICAL_CONFIG),
    tune=narrow_or_wide(_HIERARCHICAL_CONFIG),
)


# -- Sixteen bytes per copy, and all copies of a step in flight.

_VECTORIZED_CONFIG = staged(BM=256, BN=128, BK=64, WARPS_M=4, WARPS_N=2)

VECTORIZED: Rung[Gemm] = Rung(
    name="vectorized",
    source=BLOG,
    idea="16 bytes a copy",
    changes="Copies from global to shared memory move 16 bytes per thread, in loops whose length the compiler knows: "
    "all loads of a step are issued before the first is stored.",
    predicts="An eighth of the copy instructions, and 12 loads in flight per thread instead of about one: the wait "
    "for global memory shrinks about as much, and conflicts of ldmatrix become the limit.",
    claim="About 3 times the first rung, on T4.",
    kernel=kernel("vectorized", "vectorized.cuh", _VECTORIZED_CONFIG),
    tune=narrow_or_wide(_VECTORIZED_CONFIG),
)


# -- Shared tiles whose rows begin in different banks, by XOR.

_SWIZZLED_CONFIG = staged(BM=256, BN=128, BK=64, WARPS_M=4, WARPS_N=2)

SWIZZLED: Rung[Gemm] = Rung(
    name="swizzled",
    source=BLOG,
    idea="tiles swizzled by XOR",
    changes="In row r of both shared tiles the 16-byte piece p is stored at slot p XOR (r mod 8). No padding.",
    predicts="1 wavefront per 8x8 matrix instead of 8: 32 per warp and 16 of k for 32 multiplications, so that "
    "ldmatrix no longer waits for banks. The tiles take as many bytes as before.",
    claim="About 50% of cuBLAS on T4.",
    kernel=kernel("swizzled", "swizzled.cuh", _SWIZZLED_CONFIG),
    tune=narrow_or_wide(_SWIZZLED_CONFIG),
)


# -- The next step's tiles come to registers while this one's are multiplied.

_PREFETCH_CONFIG = staged(BM=256, BN=128, BK=64, WARPS_M=4, WARPS_N=2)
# Half of k per step: float32 sums and the vectors of a whole step together would spill on Turing.
_PREFETCH_WIDE = staged(acc16=0, BM=256, BN=128, BK=32, WARPS_M=4, WARPS_N=2)

PREFETCH: Rung[Gemm] = Rung(
    name="prefetch",
    source=BLOG,
    idea="next tiles in registers",
    changes="Loads of the next k-tiles go to registers before the multiplications of this step and from there to "
    "shared memory after them.",
    predicts="The latency of global memory overlaps with arithmetic, for 48 registers per thread: the wait that "
    "remains is for two barriers and the stores between them.",
    claim="About 70% of cuBLAS on T4; registers go from 104 to 166.",
    kernel=kernel("prefetch", "prefetch.cuh", _PREFETCH_CONFIG),
    tune=narrow_or_wide(_PREFETCH_CONFIG, _PREFETCH_WIDE),
)


# -- A larger, flatter tile, and addresses that step by XOR.

_TILE_SHAPE_CONFIG = staged(BM=256, BN=256, BK=32, WARPS_M=2, WARPS_N=4)

TILE_SHAPE: Rung[Gemm] = Rung(
    name="tile-shape",
    source=BLOG,
    idea="larger, flatter tiles",
    changes="Two changes at once. Tiles of 256x256 with k 32 instead of 256x128 with k 64, warp tiles of 128x64; and "
    "one address per lane and matrix from which all others follow by XOR or addition of constants. With float32 sums, "
    "which would fill all registers of an SM, 256x128 with warp tiles of 128x32.",
    predicts="128 FLOP per byte copied instead of 85, above T4's balance with L2 at any hit rate; 43 instead of 32 "
    "FLOP per byte read from shared memory. Integer instructions all but vanish from the inner loop.",
    claim="At 8192: 86.7% of cuBLAS on T4; 90 million instructions instead of 216 million (cuBLAS: 94 million).",
    kernel=kernel("tile_shape", "tile_shape.cuh", _TILE_SHAPE_CONFIG),
    tune=narrow_or_wide(_TILE_SHAPE_CONFIG),
)


# -- Two shared buffers and one barrier per step.

_DOUBLE_BUFFER_CONFIG = staged(BM=256, BN=256, BK=32, WARPS_M=2, WARPS_N=4, stages=2)

DOUBLE_BUFFER: Rung[Gemm] = Rung(
    name="double-buffer",
    source=BLOG,
    idea="two buffers, one barrier",
    changes="Shared memory holds two tiles of A and of B: while one is multiplied, the next is stored into the other.",
    predicts="One barrier per step instead of two, and warps that are done store their tiles while others still "
    "multiply. 64 KB of shared memory, all that Turing has.",
    claim="At 8192: 96% of cuBLAS on T4.",
    kernel=kernel("double_buffer", "double_buffer.cuh", _DOUBLE_BUFFER_CONFIG),
    tune=narrow_or_wide(_DOUBLE_BUFFER_CONFIG),
)


# -- cp.async, three tiles deep.

_MULTISTAGE_CONFIG = staged(BM=256, BN=256, BK=32, WARPS_M=2, WARPS_N=4, stages=3)

MULTISTAGE: Rung[Gemm] = Rung(
    name="multistage",
    source=OURS,
    idea="cp.async, three stages",
    changes="Tiles go from global to shared memory by cp.async, without registers between, into three stages: two "
    "tiles are in flight while one is multiplied.",
    predicts="A step of 256x256x32 lasts more than 1000 clocks on an SM of Hopper, two steps cover any latency of "
    "global memory; 32 registers per thread are free, and as many instructions per step gone.",
    kernel=kernel("multistage", "multistage.cuh", _MULTISTAGE_CONFIG, tiled(asynchronous=True)),
    tune=narrow_or_wide(_MULTISTAGE_CONFIG),
)


# -- Any m, n and k.

ANY_SIZE: Rung[Gemm] = Rung(
    name="any-size",
    source=OURS,
    idea="any size, reads ahead",
    changes="Three changes at once. Zeros past the ends of A and B, stores checked at those of D. Rows on 16, 8 or 4 "
    "bytes are copied by cp.async of that size, others through registers, element by element. Fragments of the next "
    "step are read ahead, and the tile is 128x256 with k 64 in four stages, or what the GPU can hold.",
    predicts="At sizes in multiples of the tile the checks cost next to nothing: they are made once per copy, not in "
    "the inner loop. Reading ahead hides the latency of ldmatrix, some 30 clocks per step.",
    kernel=any_kernel("any_size", "any_size.cuh"),
    tune=largest_tile,
)


# -- Results go through shared memory and leave in whole rows.

EPILOGUE: Rung[Gemm] = Rung(
    name="epilogue",
    source=OURS,
    idea="D leaves in whole rows",
    changes="A warp stages 16 rows of its sums in shared memory and writes them in rows of 128 bytes, 16 bytes "
    "per lane; C is read the same way.",
    predicts="4 store requests for 16 rows of 64 columns instead of 32, and whole sectors only. It is a small part of "
    "a large product: at 8192 less than 1%, at 1024 several.",
    kernel=any_kernel("epilogue", "epilogue.cuh"),
    tune=largest_tile,
)


# -- Sums in float32, and the tile that fits the problem.

FLOAT32_SUMS: Rung[Gemm] = Rung(
    name="float32-sums",
    source=OURS,
    idea="float32 sums, best tile",
    changes="Three changes at once. Sums are float32. Blocks take the tiles of D in groups of 8 rows of tiles, and "
    "the tile is chosen by the size of the problem, so that a small one occupies the whole GPU.",
    predicts="The rounding error falls from that of float16, which grows with k, to one rounding of the result. "
    "Data-centre GPUs multiply as fast as with float16 sums, GeForce at half the rate.",
    kernel=any_kernel("float32_sums", "float32_sums.cuh", banded=True),
    tune=best_tile,
)


# -- wgmma from shared memory that TMA fills, one stage.

_WGMMA_CONFIG = hopper_staged(128, 128)

WGMMA: Rung[Gemm] = Rung(
    name="wgmma",
    source=OURS,
    idea="wgmma, TMA, one stage",
    changes="Hopper's own instruction: one warp group multiplies 64 x 128 x 16 at a time, both operands from "
    "shared memory, without ldmatrix and fragments. One thread copies boxes of 64 x 64 by TMA, swizzled on the "
    "way. Tiles of 128x128 with k 64, one stage. For compute capability 9.0 alone.",
    predicts="About 410 TFLOP/s on an H200 at 4096 and 8192, less than float32-sums: fast.cu's step of the same "
    "tile and one stage made 413 and 410 there. A block multiplies for 512 clocks per k-step, then waits for L2 "
    "longer than that; the two other blocks of the SM do not fill all of it. One instruction per warp does what 16 "
    "of mma.sync did, and none loads fragments.",
    base="",
    kernel=hopper_kernel("wgmma_tile", "wgmma.cuh", _WGMMA_CONFIG),
)


# -- A pipeline of TMA copies on full and empty mbarriers.

_TMA_PIPELINE_CONFIG = hopper_staged(128, 128, stages=3)

TMA_PIPELINE: Rung[Gemm] = Rung(
    name="tma-pipeline",
    source=OURS,
    idea="three stages, mbarriers",
    changes="Three stages, each with an mbarrier that says when its bytes have come and one that says when all "
    "warps have read it. The thread that copies still multiplies too. No barrier of the block in the loop.",
    predicts="500 to 540 TFLOP/s on an H200 at 4096: two k-steps of 512 clocks each are in flight, which covers "
    "the latency of L2, about 700. fast.cu's next step has this tile and such a pipeline, with a warp group that "
    "only copies, and made 538 there, 462 at 8192. What remains is the traffic: 32 KB per 512 clocks are 64 bytes "
    "per clock and SM, about all that L2 gives.",
    kernel=hopper_kernel("tma_pipeline", "tma_pipeline.cuh", _TMA_PIPELINE_CONFIG),
)


# -- Warp groups with roles: one copies, two multiply.

_WARP_SPECIALISED_CONFIG = specialised(128, 256, stages=4)

WARP_SPECIALISED: Rung[Gemm] = Rung(
    name="warp-specialised",
    source=OURS,
    idea="one copies, two multiply",
    changes="A warp group of its own copies, by one elected thread, and gives most of its registers to the others "
    "(setmaxnreg, 40 and 232). Two warp groups multiply 64 x 256 x 16 at a time, in a tile of 128x256 with four "
    "stages.",
    predicts="About 680 TFLOP/s on an H200 at 4096 and 620 at 8192. A tile of 128x256 takes 48 bytes of L2 per "
    "clock and SM instead of 64. fast.cu's step of this shape made 646 and 576; later, as mbarriers in PTX "
    "replaced those of the C++ library, it gained 19% and 10%, some of which is in here from the start. With one "
    "block per SM nothing hides a tile's first wait and its epilogue: some 5% of its 64 k-steps at 4096.",
    kernel=hopper_kernel("warp_specialised", "warp_specialised.cuh", _WARP_SPECIALISED_CONFIG),
)


# -- One block per SM walks over the tiles.

_PERSISTENT_CONFIG = specialised(128, 256, stages=4).launched(BLOCKS=132)

PERSISTENT: Rung[Gemm] = Rung(
    name="persistent",
    source=OURS,
    idea="one block per SM",
    changes="As many blocks as SMs, each with every so many tiles of the raster order. The producer does not wait "
    "for an epilogue: while sums are stored, the next tile's first four stages are loaded.",
    predicts="About 715 TFLOP/s on an H200 at 4096 and 690 at 8192, 5 to 10% more: launch, barriers and the first "
    "wait for L2 come once per SM instead of once per tile, 4 times less often at 4096 and 16 times at 8192. "
    "fast.cu had 715 and 666 at this point. The epilogue still stops the tensor cores, since both consumers store "
    "at the same time.",
    kernel=hopper_kernel("persistent", "persistent.cuh", _PERSISTENT_CONFIG, block_per_sm),
    tune=resident(_PERSISTENT_CONFIG),
)


# -- Results leave by stmatrix and TMA.

_TMA_STORE_CONFIG = specialised(128, 256, stages=3, staging=1).launched(BLOCKS=132)

TMA_STORE: Rung[Gemm] = Rung(
    name="tma-store",
    source=OURS,
    idea="stmatrix, TMA stores",
    changes="Sums are rounded in pairs, written to a swizzled buffer by stmatrix without bank conflicts, and "
    "stored by TMA in boxes of 64 x 64, while the next tile is multiplied. The buffer replaces the fourth stage.",
    predicts="730 to 745 TFLOP/s on an H200 at 4096 and 8192: matmill's example of this structure, with B stored "
    "by columns, made 739 and 744 there, and cuBLAS 720 and 716 in the same run. 16 stmatrix per warp replace 64 "
    "stores that half fill 8 sectors each. To lose a stage of four costs nothing: two in flight cover the latency. "
    "fast.cu saw less, 692 and 651 with TMA stores, 719 and 683 with stmatrix besides.",
    kernel=hopper_kernel("tma_store", "tma_store.cuh", _TMA_STORE_CONFIG, block_per_sm, stores_boxes=True),
    tune=resident(_TMA_STORE_CONFIG),
)


# -- Clusters of two blocks share an operand.

_MULTICAST_CONFIG = specialised(128, 256, stages=3, staging=1, SHARES_B=1).launched(BLOCKS=132)


def _multicast_tune(problem: Gemm, arch: Arch) -> Config:
    """Return clusters that leave the fewest SMs without work.

    Of equal ones it takes those that share B, the larger part of a stage.
    """
    shared = min((1, 0), key=lambda shares_b: _pairs(problem, _MULTICAST_CONFIG.replace(SHARES_B=shares_b)))
    return _MULTICAST_CONFIG.replace(SHARES_B=shared).launched(BLOCKS=arch.sms)


def _multicast_pairs_of_blocks(problem: Gemm, config: Config) -> Geometry:
    """Return a cluster of two blocks for every two SMs, or as many as there are pairs of tiles."""
    clusters = min(config["BLOCKS"] // 2, _pairs(problem, config))
    grid = (2 * clusters, 1, 1)
    return Geometry(grid, (config["THREADS"], 1, 1), config["SHARED_BYTES"], cluster=(2, 1, 1))


def _pairs(problem: Gemm, config: Config) -> int:
    """Return the number of pairs of tiles, one below the other if they share B, else side by side."""
    down, across = (2, 1) if config["SHARES_B"] else (1, 2)
    return ceil_div(problem.m, down * config["BM"]) * ceil_div(problem.n, across * config["BN"])


MULTICAST: Rung[Gemm] = Rung(
    name="multicast",
    source=OURS,
    idea="blocks share an operand",
    changes="Clusters of two blocks work on neighbouring tiles. Two below each other (2x1) share B, two side by "
    "side (1x2) share A, as suits the shape: each block loads half of what they share and TMA writes it to both.",
    predicts="Nothing, or a loss of up to 4%, on an H200. L2 has to deliver 32 instead of 48 bytes per clock and "
    "SM (40 where A is shared), but 48 are less than it can, and each stage now waits for the slower of two "
    "blocks. fast.cu went from 715 to 710 TFLOP/s at 4096 and from 666 to 638 at 8192 by this step. At 16384, "
    "where L2 holds less of what a group shares, it may gain.",
    kernel=hopper_kernel(
        "multicast", "multicast.cuh", _MULTICAST_CONFIG, _multicast_pairs_of_blocks, stores_boxes=True
    ),
    tune=_multicast_tune,
)


# -- Two consumers alternate between two tiles.

_PINGPONG_CONFIG = specialised(128, 128, stages=5, staging=2).launched(BLOCKS=132)

PINGPONG: Rung[Gemm] = Rung(
    name="pingpong",
    source=OURS,
    idea="two consumers alternate",
    changes="No clusters. Each of the two consumers has a tile of 128x128 for itself, and named barriers let one "
    "begin its k-steps when the other has begun its last one: one stores while the other multiplies.",
    predicts="0 to 3% more than tma-store on an H200 at 4096 and below: there an epilogue of about 2000 clocks "
    "follows 64 k-steps of 1024, or fewer, and is now hidden. The same at 8192. Less at 16384: a tile of 128x128 "
    "takes 64 bytes of L2 per clock and SM instead of 48, and matmill's example with such a tile was 1% slower "
    "than with 128x256 at 4096 and 8192, and 10% at 16384.",
    base="tma-store",
    kernel=hopper_kernel("pingpong", "pingpong.cuh", _PINGPONG_CONFIG, block_per_sm, stores_boxes=True),
    tune=resident(_PINGPONG_CONFIG),
)


# -- The ladder

#: The rungs on mma.sync, for every GPU since Turing or Ampere.
ON_MMA: tuple[Rung[Gemm], ...] = (
    HIERARCHICAL,
    VECTORIZED,
    SWIZZLED,
    PREFETCH,
    TILE_SHAPE,
    DOUBLE_BUFFER,
    MULTISTAGE,
    ANY_SIZE,
    EPILOGUE,
    FLOAT32_SUMS,
)
#: The rungs on wgmma, for Hopper only.
ON_WGMMA: tuple[Rung[Gemm], ...] = (
    WGMMA,
    TMA_PIPELINE,
    WARP_SPECIALISED,
    PERSISTENT,
    TMA_STORE,
    MULTICAST,
    PINGPONG,
)
HGEMM = (*ON_MMA, *ON_WGMMA)
