"""Public kernels for Hopper: how they compile, problems for them, and mistakes to plant in copies of their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from lab.host_program import Array

BF16, F16, F32 = (np.dtype(each) for each in (ml_dtypes.bfloat16, np.float16, np.float32))


@dataclass(frozen=True)
class Problem:
    """A driver's arrays in order, of which the kernel writes ``result``, and what that should be in float64."""

    arrays: dict[str, Array]
    result: Array
    wanted: Array


@dataclass(frozen=True)
class Change:
    """A text in a file, by its path from the user's folder, and what to put in its place."""

    file: str
    old: str
    new: str = ""


@dataclass(frozen=True)
class Case:
    """A kernel: its driver, and the collection's folders and options with which it compiles.

    ``sizes`` are the driver's sizes of each problem, by name. ``repair`` adds what the report of the kernel asks for.
    ``mistakes`` are planted on top of that, each found on the problem that it names, by default the first.
    ``program`` is the collection's own program, and arguments for it.
    """

    driver: str
    include: tuple[str, ...]
    options: tuple[str, ...]
    problem: Callable[[np.random.Generator, Sequence[int]], Problem]
    sizes: Mapping[str, tuple[int, ...]]
    mistakes: Mapping[str, Change]
    repair: tuple[Change, ...] = ()
    at: Mapping[str, str] = field(default_factory=dict)
    program: tuple[str, ...] = ()

    def compiled_with(self, folder: Path) -> list[str]:
        """Return nvcc's options, for the collections in ``folder``."""
        return [*self.options, *(f"-I{folder / name}" for name in self.include)]


def _draw(rng: np.random.Generator, dtype: np.dtype[Any], *shape: int) -> Array:
    return rng.uniform(-1, 1, shape).astype(dtype)


def _unwritten(dtype: np.dtype[Any], *shape: int) -> Array:
    return np.full(shape, np.nan, dtype)


def _tutorial(rng: np.random.Generator, sizes: Sequence[int]) -> Problem:
    m, n, k, rows = sizes
    a, b, c = _draw(rng, F16, m, k), _draw(rng, F16, n, k), _unwritten(F16, n, m)
    operands = {"A": a, "B": b} if rows else {"A": a.T.copy(), "B": b.T.copy()}
    return Problem(operands | {"C": c}, c.T, a.astype(float) @ b.astype(float).T)


def _cutlass(dtype: np.dtype[Any]) -> Callable[[np.random.Generator, Sequence[int]], Problem]:
    def problem(rng: np.random.Generator, sizes: Sequence[int]) -> Problem:
        m, n, k = sizes[:3]
        a, b, c, d = _draw(rng, dtype, m, k), _draw(rng, dtype, n, k), _draw(rng, dtype, n, m), _unwritten(dtype, n, m)
        return Problem(
            {"A": a, "B": b, "C": c, "D": d}, d.T, a.astype(float) @ b.astype(float).T + 0.5 * c.T.astype(float)
        )

    return problem


def _deep_gemm(rng: np.random.Generator, sizes: Sequence[int]) -> Problem:
    """Return a product: of MN-major operands and added to a float32 D for the last instance, else K-major ones."""
    m, n, k, instance = sizes
    a, b = _draw(rng, BF16, m, k), _draw(rng, BF16, n, k)
    wanted = a.astype(float) @ b.astype(float).T
    if instance < 3:
        d = _unwritten(BF16, m, n)
        return Problem({"A": a, "B": b, "D": d}, d, wanted)
    d = _draw(rng, F32, m, n)
    return Problem({"A": a.T.copy(), "B": b.T.copy(), "D": d}, d, wanted + d)


def _thunder_kittens(rng: np.random.Generator, sizes: Sequence[int]) -> Problem:
    m, n, k, _ = sizes
    a, b, c = _draw(rng, BF16, m, k), _draw(rng, BF16, k, n), _unwritten(BF16, m, n)
    return Problem({"A": a, "B": b, "C": c}, c, a.astype(float) @ b.astype(float))


def _attention(rng: np.random.Generator, sizes: Sequence[int], *, heads_first: bool) -> Problem:
    """Return a problem of (batch, length, length of K, heads, heads of K, causal)."""
    batch, length, length_k, heads, heads_k, causal = sizes
    head = 128
    axes = (0, 2, 1, 3) if heads_first else (0, 1, 2, 3)

    def drawn(rows: int, count: int) -> Array:
        return _draw(rng, BF16, batch, rows, count, head).transpose(axes).copy()

    q, k, v = drawn(length, heads), drawn(length_k, heads_k), drawn(length_k, heads_k)
    o, lse = _unwritten(BF16, *q.shape), _unwritten(F32, batch, heads, length)
    to_heads = (0, 1, 2, 3) if heads_first else (0, 2, 1, 3)
    queries, keys, values = (each.astype(float).transpose(to_heads) for each in (q, k, v))
    keys, values = (np.repeat(each, heads // heads_k, axis=1) for each in (keys, values))
    scores = queries @ keys.swapaxes(-1, -2) / head**0.5
    if causal:
        scores = np.where(np.tril(np.ones((length, length_k), bool), length_k - length), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    wanted = weights @ values / weights.sum(axis=-1, keepdims=True)
    arrays = {"Q": q, "K": k, "V": v, "O": o, "LSE": lse, "semaphore": np.zeros(1, np.int32)}
    return Problem(arrays, o, wanted.transpose(to_heads))


def _flash_attention(rng: np.random.Generator, sizes: Sequence[int]) -> Problem:
    return _attention(rng, sizes, heads_first=False)


def _kittens_attention(rng: np.random.Generator, sizes: Sequence[int]) -> Problem:
    batch, length, heads, heads_k, causal = sizes
    return _attention(rng, (batch, length, length, heads, heads_k, causal), heads_first=True)


_CUTLASS = ("cutlass/include", "cutlass/tools/util/include")
_TUTORIAL = ("cutlass/examples/cute/tutorial/hopper", *_CUTLASS)
_RELAXED = "--expt-relaxed-constexpr"
_PRODUCT = "cutlass/include/cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized.hpp"
_EARLY = Change(_PRODUCT, "warpgroup_wait<K_PIPE_MMAS>();", "warpgroup_wait<K_PIPE_MMAS + 1>();")
_EPILOGUE = "cutlass/include/cutlass/epilogue/collective/sm90_epilogue_tma_warpspecialized.hpp"
_PIPELINE = "cutlass/include/cutlass/pipeline/sm90_pipeline.hpp"
_DEEP_GEMM = "DeepGEMM/deep_gemm/include/deep_gemm/impls/sm90_bf16_gemm.cuh"
_WGMMA, _WGMMA_TMA = (f"{_TUTORIAL[0]}/{name}_sm90.cu" for name in ("wgmma", "wgmma_tma"))
_LOADED = "ProducerBarType::wait(&producer_mbar[read_pipe], read_state.phase());"
_COPIED = "cp_async_wait<0>();"
_KITTENS = "ThunderKittens/kernels/gemm/bf16_h100/bf16_h100_gemm.cu"
_LOOPS = "ThunderKittens/prototype/lcf/lcf.cuh"
_ARRIVED = "wait(inputs_arrived[input_ring], get_phasebit<0>(semaphore_bitfield, input_ring));"
_ATTENTION = "ThunderKittens/kernels/attention/mha_h100/mha_h100.cu"
_HOPPER_KITTENS = (
    "-std=c++20", "--use_fast_math", "--expt-extended-lambda", _RELAXED, "-DKITTENS_HOPPER", "-DNDEBUG",
)  # fmt: skip
_FORWARD = "flash-attention/hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp"
_SEEN_BY_TMA = "cutlass::arch::fence_view_async_shared(); // ensure smem writes are visible to TMA"
_FENCE = 'asm volatile("fence.proxy.async;");'
# What ThunderKittens' kernels store and then hand to TMA.
_STORED_O = "warpgroup::store(o_smem[warpgroupid], o_reg);"
_STORED_L = "warpgroup::store(l_smem[warpgroupid], norm_vec);"
_STORED = "warpgroup::store(reinterpret_cast<wide_tile&>(args.finish.c[warpgroup::groupid()]), args.state.accum);"

CASES = {
    "CuTe's tutorial of wgmma": Case(
        "cute_wgmma", _TUTORIAL, ("-std=c++17", _RELAXED), _tutorial,
        {"MN-major": (256, 128, 256, 0), "K-major": (256, 128, 256, 1)},
        {
            "no wait for cp.async": Change(_WGMMA, _COPIED),
            "no wait for the products": Change(_WGMMA, "warpgroup_wait<0>();"),
        },
        repair=(Change(_WGMMA, _COPIED, f"{_COPIED} {_FENCE} __syncthreads();"),),
    ),
    "CuTe's tutorial of wgmma and TMA": Case(
        "cute_wgmma_tma", _TUTORIAL, ("-std=c++17", _RELAXED), _tutorial,
        {"MN-major": (256, 128, 256, 0), "K-major": (256, 128, 256, 1)},
        {
            "no wait for TMA": Change(_WGMMA_TMA, _LOADED),
            "no wait for the products": Change(_WGMMA_TMA, "warpgroup_wait<0>();"),
        },
    ),
    "CUTLASS's example 48": Case(
        "cutlass_48",
        ("cutlass/examples/48_hopper_warp_specialized_gemm", "cutlass/examples/common", *_CUTLASS),
        ("-std=c++17", _RELAXED), _cutlass(F32), {"tf32": (512, 256, 416), "edges": (200, 136, 100)},
        {
            "a stage is released one step early": _EARLY,
            "no fence after mbarrier.init": Change(_PIPELINE, "cutlass::arch::fence_barrier_init();"),
        },
        program=(
            "cutlass/examples/48_hopper_warp_specialized_gemm/48_hopper_warp_specialized_gemm.cu",
            "--m=256", "--n=128", "--k=96", "--iterations=0",
        ),
    ),
    "CUTLASS's example 49": Case(
        "cutlass_49",
        ("cutlass/examples/49_hopper_gemm_with_collective_builder", "cutlass/examples/common", *_CUTLASS),
        ("-std=c++17", _RELAXED), _cutlass(F16),
        {
            "automatic": (256, 128, 192, 0, 132), "5 stages": (256, 128, 384, 1, 132), "TMA": (256, 128, 192, 2, 132),
            "warp-specialised": (256, 128, 192, 3, 132), "pingpong": (512, 256, 192, 4, 2),
            "cooperative, stream-K": (384, 256, 512, 5, 4), "cooperative, custom epilogue": (512, 256, 192, 6, 2),
        },
        {
            "a stage is released one step early": _EARLY,
            "no fence before the epilogue's TMA store": Change(_EPILOGUE, _SEEN_BY_TMA),
        },
        at={
            "a stage is released one step early": "5 stages", "no fence before the epilogue's TMA store": "pingpong",
        },
    ),
    "DeepGEMM, sm90_bf16_gemm": Case(
        "deep_gemm", ("DeepGEMM/deep_gemm/include", *_CUTLASS), ("-std=c++20", _RELAXED), _deep_gemm,
        {
            "multicast of B": (256, 192, 384, 0), "multicast of A": (256, 256, 384, 1), "edges": (200, 136, 328, 0),
            "persistent": (512, 256, 128, 0), "merged stages": (100, 64, 640, 2), "MN-major, added": (200, 136, 200, 3),
        },
        {
            "no wait for TMA": Change(_DEEP_GEMM, "full_barriers[stage_idx]->wait(phase);"),
            "no wait for the products": Change(_DEEP_GEMM, "ptx::warpgroup_wait<0>();", "ptx::warpgroup_wait<1>();"),
            "no fence before the TMA store": Change(_DEEP_GEMM, "cute::tma_store_fence();"),
            "no fence after mbarrier.init": Change(_DEEP_GEMM, "cutlass::arch::fence_barrier_init();"),
        },
        repair=(
            Change(_DEEP_GEMM, "cute::tma_store_arrive();", "cute::tma_store_arrive(); cute::tma_store_wait<0>();"),
        ),
    ),
    "ThunderKittens, bf16_h100_gemm": Case(
        "thunder_kittens",
        ("ThunderKittens/kernels/gemm/bf16_h100", "ThunderKittens/prototype", "ThunderKittens/include"),
        _HOPPER_KITTENS,
        _thunder_kittens, {"one tile a block": (256, 256, 384, 132), "persistent": (384, 512, 128, 2)},
        {
            "no wait for the products": Change(_KITTENS, "warpgroup::mma_async_wait();"),
            "no wait for TMA": Change(_LOOPS, _ARRIVED),
        },
        repair=(
            Change(_KITTENS, _STORED, f"{_STORED} {_FENCE}"),
            Change(_LOOPS, "if (warpid() == NUM_CONSUMER_WARPS) {",
                   "if (warpid() == NUM_CONSUMER_WARPS && laneid() == 0) {"),
        ),
    ),
    "ThunderKittens, mha_h100, forward": Case(
        "thunder_kittens_attention", ("ThunderKittens/kernels/attention/mha_h100", "ThunderKittens/include"),
        _HOPPER_KITTENS, _kittens_attention, {"two blocks": (1, 384, 1, 1, 0), "causal": (1, 384, 2, 1, 1)},
        {
            "no wait for V": Change(_ATTENTION, "wait(v_smem_arrived[(kv_idx)%K::stages], (kv_idx/K::stages)%2);"),
        },
        repair=tuple(Change(_ATTENTION, each, f"{each} {_FENCE}") for each in (_STORED_O, _STORED_L)),
    ),
    "FlashAttention-3, forward": Case(
        "flash_attention_3", ("flash-attention/hopper", *_CUTLASS),
        (
            "-std=c++17", _RELAXED, "--expt-extended-lambda", "--use_fast_math", "-D_USE_MATH_DEFINES", "-DNDEBUG",
            "-DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED", "-DCUTLASS_ENABLE_GDC_FOR_SM90",
            *(f"-DFLASHATTENTION_DISABLE_{each}" for each in ("LOCAL", "VARLEN", "APPENDKV", "SM8x", "PAGEDKV")),
        ),
        _flash_attention,
        {
            "clusters": (1, 256, 384, 1, 1, 0), "two heads": (2, 200, 300, 2, 1, 0), "causal": (1, 300, 300, 4, 2, 1),
            "one block": (1, 128, 256, 1, 1, 0),
        },
        {
            "no wait for the products of Q and K": Change(_FORWARD, "warpgroup_wait<1>();", "warpgroup_wait<2>();"),
            "no fence before the TMA store of O": Change("flash-attention/hopper/epilogue_fwd.hpp", _SEEN_BY_TMA),
        },
        at={"no wait for the products of Q and K": "two heads"},
    ),
}  # fmt: skip
