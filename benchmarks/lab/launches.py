"""Launches kernels once each and checks them: something for sanitizers and profilers to look at.

The operations share the command line, the compilation beforehand, the loop and its verdict. What differs is one
:class:`Launches`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from lab.compiler import KernelCompiler, add_workers
from matmill.arch import Arch
from matmill.compile import compile_source
from matmill.dtypes import DType
from matmill.gpu import GPU
from matmill.kernel import GemmOperands, Kernel
from matmill.problem import Gemm
from matmill.reference import Check
from matmill.source import generate

Array = NDArray[Any]

#: Every byte of a float that is NaN.
NAN_BYTE = 0xFF


class Named(Protocol):
    """A task, whose name begins its line."""

    @property
    def name(self) -> str:
        """A rung's label, or what a production kernel is and does."""


T = TypeVar("T", bound=Named)


@dataclass(frozen=True)
class Launches(Generic[T]):
    """What differs between the operations whose kernels are launched.

    ``tasks`` gives, for a GPU, those that are always launched, and those of which ``--every`` may leave some out.
    ``compiled`` gives the kernels of a task that other processes compile beforehand, with the element type. ``launch``
    gives a task's line, without verdict, and whether its result is right. ``finish`` has the tasks when all are over.
    """

    noun: str
    tasks: Callable[[Arch, argparse.Namespace], tuple[Sequence[T], Sequence[T]]]
    compiled: Callable[[T, Arch], Iterable[tuple[Kernel[Any], DType]]]
    launch: Callable[[GPU, T, int], tuple[str, bool]]
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda _parser: None
    finish: Callable[[argparse.Namespace, Sequence[T]], None] = lambda _args, _tasks: None


def main(launches: Mapping[str, Launches[Any]], description: str | None) -> None:
    """Launches what the command line names; ends with 1 where a result is wrong."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    operations = parser.add_subparsers(dest="operation", required=True)
    for name, one in launches.items():
        own = operations.add_parser(name)
        own.add_argument("--seed", type=int, default=20261120)
        own.add_argument("--every", type=int, default=1, help="launch every N-th kernel alone (default: 1)")
        own.add_argument("--only", default="", help="launch those alone whose name has this in it, such as mma")
        add_workers(own)
        one.add_arguments(own)
    args = parser.parse_args()
    sys.exit(1 if _launch(launches[args.operation], args) else 0)


def _launch(launches: Launches[T], args: argparse.Namespace) -> int:
    """Counts wrong results."""
    gpu = GPU.get(0)
    always, others = ([one for one in some if args.only in one.name] for some in launches.tasks(gpu.arch, args))
    todo = [*always, *others[:: args.every]]
    with KernelCompiler(gpu.arch.target, args.workers) as compiler:
        for task in todo:
            for kernel, dtype in launches.compiled(task, gpu.arch):
                compiler.order([kernel], dtype)
        compiler.wait()
    wrong = 0
    for task in todo:
        line, right = launches.launch(gpu, task, args.seed)
        wrong += not right
        print(f"{line}{'' if right else '  WRONG'}", flush=True)
    launches.finish(args, todo)
    print(f"{len(todo)} {launches.noun}, {wrong} wrong")
    return wrong


@dataclass(frozen=True)
class Product:
    """A product to launch. ``inputs`` makes A, B and the check of a result from a seed.

    ``names`` are those of A and B. Where ``uncounted``, it is launched without a counter too.
    """

    name: str
    kernel: Kernel[Gemm]
    problem: Gemm
    inputs: Callable[[int], tuple[Array, Array, Callable[[Array], Check]]]
    names: tuple[str, str] = ("A", "B")
    uncounted: bool = False


def launch_product(gpu: GPU, product: Product, seed: int) -> tuple[str, bool]:
    """Runs one product on random matrices; its line says the greatest error over the allowed one."""
    a, b, check = product.inputs(seed)
    checks = [check(found) for found in _results(gpu, product, a, b)]
    ratio = max(one.error_ratio if one.ok or one.error_ratio > 1 else inf for one in checks)
    line = f"{product.name:28} {product.problem!s:24} error / allowed {ratio:.3f}"
    return line, all(one.ok for one in checks)


def _results(gpu: GPU, product: Product, a: Array, b: Array) -> Iterator[Array]:
    """D of each launch, into a poisoned output and with a poisoned workspace."""
    kernel, problem = product.kernel, product.problem
    # A column-major matrix is uploaded as the packed row-major matrix of its transpose.
    stored = [np.ascontiguousarray(x if x.flags.c_contiguous else x.T) for x in (a, b)]
    binary = compile_source(generate(kernel, problem.dtype), gpu.arch.target)
    with (
        gpu.upload(stored[0], product.names[0]) as first,
        gpu.upload(stored[1], product.names[1]) as second,
        gpu.empty(problem.m * problem.n * problem.dtype.itemsize) as d,
        gpu.empty(max(1, kernel.workspace(problem))) as room,
        gpu.zeros(4) as word,
    ):
        to_a = first.pointer(product.names[0])
        to_b = to_a if problem.gram else second.pointer(product.names[1])
        counters = [word.pointer("counter")] if kernel.counts(problem) or not product.uncounted else []
        for counter in (*([None] if product.uncounted else []), *counters):
            for memory in (d, room):
                memory.fill_bytes(NAN_BYTE)
            to_d = d.pointer("D")
            operands = GemmOperands(to_a, to_b, to_d, to_d, workspace=room.pointer("workspace"), counter=counter)
            for launched in kernel.launches(problem, operands):
                gpu.launch(binary, launched)
            gpu.synchronize()
            yield d.download((problem.m, problem.n), problem.dtype.numpy)
