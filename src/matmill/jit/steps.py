"""All launches of a kernel for a problem, compiled."""

from __future__ import annotations

from typing import Any

from matmill.jit.compile import Binary, compile_ptx, compile_source
from matmill.jit.source import generate
from matmill.kernel import GemmOperands, Kernel
from matmill.launch import Launch


def binaries(
    kernel: Kernel[Any], problem: Any, operands: GemmOperands, target: str
) -> tuple[tuple[Binary, Launch], ...]:
    """Return the launches of ``Kernel.steps``, in order, each with its binary for a GPU.

    ``problem`` has a ``dtype``. Raises the errors of :meth:`~matmill.kernel.Kernel.steps`, and
    :class:`~matmill.errors.CompileError`.
    """
    steps = kernel.steps(problem, operands)
    return tuple((compile_source(generate(program, problem.dtype), target), launch) for program, launch in steps)


def ptx(kernel: Kernel[Any], problem: Any, operands: GemmOperands, target: str) -> tuple[tuple[str, Launch], ...]:
    """Return the launches of ``Kernel.steps``, in order, each with its PTX for the emulator."""
    steps = kernel.steps(problem, operands)
    return tuple((compile_ptx(generate(program, problem.dtype), target), launch) for program, launch in steps)
