"""Public kernels for Hopper, untouched, in the emulator: results, reports, and mistakes planted in copies.

    PYTHONPATH=src python benchmarks/field_kernels.py FOLDER --out benchmarks/results/field_kernels.json

FOLDER has the collections, as their repositories are: ``cutlass``, ``DeepGEMM``, ``ThunderKittens`` and
``flash-attention``; what it lacks is left out. nvcc compiles a driver of ``field/``, which includes the collection's own
files, with its host code; the library makes its kernel's arguments, and the kernel runs in the emulator, on copies that
act at once and on late ones. Results are compared with NumPy in float64. Kernels that are reported as they are run again with the
fences and barriers that the report asks for, and then each kernel with mistakes in its synchronization.
Exits with 1 where a result is wrong, a repaired kernel is reported, or a mistake is not.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from lab.host_program import FOLDER, Array, compile_kernels, compile_program, load_program, load_runtime
from matmill.emulator import Hazard, Order

BF16, F16, F32 = (np.dtype(each) for each in (ml_dtypes.bfloat16, np.float16, np.float32))
#: Two units of the last place of the largest value: of the products' tf32 operands where results are float32.
_LIMITS = {BF16: 2 * 2.0**-8, F16: 2 * 2.0**-10, F32: 2 * 2.0**-10}
_ORDERS = {"early": Order(), "late": Order(late_copies=True)}


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
    """

    driver: str
    include: tuple[str, ...]
    options: tuple[str, ...]
    problem: Callable[[np.random.Generator, Sequence[int]], Problem]
    sizes: Mapping[str, tuple[int, ...]]
    mistakes: Mapping[str, tuple[Change, ...]]
    repair: tuple[Change, ...] = ()
    at: Mapping[str, str] = field(default_factory=dict)


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
    m, n, k = sizes
    a, b, d = _draw(rng, BF16, m, k), _draw(rng, BF16, n, k), _unwritten(BF16, m, n)
    return Problem({"A": a, "B": b, "D": d}, d, a.astype(float) @ b.astype(float).T)


def _thunder_kittens(rng: np.random.Generator, sizes: Sequence[int]) -> Problem:
    m, n, k, _ = sizes
    a, b, c = _draw(rng, BF16, m, k), _draw(rng, BF16, k, n), _unwritten(BF16, m, n)
    return Problem({"A": a, "B": b, "C": c}, c, a.astype(float) @ b.astype(float))


def _attention(rng: np.random.Generator, sizes: Sequence[int]) -> Problem:
    batch, length, length_k, heads, heads_k, causal = sizes
    head = 128
    q = _draw(rng, BF16, batch, length, heads, head)
    k, v = (_draw(rng, BF16, batch, length_k, heads_k, head) for _ in range(2))
    o, lse = _unwritten(BF16, *q.shape), _unwritten(F32, batch, heads, length)
    queries, keys, values = (np.moveaxis(each.astype(float), 2, 1) for each in (q, k, v))
    keys, values = (np.repeat(each, heads // heads_k, axis=1) for each in (keys, values))
    scores = queries @ keys.swapaxes(-1, -2) / head**0.5
    if causal:
        scores = np.where(np.tril(np.ones((length, length_k), bool), length_k - length), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    wanted = weights @ values / weights.sum(axis=-1, keepdims=True)
    arrays = {"Q": q, "K": k, "V": v, "O": o, "LSE": lse, "semaphore": np.zeros(1, np.int32)}
    return Problem(arrays, o, np.moveaxis(wanted, 1, 2))


_CUTLASS = ("cutlass/include", "cutlass/tools/util/include")
_TUTORIAL = ("cutlass/examples/cute/tutorial/hopper", *_CUTLASS)
_RELAXED = "--expt-relaxed-constexpr"
_PRODUCT = "cutlass/include/cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized.hpp"
_PIPELINE = "cutlass/include/cutlass/pipeline/sm90_pipeline.hpp"
_DEEP_GEMM = "DeepGEMM/deep_gemm/include/deep_gemm/impls/sm90_bf16_gemm.cuh"
_COPIED = "cp_async_wait<0>();"
_KITTENS = "ThunderKittens/kernels/gemm/bf16_h100/bf16_h100_gemm.cu"
_FORWARD = "flash-attention/hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp"
# What the kernels of ThunderKittens' own file store and then hand to TMA.
_STORED = "warpgroup::store(reinterpret_cast<wide_tile&>(args.finish.c[warpgroup::groupid()]), args.state.accum);"

CASES = {
    "CuTe's tutorial of wgmma": Case(
        "cute_wgmma", _TUTORIAL, ("-std=c++17", _RELAXED), _tutorial,
        {"MN-major": (256, 128, 256, 0), "K-major": (256, 128, 256, 1)},
        {
            "no wait for cp.async": (Change(f"{_TUTORIAL[0]}/wgmma_sm90.cu", _COPIED),),
            "no wait for the products": (Change(f"{_TUTORIAL[0]}/wgmma_sm90.cu", "warpgroup_wait<0>();"),),
        },
        repair=(Change(f"{_TUTORIAL[0]}/wgmma_sm90.cu", _COPIED, f'{_COPIED} asm volatile("fence.proxy.async;"); __syncthreads();'),),
    ),
    "CuTe's tutorial of wgmma and TMA": Case(
        "cute_wgmma_tma", _TUTORIAL, ("-std=c++17", _RELAXED), _tutorial,
        {"MN-major": (256, 128, 256, 0), "K-major": (256, 128, 256, 1)},
        {
            "no wait for TMA": (
                Change(f"{_TUTORIAL[0]}/wgmma_tma_sm90.cu", "ProducerBarType::wait(&producer_mbar[read_pipe], read_state.phase());"),
            ),
            "no wait for the products": (Change(f"{_TUTORIAL[0]}/wgmma_tma_sm90.cu", "warpgroup_wait<0>();"),),
        },
    ),
    "CUTLASS's example 48": Case(
        "cutlass_48",
        ("cutlass/examples/48_hopper_warp_specialized_gemm", "cutlass/examples/common", *_CUTLASS),
        ("-std=c++17", _RELAXED), _cutlass(F32), {"tf32": (512, 256, 416), "edges": (200, 136, 100)},
        {
            "a stage is released one step early": (
                Change(_PRODUCT, "warpgroup_wait<K_PIPE_MMAS>();", "warpgroup_wait<K_PIPE_MMAS + 1>();"),
            ),
            "no fence behind the initialisation of mbarriers": (
                Change(_PIPELINE, "cutlass::arch::fence_barrier_init();"),
            ),
        },
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
            "a stage is released one step early": (
                Change(_PRODUCT, "warpgroup_wait<K_PIPE_MMAS>();", "warpgroup_wait<K_PIPE_MMAS + 1>();"),
            ),
            "no fence before the epilogue's TMA store": (
                Change(
                    "cutlass/include/cutlass/epilogue/collective/sm90_epilogue_tma_warpspecialized.hpp", "tma_store_fence();", ""
                ),
            ),
        },
        at={
            "a stage is released one step early": "5 stages", "no fence before the epilogue's TMA store": "pingpong",
        },
    ),
    "DeepGEMM, sm90_bf16_gemm": Case(
        "deep_gemm", ("DeepGEMM/deep_gemm/include", *_CUTLASS), ("-std=c++20", _RELAXED), _deep_gemm,
        {"multicast": (256, 192, 384), "edges": (200, 136, 328), "persistent": (512, 256, 128)},
        {
            "no wait for TMA": (Change(_DEEP_GEMM, "full_barriers[stage_idx]->wait(phase);"),),
            "no wait for the products": (
                Change(_DEEP_GEMM, "ptx::warpgroup_wait<0>();", "ptx::warpgroup_wait<1>();"),
            ),
            "no fence before the TMA store": (Change(_DEEP_GEMM, "cute::tma_store_fence();"),),
            "no fence behind the initialisation of mbarriers": (
                Change(_DEEP_GEMM, "cutlass::arch::fence_barrier_init();"),
            ),
        },
        repair=(
            Change(_DEEP_GEMM, "cute::tma_store_arrive();", "cute::tma_store_arrive(); cute::tma_store_wait<0>();"),
        ),
    ),
    "ThunderKittens, bf16_h100_gemm": Case(
        "thunder_kittens",
        ("ThunderKittens/kernels/gemm/bf16_h100", "ThunderKittens/prototype", "ThunderKittens/include"),
        ("-std=c++20", "--use_fast_math", "--expt-extended-lambda", _RELAXED, "-DKITTENS_HOPPER", "-DNDEBUG"),
        _thunder_kittens, {"one tile a block": (256, 256, 384, 132), "persistent": (384, 512, 128, 2)},
        {
            "no wait for the products": (Change(_KITTENS, "warpgroup::mma_async_wait();"),),
            "no wait for TMA": (
                Change("ThunderKittens/prototype/lcf/lcf.cuh", "wait(inputs_arrived[input_ring], get_phasebit<0>(semaphore_bitfield, input_ring));"),
            ),
        },
        repair=(
            Change(_KITTENS, _STORED, f'{_STORED} asm volatile("fence.proxy.async;");'),
            Change("ThunderKittens/prototype/lcf/lcf.cuh", "if (warpid() == NUM_CONSUMER_WARPS) {",
                   "if (warpid() == NUM_CONSUMER_WARPS && laneid() == 0) {"),
        ),
    ),
    "FlashAttention-3, forward": Case(
        "flash_attention_3", ("flash-attention/hopper", *_CUTLASS),
        (
            "-std=c++17", _RELAXED, "--expt-extended-lambda", "--use_fast_math", "-D_USE_MATH_DEFINES", "-DNDEBUG",
            "-DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED", "-DCUTLASS_ENABLE_GDC_FOR_SM90",
            *(f"-DFLASHATTENTION_DISABLE_{each}" for each in ("LOCAL", "VARLEN", "APPENDKV", "SM8x", "PAGEDKV")),
        ),
        _attention,
        {
            "clusters": (1, 256, 384, 1, 1, 0), "two heads": (2, 200, 300, 2, 1, 0), "causal": (1, 300, 300, 4, 2, 1),
            "one block": (1, 128, 256, 1, 1, 0),
        },
        {
            "K is released one step early": (Change(_FORWARD, "warpgroup_wait<1>();", "warpgroup_wait<2>();"),),
            "no fence before the TMA store of O": (
                Change(
                    "flash-attention/hopper/epilogue_fwd.hpp",
                    "cutlass::arch::fence_view_async_shared(); // ensure smem writes are visible to TMA",
                ),
            ),
        },
        at={"K is released one step early": "two heads"},
    ),
}  # fmt: skip


def _changed(folder: Path, changes: Sequence[Change], target: Path) -> Path:
    """Return ``target`` with links to the collections of ``folder`` whose files are changed, and with these files.

    Files include each other by relative paths, so that every file of a collection is linked.
    """
    for collection in {Path(each.file).parts[0] for each in changes}:
        ignored = shutil.ignore_patterns(".git")
        shutil.copytree(folder / collection, target / collection, copy_function=os.symlink, ignore=ignored)
    for each in changes:
        path = target / each.file
        text = path.read_text(encoding="utf-8")
        if each.old not in text:
            raise ValueError(f"{each.file} has no {each.old!r}")
        path.unlink()
        path.write_text(text.replace(each.old, each.new), encoding="utf-8")
    return target


def _kinds(hazards: Sequence[Hazard], severities: Sequence[str]) -> dict[str, int]:
    return dict(Counter(each.kind for each in hazards if each.severity in severities))


class Runs:
    """The runs of one case: its compiled host code, and its kernels as they are or changed."""

    def __init__(self, case: Case, folder: Path, build: Path, runtime: ctypes.CDLL, nvcc: str, extra: list[Path]):
        self.case, self.build, self.runtime, self.nvcc = case, build, runtime, nvcc
        self.folder, self.extra = folder, extra
        self.source = FOLDER / f"{case.driver}.cu"
        self.library = compile_program(self.source, build, self._include(folder), case.options, nvcc)

    def _include(self, folder: Path) -> list[Path]:
        return [*(folder / name for name in self.case.include), *self.extra]

    def ptx(self, changes: Sequence[Change]) -> Path:
        """Compile the kernels after some changes."""
        if not changes:
            return self.build / f"{self.case.driver}.ptx"
        folder = _changed(self.folder, changes, Path(tempfile.mkdtemp(dir=self.build)))
        return compile_kernels(self.source, folder / "kernel.ptx", self._include(folder), self.case.options, self.nvcc)

    def run(self, ptx: Path, problem: str, order: str) -> dict[str, Any]:
        """Return the record of one run."""
        sizes = self.case.sizes[problem]
        task = self.case.problem(np.random.default_rng(1), sizes)
        program = load_program(self.runtime, self.library, ptx, _ORDERS[order])
        begin = time.perf_counter()
        program(task.arrays, sizes)
        seconds = time.perf_counter() - begin
        hazards = [hazard for report in program.reports for hazard in report.hazards]
        error = float(np.abs(task.result.astype(float) - task.wanted).max() / np.abs(task.wanted).max())
        right = error <= _LIMITS[task.result.dtype]
        launches = [f"grid {each.grid}, block {each.block}, cluster {each.cluster}" for each in program.launches]
        first = next((str(each) for each in hazards if each.severity == "error"), "")
        return {
            "problem": problem, "sizes": list(sizes), "order": order, "launches": launches,
            "error": None if np.isnan(error) else error, "right": right, "errors": _kinds(hazards, ("error",)),
            "warnings": _kinds(hazards, ("warning",)), "notes": _kinds(hazards, ("note",)), "first": first,
            "seconds": round(seconds, 2),
        }  # fmt: skip

    def record(self) -> dict[str, Any]:
        """Run the kernel as it is, repaired, and with each mistake."""
        case = self.case
        every = [(problem, order) for problem in case.sizes for order in _ORDERS]
        row: dict[str, Any] = {"as it is": [self.run(self.ptx(()), *each) for each in every]}
        if case.repair:
            ptx = self.ptx(case.repair)
            row["repaired"] = [self.run(ptx, *each) for each in every]
        row["mistakes"] = {}
        for name, changes in case.mistakes.items():
            ptx = self.ptx((*case.repair, *changes))
            problem = case.at.get(name, next(iter(case.sizes)))
            row["mistakes"][name] = [self.run(ptx, problem, order) for order in _ORDERS]
        return row


def _failures(row: Mapping[str, Any]) -> list[str]:
    clean = row.get("repaired", row["as it is"])
    return [
        *(f"wrong: {each['problem']}, {each['order']}" for each in row["as it is"] if not each["right"]),
        *(f"reported: {each['problem']}, {each['order']}" for each in clean if each["errors"] or each["warnings"]),
        *(f"not found: {name}" for name, runs in row["mistakes"].items() if not all(each["errors"] for each in runs)),
    ]


def main() -> int:
    """Run the cases whose collections the folder has, and write their record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the collections are")
    parser.add_argument("--out", type=Path, help="the record's file; what it has of other cases stays")
    parser.add_argument("--only", default="", help="cases whose driver's name has this text")
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("-I", dest="include", type=Path, action="append", default=[], help="headers beside nvcc's own")
    options = parser.parse_args()
    record = json.loads(options.out.read_text()) if options.out and options.out.is_file() else {}
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        runtime = load_runtime(Path(scratch), options.nvcc)
        for name, case in CASES.items():
            if options.only not in case.driver or not (options.folder / case.include[0]).is_dir():
                continue
            build = Path(scratch) / case.driver
            row = Runs(case, options.folder.resolve(), build, runtime, options.nvcc, options.include).record()
            failures = _failures(row)
            failed = failed or bool(failures)
            print(f"{name}: {'; '.join(failures) or 'right, and every mistake found'}", flush=True)
            record[name] = row
            if options.out:
                options.out.write_text(json.dumps(record, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
