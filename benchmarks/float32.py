"""Time float32 products in pieces on tensor cores beside torch.mm and FMA, on one GPU, with the error of each.

    python benchmarks/float32.py --out benchmarks/results/float32_h200.json

Squares, a long k, k-means, a kernel matrix, layers of graph networks, a correlation, a layer and its gradients, a
randomised SVD, and few rows or columns; numbers of one size, and of sizes that differ by a factor of exp(phi * normal).
The kernel that is chosen for each precision runs interleaved with torch.mm in float32, splitting included and with a
cold L2. An error is the largest one, of 64 rows drawn at random against float64, in units of 2^-24 of |A| @ |B|.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lab.compiler import compile_sources
from lab.enqueue import enqueuer
from lab.gemm.shapes import packed
from lab.tensors import needs_torch, random_operands
from matmill.arch import Arch
from matmill.bench.environment import describe
from matmill.choose import choose
from matmill.dtypes import F32
from matmill.jit.source import Source, generate
from matmill.jit.steps import binaries
from matmill.kernel import GemmOperands, Kernel
from matmill.launch import Pointer
from matmill.precision import UNIT
from matmill.problem import SPLIT_METHODS, Gemm
from matmill.runtime.clock import Clock, Competitor, StreamHandle, flush_bytes
from matmill.runtime.gpu import GPU

#: Precisions that are timed; the first one is FMA.
PRECISIONS = ("default", *SPLIT_METHODS)
LIBRARY = "torch.mm"
_ROWS = 64


@dataclass(frozen=True)
class Task:
    """A product of packed matrices, as ``shapes.Task``, of numbers (u - 1/2) * exp(phi * normal)."""

    kind: str
    m: int
    n: int
    k: int
    layouts: str = "nn"
    phi: float = 0

    def problem(self, precision: str) -> Gemm:
        """Return the product with a precision."""
        return replace(packed(self.m, self.n, self.k, F32, layouts=self.layouts), precision=precision)


def tasks() -> Iterator[Task]:
    """Yield all products."""
    yield from (Task("square", n, n, n) for n in (256, 512, 768, 1024, 1536, 2048, 4096, 8192, 16384))
    yield from (Task("layout", 4096, 4096, 4096, layouts) for layouts in ("nt", "tn", "tt"))
    yield from (Task("k", 4096, 4096, k) for k in (64, 128, 256, 1024, 16384, 65536))
    yield Task("k-means", 10**6, 64, 100)
    yield Task("kernel matrix", 10007, 10007, 21, "nt")
    yield Task("graph layer", 169343, 40, 256)
    yield Task("graph layer", 169343, 256, 128)
    yield Task("correlation", 5000, 5000, 1201, "nt")
    yield Task("layer", 16384, 777, 1201, "nt")
    yield Task("gradient of its input", 16384, 1201, 777)
    yield Task("gradient of its weight", 777, 1201, 16384, "tn")
    yield Task("randomised SVD", 20000, 30, 20000)
    yield Task("few columns", 8192, 64, 8192)
    yield Task("few rows", 128, 4096, 4096, "nt")
    yield from (Task("range", 4096, 4096, 4096, phi=phi) for phi in (0.5, 1, 2, 3, 4))


def sources(task: Task, arch: Arch) -> Iterator[Source]:
    """Generate the translation units of all launches."""
    for problem, kernel in kernels(task, arch).values():
        pointers = (Pointer(name, 256) for name in ("A", "B", "D", "workspace", "counter"))
        yield from (generate(program, F32) for program, _ in kernel.steps(problem, _operands(*pointers)))


def kernels(task: Task, arch: Arch) -> dict[str, tuple[Gemm, Kernel[Gemm]]]:
    """Return the problem and the kernel that is chosen, by precision."""
    problems = {precision: task.problem(precision) for precision in PRECISIONS}
    return {precision: (problem, choose(problem, arch).kernel) for precision, problem in problems.items()}


def _operands(a: Pointer, b: Pointer, d: Pointer, workspace: Pointer, counter: Pointer) -> GemmOperands:
    return GemmOperands(a, b, d, d, workspace=workspace, counter=counter)


def _matrices(task: Task) -> tuple[Any, Any]:
    """Return A and B as torch's tensors."""
    import torch  # noqa: PLC0415 — the usage needs no GPU

    a, b = random_operands((task.m, task.n, task.k), "float32", task.layouts)
    for x in (a, b):
        x.mul_(task.phi).exp_().mul_(torch.rand_like(x) - 0.5)
    return a, b


def measured(task: Task, gpu: GPU, clock: Clock) -> dict[str, Any]:
    """Return seconds, error and kernel of each precision, and of the library."""
    import torch  # noqa: PLC0415 — the usage needs no GPU

    a, b = _matrices(task)
    d, theirs = (torch.empty(task.m, task.n, device="cuda") for _ in range(2))
    rows = torch.randint(0, task.m, (_ROWS,), device="cuda")
    some = a[rows].double()
    expected, sizes = some @ b.double(), some.abs() @ b.double().abs()

    def error(result: Any) -> float:
        return float(((result[rows].double() - expected).abs() / sizes).nan_to_num(torch.inf).max() / UNIT)

    def library(stream: StreamHandle) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.address)):
            torch.mm(a, b, out=theirs)

    chosen = kernels(task, gpu.arch)
    room = torch.empty(max(kernel.workspace(problem) for problem, kernel in chosen.values()) + 16, device="cuda",
                       dtype=torch.uint8)  # fmt: skip
    counter = torch.zeros(1, device="cuda", dtype=torch.int32)
    named = zip(("A", "B", "D", "workspace", "counter"), (a, b, d, room, counter), strict=True)
    operands = _operands(*(Pointer(name, one.data_ptr()) for name, one in named))
    runs: dict[str, Callable[[StreamHandle], None]] = {LIBRARY: library}
    errors, entries = {}, {}
    for precision, (problem, kernel) in chosen.items():
        runs[precision] = enqueuer(gpu, binaries(kernel, problem, operands, gpu.arch.target))
        d.fill_(float("nan"))
        torch.cuda.synchronize()
        runs[precision](clock.stream)
        torch.cuda.synchronize()
        errors[precision] = error(d)
        entries[precision] = kernel.entry
    torch.cuda.synchronize()
    library(clock.stream)
    torch.cuda.synchronize()
    errors[LIBRARY] = error(theirs)
    timings = clock.compare([Competitor(*one) for one in runs.items()], seconds_each=0.2)
    seconds = dict(zip(runs, (timing.median for timing in timings), strict=True))
    workspace = chosen["float32_tensor"][1].workspace(chosen["float32_tensor"][0])
    return {**asdict(task), "seconds": seconds, "errors": errors, "kernels": entries, "workspace": workspace}


def main() -> None:
    """Measure all products and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the record, JSON")
    parser.add_argument("--only", default="", help="kinds of products, by commas (default: all)")
    arguments = parser.parse_args()
    needs_torch()
    gpu = GPU.get(0)
    wanted = [task for task in tasks() if not arguments.only or task.kind in arguments.only.split(",")]
    compile_sources((source for task in wanted for source in sources(task, gpu.arch)), gpu.arch.target)
    records = []
    with Clock(gpu, flush_bytes(gpu.arch, cold=True)) as clock:
        for task in wanted:
            records.append(measured(task, gpu, clock))
            seconds, errors = records[-1]["seconds"], records[-1]["errors"]
            shown = (f"{name} {seconds[LIBRARY] / seconds[name]:.2f} ({errors[name]:.1f})" for name in PRECISIONS)
            us = f"{seconds[LIBRARY] * 1e6:.1f} us ({errors[LIBRARY]:.1f})"
            print(f"{task.kind} {task.m} x {task.n} x {task.k} {task.layouts} {task.phi}: {us}; {', '.join(shown)}")
    record = {"arch": gpu.arch.name, "environment": describe(gpu=True), "products": records}
    arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
