"""Time the emulator on an SGEMM with 8x8 outputs per thread: tiles of 128x128x16 in shared memory, 256 threads.

    python benchmarks/emulator_speed.py --size 512 --repeats 5 --out emulator_speed.json

Counters are on. The first run, which also parses and translates, is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from cuda.bindings import nvrtc

from matmill.emulator import Memory, Report, parse, run
from matmill.launch import Launch

TILE = 128
SOURCE = """
constexpr int BM = 128, BN = 128, BK = 16;
extern "C" __global__ void __launch_bounds__(256) sgemm(const float* a, const float* b, float* c, int n) {
  __shared__ float as[BK][BM], bs[BK][BN];
  const int t = threadIdx.x, tx = t % 16, ty = t / 16, row = blockIdx.y * BM, column = blockIdx.x * BN;
  float acc[8][8] = {};
  for (int k0 = 0; k0 < n; k0 += BK) {
    for (int i = 0; i < 2; i++) {
      const int id = t + 256 * i, r = id / 4, k = id % 4 * 4;
      const float4 v = *reinterpret_cast<const float4*>(a + (row + r) * n + k0 + k);
      as[k][r] = v.x; as[k + 1][r] = v.y; as[k + 2][r] = v.z; as[k + 3][r] = v.w;
      *reinterpret_cast<float4*>(&bs[id / 32][id % 32 * 4]) =
          *reinterpret_cast<const float4*>(b + (k0 + id / 32) * n + column + id % 32 * 4);
    }
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < BK; k++) {
      float x[8], y[8];
      for (int i = 0; i < 8; i++) x[i] = as[k][i / 4 * 64 + ty * 4 + i % 4];
      for (int i = 0; i < 8; i++) y[i] = bs[k][i / 4 * 64 + tx * 4 + i % 4];
      for (int i = 0; i < 8; i++) for (int j = 0; j < 8; j++) acc[i][j] += x[i] * y[j];
    }
    __syncthreads();
  }
  for (int i = 0; i < 8; i++)
    for (int j = 0; j < 8; j++)
      c[(row + i / 4 * 64 + ty * 4 + i % 4) * n + column + j / 4 * 64 + tx * 4 + j % 4] = acc[i][j];
}
"""


def check(result: tuple[Any, ...]) -> int:
    """The number that an NVRTC call gave; raises where the call failed."""
    if int(result[0]):
        raise SystemExit(f"NVRTC failed: {result[0]}")
    return result[1] if len(result) > 1 else 0


def compiled(source: str) -> str:
    """The PTX of CUDA C++ source."""
    program = check(nvrtc.nvrtcCreateProgram(source.encode(), b"sgemm.cu", 0, [], []))
    check(nvrtc.nvrtcCompileProgram(program, 2, [b"--gpu-architecture=compute_90", b"-lineinfo"]))
    text = bytearray(check(nvrtc.nvrtcGetPTXSize(program)))
    check(nvrtc.nvrtcGetPTX(program, text))
    return text.rstrip(b"\0").decode()


def timed(size: int, repeats: int, *, races: bool) -> tuple[list[float], Report]:
    """Seconds of each run, and the last report; raises where the product is wrong."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size), dtype=np.float32) for _ in range(2))
    module = parse(compiled(SOURCE))
    seconds: list[float] = []
    for _ in range(repeats + 1):
        c = np.full((size, size), np.nan, np.float32)
        memory = Memory()
        pointers = [memory.bind("a", a, access="r"), memory.bind("b", b, access="r"), memory.bind("c", c, access="w")]
        grid = (size // TILE, size // TILE, 1)
        launch = Launch("sgemm", "sgemm", grid, (256, 1, 1), (*pointers, np.int32(size)))
        start = time.perf_counter()
        report = run(module, launch, memory, races=races)
        seconds.append(time.perf_counter() - start)
        error = np.abs(c - a.astype(np.float64) @ b).max()
        if not error < 1e-6 * size or report.counters.ffma != size**3:
            raise SystemExit(f"wrong result: error {error}, {report.counters.ffma} FMAs")
    return seconds[1:], report


def main() -> None:
    """Measure, print, and write JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=512, help="rows and columns, a multiple of 128")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the times to this JSON file")
    arguments = parser.parse_args()
    result: dict[str, Any] = {
        "size": arguments.size, "python": platform.python_version(), "numpy": np.__version__, "cores": os.cpu_count(),
    }  # fmt: skip
    for races in (False, True):
        seconds, _ = timed(arguments.size, arguments.repeats, races=races)
        name = "with races" if races else "counters only"
        nanoseconds = median(seconds) / arguments.size**3 * 1e9
        print(f"{name}: median {median(seconds):.3f} s of {len(seconds)} runs, {nanoseconds:.2f} ns per FMA")
        result[name.replace(" ", "_")] = {"median_s": median(seconds), "runs_s": seconds}
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
