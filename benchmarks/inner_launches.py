"""Launches the rungs of the inner ladder and the production kernel once each and checks them: something for sanitizers.

    python benchmarks/inner_launches.py
    compute-sanitizer --tool racecheck python benchmarks/inner_launches.py

Every element type and layout, sizes that no tile divides, an odd k; of the production kernel what is chosen and one
configuration of each kind that is not: loads straight into registers and through stages, the latter also multiplied on
matrix units, by one team and several; one block and several. Prints a line per kernel; exits with 1 where a result is
wrong. Kernels are compiled by other processes first.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from itertools import product
from math import isnan

import numpy as np

from matmill.arch import Arch
from matmill.bench.compiler import KernelCompiler
from matmill.bench.ladder.selection import for_emulator, nearest
from matmill.bench.ladder.subject import TRAFFIC
from matmill.bench.problems.error_bounds import random_sum
from matmill.bench.problems.inner import LAYOUTS, gram_of, inner_product, layout_of
from matmill.bench.problems.inputs import Inputs
from matmill.config import Config
from matmill.dtypes import ALL
from matmill.jit.compile import compile_source
from matmill.jit.source import generate
from matmill.kernel import GemmOperands, Kernel
from matmill.kernels.inner import INNER
from matmill.kernels.inner.space import space
from matmill.ladder.inner import INNER as LADDER
from matmill.problem import Gemm
from matmill.runtime.gpu import GPU

_NAN_BYTE = 0xFF
_SIZES = ((1, 1, 3001), (3, 3, 40_001), (5, 2, 2002), (16, 16, 5000), (17, 9, 3003), (33, 65, 999), (128, 100, 515))


def production(arch: Arch) -> Iterator[tuple[str, Kernel[Gemm], Gemm]]:
    """The production kernel with some configurations of each kind for each product."""
    for (m, n, k), dtype, layout in product(_SIZES, ALL.values(), (*LAYOUTS, "gram")):
        plain = inner_product(m, n, k, dtype, LAYOUTS[0] if layout == "gram" else layout)
        problem = gram_of(plain) if layout == "gram" else plain
        kinds: dict[tuple[str, bool], Kernel[Gemm]] = {}
        for config in space(problem, arch):
            kind, kernel = (_way(config), config["GS"] > 1), INNER.with_config(config)
            if kind not in kinds and kernel.why_not(problem, arch) is None:
                kinds[kind] = kernel
        for (way, parted), kernel in kinds.items():
            yield f"inner {way} {'blocks' if parted else 'block'} {layout_of(problem)}", kernel, problem


def _way(config: Config) -> str:
    if config["UNITS"]:
        return "units, teams" if config["U"] > 1 else "units"
    return "staged" if config["BK"] else "direct"


def rungs(arch: Arch) -> Iterator[tuple[str, Kernel[Gemm], Gemm]]:
    """Every rung at one size, with few blocks where the paper leaves that open."""
    for dtype, layout in product(ALL.values(), LAYOUTS):
        asked = inner_product(5, 3, 4001, dtype, layout)
        for rung in for_emulator(LADDER)[0]:
            size, reason = nearest(rung, asked, arch, TRAFFIC)
            if size is None:
                sys.exit(f"{rung.label}: {reason}")
            yield f"{rung.label} {layout_of(size)}", rung.kernel_for(size, arch), size


def launch(gpu: GPU, kernel: Kernel[Gemm], problem: Gemm, seed: int) -> float:
    """Runs one kernel on random matrices, a poisoned output and workspace; gives its error over the allowed one.

    Where its blocks can count themselves it runs again with a counter, and the greater error is given.
    """
    inputs = Inputs.random(problem, seed, random_sum)
    stored = [x if x.flags.c_contiguous else x.T for x in (inputs.a, inputs.b)]
    size = problem.m * problem.n * problem.dtype.itemsize
    binary = compile_source(generate(kernel, problem.dtype), gpu.arch.target)
    with (
        gpu.upload(np.ascontiguousarray(stored[0]), "E") as e,
        gpu.upload(np.ascontiguousarray(stored[1]), "F") as f,
        gpu.empty(size) as d,
        gpu.empty(kernel.workspace(problem)) as room,
        gpu.zeros(4) as word,
    ):
        first = e.pointer("E")
        second = first if problem.gram else f.pointer("F")
        worst = 0.0
        for counter in (None, *([word.pointer("counter")] if kernel.counts(problem) else [])):
            for memory in (d, room):
                memory.fill_bytes(_NAN_BYTE)
            to = d.pointer("D")
            operands = GemmOperands(first, second, to, to, workspace=room.pointer("workspace"), counter=counter)
            for one in kernel.launches(problem, operands):
                gpu.launch(binary, one)
            gpu.synchronize()
            ratio = inputs.check(d.download((problem.m, problem.n), problem.dtype.numpy)).error_ratio
            worst = ratio if isnan(ratio) else max(worst, ratio)
        return worst


def main() -> None:
    """Launches everything; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=20261120)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="that compile")
    parser.add_argument("--every", type=int, default=1, help="launch every N-th kernel alone (default: 1)")
    parser.add_argument("--only", default="", help="launch those alone whose line has this in it, such as units")
    args = parser.parse_args()
    gpu = GPU.get(0)
    todo = [one for one in (*rungs(gpu.arch), *production(gpu.arch)) if args.only in one[0]][:: args.every]
    with KernelCompiler(gpu.arch.target, args.workers) as compiler:
        for _, kernel, problem in todo:
            if kernel.entry == INNER.entry:
                compiler.order([kernel], problem.dtype)
        compiler.wait()
    wrong = 0
    for name, kernel, problem in todo:
        ratio = launch(gpu, kernel, problem, args.seed)
        wrong += not ratio <= 1
        print(f"{name:28} {problem!s:24} error / allowed {ratio:.3f}{'' if ratio <= 1 else '  WRONG'}", flush=True)
    print(f"{len(todo)} kernels, {wrong} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
