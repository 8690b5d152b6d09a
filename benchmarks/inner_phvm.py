"""Times the paper's kernel PHVM over its launches: the measured curve beside which its cost model is drawn.

    python benchmarks/inner_phvm.py --out benchmarks/results
    matmill model phvm --arch h200 --m 5 --k 3e7 --plot curve.svg --measured benchmarks/results/phvm_h200_MTX1.json

For each case, a JSON list of GS, BS and seconds: every launch that fills the GPU's resident threads with blocks of
whole warps (the paper's), and as many with half and with twice as many blocks. Needs torch, which makes the matrices.
All launches of a case are interleaved with a cold L2 cache; each result is checked once.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from lab.enqueue import enqueuer
from lab.inner.matrices import InnerMatrices
from lab.tensors import needs_torch
from matmill.arch import Arch
from matmill.bench.timing.clock import Clock, Competitor, flush_bytes
from matmill.dtypes import F32
from matmill.jit.steps import binaries
from matmill.kernel import Kernel
from matmill.ladders.inner.launches import launched
from matmill.ladders.inner.rungs import PHVM
from matmill.ladders.inner.subject import CASES, LAYOUTS, case, inner_product
from matmill.problem import Gemm
from matmill.runtime.gpu import GPU

_SIZES = (32, 64, 128, 256, 512, 1024)


def launches(arch: Arch) -> list[tuple[int, int]]:
    """Return (GS, BS): the paper's feasible ones, and those with half and with twice as many blocks."""
    resident = arch.sms * arch.threads_per_sm
    return sorted({(resident // bs * part // 2, bs) for bs in _SIZES for part in (1, 2, 4)})


def kernel_for(problem: Gemm, arch: Arch, gs: int, bs: int) -> Kernel[Gemm]:
    """Return PHVM launched so."""
    (rung,), _ = launched([PHVM], {"GS": gs, "BS": bs})
    return rung.kernel_for(problem, arch)


def measure(gpu: GPU, problem: Gemm, seed: int) -> list[dict[str, float]]:
    """Return the curve of one product; ends the program where a result is wrong."""
    matrices = InnerMatrices(problem, seed)
    kernels = {(gs, bs): kernel_for(problem, gpu.arch, gs, bs) for gs, bs in launches(gpu.arch)}
    operands = matrices.operands(max(kernel.workspace(problem) for kernel in kernels.values()))
    competitors = []
    with Clock(gpu, flush_bytes(gpu.arch, cold=True)) as clock:
        for (gs, bs), kernel in kernels.items():
            run = enqueuer(gpu, binaries(kernel, problem, operands, gpu.arch.target))
            matrices.poison()
            run(clock.stream)
            gpu.synchronize()
            errors = matrices.errors(matrices.result())
            if not errors.ok:
                sys.exit(f"GS {gs}, BS {bs} is wrong: {errors.excess:.3g} times the allowed error")
            competitors.append(Competitor(f"{gs} {bs}", run))
        timings = clock.compare(competitors, seconds_each=0.05, most_rounds=12, settle=0.2, seed=seed)
    return [{"GS": gs, "BS": bs, "seconds": timing.median} for (gs, bs), timing in zip(kernels, timings, strict=True)]


def main() -> None:
    """Measure the cases and write a file for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--cases", nargs="+", default=["MTX1", "MTX2", "MTX3"], help=f"among {', '.join(CASES)}")
    parser.add_argument("--layout", default="column", choices=LAYOUTS, help="of F (default: column, the paper's)")
    parser.add_argument("--k", type=int, help="another k than the case's")
    parser.add_argument("--seed", type=int, default=20261120)
    args = parser.parse_args()
    needs_torch()
    gpu = GPU.get(0)
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.cases:
        m, n, k = case(name)
        rows = measure(gpu, inner_product(m, n, args.k or k, F32, args.layout), args.seed)
        path = args.out / f"phvm_{gpu.arch.name}_{name}.json"
        path.write_text("[\n " + ",\n ".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8")
        best = min(rows, key=lambda row: row["seconds"])
        where = f"least at GS {best['GS']}, BS {best['BS']}: {best['seconds'] * 1e3:.3f} ms"
        print(f"{path.name}: {len(rows)} launches, {where}")


if __name__ == "__main__":
    main()
