"""The order in which kernels add terms, by their configurations: sums as nested tuples of what is added at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, TypeAlias

from matmill.dtypes import F32, F64
from matmill.emulator.arith.tensor_core import rule_of
from matmill.kernel import Kernel, ceil_div
from matmill.kernels.splitk import reduction_ways
from matmill.kernels.wgmma.tiles import K_BYTES
from matmill.problem import Gemm
from matmill.runtime.gpu import GPU
from matmill.testing.products.order import Tree, leaves
from support.strided import H200, Array
from support.strided_product import StridedProduct

Node: TypeAlias = "int | tuple[Any, ...] | None"


def in_order(parts: Sequence[Node]) -> Node:
    """Return a sum of all parts, one after the other; None is an empty one."""
    some = [part for part in parts if part is not None]
    return reduce(lambda total, part: (total, part), some) if some else None


def at_once(terms: Sequence[int], group: int) -> Node:
    """Return the sum of a tensor core that adds so many terms and the sum so far at once."""
    total: Node = None
    for first in range(0, len(terms), group):
        some = tuple(terms[first : first + group])
        total = some if total is None else (total, *some)
        if len(total) == 1:
            total = total[0]
    return total


def by_halves(parts: Sequence[Node]) -> Node:
    """Return the sum of parts whose first half is added to the second one, until one is left."""
    some = list(parts)
    while len(some) > 1:
        half = len(some) // 2
        some = [in_order(pair) for pair in zip(some[:half], some[half:], strict=True)]
    return some[0]


def in_ways(parts: Sequence[Node], ways: int) -> Node:
    """Return the sum of partial sums by several threads, whose sums are added in order."""
    return in_order([in_order(parts[way::ways]) for way in range(ways)])


def as_tree(node: Node, among: Sequence[int] | None = None) -> Tree | None:
    """Return the sum as probing does, or what it is of the terms ``among``."""
    if node is None or isinstance(node, int):
        return node if among is None or node in among else None
    children = [tree for each in node if (tree := as_tree(each, among)) is not None]
    if len(children) < 2:
        return children[0] if children else None
    first, *others = sorted(children, key=lambda tree: min(leaves(tree)))
    return ((first, *others),) if isinstance(first, int) else (*first, tuple(others))


def terms_of(kernel: Kernel[Gemm], problem: Gemm) -> Node:
    """Return the order in which a kernel of products adds the terms of k."""
    return _ORDERS[kernel.entry](kernel, problem)


def _split(kernel: Kernel[Gemm], problem: Gemm, of_slice: Callable[[range], Node]) -> Node:
    """Return the sum of slices of whole k-tiles, as blocks of grid.z have them."""
    config, k = kernel.config, problem.k
    slices, step = config["SPLIT_K"], config["BK"]
    own = ceil_div(ceil_div(k, step), slices) * step
    parts = [of_slice(range(min(first * own, k), min((first + 1) * own, k))) for first in range(slices)]
    ways = int(reduction_ways(problem, config))
    return in_ways(parts, ways) if ways else parts[0]


def _gemm(kernel: Kernel[Gemm], problem: Gemm) -> Node:
    config = kernel.config
    own = config["BK"] // config["SLICES"]

    def of_slice(terms: range) -> Node:
        groups = [[k for k in terms if (k - terms.start) % config["BK"] // own == s] for s in range(config["SLICES"])]
        return in_order([in_order(group) for group in groups])

    return _split(kernel, problem, of_slice)


def _gemm_slices(_kernel: Kernel[Gemm], problem: Gemm) -> Node:
    firsts = range(0, problem.k, problem.slice_k)
    return in_order([in_order(range(first, min(first + problem.slice_k, problem.k))) for first in firsts])


def _mma_group(problem: Gemm) -> int:
    name = "tf32" if problem.dtype is F32 else "f16"
    return rule_of(H200.target, name, "f32").group


def _hgemm(kernel: Kernel[Gemm], problem: Gemm) -> Node:
    def of_slice(terms: range) -> Node:
        if problem.dtype is F64:
            return in_order(terms)
        if problem.dtype is F32:
            chunk = kernel.config["SUM_K"]
            chunks = [terms[first : first + chunk] for first in range(0, len(terms), chunk)]
            return in_order([at_once(chunk, _mma_group(problem)) for chunk in chunks])
        return at_once(terms, _mma_group(problem))

    return _split(kernel, problem, of_slice)


def _wgmma(kernel: Kernel[Gemm], problem: Gemm) -> Node:
    config = kernel.config
    step = 128 // problem.dtype.itemsize
    steps = ceil_div(problem.k, step)
    slices = max(config["SPLIT_K"], config["CLUSTER_K"])
    bounds = [min(steps * index // slices * step, problem.k) for index in range(slices + 1)]
    parts, product, chains = [], K_BYTES // problem.dtype.itemsize, config["CHAINS"]
    for first, last in pairwise(bounds):
        chunk = config["PROMOTED"] * step or max(last - first, 1)
        sums = [
            [term for term in range(at, min(at + chunk, last)) if (term - at) // product % chains == chain]
            for at in range(first, last, chunk)
            for chain in range(chains)
        ]
        parts.append(in_order([at_once(terms, _mma_group(problem)) for terms in sums]))
    ways = int(reduction_ways(problem, config)) if config["CLUSTER_K"] == 1 else 0
    return in_ways(parts, ways) if ways else in_order(parts)


def _short_k(_kernel: Kernel[Gemm], problem: Gemm) -> Node:
    terms = range(problem.k)
    return at_once(terms, _mma_group(problem)) if problem.dtype.itemsize == 2 else in_order(terms)


def _thin(kernel: Kernel[Gemm], problem: Gemm) -> Node:
    config = kernel.config
    lanes, warps, run = config["LANES_K"], config["WARPS_K"], config["RUN"]

    def of_slice(terms: range) -> Node:
        def of_lane(warp: int, lane: int) -> Node:
            first = terms.start + (warp * lanes + lane) * run
            period = warps * lanes * run
            return in_order(
                [k for start in range(first, terms.stop, period) for k in range(start, start + run) if k in terms]
            )

        return in_order([by_halves([of_lane(warp, lane) for lane in range(lanes)]) for warp in range(warps)])

    return _split(kernel, problem, of_slice)


def _inner(kernel: Kernel[Gemm], problem: Gemm) -> Node:
    config = kernel.config
    groups, blocks = config["BS"] // config["S"], config["SPLIT_K"]
    of_group = _inner_mma if config["MMA"] else _inner_staged if config["BK"] else _inner_direct
    parts = [
        _of_block([of_group(kernel, problem, b, g) for g in range(groups)], kernel, problem) for b in range(blocks)
    ]
    return in_ways(parts, 16) if kernel.workspace(problem) else parts[0]


def _of_block(groups: list[Node], kernel: Kernel[Gemm], problem: Gemm) -> Node:
    """Return the sum of what groups of threads have, which hold the same outputs (``inner/block_reduce.cuh``)."""
    config = kernel.config
    if 16 % config["S"] == 0:
        lanes = 32 // config["S"]
        return in_order([by_halves(groups[first : first + lanes]) for first in range(0, len(groups), lanes)])
    outputs = config["TM"] * config["TN"] * (2 if config["MMA"] else 1)
    room = config["SHARED_BYTES"] if config["BK"] else 0
    if len(groups) > 2 and config["BS"] * outputs * problem.dtype.accumulator.itemsize <= room:
        return in_order(groups)
    while len(groups) > 1:
        kept = ceil_div(len(groups), 2)
        groups = [in_order([*groups[index::kept]]) for index in range(kept)]
    return groups[0]


def _inner_direct(kernel: Kernel[Gemm], problem: Gemm, block: int, group: int) -> Node:
    """Return the sum of a thread that reads memory itself: pieces of V terms, few outputs those of a round first."""
    config, k = kernel.config, problem.k
    size, rounds, groups = config["V"], config["U"], config["BS"] // config["S"]
    first, step = block * groups + group, config["SPLIT_K"] * groups
    pieces = [range(at * size, at * size + size) for at in range(first, k // size, step)]
    whole = len(pieces) // rounds * rounds if config["TM"] * config["TN"] <= 4 else 0
    sums: list[Node] = [
        in_order([term for piece in pieces[at : at + rounds] for term in piece]) for at in range(0, whole, rounds)
    ]
    rest = [*(term for piece in pieces[whole:] for term in piece), *range(k // size * size + first, k, step)]
    return in_order([*sums, *(rest if size > 1 else rest[: len(pieces) - whole])])


def _inner_staged(kernel: Kernel[Gemm], problem: Gemm, block: int, group: int) -> Node:
    config, k = kernel.config, problem.k
    size, stage = config["V"], config["BK"]
    period = config["BS"] // config["S"] * size
    starts = [
        at + piece for at in range(block * stage, k, config["SPLIT_K"] * stage) for piece in range(0, stage, period)
    ]
    return in_order([term for at in starts for term in range(at + group * size, at + group * size + size) if term < k])


def _inner_mma(kernel: Kernel[Gemm], problem: Gemm, block: int, group: int) -> Node:
    """Return the sum of a group of warps: steps from zero, but for float64, which rounds as FMA does."""
    config, k = kernel.config, problem.k
    size, stage, k_groups = config["V"], config["BK"], config["U"]
    groups = config["BS"] // k_groups // config["S"]
    k_group, own = divmod(group, groups)
    loads = 2 if size == 1 else 1
    step = 4 * size * loads
    sums: list[Node] = []
    for at in range((block * k_groups + k_group) * stage, k, config["SPLIT_K"] * k_groups * stage):
        for start in range(at, at + stage, step * groups):
            # By lane: its terms of the step.
            lanes = [
                [
                    start + load * 4 * size * groups + (own * 4 + lane) * size + e
                    for load in range(loads)
                    for e in range(size)
                ]
                for lane in range(4)
            ]
            half = 2 if problem.dtype.itemsize == 2 else 1
            order = [
                lanes[lane][first + e]
                for first in range(0, size * loads, half)
                for lane in range(4)
                for e in range(half)
            ]
            some = [term for term in order if term < k]
            if problem.dtype is F64:
                sums += some
            else:
                # Which lane has a term does not matter to a tensor core: those of one mma are added at once.
                whole = 16 if half == 2 else 8
                total: Node = None
                for first in range(0, len(order), whole):
                    mma = tuple(term for term in order[first : first + whole] if term < k)
                    total = at_once(mma, whole) if total is None else (total, *mma) if mma else total
                sums.append(total)
    return in_order(sums)


_ORDERS: dict[str, Callable[[Kernel[Gemm], Gemm], Node]] = {
    "gemm": _gemm, "hgemm": _hgemm, "wgmma_gemm": _wgmma, "short_k": _short_k, "thin": _thin,
    "inner": _inner, "gemm_slices": _gemm_slices,
}  # fmt: skip


def product_of(
    kernel: Kernel[Gemm], product: StridedProduct, gpu: GPU | None = None
) -> Callable[[Array, Array], Array]:
    """Return a function of matrices of the product's sizes that runs the kernel, in the emulator or on a GPU."""

    def multiply(a: Array, b: Array) -> Array:
        product.arrays["A"][0, ...], product.arrays["B"][0, ...] = a, b
        if gpu is None:
            product.emulated(kernel, races=False)
        else:
            product.on_gpu(kernel, gpu)
        result: Array = product.arrays["D"][0].copy()
        return result

    return multiply
