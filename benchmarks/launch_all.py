"""Launches every kernel once and checks it: something for profilers and sanitizers to look at.

    compute-sanitizer --tool racecheck python benchmarks/launch_all.py
    ncu --csv --metrics … python benchmarks/launch_all.py --ladder-only

The rungs of the SGEMM ladder run on random matrices at 256 cubed, or at the nearest size that they take; the production
product runs on odd sizes, every layout and both dtypes, once per tile shape. Prints a line per launch, and leaves what
was launched, in order, in the file named by ``--out``. Exits with 1 where a result is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from matmill.bench.selection import nearest
from matmill.compile import compile_source
from matmill.dtypes import F32, F64
from matmill.gpu import GPU
from matmill.kernel import GemmOperands, Kernel
from matmill.kernels.gemm import GEMM
from matmill.ladder.sgemm import SGEMM
from matmill.problem import Gemm
from matmill.reference import check
from matmill.source import generate
from matmill.tiles import space

PROBLEM = Gemm(m=256, n=256, k=256)
_NAN_BYTE = 0xFF


def rungs(gpu: GPU) -> Iterator[tuple[str, Kernel[Gemm], Gemm]]:
    """Every rung with the size it runs at."""
    for rung in SGEMM:
        size, reason = nearest(rung, PROBLEM, gpu.arch)
        if size is None:
            sys.exit(f"{rung.label}: {reason}")
        yield rung.label, rung.kernel_for(size, gpu.arch), size


def production(gpu: GPU) -> Iterator[tuple[str, Kernel[Gemm], Gemm]]:
    """The production product on odd and even sizes, with A and B row- and column-major."""
    for dtype in (F32, F64):
        for m, n, k in ((131, 67, 45), (160, 272, 40)):
            align = 16 if (n * dtype.itemsize) % 16 == 0 else dtype.itemsize
            for a_strides, b_strides in (((k, 1), (n, 1)), ((1, m), (1, k))):
                problem = Gemm(
                    m,
                    n,
                    k,
                    dtype,
                    a_strides=a_strides,
                    b_strides=b_strides,
                    a_align=align,
                    b_align=align,
                    d_align=align,
                )
                for config in space(problem, gpu.arch):
                    kernel = GEMM.with_config(config)
                    if kernel.why_not(problem, gpu.arch) is None:
                        shape = f"{config['BM']}x{config['BN']}x{config['BK']}"
                        yield f"gemm {shape} {'NT'[a_strides[0] == 1]}{'NT'[b_strides[0] == 1]}", kernel, problem


def launch(gpu: GPU, kernel: Kernel[Gemm], problem: Gemm) -> float:
    """Runs one kernel on fresh random matrices and a poisoned output; gives its error over the allowed one."""
    generator = np.random.default_rng()

    def matrix(rows: int, columns: int, strides: tuple[int, int]) -> np.ndarray[Any, Any]:
        values = generator.uniform(-1, 1, (rows, columns)).astype(problem.dtype.numpy)
        return np.asfortranarray(values) if strides[0] == 1 and columns > 1 else values

    a = matrix(problem.m, problem.k, problem.a_row_col)
    b = matrix(problem.k, problem.n, problem.b_row_col)
    # A column-major matrix is uploaded as the packed row-major matrix of its transpose.
    packed = [x if x.flags.c_contiguous else x.T for x in (a, b)]
    size = problem.m * problem.n * problem.dtype.itemsize
    with gpu.upload(packed[0], "A") as da, gpu.upload(packed[1], "B") as db, gpu.empty(size) as d:
        d.fill_bytes(_NAN_BYTE)
        operands = GemmOperands(da.pointer("A"), db.pointer("B"), d.pointer("D"), d.pointer("D"))
        binary = compile_source(generate(kernel, problem.dtype), gpu.arch.target)
        gpu.launch(binary, kernel.launch(problem, operands))
        gpu.synchronize()
        found = check(d.download((problem.m, problem.n), problem.dtype.numpy), a, b)
    return found.error_ratio if found.ok else float("inf")


def main() -> None:
    """Launches everything; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ladder-only", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    gpu = GPU.get(0)
    todo = [*rungs(gpu), *(() if args.ladder_only else production(gpu))]
    launched = []
    wrong = 0
    for name, kernel, problem in todo:
        ratio = launch(gpu, kernel, problem)
        wrong += not ratio <= 1
        print(f"{name:28} {problem!s:24} error / allowed {ratio:.3f}{'' if ratio <= 1 else '  WRONG'}", flush=True)
        sizes = {"m": problem.m, "n": problem.n, "k": problem.k}
        launched.append({"rung": name, "entry": kernel.entry, "problem": sizes})
    if args.out:
        args.out.write_text(json.dumps(launched))
    print(f"{len(todo)} launches, {wrong} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
