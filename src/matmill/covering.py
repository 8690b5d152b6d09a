"""The covering set: the few tiles that the choice of a kernel for a product is among, by GPU, element type and layout.

They are those with which no product of several thousand loses much predicted time against all tiles that there are:
``benchmarks/cover.py`` finds them and writes ``covering.json``. docs/cost-models.md says how many they are, and what
they lose. What has no set (another GPU, type or precision, batch-invariant sums) is chosen among all tiles.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from matmill.arch import Arch
from matmill.config import Tiles
from matmill.dtypes import BF16
from matmill.lowering import NARROW, is_long
from matmill.problem import Gemm

#: Bytes to which rows or columns are aligned where vectors load them.
_ALIGNED = 16


def layout_class(problem: Gemm) -> str:
    """Name what tiles depend on in the layouts of A and B: whether rows are contiguous, or columns, and unaligned ones.

    >>> layout_class(Gemm(2, 3, 4)), layout_class(Gemm(2, 3, 4, b_strides=(1, 5), b_align=4))
    ('nn', 'nt unaligned')
    """
    orders = ("t" if abs(row) < abs(column) else "n" for row, column in (problem.a_row_col, problem.b_row_col))
    return "".join(orders) + (" unaligned" if min(problem.a_align, problem.b_align) < _ALIGNED else "")


def type_class(problem: Gemm) -> str:
    """Name the element type, with the precision where it is not the default. The models know no bfloat16 from float16.

    >>> type_class(Gemm(2, 3, 4, BF16)), type_class(Gemm(2, 3, 4, precision="tf32"))
    ('float16', 'float32 tf32')
    """
    name = "float16" if problem.dtype is BF16 else problem.dtype.name
    return name if problem.precision == "default" else f"{name} {problem.precision}"


#: The most of the shorter side of D, and of k, by which kernels differ most.
_SIDES, _DEPTHS = (16, 64, NARROW), (64, 160, 512)


def size_class(problem: Gemm) -> str:
    """Name what decides between kernels in the sizes: a batch, the sides of D, and a k that is short, or long for D.

    >>> size_class(Gemm(4096, 100, 4096)), size_class(Gemm(8, 8, 8, batch=9)), size_class(Gemm(200, 200, 65))
    ('k n128 wide', 'batch k64 n16', 'k160 n wide')
    """
    shorter, longer = sorted((problem.m, problem.n))
    side = next((str(most) for most in _SIDES if shorter <= most), "")
    depth = "long" if is_long(problem) else next((f"k{most}" for most in _DEPTHS if problem.k <= most), "k")
    return ("batch " if problem.batch > 1 else "") + f"{depth} n{side}" + (" wide" if longer > NARROW else "")


def covering(problem: Gemm, arch: Arch) -> Mapping[str, Tiles] | None:
    """Return the tiles that a product's kernel is chosen among, by the kernel's entry; None where all are considered.

    They are those that both its layout and its sizes allow. A tile has the values of the constants that
    ``Production.tile`` names. Kernels that are never much faster for products of such sizes have none; those that no
    set knows yet are not among the keys.
    """
    if problem.slice_k:
        return None
    return _tiles(arch.target, type_class(problem), layout_class(problem), size_class(problem))


@cache
def _tiles(target: str, elements: str, layout: str, size: str) -> Mapping[str, Tiles] | None:
    document = _document()
    own = document["sets"].get(target, {}).get(elements)
    if own is None or layout not in own["layouts"]:
        return None
    by_layout = own["layouts"][layout]
    by_size = own["sizes"].get(size, by_layout)
    table = document["tiles"]
    return {
        entry: frozenset(
            tuple(tiles[number]) for number in by_layout.get(entry, ()) if number in by_size.get(entry, ())
        )
        for entry, tiles in table.items()
    }


@cache
def _document() -> Any:
    return json.loads(files("matmill").joinpath("covering.json").read_text(encoding="utf-8"))
