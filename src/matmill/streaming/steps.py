"""The kernel's part of streaming: launches of the inner kernel, one or two per chunk and one at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

from matmill.arch import Arch
from matmill.choose import choose_from
from matmill.jit.compile import Binary
from matmill.jit.steps import binaries
from matmill.kernel import GemmOperands, Kernel, Production
from matmill.kernels.inner import INNER, cost, piece, total
from matmill.kernels.inner.space import space
from matmill.launch import Launch, Pointer
from matmill.problem import Gemm

Launches: TypeAlias = "tuple[tuple[Binary, Launch], ...]"

_SOME_K = 1024
_CANDIDATES = (Production(INNER, space, cost.explain),)


@dataclass(frozen=True)
class Steps:
    """The launches that streaming needs from a kernel, to be run in order.

    ``total`` points to m * n sums of the type ``dtype.accumulator``, row-major, which start as zeros.
    ``add(chunk, operands, total)`` adds E_chunk @ F_chunk to ``total``: ``operands`` has E and F as ``a`` and ``b``
    (the same address for a Gram matrix) and the workspace, but no ``c`` and ``d``.
    ``finish(problem, chunk, operands, total)`` writes D = alpha * total + beta * C, both packed, from ``operands``;
    ``chunk`` is any chunk that was added, or None. ``workspace(chunk)`` is the bytes of workspace that ``add`` needs.
    """

    workspace: Callable[[Gemm], int]
    add: Callable[[Gemm, GemmOperands, Pointer], Launches]
    finish: Callable[[Gemm, Gemm | None, GemmOperands, Pointer], Launches]


def inner_steps(arch: Arch) -> Steps:
    """Return the steps of the inner kernel on ``arch``, with the constants that its cost model picks for each chunk.

    Its functions raise :class:`~matmill.errors.IllegalConfigError` for problems that the kernel does not take.
    """

    def add(chunk: Gemm, operands: GemmOperands, sums: Pointer) -> Launches:
        return _compiled(_piece(chunk, arch), chunk, replace(operands, d=sums), arch)

    def finish(problem: Gemm, chunk: Gemm | None, operands: GemmOperands, sums: Pointer) -> Launches:
        # Without a chunk nothing was summed, and any k serves to choose a configuration.
        kernel = _piece(chunk or replace(problem, k=_SOME_K, has_c=False), arch)
        return _compiled(total(kernel), problem, replace(operands, workspace=sums), arch)

    return Steps(lambda problem: _piece(problem, arch).workspace(problem), add, finish)


@lru_cache(maxsize=256)
def _piece(problem: Gemm, arch: Arch) -> Kernel[Gemm]:
    return piece(choose_from(_CANDIDATES, problem, arch).kernel)


def _compiled(kernel: Kernel[Gemm], problem: Gemm, operands: GemmOperands, arch: Arch) -> Launches:
    return binaries(kernel, problem, operands, arch.target)
