"""Binaries of the inner kernel by the hundred: compiled in processes of their own while the GPU measures others."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Self

from matmill.compile import Binary, compile_source
from matmill.config import Config
from matmill.dtypes import ALL, DType
from matmill.kernels.inner import INNER
from matmill.source import generate

_Constants = tuple[tuple[str, int], ...]


class InnerCompiler:
    """Compiles the inner kernel for ``target`` in ``workers`` processes, or with 0 in this one when asked for a binary.

    What a process compiles comes back through the cache on disk. ``waited`` is how many seconds :meth:`binary` took in
    all, ``ordered`` how many binaries were asked for. A context manager; leaving it drops what nobody waits for.
    """

    def __init__(self, target: str, workers: int) -> None:
        self._target = target
        self._made: dict[tuple[_Constants, str], Future[None] | None] = {}
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

    def order(self, configs: Iterable[Config], dtype: DType) -> None:
        """Has the binaries of ``configs`` made, after those ordered before; returns at once."""
        for config in configs:
            key = (config.constants, dtype.name)
            if key not in self._made:
                self._made[key] = None if self._pool is None else self._pool.submit(_compile, *key, self._target)

    def wait(self) -> None:
        """Waits for all that was ordered. Raises what a compilation raised."""
        for future in self._made.values():
            if future is not None:
                future.result()

    def binary(self, config: Config, dtype: DType) -> Binary:
        """The binary of ``config``, waited for if need be."""
        begin = time.monotonic()
        self.order([config], dtype)
        future = self._made[config.constants, dtype.name]
        if future is not None:
            future.result()
        made = _binary(config.constants, dtype.name, self._target)
        self.waited += time.monotonic() - begin
        return made


def _binary(constants: _Constants, dtype: str, target: str) -> Binary:
    kind = ALL[dtype]
    return compile_source(generate(INNER.with_config(Config(constants)), kind), target)


def _compile(constants: _Constants, dtype: str, target: str) -> None:
    _binary(constants, dtype, target)
