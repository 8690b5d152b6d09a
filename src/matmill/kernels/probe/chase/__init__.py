"""Pointer chasing: the latency of a load from memory, L2, L1 or shared memory, depending on the size of the ring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matmill.config import Config
from matmill.kernel import GemmOperands, Geometry, Kernel, always
from matmill.launch import Argument

Ints: TypeAlias = "NDArray[np.integer[Any]]"

#: Bytes from one node of a ring in global memory to the next: a cache line, so that no load brings its neighbour.
LINE = 128
#: Words of the ring in shared memory.
WORDS = 1024
#: Bytes of a word of that ring.
WORD = 4


@dataclass(frozen=True)
class Chase:
    """``warm`` untimed loads, then ``trips`` timed rounds of ``LENGTH`` loads, starting at byte ``start``.

    The kernel writes two int64: the cycles, and the offset in bytes at which the chase ended.
    """

    trips: int
    start: int = 0
    warm: int = 0

    def steps(self, config: Config) -> int:
        """Return the number of all loads."""
        return self.warm + self.trips * config["LENGTH"]


def ring(nodes: int, seed: int) -> Ints:
    """Return the order in which a chase visits ``nodes`` nodes, each once per cycle: int64[nodes], random.

    >>> sorted(ring(4, seed=0).tolist())
    [0, 1, 2, 3]
    """
    return np.random.default_rng(seed).permutation(nodes)


def addresses(order: Ints, base: int) -> NDArray[np.uint64]:
    """Return the contents of global memory from ``base`` on: each node's first word is the address of its successor.

    uint64[nodes, LINE / 8]; the rest of a node is 0.
    """
    memory = np.zeros((len(order), LINE // 8), dtype=np.uint64)
    memory[order, 0] = base + LINE * np.roll(order, -1)
    return memory


def offsets(order: Ints) -> NDArray[np.uint32]:
    """Return the input of :data:`SHARED`: for each word of its ring, the offset of its successor in bytes."""
    words = np.empty(len(order), dtype=np.uint32)
    words[order] = WORD * np.roll(order, -1)
    return words


def ends_at(order: Ints, problem: Chase, config: Config, stride: int) -> int:
    """Return the offset in bytes at which the chase must end; ``stride`` is the distance of its nodes."""
    (at,) = np.flatnonzero(order == problem.start // stride)
    return int(order[(at + problem.steps(config)) % len(order)]) * stride


def _arguments(problem: Chase, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    return (operands.a, operands.d, np.int64(problem.start), np.int32(problem.warm), np.int32(problem.trips))


def _one_block(_problem: Chase, config: Config) -> Geometry:
    return Geometry(grid=(1, 1, 1), block=(config["THREADS"], 1, 1))


GLOBAL: Kernel[Chase] = Kernel(
    entry="chase_global",
    package=__name__,
    config=Config.of(LENGTH=32, BYPASS_L1=0, THREADS=1, WORDS=WORDS),
    geometry=_one_block,
    arguments=_arguments,
    why_not_config=always,
)

#: The same, bypassing L1.
BEYOND_L1: Kernel[Chase] = GLOBAL.with_config(GLOBAL.config.replace(BYPASS_L1=1))

SHARED: Kernel[Chase] = Kernel(
    entry="chase_shared",
    package=__name__,
    config=Config.of(LENGTH=32, BYPASS_L1=0, THREADS=128, WORDS=WORDS),
    geometry=_one_block,
    arguments=_arguments,
    why_not_config=always,
)
