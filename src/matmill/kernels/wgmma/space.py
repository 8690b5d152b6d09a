"""Configurations of the warp-specialised kernel worth considering for a problem: tiles, ways to load A and B, slices.

The constants of all tiles depend on few facts about a problem (:class:`~matmill.kernels.wgmma.tiles.Facts`), not on its
extents: they are kept, and the extents say which of them are worth considering.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from matmill.arch import Arch
from matmill.config import Columns, Config, Tiles
from matmill.dtypes import BF16, F16
from matmill.kernel import ceil_div
from matmill.kernels.pieces import METHODS, again_constants, in_pieces
from matmill.kernels.shared.exchange import exchanged
from matmill.kernels.shared.model import either
from matmill.kernels.splitk import batch_invariant_slices
from matmill.kernels.wgmma.tiles import (
    SHAPES,
    Facts,
    Shape,
    clusters_at_once,
    configured,
    constants,
    facts,
    fills_boxes,
    straddling,
    suits,
    unaligned,
    why_not_fragments,
    why_not_fragments_of_shape,
    why_not_wgmma,
)
from matmill.lowering import is_long
from matmill.precision import SHORTEST_K
from matmill.problem import Gemm

#: The constants that tell one tile from another, and A's way to the tensor cores.
TILE = ("BM", "BN", "CONSUMERS", "PINGPONG", "CLUSTER_M", "CLUSTER_N", "CLUSTER_K", "A_IN_REGISTERS")
#: The fewest k-steps of a split-K slice: with fewer, filling the pipeline dominates.
_LEAST_STEPS = 4
#: The longest k of products of few outputs, which the inner kernel is for: beyond it a cluster's slices are too few.
_LONGEST_K = 2**15
#: Slices of k that a cluster may have, all of which run at the same time.
_CLUSTERS_K = (2, 4, 8)


def space(problem: Gemm, arch: Arch) -> tuple[Config, ...]:
    """Return every configuration worth considering.

    They are tiles, with A and B exchanged or not, without and (for few tiles) with split-K. Float32 elements are split
    into pieces by each method that the precision allows.

    Operands that TMA cannot read are repacked, or A goes through registers; those whose rows straddle cache lines may
    be repacked. There is none for few outputs and a very long k, which the inner kernel is for. Where the tensor cores
    do not take the problem there is only one, so that the reason is given once.
    """
    return among(problem, arch, None).configs


def among(problem: Gemm, arch: Arch, tiles: Tiles | None) -> Columns:
    """Return :func:`space`, or its configurations that have one of ``tiles``."""
    for_inner = is_long(problem) and problem.plain and problem.k > _LONGEST_K
    methods = [1 + METHODS.index(by) for by in problem.split_methods]
    if (problem.dtype not in (F16, BF16) and problem.precision != "tf32" and not methods) or for_inner:
        return Columns(())
    if (
        why_not_wgmma(problem, arch) is not None
        or problem.k < (SHORTEST_K if methods else 1)
        or (problem.slice_k and methods)
    ):
        return Columns((configured(SHAPES[0], problem, arch, pieces=methods[0] if methods else 0),))
    ways = tuple(_way(problem, swap, pieces) for swap, pieces in product((False, True), methods or (0,)))
    tiled, which = _tiled(ways, arch.sms, tiles)
    if not len(tiled):
        return tiled
    bm, bn, rows, columns, blocks, at_once, cluster_k, swapped, split = tiled.table(_of_tile)
    split, swapped = split > 0, swapped > 0
    m, n = either(swapped, problem.n, problem.m), either(swapped, problem.m, problem.n)
    worth = suits(bm, bn, m, n)
    alone = problem.precision != "default" or problem.slice_k > 0
    if alone and tiles is None:  # no other kernel has it: tiles that are larger than D will do
        worth |= np.bincount(which, worth, len(ways))[which] == 0
    most = ceil_div(problem.k, tiled["BK"]) // _LEAST_STEPS
    blocks = ceil_div(m, rows) * ceil_div(n, columns) * (problem.batch * blocks)
    slices = np.where(split, np.minimum(arch.sms // blocks, most), 1)
    if problem.slice_k:
        own = batch_invariant_slices(problem)
        slices = np.where(split, own, 1)
        worth &= (cluster_k == 1) | (cluster_k == own)
    worth &= (slices > 1) | ~split
    worth &= ((cluster_k <= most) & (blocks <= at_once)) | (cluster_k == 1)
    (chosen,) = worth.nonzero()
    return tiled.take(chosen, SPLIT_K=slices[chosen])


def _of_tile(tiled: Columns) -> tuple[Any, ...]:
    """Return what :func:`among` needs of tiles whatever the extents, in the order in which it takes them apart."""
    bm, bn, cluster_m, cluster_n, cluster_k = (
        tiled[name] for name in ("BM", "BN", "CLUSTER_M", "CLUSTER_N", "CLUSTER_K")
    )
    at_once = clusters_at_once(tiled["SMS"], cluster_k)
    sides = bm, bn, bm * cluster_m, bn * cluster_n, cluster_m * cluster_n
    return *sides, at_once, cluster_k, tiled["EXCHANGED"], tiled["PARTIAL_SUMS"]


def _variants(shape: Shape) -> Iterator[tuple[Shape, bool, tuple[int, ...]]]:
    """Yield a shape whole, with a split k, and with slices in clusters, each with its TILE but for the last."""
    counts = _CLUSTERS_K if not shape.pingpong and shape.cluster == (1, 1) else ()
    clusters = ((replace(shape, cluster_k=count), False) for count in counts)
    for tile, split in ((shape, False), (shape, True), *clusters):
        pair = tile.consumers, int(tile.pingpong)
        yield tile, split, (tile.bm, tile.bn, *pair, *tile.cluster, tile.cluster_k)


_VARIANTS = {shape: tuple(_variants(shape)) for shape in SHAPES}


class _Way(NamedTuple):
    """A way to launch a problem: all that its tiles depend on but the extents.

    ``again`` are the constants of splitting A and B in the kernel, ``repacks`` the operands that may be repacked, and
    ``fragments`` tells whether A may go through registers.
    """

    facts: Facts
    swap: bool
    pieces: int
    again: tuple[tuple[str, int], ...]
    repacks: tuple[tuple[str, ...], ...]
    fragments: bool

    def operands(self, shape: Shape) -> Iterator[tuple[tuple[str, ...], bool]]:
        """Yield the ways in which a shape may load A and B: what is repacked, and whether A goes through registers."""
        yield from ((repack, False) for repack in self.repacks)
        if self.fragments and why_not_fragments_of_shape(shape) is None:
            yield self.repacks[0][1:], True

    def configs(self, sms: int, tiles: Tiles | None) -> Iterator[Config]:
        """Yield every tile with every way to load A and B: whole, with a split k, and with slices in clusters.

        With ``tiles`` they are those among these.
        """
        for shape, variants in _VARIANTS.items():
            if not (self.facts.b_along_k or fills_boxes(shape.bn)):
                continue
            for repack, in_registers in self.operands(shape):
                repacked = ((f"REPACK_{name}", int(name in repack)) for name in "AB")
                launch = tuple(sorted((("EXCHANGED", int(self.swap)), ("SMS", sms), *repacked)))
                for tile, split, key in variants:
                    if (split and self.pieces) or (tiles is not None and (*key, int(in_registers)) not in tiles):
                        continue
                    config = constants(tile, self.facts, split, in_registers, self.pieces)
                    config = config.replace(**dict(self.again)) if self.again else config
                    yield Config(config.constants, launch)


def _way(problem: Gemm, swap: bool, pieces: int) -> _Way:  # noqa: FBT001 — one of a product of ways
    launched = exchanged(problem) if swap else problem
    again = tuple(again_constants(launched).items()) if pieces else ()
    launched = in_pieces(launched, METHODS[pieces - 1]) if pieces else launched
    needed = unaligned(launched)
    repacks = tuple(dict.fromkeys((needed, tuple(sorted({*needed, *straddling(launched)})))))
    fragments = "A" in needed and why_not_fragments(launched) is None
    return _Way(facts(launched, swap), swap, pieces, again, repacks, fragments)


@lru_cache(maxsize=1024)
def _tiled(ways: tuple[_Way, ...], sms: int, tiles: Tiles | None) -> tuple[Columns, Any]:
    """Return the configurations of all ways, without slices, and the number of each one's way."""
    parts = [tuple(way.configs(sms, tiles)) for way in ways]
    which = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return Columns([config for part in parts for config in part]), which
