"""Binaries of kernels by the hundred: compiled in processes of their own while the GPU measures others."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, Self

from matmill.config import Config
from matmill.dtypes import ELEMENTWISE, DType
from matmill.jit.compile import Binary, compile_source
from matmill.jit.source import Source, generate
from matmill.jit.steps import binaries
from matmill.kernel import GemmOperands, Kernel
from matmill.launch import Launch
from matmill.registry import TRANSPOSE_ADD_KERNELS

#: By package: kernels hold functions, which do not travel to other processes.
_KERNELS: dict[str, Kernel[Any]] = {one.kernel.package: one.kernel for one in TRANSPOSE_ADD_KERNELS}
#: Package, constants, element type.
_Key = tuple[str, tuple[tuple[str, int], ...], str]


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add the option that says how many processes compile."""
    workers = max(1, (os.cpu_count() or 2) - 2)
    parser.add_argument("--workers", type=int, default=workers, help=f"processes that compile (default: {workers})")


class KernelCompiler:
    """Compiles transpose_add's kernels in ``workers`` processes, or with 0 in this one when asked for a binary.

    They are for ``target``. What a process compiles comes back through the cache on disk. ``waited`` is how many
    seconds :meth:`binary` took in all, ``ordered`` how many binaries were asked for. A context manager;
    leaving it drops what nobody waits for.
    """

    def __init__(self, target: str, workers: int) -> None:
        self._target = target
        self._made: dict[_Key, Future[None] | None] = {}
        # Not forked: the CUDA driver does not survive that.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(workers, mp_context=context) if workers else None
        self.waited = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    @property
    def ordered(self) -> int:
        """Binaries asked for so far, each counted once."""
        return len(self._made)

    def order(self, kernels: Iterable[Kernel[Any]], dtype: DType) -> None:
        """Order the binaries of ``kernels``, after those ordered before; return at once."""
        for kernel in kernels:
            key = (kernel.package, kernel.config.constants, dtype.name)
            if key not in self._made:
                self._made[key] = None if self._pool is None else self._pool.submit(_compile, *key, self._target)

    def wait(self) -> None:
        """Wait for all that was ordered. Raises what a compilation raised."""
        for future in self._made.values():
            if future is not None:
                future.result()

    def binary(self, kernel: Kernel[Any], dtype: DType) -> Binary:
        """Return the binary of ``kernel``, waited for if need be."""
        begin = time.monotonic()
        self.order([kernel], dtype)
        key = (kernel.package, kernel.config.constants, dtype.name)
        future = self._made[key]
        if future is not None:
            future.result()
        result = _binary(*key, self._target)
        self.waited += time.monotonic() - begin
        return result

    def steps(self, kernel: Kernel[Any], problem: Any, operands: GemmOperands) -> tuple[tuple[Binary, Launch], ...]:
        """Return all that ``kernel`` launches, with binaries.

        Those of launches around it are few, and compiled here.
        """
        self.binary(kernel, problem.dtype)
        return binaries(kernel, problem, operands, self._target)


def compile_sources(sources: Iterable[Source], target: str) -> int:
    """Compile translation units into the cache on disk, by as many processes as there are cores; count them."""
    needed = {one.digest: (one, target) for one in sources}
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for _ in pool.imap_unordered(_compile_one, needed.values(), chunksize=4):
            pass
    return len(needed)


def _compile_one(asked: tuple[Source, str]) -> None:
    compile_source(*asked)


def _binary(package: str, constants: tuple[tuple[str, int], ...], dtype: str, target: str) -> Binary:
    kernel = _KERNELS[package].with_config(Config(constants))
    return compile_source(generate(kernel, ELEMENTWISE[dtype]), target)


def _compile(package: str, constants: tuple[tuple[str, int], ...], dtype: str, target: str) -> None:
    _binary(package, constants, dtype, target)
