"""Mistakes to plant in the kernels of ``examples/hopper``, and what the emulator has to say of each.

A mistake is a change of the source: a text that the kernel's files have once, and what stands there instead. Many of
them hang a GPU or damage its results without a word: they are for the emulator alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hopper import run
from hopper.run import Change, Pointers, Trial
from matmill.config import Config
from matmill.dtypes import F32
from matmill.launch import Launch, TensorMap

SHARED, PERSISTENT, MULTICAST = "consumer.cuh", "persistent_product.cuh", "multicast_product.cuh"
WGMMA, COPY, RETARGET = "wgmma_product.cuh", "tile_copy.cuh", "retarget_map.cuh"


def copy() -> Trial:
    """Return each block copies several boxes, so that stages are used again."""
    return run.copy(96, 200, blocks=2)


def single() -> Trial:
    """Return three k-steps through one stage, and rows of D that are not whole."""
    return run.wgmma_product(72, 128, 160)


def registers() -> Trial:
    """Return the same with A in registers."""
    return run.wgmma_product(72, 128, 160, A_REGISTERS=1)


def persistent() -> Trial:
    """Return two tiles for one block, and k-steps that go round two stages more than once; D is not square."""
    return run.persistent_product(136, 72, 328, blocks=1, BN=128, STAGES=2)


def multicast() -> Trial:
    """Return one cluster, and k-steps that go round two stages more than once."""
    return run.multicast_product(256, 128, 328, STAGES=2)


def retarget(rows: int = 8, columns: int = 32) -> Trial:
    """Return a tensor map that the kernel makes in global memory: it leads to x, the map it is made from to zeros."""
    x = np.random.default_rng(0).uniform(-1, 1, (rows, columns)).astype(np.float32)
    operands = {"other": np.zeros_like(x), "X": x, "map": np.zeros(TensorMap.NBYTES // 4, np.float32)}
    d_pitch = columns + run.MARGIN

    def launch(pointers: Pointers) -> Launch:
        other = run.box_map(pointers["other"], (rows, columns), columns, F32, box=(rows, columns), swizzle=0)
        args = (other, pointers["X"], pointers["map"], pointers["D"], np.int32(d_pitch))
        return Launch("hopper/retarget_map", "retarget_map", (1, 1, 1), (32, 1, 1), args, 4 * x.size + 8)

    config, exact = Config.of(ROWS=rows, COLUMNS=columns), np.zeros(x.shape)
    wanted = x.astype(np.float64)
    return Trial("retarget_map", config, operands, F32, launch, wanted, exact, Path(__file__).parent, ("D", "map"))


@dataclass(frozen=True)
class Defect:
    """A mistake in the kernel of ``trial``, as ``changes`` to its files.

    The emulator has to report one of ``kinds``, in whose message or place ``instructions`` are named.
    """

    name: str
    trial: Callable[[], Trial]
    changes: tuple[Change, ...]
    kinds: tuple[str, ...]
    instructions: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


def _one(name: str, trial: Callable[[], Trial], change: Change, kinds: tuple[str, ...], *instructions: str) -> Defect:
    return Defect(name, trial, (change,), kinds, instructions)


_FENCE = "  fence_proxy_async_shared();\n"
_STAGED = "  barrier_sync<128>(barrier);\n  if (first) {\n"
_WAIT_FULL = "    mbarrier_wait(shared.full + 8 * slot.stage, slot.parity);\n"
_WAIT_EMPTY = "          mbarrier_wait(shared.empty + 8 * slot.stage, slot.parity ^ 1);\n"
_EXPECT = "          mbarrier_arrive_expect_tx(full, STAGE_BYTES);\n"
_LOAD_A = "tma_load_2d(to, &a, full, step * BK, origin.row);"
_EMPTY_COUNT = "mbarrier_init(shared.empty + 8 * s, 4 * CONSUMERS);"
_LOAD_B = "            tma_load_2d(to + A_BYTES, &b, full, step * BK, origin.column);\n          }\n"
_ACCUMULATE = "        wgmma<Scalar, TA, TB>(sums, later(descriptor<TA>(in_a), i * NEXT<TA>),"
_STEP = "    mbarrier_wait(full, step % 2);\n"
_REWRITTEN = "    volatile unsigned char* const byte = shared + threadIdx.x;\n    *byte = *byte;\n"
_FRAGMENTS_READ = "    } else {\n      wgmma_fence();\n"
_CHANGED = '      asm volatile("xor.b32 %0, %0, 1;" : "+r"(fragments[0][0]));\n'
_FIRST_BOX = "  if (tile < across * down) load(tile, 0);\n"
_DEPENDENT = "  wait_then_trigger();  // what comes before it overlaps the launch before\n"
_RELEASED = "    wgmma_wait<1>();\n"
_RELEASE = "mbarrier_arrive_cluster(map_shared_rank(shared.empty + 8 * stage, lane));"
_LAST_READ = "  if (first) bulk_wait_read<0>();\n"
_LAST_SYNC = "  cluster_sync();  // the other block may still arrive at this one's barriers\n"
_STORE, _LOAD, _PRODUCT = "cp.async.bulk.tensor", "cp.async.bulk.tensor", "wgmma.mma_async"

#: Each mistake alone, in an otherwise right kernel.
DEFECTS = (
    _one(
        "no proxy fence before a TMA store",
        persistent,
        (SHARED, _FENCE, ""),
        ("missing-proxy-fence",),
        "stmatrix",
        _STORE,
    ),
    _one(
        "proxy fence after the barrier",
        persistent,
        (SHARED, _FENCE + _STAGED, _STAGED + "    fence_proxy_async_shared();\n"),
        ("missing-proxy-fence",),
        "stmatrix",
        _STORE,
    ),
    _one(
        "no proxy fence before a product",
        single,
        (WGMMA, _STEP, f"{_STEP}{_REWRITTEN}    __syncthreads();\n"),
        ("missing-proxy-fence",),
        "st.volatile",
        _PRODUCT,
    ),
    _one("no wait for a full stage", persistent, (SHARED, _WAIT_FULL, ""), ("race",), _LOAD, _PRODUCT),
    _one("no wait for the only stage", single, (WGMMA, _STEP, ""), ("race",), _LOAD, _PRODUCT),
    _one(
        "no wait for a box that is stored",
        copy,
        (COPY, "    mbarrier_wait(full + 8 * stage, i / 2 % 2);\n", ""),
        ("race",),
        _LOAD,
        _STORE,
    ),
    _one("no wait for an empty stage", persistent, (PERSISTENT, _WAIT_EMPTY, ""), ("race",), _LOAD),
    _one(
        "a stage released one step early",
        persistent,
        (SHARED, _RELEASED, "    wgmma_wait<2>();\n"),
        ("race",),
        _PRODUCT,
        _LOAD,
    ),
    _one(
        "sums read before the wait",
        persistent,
        (SHARED, "  wgmma_wait<0>();\n", ""),
        ("register-in-flight",),
        _PRODUCT,
        "cvt.rn",
    ),
    _one(
        "registers of A changed in flight",
        registers,
        (WGMMA, _FRAGMENTS_READ, _CHANGED + _FRAGMENTS_READ),
        ("register-in-flight",),
        _PRODUCT,
        "xor.b32",
    ),
    _one("no wgmma.fence", persistent, (SHARED, "    wgmma_fence();\n", ""), ("missing-wgmma-fence",), _PRODUCT),
    _one(
        "too few bytes expected",
        persistent,
        (PERSISTENT, _EXPECT, _EXPECT.replace("BYTES", "BYTES - 16")),
        ("mbarrier",),
        "mbarrier",
    ),
    _one(
        "too many bytes expected",
        persistent,
        (PERSISTENT, _EXPECT, _EXPECT.replace("BYTES", "BYTES + 16")),
        ("deadlock",),
        "mbarrier",
    ),
    Defect(
        "bytes expected after the phase",
        persistent,
        (
            (PERSISTENT, _EXPECT, "          mbarrier_arrive(full);\n"),
            (PERSISTENT, _LOAD_B, f"{_LOAD_B}          mbarrier_expect_tx(full, STAGE_BYTES);\n"),
        ),
        ("mbarrier", "race"),
        ("mbarrier",),
    ),
    _one(
        "parity of the first round for ever",
        persistent,
        (SHARED, _WAIT_FULL, _WAIT_FULL.replace("slot.parity", "0")),
        ("mbarrier", "race"),
        _LOAD,
        _PRODUCT,
    ),
    _one(
        "parity that does not wrap",
        persistent,
        (SHARED, "      parity ^= 1;\n", ""),
        ("deadlock", "mbarrier", "race"),
        "mbarrier",
    ),
    _one(
        "an arrival more than is counted",
        persistent,
        (PERSISTENT, _EMPTY_COUNT, _EMPTY_COUNT.replace("CONSUMERS", "CONSUMERS - 1")),
        ("mbarrier", "race"),
        "mbarrier",
    ),
    _one(
        "an arrival less than is counted",
        persistent,
        (PERSISTENT, _EMPTY_COUNT, _EMPTY_COUNT.replace("CONSUMERS", "CONSUMERS + 1")),
        ("deadlock",),
        "mbarrier",
    ),
    _one(
        "staging written before the last store has read it",
        persistent,
        (SHARED, _LAST_READ, ""),
        ("race",),
        _STORE,
        "stmatrix",
    ),
    _one(
        "a box loaded over one that is being stored",
        copy,
        (COPY, "    bulk_wait_read<0>();\n", ""),
        ("race",),
        _STORE,
        _LOAD,
    ),
    Defect(
        "multicast to a block that has not freed its stage",
        multicast,
        (
            (MULTICAST, "4 * CONSUMERS * BLOCKS", "4 * CONSUMERS"),
            (MULTICAST, "if (lane < BLOCKS) " + _RELEASE, "if (lane == rank) " + _RELEASE),
        ),
        ("race",),
        (_PRODUCT, _LOAD),
    ),
    _one(
        "a block that ends before its cluster", multicast, (MULTICAST, _LAST_SYNC, ""), ("cluster",), "mbarrier.arrive"
    ),
    _one(
        "multicast before the other block has barriers",
        multicast,
        (MULTICAST, "  cluster_sync();  // a block must not", "  __syncthreads();  // a block must not"),
        ("mbarrier", "cluster"),
        "mbarrier.init",
    ),
    _one(
        "a tensor map used without an acquire",
        retarget,
        (
            RETARGET,
            '    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");\n',
            "",
        ),
        ("tensor-map",),
        "tensormap.replace",
        _LOAD,
    ),
    Defect(
        "a tensor map used without fences",
        retarget,
        (
            (RETARGET, '    asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");\n', ""),
            (
                RETARGET,
                '    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");\n',
                "",
            ),
        ),
        ("tensor-map",),
        ("tensormap.replace", _LOAD),
    ),
    _one(
        "coordinates swapped",
        persistent,
        (PERSISTENT, _LOAD_A, "tma_load_2d(to, &a, full, origin.row, step * BK);"),
        ("box-outside",),
        _LOAD,
    ),
    _one(
        "a descriptor of another swizzle than the map",
        persistent,
        (SHARED, "k_major_descriptor<128>(stage + rows)", "matrix_descriptor<64>(stage + rows, 16, 8 * 128)"),
        ("swizzle",),
        _LOAD,
        _PRODUCT,
    ),
    _one(
        "a product without one warp",
        single,
        (WGMMA, _ACCUMULATE, _ACCUMULATE.replace("wgmma<", "if (warp != 3) wgmma<")),
        ("warpgroup",),
        _PRODUCT,
    ),
    _one(
        "setmaxnreg without one warp",
        persistent,
        (PERSISTENT, "setmaxnreg_inc<232>();", "if (threadIdx.x % 128 < 96) setmaxnreg_inc<232>();"),
        ("warpgroup",),
        "setmaxnreg",
    ),
    _one(
        "setmaxnreg without one lane",
        persistent,
        (PERSISTENT, "setmaxnreg_inc<232>();", "if (threadIdx.x % 32 != 5) setmaxnreg_inc<232>();"),
        ("warpgroup", "partial-warp"),
        "setmaxnreg",
    ),
    _one(
        "a named barrier for more threads than come",
        persistent,
        (SHARED, _STAGED, _STAGED.replace("128", "256")),
        ("deadlock",),
        "waits at barrier 1 for 256 threads",
    ),
    Defect(
        "the launch before waited for after the first load",
        copy,
        ((COPY, _DEPENDENT, ""), (COPY, _FIRST_BOX, _FIRST_BOX + _DEPENDENT)),
        ("dependent-launch",),
        (_LOAD,),
    ),
)
