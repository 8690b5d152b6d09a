"""Launches kernels once each and checks them: something for sanitizers and profilers to look at.

The operations share the command line, the compilation beforehand, the loop and its verdict. What differs is one
:class:`Launches`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from lab.compiler import KernelCompiler, add_workers
from lab.operations import chosen
from matmill.arch import Arch
from matmill.dtypes import DType
from matmill.jit.steps import binaries
from matmill.kernel import GemmOperands, Kernel
from matmill.ladders.runner.subject import Subject
from matmill.problem import Gemm
from matmill.runtime.gpu import GPU

#: Every byte of a float that is NaN.
NAN_BYTE = 0xFF


class Task(Protocol):
    """One thing to launch; ``name`` begins its line."""

    @property
    def name(self) -> str:
        """A rung's label, or what a production kernel is and does."""

    def kernels(self, arch: Arch) -> list[tuple[Kernel[Any], DType]]:
        """Return what is compiled for it, with element types."""

    def launch(self, gpu: GPU, seed: int) -> tuple[str, bool]:
        """Run it; give its line, without verdict, and whether its result is right."""


T = TypeVar("T", bound=Task)


@dataclass(frozen=True)
class Launches(Generic[T]):
    """What differs between the operations whose kernels are launched.

    ``tasks`` gives, for a GPU, those that are always launched, and those of which ``--every`` may leave some out.
    ``finish`` is given the tasks when all are over.
    """

    noun: str
    tasks: Callable[[Arch, argparse.Namespace], tuple[Sequence[T], Sequence[T]]]
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda _parser: None
    finish: Callable[[argparse.Namespace, Sequence[T]], None] = lambda _args, _tasks: None


def main(launches: Mapping[str, Launches[Any]], description: str | None) -> None:
    """Launch what the command line names; end with 1 where a result is wrong."""
    sys.exit(1 if _launch(*chosen(launches, description, _add_arguments)) else 0)


def _add_arguments(parser: argparse.ArgumentParser, launches: Launches[Any]) -> None:
    parser.add_argument("--seed", type=int, default=20261120)
    parser.add_argument("--every", type=int, default=1, help="launch every N-th kernel alone (default: 1)")
    parser.add_argument("--only", default="", help="launch those alone whose name has this in it, such as mma")
    add_workers(parser)
    launches.add_arguments(parser)


def _launch(launches: Launches[T], args: argparse.Namespace) -> int:
    """Launch and count wrong results."""
    gpu = GPU.get(0)
    always, others = ([one for one in some if args.only in one.name] for some in launches.tasks(gpu.arch, args))
    todo = [*always, *others[:: args.every]]
    with KernelCompiler(gpu.arch.target, args.workers) as compiler:
        for task in todo:
            for kernel, dtype in task.kernels(gpu.arch):
                compiler.order([kernel], dtype)
        compiler.wait()
    wrong = 0
    for task in todo:
        line, right = task.launch(gpu, args.seed)
        wrong += not right
        print(f"{line}{'' if right else '  WRONG'}", flush=True)
    launches.finish(args, todo)
    print(f"{len(todo)} {launches.noun}, {wrong} wrong")
    return wrong


@dataclass(frozen=True)
class Product:
    """A product of random matrices, checked as ``subject`` says; ``also_without_counter``: without a counter too."""

    name: str
    kernel: Kernel[Gemm]
    problem: Gemm
    subject: Subject[Gemm]
    also_without_counter: bool = False

    def kernels(self, _arch: Arch) -> list[tuple[Kernel[Any], DType]]:
        """Return the one."""
        return [(self.kernel, self.problem.dtype)]

    def launch(self, gpu: GPU, seed: int) -> tuple[str, bool]:
        """Launch into a poisoned output and workspace; the line says the greatest error over the allowed one."""
        kernel, problem = self.kernel, self.problem
        inputs = self.subject.inputs(seed).of(problem)
        # A column-major matrix is uploaded as the packed row-major matrix of its transpose.
        layouts = zip((inputs.a, inputs.b), (problem.a_row_col, problem.b_row_col), strict=True)
        stored = [np.ascontiguousarray(x if strides[1] == 1 else x.T) for x, strides in layouts]
        checks = []
        with (
            gpu.upload(stored[0], "A") as first,
            gpu.upload(stored[1], "B") as second,
            gpu.empty(problem.m * problem.n * problem.dtype.itemsize) as d,
            gpu.empty(max(1, kernel.workspace(problem))) as room,
            gpu.zeros(4) as word,
        ):
            to_a, to_d = first.pointer("A"), d.pointer("D")
            to_b, workspace = to_a if problem.gram else second.pointer("B"), room.pointer("workspace")
            counted = [word.pointer("counter")] if kernel.counts(problem) or not self.also_without_counter else []
            for counter in [None, *counted] if self.also_without_counter else counted:
                for memory in (d, room):
                    memory.fill_bytes(NAN_BYTE)
                operands = GemmOperands(to_a, to_b, to_d, to_d, workspace=workspace, counter=counter)
                for binary, launched in binaries(kernel, problem, operands, gpu.arch.target):
                    gpu.launch(binary, launched)
                gpu.synchronize()
                result = d.download((problem.m, problem.n), problem.dtype.numpy)
                checks.append(self.subject.check(inputs, kernel, result))
        ratio = max(one.error_ratio if one.ok or one.error_ratio > 1 else inf for one in checks)
        return f"{self.name:28} {problem!s:24} error / allowed {ratio:.3f}", all(one.ok for one in checks)
