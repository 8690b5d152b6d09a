"""Times float64 products on the tensor cores, every configuration beside torch.mm, on one GPU in about 90 seconds.

    python benchmarks/float64_tiles.py --compile-only                      # needs no GPU: fills the kernel cache
    python benchmarks/float64_tiles.py --out benchmarks/results/float64_tiles_h200.json

Squares from 256 to 8192, of odd sizes and other layouts too, and rectangles. Each takes the configurations of the
tensor cores and of the FMA units that a product may be given. Row-major products from 512 on with rows on 16 bytes also
take tiles that no product is given: mma instructions of 8 and 16 terms, deeper k-tiles, other stages and warps. All are
checked (rows drawn at random against float64), then run interleaved with a cold L2. The record has one row per problem:
seconds by configuration and of torch.mm, and the configuration that the model chose. No problem is begun after
``--seconds``; what was measured until then is in the file. Exits with 1 where a result is wrong.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import Any

from lab.compiler import KernelCompiler, add_workers
from lab.gemm.measure import MOST_SCRATCH, Memory, measure
from lab.gemm.tiles import LIBRARY
from matmill.arch import Arch, get
from matmill.bench.environment import describe
from matmill.bench.timing.clock import Clock
from matmill.choose import choose_from
from matmill.dtypes import F64
from matmill.kernel import Kernel
from matmill.kernels.hgemm import HGEMM
from matmill.kernels.hgemm.tiles import double_tile, with_vector_widths
from matmill.kernels.shared.tiled import VECTOR_BYTES
from matmill.problem import Gemm
from matmill.registry import PRODUCTION
from matmill.runtime.gpu import GPU


@dataclass(frozen=True)
class Shape:
    """A product of packed matrices; ``layouts`` are those of A and B: n for rows, t for columns that are contiguous."""

    m: int
    n: int
    k: int
    layouts: str = "nn"

    def problem(self) -> Gemm:
        """Return the problem, with the alignment that rows or columns have."""
        a, b = ((self.k, 1), (self.n, 1))
        if self.layouts[0] == "t":
            a = (1, self.m)
        if self.layouts[1] == "t":
            b = (1, self.k)
        a_align, b_align, d_align = (gcd(VECTOR_BYTES, pitch * F64.itemsize) for pitch in (max(a), max(b), self.n))
        return Gemm(
            self.m, self.n, self.k, F64, a_strides=a, b_strides=b, a_align=a_align, b_align=b_align, d_align=d_align
        )


#: What matters most first: a run that ends early leaves the rest out.
SHAPES = (
    *(Shape(side, side, side) for side in (512, 1024, 2048, 4096, 256, 384, 640, 768, 1001, 2047)),
    *(Shape(side, side, side, layouts) for side in (1024, 2048) for layouts in ("nt", "tn", "tt")),
    Shape(256, 256, 8192),
    Shape(512, 512, 4096),
    Shape(128, 1024, 8192),
    Shape(4096, 4096, 128),
    Shape(16, 4096, 4096),
    Shape(2049, 511, 1023),
    Shape(120, 120, 65536),
    Shape(8192, 8192, 8192),
    *(Shape(side, side, side) for side in (1536, 3072, 128, 4095)),
)
#: Tiles that no product is given.
EXTRA = (
    double_tile(128, 128, 16, 2, 4, stages=4, mma_k=8),
    double_tile(128, 128, 16, 2, 4, stages=3),
    double_tile(128, 128, 16, 2, 4, stages=6),
    double_tile(128, 128, 16, 4, 2, stages=4),
    double_tile(128, 128, 32, 2, 4, stages=3),
    double_tile(128, 64, 16, 2, 2, stages=4, blocks_per_sm=2, mma_k=8),
    double_tile(128, 64, 16, 4, 2, stages=4, blocks_per_sm=2),
    double_tile(256, 64, 16, 4, 2, stages=4),
    double_tile(64, 64, 16, 2, 2, stages=4, blocks_per_sm=3, mma_k=8),
    double_tile(64, 64, 32, 2, 2, stages=3, blocks_per_sm=2),
    double_tile(64, 64, 32, 2, 2, stages=3, blocks_per_sm=2, mma_k=16),
    double_tile(32, 32, 32, 2, 2, stages=4, blocks_per_sm=3),
)
_LARGE = 512
#: The kernels of tiles.
_OF_TILES = tuple(production for production in PRODUCTION if production.kernel.entry in {"gemm", "hgemm"})


def extra(problem: Gemm) -> Iterator[Kernel[Gemm]]:
    """Yield the tiles that no product is given, for a problem that they are tried on."""
    aligned = min(problem.a_align, problem.b_align, problem.d_align) == VECTOR_BYTES
    by_rows = problem.a_row_col[1] == problem.b_row_col[1] == 1  # one layout: each has code of its own to compile
    if aligned and by_rows and min(problem.m, problem.n, problem.k) >= _LARGE:
        for shape in EXTRA:
            config = with_vector_widths(shape, problem).launched(SPLIT_K=1, REPACK_A=0, REPACK_B=0)
            yield HGEMM.with_config(config)


def kernels(problem: Gemm, arch: Arch) -> list[Kernel[Gemm]]:
    """Return all kernels that are timed for a problem: those of tiles. The inner kernel has a search of its own."""
    tried = [kernel for production in _OF_TILES for kernel in production.legal(problem, arch)]
    tried += (kernel for kernel in extra(problem) if kernel.why_not(problem, arch) is None)
    return [kernel for kernel in tried if kernel.workspace(problem) <= MOST_SCRATCH]


def compile_all(shapes: tuple[Shape, ...], arch: Arch, workers: int) -> None:
    """Compile what all shapes take, in processes of their own."""
    with KernelCompiler(arch.target, workers) as compiler:
        for shape in shapes:
            compiler.order(kernels(shape.problem(), arch), F64)
        compiler.wait()


def record(shape: Shape, arch: Arch, seconds: dict[str, float]) -> dict[str, Any]:
    """Return one row of the record."""
    problem = shape.problem()
    library = seconds.pop(LIBRARY, None)
    return {
        "m": shape.m,
        "n": shape.n,
        "k": shape.k,
        "layouts": shape.layouts,
        "dtype": F64.name,
        "chosen": str(choose_from(_OF_TILES, problem, arch).kernel.config),
        "extra": [str(kernel.config) for kernel in extra(problem)],
        "seconds": {LIBRARY: library, **seconds},
    }


def line(row: dict[str, Any]) -> str:
    """Return what is printed of a row: rates in TFLOP/s of the best, the chosen and torch.mm."""
    seconds = {name: value for name, value in row["seconds"].items() if name != LIBRARY}
    flops = 2e-12 * row["m"] * row["n"] * row["k"]
    best = min(seconds, key=seconds.__getitem__)
    rates = {"best": flops / seconds[best]}
    if row["chosen"] in seconds:
        rates["chosen"] = flops / seconds[row["chosen"]]
    if row["seconds"][LIBRARY] is not None:
        rates[LIBRARY] = flops / row["seconds"][LIBRARY]
    title = f"{row['m']}x{row['n']}x{row['k']} {row['layouts']}"
    return f"{title:22} {', '.join(f'{name} {rate:.1f}' for name, rate in rates.items())} TFLOP/s; best: {best}"


def main() -> None:
    """Compile, measure, print, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    parser.add_argument("--seconds", type=float, default=80.0, help="begin no problem later (default: 80)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compile-only", action="store_true", help="compile for an H200 and end")
    add_workers(parser)
    args = parser.parse_args()
    begin = time.perf_counter()
    if args.compile_only:
        compile_all(SHAPES, get("h200"), args.workers)
        return
    if args.out is None:
        parser.error("--out is needed to measure")
    gpu = GPU.get(0)
    compile_all(SHAPES, gpu.arch, args.workers)
    print(f"compiled after {time.perf_counter() - begin:.1f} s", flush=True)
    rows: list[dict[str, Any]] = []
    document = {"record": "float64 tiles", "arch": gpu.arch.name, "environment": describe(gpu=True), "rows": rows}
    largest = max(max(shape.m * shape.k, shape.k * shape.n, shape.m * shape.n) for shape in SHAPES)
    memory = Memory.of(gpu, F64, largest, args.seed)
    with Clock(gpu, 2 * gpu.arch.l2_bytes) as clock:
        for shape in SHAPES:
            if time.perf_counter() - begin > args.seconds:
                print(f"{shape} and what follows was left out after {args.seconds:g} s", flush=True)
                break
            problem = shape.problem()
            seconds = measure(gpu, clock, problem, memory, kernels(problem, gpu.arch), seed=args.seed)
            rows.append(record(shape, gpu.arch, seconds))
            print(f"{time.perf_counter() - begin:5.1f} s  {line(rows[-1])}", flush=True)
            args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
