"""Plants faults, one at a time, and says whether the tests that should see each do: no test goes before this is run.

    python tests/mutations.py [WORD ...]

Each fault is planted in a copy of the tree, in which its tests run until the first failure. With words, only the faults
whose names have one of them. Exits with 1 where a fault is not found, or where its text is not in the file once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCTS = "tests/contract/test_products.py"


@dataclass(frozen=True)
class Fault:
    """A text of a file below ``src/matmill`` and what stands there instead; the tests that should see it."""

    name: str
    file: str
    text: str
    instead: str
    tests: str
    words: str = ""


FAULTS = (
    Fault("gemm: C added with the wrong sign", "kernels/gemm/simt.cuh", "out[v] += beta * C", "out[v] -= beta * C",
          PRODUCTS, "gemm and not hgemm and not wgmma"),
    Fault("gemm: a column past the end is stored", "kernels/gemm/simt.cuh", "if (c >= n) continue;",
          "if (c > n) continue;", PRODUCTS, "gemm and not hgemm and not wgmma"),
    Fault("gemm: no barrier before slices are added", "kernels/gemm/simt.cuh",
          "    __syncthreads();\n    if (slice > 0) return;", "    if (slice > 0) return;", PRODUCTS,
          "gemm and not hgemm and not wgmma"),
    Fault("gemm: the last slice is left out", "kernels/gemm/simt.cuh", "for (int s = 1; s < SLICES; ++s)",
          "for (int s = 1; s < SLICES - 1; ++s)", PRODUCTS, "gemm and not hgemm and not wgmma"),
    Fault("hgemm: a k-tile too few", "kernels/hgemm/mma.cuh", "const int tiles = (k + BK - 1) / BK;",
          "const int tiles = k / BK;", PRODUCTS, "hgemm"),
    Fault("hgemm: copies are not waited for", "kernels/hgemm/mma.cuh",
          "          ptx::cp_async_wait<STAGES - 2>();\n          __syncthreads();\n          writing",
          "          __syncthreads();\n          writing", PRODUCTS, "hgemm"),
    Fault("hgemm: warps do not wait for each other", "kernels/hgemm/mma.cuh",
          "          ptx::cp_async_wait<STAGES - 2>();\n          __syncthreads();\n          writing",
          "          ptx::cp_async_wait<STAGES - 2>();\n          __syncwarp();\n          writing", PRODUCTS, "hgemm"),
    Fault("hgemm: every warp reads the first columns of B", "kernels/hgemm/mma.cuh", "reader_b(column, false);",
          "reader_b(0, false);", PRODUCTS, "hgemm"),
    Fault("short_k: a row past the end", "kernels/short_k/kernel.cuh", "if (row >= work.rows || column",
          "if (row > work.rows || column", PRODUCTS, "short_k"),
    Fault("short_k: no barrier between stages", "kernels/short_k/kernel.cuh",
          "    matmill::ptx::cp_async_wait<0>();\n    __syncthreads();\n    if (another) {",
          "    matmill::ptx::cp_async_wait<0>();\n    __syncwarp();\n    if (another) {", PRODUCTS, "short_k"),
    Fault("short_k: the bias of a row for that of a column", "kernels/short_k/kernel.cuh",
          "Config::BIAS == matmill::ROW_BIAS ? result.of_column(j + v) : result.of_row(i)",
          "Config::BIAS == matmill::ROW_BIAS ? result.of_column(i) : result.of_row(i)", PRODUCTS, "short_k"),
    Fault("short_k: D's run starts on 16 bytes", "kernels/short_k/kernel.cuh",
          "sizeof(Out) % WIDTH) : 0;", "sizeof(Out) % WIDTH) * 0 : 0;", "tests/emulated/test_short_k_kernel.py"),
    Fault("thin: no barrier after a chunk of B", "kernels/thin/tile.cuh",
          "      __syncthreads();\n      buffer ^= 1;", "      __syncwarp();\n      buffer ^= 1;", PRODUCTS, "thin"),
    Fault("thin: the wrong buffer of B", "kernels/thin/tile.cuh", "if (more) staged.start(buffer ^ 1);",
          "if (more) staged.start(buffer);", PRODUCTS, "thin"),
    Fault("thin: warps along k are not waited for", "kernels/thin/tile.cuh",
          "        __syncthreads();\n        for (int at = threadIdx.x;", "        for (int at = threadIdx.x;",
          "tests/emulated/test_thin_kernel.py", "division"),
    Fault("split-K: the last slice is left out", "kernels/splitk/reduce.cuh",
          "if (first + u * WAYS < count) sum += loaded[u];", "if (first + u * WAYS < count - 1) sum += loaded[u];",
          PRODUCTS, "slices"),
    Fault("epilogue: C of the wrong column", "kernels/shared/result.cuh", "C[row * c_row + column * c_column]",
          "C[row * c_row + column]", PRODUCTS, "short_k"),
    Fault("epilogue: the bias before alpha's product", "kernels/shared/result.cuh",
          "(Config::BIAS != NO_BIAS) x += added;", "(Config::BIAS != NO_BIAS) x += alpha * added;",
          PRODUCTS, "warp_specialised or short_k"),
    Fault("wgmma: an empty stage is waited for by the other parity", "kernels/wgmma/producer.cuh",
          "shared.empty + 8 * slot.stage, slot.parity ^ 1);", "shared.empty + 8 * slot.stage, slot.parity);",
          PRODUCTS, "warp_specialised"),
    Fault("wgmma: empty stages are not waited for", "kernels/wgmma/producer.cuh",
          "    ptx::mbarrier_wait(shared.empty + 8 * slot.stage, slot.parity ^ 1);\n", "",
          PRODUCTS, "warp_specialised"),
    Fault("wgmma: partial sums times alpha twice", "kernels/wgmma/kernel.cuh", "Config::PARTIAL_SUMS ? 1.0f : alpha",
          "alpha", PRODUCTS, "warp_specialised"),
    Fault("wgmma: the cluster leaves before its sums are read", "kernels/wgmma/kernel.cuh",
          "  if constexpr (IN_CLUSTER || CLUSTER_SPLITS_K) cluster_sync();\n",
          "  if constexpr (IN_CLUSTER) cluster_sync();\n", PRODUCTS, "warp_specialised"),
    Fault("exchange: a batch stride of the wrong operand", "kernels/shared/exchange.py", "a_batch=b_batch",
          "a_batch=a_batch", PRODUCTS, "warp_specialised or thin"),
    Fault("plan cache: a key without B's alignment", "dispatch/plan_cache.py",
          "y_shape, y_layout, address & 15, start == address)", "y_shape, y_layout, start == address)",
          "tests/host/test_plan_cache.py"),
    Fault("repack: columns for rows", "kernels/repack/copies.py",
          "runs, length, run_stride, stride = outer, problem.k, outer_stride, k_stride",
          "runs, length, run_stride, stride = outer, problem.k, k_stride, outer_stride", PRODUCTS, "repacked"),
)  # fmt: skip


def planted(fault: Fault, tree: Path) -> str:
    """Plant a fault in a copy of the tree, run its tests, and say whether they find it."""
    file = tree / "src" / "matmill" / fault.file
    whole = file.read_text(encoding="utf-8")
    if whole.count(fault.text) != 1:
        return f"its text stands {whole.count(fault.text)} times in the file"
    file.write_text(whole.replace(fault.text, fault.instead), encoding="utf-8")
    try:
        cache = f"--kernel-cache={ROOT / '.pytest_cache' / 'kernels'}"
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "2", cache, fault.tests]
        command += ["-k", fault.words] * bool(fault.words)
        environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    finally:
        file.write_text(whole, encoding="utf-8")
    if "\nFAILED " in done.stdout:  # the exit code of an interrupted run says less
        return "found"
    return "not found" if done.returncode == 0 else f"pytest ended with {done.returncode}"


def main() -> None:
    """Plant the faults that the command line names, or all, and print a table."""
    wanted = [fault for fault in FAULTS if len(sys.argv) == 1 or any(word in fault.name for word in sys.argv[1:])]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", ".*_cache", "build", "__pycache__"))
        for fault in wanted:
            begin = time.monotonic()
            verdict = planted(fault, tree)
            missed += verdict != "found"
            print(f"{verdict:12} {time.monotonic() - begin:5.0f} s  {fault.name}", flush=True)
    print(f"{len(wanted) - missed} of {len(wanted)} faults found")
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
