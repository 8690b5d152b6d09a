"""Time the emulator on four products, with counters alone and with the search for races, interleaved, and on a command.

    python benchmarks/emulator_speed.py --repeats 5 --out benchmarks/results/emulator_speed.json

``sgemm``       512 x 512 x 512 in float32: 8 x 8 outputs per thread, tiles of 128 x 128 x 16, 256 threads
``tiled``       256 x 256 x 256 in float32: one output per thread, tiles of 16 x 16 x 16, 256 threads
``hgemm``       512 x 512 x 512 in float16 with float32 sums: the ladder's multistage rung (mma.sync, cp.async)
``persistent``  256 x 256 x 512 in bfloat16: examples/hopper/persistent_product.cuh (wgmma, TMA, mbarriers)

``ladder``      ``matmill ladder sgemm --n 512 --rungs tuned``, all of it, with the search for races and the check

A product runs on one thread, whose processor time is taken. The first run of each, which also translates, is not
counted. The fastest of the others counts: what makes a run longer are other programs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matmill import emulator, reference
from matmill.arch import get
from matmill.jit.compile import compile_ptx
from matmill.jit.source import Source
from matmill.jit.steps import ptx
from matmill.kernel import GemmOperands
from matmill.ladders.hgemm.common import in_float32
from matmill.ladders.hgemm.rungs import HGEMM
from matmill.ladders.hgemm.subject import half_product
from matmill.launch import Argument, Launch, Pointer

Array: TypeAlias = NDArray[Any]
EXAMPLES = Path(__file__).parents[1] / "examples"
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
TILE_OF_THREADS = 16
TILED = """
constexpr int T = 16;
extern "C" __global__ void __launch_bounds__(256) tiled(const float* a, const float* b, float* c, int n) {
  __shared__ float as[T][T], bs[T][T];
  const int tx = threadIdx.x % T, ty = threadIdx.x / T, row = blockIdx.y * T + ty, column = blockIdx.x * T + tx;
  float sum = 0;
  for (int k0 = 0; k0 < n; k0 += T) {
    as[ty][tx] = a[row * n + k0 + tx];
    bs[ty][tx] = b[(k0 + ty) * n + column];
    __syncthreads();
    for (int k = 0; k < T; k++) sum += as[ty][k] * bs[k][tx];
    __syncthreads();
  }
  c[row * n + column] = sum;
}
"""


@dataclass(frozen=True)
class Product:
    """A product A B = D of ``shape`` (m, n, k), ready to launch; ``excess`` is the largest error over its bound."""

    name: str
    shape: tuple[int, int, int]
    arrays: dict[str, Array]
    launch: Callable[[Mapping[str, Pointer]], tuple[str, Launch]]
    excess: Callable[[Array], float]

    def seconds(self, repeats: int) -> dict[bool, list[float]]:
        """Time each run but the first, without and with the search for races.

        Raise where it is wrong or has hazards.
        """
        result: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(repeats + 1):
            for races, times in result.items():
                times.append(self.once(races=races))
        return {races: times[1:] for races, times in result.items()}

    def once(self, *, races: bool) -> float:
        """Return seconds of processor time of one run."""
        d = self.arrays["D"]
        d.view(np.uint8)[...] = 0xFF
        memory = emulator.Memory()
        pointers = {n: memory.bind(n, x, access="rw" if n == "D" else "r") for n, x in self.arrays.items()}
        text, launch = self.launch(pointers)
        start = time.process_time()
        report = emulator.run(text, launch, memory, races=races)
        taken = time.process_time() - start
        if not self.excess(d) <= 1 or report.hazards:
            raise SystemExit(f"{self.name}: {self.excess(d):.3g} of the error allowed, {report.hazards}")
        return taken


def matrices(size: int, dtype: type[np.generic]) -> dict[str, Array]:
    """Return random A and B, and D."""
    rng = np.random.default_rng(0)
    return {name: rng.uniform(-1, 1, (size, size)).astype(dtype) for name in "ABD"}


def checked(arrays: dict[str, Array]) -> Callable[[Array], float]:
    """Return ``excess`` of a product of A and B."""
    answer, bound = (of(arrays["A"], arrays["B"]) for of in (reference.answer, reference.bound))
    return lambda d: reference.excess(d, answer, bound)


def simple(name: str, source: str, size: int, tile: int) -> Product:
    """Return a square product in float32 by a kernel above, whose 256 threads make a square tile."""
    arrays = matrices(size, np.float32)
    text = compile_ptx(Source(name, name, source), "sm_90")

    def launch(pointers: Mapping[str, Pointer]) -> tuple[str, Launch]:
        args: tuple[Argument, ...] = (*(pointers[name] for name in "ABD"), np.int32(size))
        return text, Launch(name, name, (size // tile, size // tile, 1), (256, 1, 1), args)

    return Product(name, (size, size, size), arrays, launch, checked(arrays))


def hgemm(size: int = 512) -> Product:
    """Return a rung of the ladder."""
    arrays, arch = matrices(size, np.float16), get("h200")
    problem = half_product(size, size, size)
    rung = next(rung for rung in HGEMM if rung.name == "multistage")
    kernel = in_float32(rung).kernel_for(problem, arch)

    def launch(pointers: Mapping[str, Pointer]) -> tuple[str, Launch]:
        a, b, d = (pointers[name] for name in "ABD")
        (step,) = ptx(kernel, problem, GemmOperands(a, b, d, d), arch.target)
        return step

    return Product("hgemm", (size, size, size), arrays, launch, checked(arrays))


def persistent() -> Product:
    """Return an example for Hopper."""
    sys.path.append(str(EXAMPLES))
    from hopper import run as hopper  # noqa: PLC0415 — examples are no package

    shape = (256, 256, 512)
    trial = hopper.persistent_product(*shape)
    text = compile_ptx(trial.source(), hopper.TARGET)
    return Product("persistent", shape, trial.arrays(), lambda pointers: (text, trial.launch(pointers)), trial.excess)


#: What a user runs for one rung of the ladder at 512 x 512 x 512.
COMMAND = ("ladder", "sgemm", "--n", "512", "--rungs", "tuned")


def command(repeats: int) -> dict[str, Any]:
    """Time a command of the ladder: the processor time of each run but the first, which may compile."""
    seconds = []
    for _ in range(repeats + 1):
        before = os.times()
        subprocess.run([sys.executable, "-m", "matmill", *COMMAND], check=True, capture_output=True)
        after = os.times()
        seconds.append(sum(after[2:4]) - sum(before[2:4]))
    runs = [round(each, 4) for each in seconds[1:]]
    today = datetime.now(UTC).date().isoformat()
    return {"command": f"matmill {' '.join(COMMAND)}", "date": today, "fastest_s": min(runs), "runs_s": runs}


def main() -> None:
    """Measure, print, and write JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the times to this JSON file")
    arguments = parser.parse_args()
    result: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(), "python": platform.python_version(), "numpy": np.__version__,
        "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2),
    }  # fmt: skip
    products = (simple("sgemm", SOURCE, 512, TILE), simple("tiled", TILED, 256, TILE_OF_THREADS), hgemm(), persistent())
    for product in products:
        result[product.name] = {"shape": product.shape}
        for races, seconds in product.seconds(arguments.repeats).items():
            name = "with races" if races else "counters only"
            nanoseconds = min(seconds) / np.prod(product.shape) * 1e9
            print(
                f"{product.name}, {name}: {min(seconds):.3f} s, the fastest of {len(seconds)} runs, "
                f"{nanoseconds:.2f} ns per product of two numbers"
            )
            result[product.name][name.replace(" ", "_")] = {
                "fastest_s": min(seconds), "runs_s": [round(each, 4) for each in seconds],
            }  # fmt: skip
    result["ladder"] = command(arguments.repeats)
    print(f"{result['ladder']['command']}: {result['ladder']['fastest_s']:.2f} s")
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
