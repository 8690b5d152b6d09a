"""Launches every kernel once and checks it: something for profilers and sanitizers to look at.

    compute-sanitizer --tool racecheck python benchmarks/launch_all.py
    ncu --csv --metrics … python benchmarks/launch_all.py --ladder sgemm

The rungs of the SGEMM and HGEMM ladders run on random matrices at 256 cubed, or at the nearest size that they take, the
latter in float16 and bfloat16 and, where they take them, at odd sizes too; the production products run on odd sizes,
every layout and type, once per configuration, and are compiled by other processes first (``--workers 0``: by this one,
as sanitizers want it). Prints a line per launch, and leaves what was launched, in order, in the file named by
``--out``. Exits with 1 where a result is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from matmill.bench.compiler import KernelCompiler
from matmill.bench.ladder.ladders import LADDERS
from matmill.bench.ladder.selection import nearest
from matmill.bench.ladder.subject import MATRIX, Subject
from matmill.bench.problems.hgemm import HALVES, HalfInputs, half_product
from matmill.bench.problems.inner import alignment
from matmill.bench.problems.inputs import Array, Inputs
from matmill.dtypes import ALL
from matmill.jit.compile import compile_source
from matmill.jit.source import generate
from matmill.kernel import GemmOperands, Kernel, Rung
from matmill.ladder.hgemm import HGEMM as HGEMM_LADDER
from matmill.ladder.sgemm import SGEMM
from matmill.problem import Gemm
from matmill.reference import Check, check
from matmill.registry import PRODUCTION
from matmill.runtime.gpu import GPU

SIZES = (256, 256, 256)
#: Rows of A and of B and D start at multiples of 2 and of 4 bytes.
ODD = (200, 134, 133)
#: (m, n, k) of the production products; where k is long it may be split over blocks.
PRODUCTS = ((131, 67, 45), (160, 272, 40), (70, 90, 2100))
_NAN_BYTE = 0xFF
#: The inner kernel has a script of its own.
GEMM, HGEMM = (entry for entry in PRODUCTION if entry.kernel.entry in {"gemm", "hgemm"})

#: A result against the right one, given the matrices.
Checker = Callable[[Array, Array, Array], Check]
Task = tuple[str, Kernel[Gemm], Gemm, Checker]


def rungs(gpu: GPU, ladder: str, asked: Gemm) -> Iterator[Task]:
    """Every rung of a ladder with the size it runs at."""
    subject = LADDERS[ladder].subject
    products: tuple[Rung[Gemm], ...] = {"sgemm": SGEMM, "hgemm": HGEMM_LADDER}[ladder]
    for rung in products:
        size, reason = nearest(rung, asked, gpu.arch, subject)
        if size is None:
            print(f"{rung.label}: not launched, {reason}")
            continue
        kernel = rung.kernel_for(size, gpu.arch)
        yield rung.label, kernel, size, checker_of(subject, kernel, size)


def checker_of(subject: Subject[Any], kernel: Kernel[Gemm], size: Gemm) -> Checker:
    """The check of the kernel's ladder."""

    def checker(found: Array, a: Array, b: Array) -> Check:
        made = HalfInputs(size, a, b) if subject is MATRIX else Inputs(size, a, b)
        return subject.check(made, kernel, found)

    return checker


def halves(gpu: GPU) -> Iterator[Task]:
    """The rungs of the HGEMM ladder in both types, those that take any size at odd ones too."""
    for dtype in HALVES.values():
        yield from rungs(gpu, "hgemm", half_product(*SIZES, dtype))
        odd = half_product(*ODD, dtype)
        yield from (task for task in rungs(gpu, "hgemm", odd) if task[2] == odd)


def production(gpu: GPU) -> Iterator[Task]:
    """The production products on odd and even sizes and a long k, with A and B row- and column-major."""
    for entry, dtype in product((GEMM, HGEMM), ALL.values()):
        for (m, n, k), a_turned, b_turned in product(PRODUCTS, (False, True), (False, True)):
            problem = Gemm(
                m,
                n,
                k,
                dtype,
                a_strides=(1, m) if a_turned else (k, 1),
                b_strides=(1, k) if b_turned else (n, 1),
                a_align=alignment(2, m if a_turned else k, dtype),
                b_align=alignment(2, k if b_turned else n, dtype),
                d_align=alignment(2, n, dtype),
            )
            for config in entry.space(problem, gpu.arch):
                kernel = entry.kernel.with_config(config)
                if kernel.why_not(problem, gpu.arch) is None:
                    shape = f"{config['BM']}x{config['BN']}x{config['BK']} {config['GS']}"
                    yield f"{kernel.entry} {shape} {'NT'[a_turned]}{'NT'[b_turned]}", kernel, problem, check


def launch(gpu: GPU, kernel: Kernel[Gemm], problem: Gemm, checker: Checker) -> float:
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
    room = max(1, kernel.workspace(problem))
    with (
        gpu.upload(packed[0], "A") as da,
        gpu.upload(packed[1], "B") as db,
        gpu.empty(size) as d,
        gpu.empty(room) as scratch,
        gpu.zeros(4) as word,
    ):
        d.fill_bytes(_NAN_BYTE)
        scratch.fill_bytes(_NAN_BYTE)
        to, workspace = d.pointer("D"), scratch.pointer("workspace")
        counter = word.pointer("counter")
        operands = GemmOperands(da.pointer("A"), db.pointer("B"), to, to, workspace=workspace, counter=counter)
        binary = compile_source(generate(kernel, problem.dtype), gpu.arch.target)
        for launched in kernel.launches(problem, operands):
            gpu.launch(binary, launched)
        gpu.synchronize()
        found = checker(d.download((problem.m, problem.n), problem.dtype.numpy), a, b)
    return found.error_ratio if found.ok else float("inf")


def main() -> None:
    """Launches everything; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ladder", choices=("sgemm", "hgemm"), help="its rungs at 256 cubed, and nothing else")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="that compile")
    parser.add_argument("--every", type=int, default=1, help="launch every N-th production kernel alone (default: 1)")
    args = parser.parse_args()
    gpu = GPU.get(0)
    plain = Gemm(*SIZES)
    if args.ladder is None:
        todo = [*rungs(gpu, "sgemm", plain), *halves(gpu), *list(production(gpu))[:: args.every]]
    else:
        todo = list(rungs(gpu, args.ladder, half_product(*SIZES) if args.ladder == "hgemm" else plain))
    with KernelCompiler(gpu.arch.target, args.workers) as compiler:
        for _, kernel, problem, _ in todo:
            if kernel.entry in {GEMM.kernel.entry, HGEMM.kernel.entry}:
                compiler.order([kernel], problem.dtype)
        compiler.wait()
    launched = []
    wrong = 0
    for name, kernel, problem, checker in todo:
        ratio = launch(gpu, kernel, problem, checker)
        wrong += not ratio <= 1
        print(f"{name:28} {problem!s:24} error / allowed {ratio:.3f}{'' if ratio <= 1 else '  WRONG'}", flush=True)
        described = LADDERS[args.ladder or "hgemm"].subject.record(problem)
        launched.append({"rung": name, "entry": kernel.entry, "problem": described})
    if args.out:
        args.out.write_text(json.dumps(launched))
    print(f"{len(todo)} launches, {wrong} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
