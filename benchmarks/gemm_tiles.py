"""Times every legal tile shape of the production product on a grid of problems: what the cost model is fitted on.

    python benchmarks/gemm_tiles.py --out benchmarks/results/gemm_tiles_h200.json

Each problem's tile shapes and cuBLAS (through torch, if it is there) run interleaved with a cold L2 cache. Problems
marked ``fit`` are those that the constants in ``matmill/cost/gemm.py`` were fitted on; the others judge the model.
"""

from __future__ import annotations

import argparse
import json
import random
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from matmill.bench.baselines import torch_product
from matmill.bench.clock import Clock, Competitor
from matmill.bench.environment import describe
from matmill.compile import compile_source
from matmill.cost import gemm as cost
from matmill.dtypes import DTYPES, F32, F64
from matmill.gpu import GPU
from matmill.kernel import GemmOperands
from matmill.kernels.gemm import GEMM
from matmill.problem import Gemm
from matmill.source import generate
from matmill.tiles import space

_LARGEST = 8192 * 8192


def problems(seed: int) -> list[tuple[Gemm, bool]]:
    """The grid: squares and slabs to fit on, random shapes (odd ones among them) to judge by."""
    squares = (64, 128, 192, 256, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 6144, 8192)
    slabs = (
        (256, 256, 8192),
        (512, 512, 4096),
        (1024, 1024, 128),
        (4096, 4096, 64),
        (128, 8192, 1024),
        (2048, 512, 512),
    )
    shapes = [(n, n, n) for n in squares] + list(slabs)
    fit = [(Gemm(m, n, k, F32), True) for m, n, k in shapes]
    fit += [(Gemm(m, n, k, F64), True) for m, n, k in shapes if m * n * k <= 4096**3]
    draw = random.Random(seed)  # noqa: S311 — shapes, not secrets
    judge: list[tuple[Gemm, bool]] = []
    while len(judge) < 60:
        m, n, k = (int(2 ** draw.uniform(5, 13)) for _ in range(3))
        dtype = F64 if len(judge) % 4 == 3 else F32
        aligned = len(judge) % 2 == 0
        if aligned:
            m, n, k = (max(4, side // 4 * 4) for side in (m, n, k))
        align = 16 if n * dtype.itemsize % 16 == 0 else dtype.itemsize
        judge.append((Gemm(m, n, k, dtype, b_align=align, d_align=align), False))
    return fit + judge


def _library(problem: Gemm, values: np.ndarray[Any, Any]) -> Competitor | None:
    if find_spec("torch") is None:
        return None
    left = values[: problem.m * problem.k].reshape(problem.m, problem.k)
    right = values[: problem.k * problem.n].reshape(problem.k, problem.n)
    return Competitor("torch.mm", torch_product("torch.mm", left, right).run)


def main() -> None:
    """Measures the grid and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    gpu = GPU.get(0)
    generator = np.random.default_rng(args.seed)
    records = []
    values = generator.random(_LARGEST, dtype=np.float32) * 2 - 1
    host = {name: values.astype(dtype.numpy) for name, dtype in DTYPES.items()}
    device = {name: (gpu.upload(h, "A"), gpu.upload(h, "B"), gpu.empty(h.nbytes)) for name, h in host.items()}
    with Clock(gpu, 2 * gpu.arch.l2_bytes) as clock:
        for problem, fit in problems(args.seed):
            a, b, d = device[problem.dtype.name]
            operands = GemmOperands(a.pointer("A"), b.pointer("B"), d.pointer("D"), d.pointer("D"))
            competitors = []
            kernels = [GEMM.with_config(config) for config in space(problem, gpu.arch)]
            kernels = [kernel for kernel in kernels if kernel.why_not(problem, gpu.arch) is None]
            for kernel in kernels:
                binary = compile_source(generate(kernel, problem.dtype), gpu.arch.target)
                launch = kernel.launch(problem, operands)
                competitors.append(Competitor(str(kernel.config), partial(gpu.launch, binary, launch)))
            library = _library(problem, host[problem.dtype.name])
            if library is not None:
                competitors.append(library)
            timings = clock.compare(competitors, seconds_each=0.02, most_rounds=12, settle=0.05)
            seconds = {c.name: t.median for c, t in zip(competitors, timings, strict=True)}
            ours = {name: s for name, s in seconds.items() if name != "torch.mm"}
            chosen = min(kernels, key=lambda kernel: cost.predict(problem, kernel.config, gpu.arch))
            best = min(ours, key=ours.__getitem__)
            records.append(
                {
                    "m": problem.m,
                    "n": problem.n,
                    "k": problem.k,
                    "dtype": problem.dtype.name,
                    "fit": fit,
                    "seconds": {"torch.mm": seconds.get("torch.mm"), **ours},
                }
            )
            line = f"{problem!s:32} best {ours[best] * 1e6:9.1f} us"
            line += f"  chosen/best {ours[str(chosen.config)] / ours[best]:.3f}"
            if library is not None:
                line += f"  torch.mm / best {seconds['torch.mm'] / ours[best]:.2f}"
            print(line)
    args.out.write_text(json.dumps({"environment": describe(gpu=True), "records": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
