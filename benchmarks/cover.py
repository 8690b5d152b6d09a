"""The covering set: the fewest tiles among which no product loses much predicted time, for each kind of GPU and type.

    python benchmarks/cover.py                                  # all, tens of minutes
    python benchmarks/cover.py --arch h100,h200 --type float32  # one set: the others stay as they are
    python benchmarks/cover.py --check                          # what fresh products lose with the sets there are

Draws products of every size and layout at random, like those of programs among them, predicts every legal
configuration, and covers the products greedily: the tile that serves most of those left comes next. A tile serves a
product that it computes within 5% of the time of the best one, or within 1% where that is long: then those that were
not drawn, which a second draw stands for, mostly stay within 8%. Writes ``src/matmill/covering.json``, which
``matmill.covering`` reads, and what it counted to ``benchmarks/results/cover.json``. Needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, isnan
from operator import itemgetter
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from lab.gemm.shapes import packed
from matmill.arch import ARCHES, get
from matmill.choose import ALIKE, call_seconds, choose, considered
from matmill.config import Columns
from matmill.covering import layout_class, size_class
from matmill.dtypes import ALL, F32
from matmill.errors import IllegalConfigError
from matmill.kernel import AuxLaunch, Kernel
from matmill.kernels.inner import INNER
from matmill.kernels.thin import THIN
from matmill.lowering import NARROW
from matmill.problem import ACTIVATIONS, Epilogue, Gemm
from matmill.registry import PRODUCTION

ROOT = Path(__file__).resolve().parents[1]
SETS, RECORD = ROOT / "src" / "matmill" / "covering.json", ROOT / "benchmarks" / "results" / "cover.json"
#: The most that a tile may lose on a product that it serves, and what fresh products are counted against.
WITHIN, LIMIT = 0.05, 0.08
#: The same for products that take long: what they lose is worth another kernel.
LONG, LONG_WITHIN = 50e-6, 0.01
#: Configurations that take so many times as long as the best are not looked at, unless they take less than a call.
FAR, SOON = 2.0, 12e-6
#: What products of a size may lose in the mean without a kernel, and the fewest that say so.
MEAN, ENOUGH = 0.015, 40
#: Sizes that are drawn seldom get so many products, of at most so many draws for each of all products.
SEVERAL, DRAWS = 60, 30
#: Widths of layers and numbers of rows of programs, sides of small matrices, and the most FLOP and elements.
WIDTHS = (512, 768, 1024, 1280, 1536, 2048, 2304, 2560, 3072, 3584, 4096, 5120, 6144, 8192, 11008, 14336, 16384)
ROWS, SIDES = (128, 256, 512, 1024, 2048, 4096, 8192), (16, 32, 49, 64, 80, 96, 128, 197, 256, 512)
MOST_FLOPS, MOST_OUTPUTS, MOST_INPUTS = 4e12, 2**29, 2**30
FEW = (1, 2, 4, 8, 16, 32, 64, 128)
KINDS = (*("any", "aligned") * 2, "batch", "small", "square", "long", "rows", "columns", "short", "gradient", "program")
TYPES = ("float16", "float32", "float64", "float32 tf32")


def drawn(draw: random.Random, elements: str) -> Gemm:
    """Draw a product of a type (:func:`matmill.covering.type_class`) that is neither too large nor empty."""
    name, _, precision = elements.partition(" ")
    while True:
        (m, n, k, batch), layouts = _sizes(draw, draw.choice(KINDS))
        if 2 * batch * m * n * k > MOST_FLOPS or batch * m * n > MOST_OUTPUTS or batch * (m + n) * k > MOST_INPUTS:
            continue
        problem = packed(m, n, k, ALL[name], batch=batch, layouts=layouts)
        problem = replace(problem, precision=precision or "default")
        end = draw.random()
        if end < 0.08:
            return replace(problem, has_c=True)
        if end < 0.16:
            return replace(problem, epilogue=Epilogue("row", 1, draw.choice((None, *ACTIVATIONS[:2]))))
        if end < 0.2 and problem.dtype.wider is F32:
            return replace(problem, out_dtype=F32, d_align=min(16, 2 * problem.d_align))
        return problem


def _sizes(draw: random.Random, kind: str) -> tuple[tuple[int, int, int, int], str]:
    """Draw m, n, k, a batch, and the layouts of A and B."""
    layouts = draw.choice("nnt") + draw.choice("nt")
    m, n, k = _size(draw, 0, 13.5), _size(draw, 0, 13.5), _size(draw, 0, 13.5)
    side = max(8, _size(draw, 5, 13.5) // 8 * 8)
    wide, deep, rows = draw.choice(WIDTHS), draw.choice(WIDTHS), draw.choice((draw.randint(1, 8192), *ROWS))
    few = draw.choice((draw.randint(1, 256), *FEW))
    narrow = [draw.choice((_size(draw, 0, 7.1), draw.randint(1, NARROW), NARROW)) for _ in "mn"]
    extents = {
        "any": (m, n, k),
        "aligned": (max(8, m // 8 * 8), max(8, n // 8 * 8), max(8, k // 8 * 8)),
        "square": (side, side, side),
        "long": (narrow[0], narrow[1], _size(draw, 9, 21)),
        "small": (draw.choice(SIDES), draw.choice(SIDES), draw.choice(SIDES)),
        "batch": (_size(draw, 2, 9), _size(draw, 2, 9), _size(draw, 2, 9)),
        "rows": (few, wide, deep),
        "columns": (wide, few, deep),
        "short": (_size(draw, 5, 17), _size(draw, 3, 12), draw.choice((_size(draw, 0, 9), 8, 16, 32, 64, 128))),
        "gradient": (wide, deep, draw.choice((_size(draw, 8, 16), *ROWS[2:]))),
        "program": (rows, wide, deep),
    }[kind]
    layouts = {"gradient": "tn", "program": "n" + layouts[1]}.get(kind, layouts)
    return (*extents, _size(draw, 1, 15) if kind in {"batch", "small"} else 1), layouts


def _size(draw: random.Random, least: float, most: float) -> int:
    """Draw a size between two powers of two, each factor as probable as any other."""
    return int(2 ** draw.uniform(least, most))


#: Kernels of few products, whatever their layout.
POOLED = {INNER.entry, THIN.entry}

Tile = tuple[str, tuple[int, ...]]  # the kernel's entry and its constants


class Legal(NamedTuple):
    """A legal configuration of a product: its tile, what is compiled for it, and predicted seconds."""

    tile: Tile
    kernels: frozenset[Any]
    seconds: float
    call: float


def choice(legal: Sequence[Legal]) -> Legal:
    """Return what the chooser takes: the least seconds among calls that are about as fast as the fastest."""
    least = min(one.call for one in legal)
    return min((one for one in legal if one.call <= ALIKE * least), key=lambda one: (one.seconds, one.call))


@dataclass(frozen=True)
class Product:
    """A drawn product: its classes, legal configurations that are not far slower than the best, and the best seconds.

    ``call`` are the seconds of the fastest call, ``space`` is the number of all configurations.
    """

    layout: str
    size: str
    legal: tuple[Legal, ...]
    best: float
    call: float
    space: int

    def choice(self, tiles: Collection[Tile] | None = None) -> Legal:
        """Return what the chooser takes of all, or among ``tiles``; of all too if those are far slower or illegal."""
        return choice([one for one in self.legal if tiles is None or one.tile in tiles] or self.legal)

    def loss(self, sets: Sets) -> float:
        """Return the share of the best time that the choice among some tiles loses, FAR where none is about as fast."""
        tiles = sets.among(self)
        if not any(one.tile in tiles for one in self.legal):
            return FAR
        return max(0.0, self.choice(tiles).seconds / self.best - 1)

    def among(self, tiles: Collection[Tile]) -> Product:
        """Return the product with legal configurations of some tiles alone, and the same best time."""
        return replace(self, legal=tuple(one for one in self.legal if one.tile in tiles))

    def of_entries(self, entries: Collection[str]) -> Product:
        """Return the product with legal configurations of some kernels alone, and the same best time."""
        return replace(self, legal=tuple(one for one in self.legal if one.tile[0] in entries))

    def losses(self) -> dict[Tile, float]:
        """Return the share of the best choice's time that each tile which may replace it loses."""
        result: dict[Tile, float] = {}
        for one in self.legal:
            if one.call <= ALIKE * self.call:
                result[one.tile] = min(result.get(one.tile, inf), max(0.0, one.seconds / self.best - 1))
        return result

    @property
    def least_loss(self) -> float:
        """The least of :meth:`losses`."""
        return min(self.losses().values(), default=inf)


@lru_cache
def seeds(elements: str, count: int, first: int) -> list[int]:
    """Return the seeds of so many products, and of more whose sizes have few among these."""
    numbers: Counter[str] = Counter()
    result = []
    for seed in range(first, first + DRAWS * count):
        size = size_class(drawn(random.Random(seed), elements))  # noqa: S311 — no secrets
        if seed < first + count or numbers[size] < SEVERAL:
            numbers[size] += 1
            result.append(seed)
    return result


def judged(asked: tuple[int, str, str]) -> Product | None:
    """Draw the product of a seed for a type and predict it on a GPU; None where no kernel takes it."""
    seed, elements, name = asked
    problem, arch = drawn(random.Random(seed), elements), get(name)  # noqa: S311 — no secrets
    ranked: list[tuple[float, int, int, Columns]] = []
    for number, entry in enumerate(PRODUCTION):
        columns = considered(entry, problem, arch)
        with np.errstate(all="ignore"):  # models know legal configurations
            seconds = entry.predict(problem, columns, arch)
        ranked += [(each, number, index, columns) for index, each in enumerate(seconds) if not isnan(each)]
    legal: list[Legal] = []
    most = inf
    for each, number, index, columns in sorted(ranked, key=itemgetter(0, 1, 2)):
        if each > most:
            break
        kernel = PRODUCTION[number].kernel.with_config(columns.config(index))
        if kernel.why_not(problem, arch) is None:
            most = min(most, max(FAR * each, SOON))
            tile = kernel.entry, tuple([kernel.config.get(constant) for constant in PRODUCTION[number].tile])
            legal.append(Legal(tile, _compiled(kernel, problem), each, call_seconds(kernel, problem, each)))
    if not legal:
        return None
    best, call = choice(legal).seconds, min(one.call for one in legal)
    return Product(layout_class(problem), size_class(problem), tuple(legal), best, call, len(ranked))


def _compiled(kernel: Kernel[Gemm], problem: Gemm) -> frozenset[Any]:
    """Return what tells the programs of a kernel's launches from all others of its type."""
    aux: list[AuxLaunch[Gemm]] = [
        one.of_problem(problem, kernel.config)
        for one in (*kernel.before, *(() if kernel.counts(problem) else kernel.after))
        if one.needed is None or one.needed(problem, kernel.config)
    ]
    return frozenset([(kernel.entry, kernel.config.constants), *((one.entry, one.config.constants) for one in aux)])


def cover(products: Sequence[Product]) -> list[Tile]:
    """Return tiles that serve all products, greedily: that which serves most of those left comes next."""
    served: dict[Tile, set[int]] = defaultdict(set)
    for index, product in enumerate(products):
        losses = product.losses()
        most = max(LONG_WITHIN if product.best > LONG else WITHIN, min(losses.values()))
        for tile, loss in losses.items():
            if loss <= most:
                served[tile].add(index)
    left, tiles = set(range(len(products))), []
    while left:
        best = max(served, key=lambda tile: (len(served[tile] & left), tile))
        tiles.append(best)
        left -= served.pop(best)
    return tiles


def pooled(sets: Mapping[str, Sequence[Tile]]) -> dict[str, list[Tile]]:
    """Return the sets with the tiles of kernels of few products for every layout: these are drawn too seldom."""
    every = {tile for tiles in sets.values() for tile in tiles if tile[0] in POOLED}
    return {layout: sorted({*tiles, *every}) for layout, tiles in sets.items()}


@dataclass(frozen=True)
class Sets:
    """The tiles that a choice is among: those that both the layout and the size of a product allow."""

    layouts: Mapping[str, Collection[Tile]]
    sizes: Mapping[str, Collection[Tile]]

    @classmethod
    def of(cls, products: Sequence[Product]) -> Sets:
        """Find the sets that cover products: the kernels of a size first, tiles by layout, and of these by size."""
        by_size = _grouped(products, "size")
        entries = {size: needed(own) for size, own in by_size.items()}
        fewer = [product.of_entries(entries[product.size]) for product in products]
        layouts = pooled({layout: cover(own) for layout, own in _grouped(fewer, "layout").items()})
        fewer = [product.among(layouts[product.layout]) for product in fewer]
        every = {tile for tiles in layouts.values() for tile in tiles}
        return cls(
            layouts,
            {
                size: {product.choice().tile for product in own}
                if len(own) >= ENOUGH
                else [tile for tile in every if tile[0] in entries[size]]
                for size, own in _grouped(fewer, "size").items()
            },
        )

    def among(self, product: Product) -> frozenset[Tile]:
        """Return the tiles for a product."""
        tiles = frozenset(self.layouts.get(product.layout, ()))
        return tiles & set(self.sizes[product.size]) if product.size in self.sizes else tiles


def _grouped(products: Iterable[Product], name: str) -> dict[str, list[Product]]:
    groups: dict[str, list[Product]] = defaultdict(list)
    for product in products:
        groups[getattr(product, name)].append(product)
    return groups


def needed(products: Sequence[Product]) -> list[str]:
    """Return the kernels without which a product of a size loses too much, or all of them do in the mean."""
    chosen = Counter(product.choice().tile[0] for product in products)
    if len(products) < ENOUGH:
        return [entry.kernel.entry for entry in PRODUCTION]
    entries = sorted(chosen)
    for entry in sorted(entries, key=lambda entry: (chosen[entry], entry)):
        others = [one for one in entries if one != entry]
        lost = [product.of_entries(others).least_loss for product in products]
        within = (loss <= (LONG_WITHIN if one.best > LONG else LIMIT) for loss, one in zip(lost, products, strict=True))
        if all(within) and mean(lost) <= MEAN:
            entries = others
    return entries


def counted(products: Sequence[Product], sets: Sets) -> dict[str, Any]:
    """Count configurations, tiles and compiled kernels, before and after, and what is lost."""
    choices = [(one.choice(), one.choice(sets.among(one))) for one in products]
    before, after = ({kernel for pair in choices for kernel in pair[which].kernels} for which in (0, 1))
    every = {kernel for product in products for one in product.legal for kernel in one.kernels}
    lost = [one.loss(sets) for one in products]
    return {
        "products": len(products),
        "configurations": _mean(one.space for one in products),
        "tiles": len({one.tile for product in products for one in product.legal}),
        "tiles of the set": len({tile for tiles in sets.layouts.values() for tile in tiles}),
        "kernels": len(every),
        "chosen among all": len(before),
        "chosen among the set": len(after),
        "by entry": {
            entry: [len({one for one in group if one[0] == entry}) for group in (every, before, after)]
            for entry in sorted({entry for entry, _ in every})
        },
        "mean loss": _mean(lost),
        "largest loss": round(max(lost), 4),
    }


def lost(asked: tuple[int, str, str]) -> float | None:
    """Return what the choice for the product of a seed loses with the sets that there are; None where no kernel is."""
    seed, elements, name = asked
    problem = drawn(random.Random(seed), elements)  # noqa: S311 — no secrets
    try:
        best, own = (choose(problem, name, exhaustive=whole).predicted_seconds for whole in (True, False))
    except IllegalConfigError:
        return None
    return max(0.0, own / best - 1)


def checked(losses: Sequence[float]) -> dict[str, Any]:
    """Return what fresh products lose."""
    over = sum(one > LIMIT for one in losses)
    largest = round(max(losses), 4)
    return {"products": len(losses), "mean loss": _mean(losses), "largest loss": largest, f"over {LIMIT:.0%}": over}


def _mean(values: Iterable[float]) -> float:
    return round(mean(values), 4)


def written(document: Mapping[str, Any], target: str, elements: str, sets: Sets) -> dict[str, Any]:
    """Return the file's document with one target's sets of a type replaced; each tile is written once, by kernel."""
    table = document["tiles"]
    every = {
        (name, own, kind, key): [(entry, tuple(table[entry][number])) for entry in numbers for number in numbers[entry]]
        for name, types in document["sets"].items()
        for own, kinds in types.items()
        for kind, classes in kinds.items()
        for key, numbers in classes.items()
    }
    every = {key: tiles for key, tiles in every.items() if key[:2] != (target, elements)}
    for kind in ("layouts", "sizes"):
        every |= {(target, elements, kind, key): list(tiles) for key, tiles in getattr(sets, kind).items()}
    result: dict[str, Any] = {"tiles": defaultdict(list), "sets": {}}
    for entry, constants in sorted({tile for tiles in every.values() for tile in tiles}):
        result["tiles"][entry].append(constants)
    for (name, own, kind, key), tiles in sorted(every.items()):
        kinds = result["sets"].setdefault(name, {}).setdefault(own, {})
        numbers = kinds.setdefault(kind, {}).setdefault(key, defaultdict(list))
        for entry, constants in sorted(tiles):
            numbers[entry].append(result["tiles"][entry].index(constants))
    return result


def _text(document: Mapping[str, Any]) -> str:
    """Return the document with a line for each kernel's tiles, and for each type of a target."""
    tiles = ",\n  ".join(f'"{entry}": {_compact(own)}' for entry, own in document["tiles"].items())
    sets = ",\n  ".join(
        f'"{target}": {{\n   ' + ",\n   ".join(f'"{name}": {_compact(own)}' for name, own in types.items()) + "}"
        for target, types in document["sets"].items()
    )
    return f'{{"tiles": {{\n  {tiles}}},\n "sets": {{\n  {sets}}}}}\n'


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def main() -> None:
    """Find the sets that the arguments name, write them, and count what fresh products lose with them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", help="GPUs, whose targets get new sets (default: all that have some)")
    parser.add_argument("--type", help=f"types, of {', '.join(TYPES)} (default: all)")
    parser.add_argument("--count", type=int, default=5000, help="products of a type and target, default %(default)s")
    parser.add_argument("--fresh", type=int, default=1000, help="products to count losses of, default %(default)s")
    parser.add_argument("--check", action="store_true", help="find no sets: count losses with those that there are")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes, default %(default)s")
    arguments = parser.parse_args()
    known = json.loads(SETS.read_text(encoding="utf-8"))["sets"]
    wanted = [get(name).target for name in arguments.arch.split(",")] if arguments.arch else list(known)
    types = arguments.type.split(",") if arguments.type else TYPES
    for find in (False,) if arguments.check else (True, False):
        # Other processes the second time, which read the new sets.
        with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
            for target, elements in ((target, elements) for target in dict.fromkeys(wanted) for elements in types):
                names = [arch.name for arch in ARCHES.values() if arch.target == target]
                first = arguments.seed * 10**6
                fresh = range(first + 9 * 10**5, first + 9 * 10**5 + arguments.fresh)
                chosen = seeds(elements, arguments.count, first) if find else fresh
                asked = [(seed, elements, names[seed % len(names)]) for seed in chosen]
                results = [one for one in pool.map(judged if find else lost, asked, chunksize=50) if one is not None]
                if results:
                    _record(target, elements, results, {"seed": arguments.seed})


def _record(target: str, elements: str, results: list[Any], how: Mapping[str, Any]) -> None:
    """Write the sets of judged products and their counts, or else the losses of fresh ones."""
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    own = record.setdefault(target, {}).setdefault(elements, {})
    if isinstance(results[0], Product):
        sets = Sets.of(results)
        document = json.loads(SETS.read_text(encoding="utf-8"))
        SETS.write_text(_text(written(document, target, elements, sets)), encoding="utf-8")
        own |= {**how, **counted(results, sets)}
    else:
        own["fresh"] = checked(results)
    RECORD.write_text(json.dumps(record, indent=1, default=np.generic.item) + "\n", encoding="utf-8")
    print(target, elements, own, flush=True)


if __name__ == "__main__":
    main()
