"""Find products of which a library loses terms at the end of k, or anywhere: torch's, cuBLASLt's and matmill's.

    PYTHONPATH=src python benchmarks/library_tails.py --seconds 110 --out benchmarks/results/library_tails_h100.json
    PYTHONPATH=src python benchmarks/library_tails.py --device cpu --count 20  # without a GPU
    PYTHONPATH=src python benchmarks/library_tails.py --cublaslt /elsewhere/libcublasLt.so.13  # another one

Of each library, element type and layout the products with m = n of 8, 64 and 128 and k from 8192 to 16384 in steps of
8, and with a few longer k, in an order that a seed shuffles, as many as there is time for. Elements are 1 and -1, so
that every sum is exact, and chosen so that it shows a term that is lost, counted twice or never written: results are
NaN before. Of products that are wrong, counts of intervals of k show which terms are missing. Some products of normal
numbers, among them those that were wrong, are compared with float64.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product as pairs
from pathlib import Path
from typing import Any

from lab.cublaslt import CublasLt, Problem, library_path
from lab.records import by_line
from lab.tensors import random_operands
from matmill.bench.environment import describe
from matmill.dtypes import ALL
from matmill.settings import waiting_for_compiler
from matmill.testing.products.terms import in_words, miscounted

#: Sides of D, k, and k that are longer.
SIDES, LENGTHS, LONG = (8, 64, 128), range(8192, 16385, 8), (20008, 24584, 50008, 100008)
LAYOUTS = ("nn", "nt", "tn", "tt")
#: Products between two looks at what was wrong, which wait for the GPU; candidates of a heuristic.
_BETWEEN, _CANDIDATES = 32, 8
#: Of wrong products so many are described, and beside them every so many-th is compared with float64.
_DESCRIBED, _COMPARED_EVERY, _ROWS = 4, 256, 8
#: So many terms of one sign are missing to cancel the others.
_EXCESS = 37
#: Sums of normal numbers err by about sqrt(k) units of u |A| |B| at most, even where tensor cores truncate.
_ERRORS = 8.0

Sizes = tuple[int, int, int]
#: Products of ``a`` and ``b`` by name, each of which writes into ``out``.
Products = Iterable[tuple[str, Callable[[], object]]]


@dataclass(frozen=True)
class Library:
    """A library's products: ``of(a, b, out)`` yields one, or one for each of its algorithms.

    ``wide`` says that results of 16-bit elements are float32. ``share`` is how much of the time it gets beside others.
    One that is ``last`` begins with the products that were wrong by others.
    """

    name: str
    of: Callable[[Any, Any, Any], Products]
    dtypes: tuple[str, ...] = tuple(ALL)
    wide: bool = False
    share: float = 1.0
    last: bool = False


def libraries(torch: Any, device: str, path: str) -> tuple[list[Library], dict[str, object]]:
    """Return all libraries of this machine, and the versions of those that have one of their own."""
    import matmill  # noqa: PLC0415 — the usage needs no kernels

    linear = torch.nn.functional.linear
    halves = ("float16", "bfloat16")
    result = [
        Library("torch.mm", partial(_of_one, torch.mm)),
        Library("torch.nn.functional.linear", lambda a, b, out: [("", lambda: out.copy_(linear(a, b.t())))]),
    ]
    versions: dict[str, object] = {"torch": torch.__version__}
    if device != "cpu":
        result.append(
            Library(
                "torch.mm, float32 result",
                lambda a, b, out: [("", lambda: out.copy_(torch.mm(a, b, out_dtype=torch.float32)))],
                halves,
                wide=True,
            )
        )
        try:
            lt = CublasLt(path)
        except OSError as error:
            print(f"without cuBLASLt: {error}", flush=True)
        else:
            versions["cuBLASLt"] = lt.version
            named = partial(_of_cublaslt, lt)
            result += [
                Library("cuBLASLt, no algorithm named", partial(named, 0)),
                Library("cuBLASLt, float32 result", partial(named, 0), halves, wide=True),
                Library("cuBLASLt, each candidate", partial(named, _CANDIDATES), share=2.0),
            ]
    ours = partial(matmill.matmul, executor=None if device != "cpu" else "cpu")
    for name, options, dtypes in (("", {}, tuple(ALL)), (", float32 result", {"out_dtype": "float32"}, halves)):
        product = partial(_of_one, partial(ours, **options))
        result.append(Library(f"matmill.matmul{name}", product, dtypes, wide=bool(options), share=3.0, last=True))
    return result, versions


def _of_one(function: Callable[..., object], a: Any, b: Any, out: Any) -> Products:
    """Return a library's only algorithm."""
    return [("", partial(function, a, b, out=out))]


def _of_cublaslt(lt: CublasLt, most: int, a: Any, b: Any, out: Any) -> Products:
    """Yield the product without an algorithm, or with each of at most so many candidates."""
    torch: Any = importlib.import_module("torch")
    problem = Problem(lt, a, b, out)
    stream = torch.cuda.current_stream().cuda_stream
    try:
        for candidate in problem.candidates(most) if most else [None]:
            name = "" if candidate is None else json.dumps(problem.described(candidate))
            yield name, partial(problem.run, candidate, stream)
    finally:
        problem.close()


class Look:
    """A look at one library's products of one element type and layout."""

    def __init__(self, torch: Any, device: str, library: Library, dtype: str, layouts: str) -> None:
        self.torch, self.device, self.library, self.layouts = torch, device, library, layouts
        self.dtype = dtype
        self.result = "float32" if library.wide else dtype
        self.refused = 0
        self.down, self.across = (self.signs(max(SIDES), seed) for seed in (1, 2))

    def matrix(self, down: Any, across: Any, order: str) -> Any:
        """Return the outer product of two vectors, by rows (n) or columns (t)."""
        kind = getattr(self.torch, self.dtype)
        return (self.torch.outer(down, across) if order == "n" else self.torch.outer(across, down).t()).to(kind)

    def signs(self, count: int, seed: int) -> Any:
        """Return numbers that are 1 or -1, always the same for a seed."""
        generator = self.torch.Generator().manual_seed(seed)
        return (2.0 * self.torch.randint(0, 2, (count,), generator=generator) - 1).to(self.device)

    def out(self, m: int, n: int) -> Any:
        """Return a result that nothing was written to yet."""
        return self.torch.full((m, n), math.nan, dtype=getattr(self.torch, self.result), device=self.device)

    def wrong(self, sizes: Sizes, weights: Any) -> Iterator[tuple[str, Any]]:
        """Yield, by name of the algorithm, whether any element is wrong, as a tensor of one truth value.

        An element is the sum of ``weights``, which is exact, times its row's sign and its column's.
        """
        m, n, _ = sizes
        down, across = self.down[:m], self.across[:n]
        a, b = (
            self.matrix(down, weights, self.layouts[0]),
            self.matrix(self.torch.ones_like(weights), across, self.layouts[1]),
        )
        out = self.out(m, n)
        expected = (self.torch.outer(down, across) * weights.sum()).to(out.dtype)
        for name, run in self.library.of(a, b, out):
            out.fill_(math.nan)
            try:
                run()
            except RuntimeError:  # an algorithm may refuse what the heuristic offers it for
                self.refused += 1
            else:
                yield name, (out != expected).any()

    def patterns(self, k: int) -> list[Any]:
        """Return signs of terms whose sums are exact in the result's type, and miss any term that is lost.

        Where k itself is exact all are 1. Else both halves of k nearly cancel, or the outer and the inner quarters do:
        what slices of k lose at their ends does not cancel in both.
        """
        ones = self.torch.ones(k, device=self.device)
        if self.result in {"float32", "float64"}:
            return [ones]
        halves, quarters = ones.clone(), ones.clone()
        halves[: k // 2 - _EXCESS] = -1
        quarters[k // 4 : 3 * k // 4 - _EXCESS] = -1
        return [halves, quarters]

    def terms(self, sizes: Sizes, algorithm: str) -> str:
        """Return in words which terms of k a product does not have once."""
        m, n, k = sizes
        ones = self.torch.ones(max(m, n), device=self.device)

        def count(first: int, last: int) -> float:
            weights = self.torch.zeros(k, device=self.device)
            weights[first:last] = 1
            out = self.out(m, n)
            a = self.matrix(ones[:m], weights, self.layouts[0])
            b = self.matrix(self.torch.ones_like(weights), ones[:n], self.layouts[1])
            for name, run in self.library.of(a, b, out):
                if name == algorithm:
                    run()
            values = out.double().flatten()
            wrong = values[values != last - first]
            return float(wrong[0]) if len(wrong) else float(last - first)

        return in_words(miscounted(count, k, ALL[self.result].roundoff), k)

    def error(self, sizes: Sizes, seed: int) -> float:
        """Return the largest error of normal numbers in a few rows and columns, in units of u |A| |B| sqrt(k).

        Without what rounding to the result's type may lose. The products of the reference are added without a library.
        """
        self.torch.manual_seed(seed)
        a, b = random_operands(sizes, self.dtype, self.layouts, device=self.device)
        out, worst = self.out(*sizes[:2]), 0.0
        terms = a[:_ROWS, None, :].double() * b[:, :_ROWS].t()[None].double()
        exact, total = terms.sum(-1), terms.abs().sum(-1)
        unit = ALL[self.dtype].accumulator.roundoff
        rounding = ALL[self.result].roundoff * exact.abs() if self.result in {"float16", "bfloat16"} else 0.0
        for _, run in self.library.of(a, b, out):
            out.fill_(math.nan)
            run()
            errors = ((out[:_ROWS, :_ROWS].double() - exact).abs() - rounding) / (unit * total * sizes[2] ** 0.5)
            worst = max(worst, float(errors.max().nan_to_num(math.inf)))
        return worst

    def run(self, problems: list[Sizes], seconds: float) -> dict[str, Any]:
        """Return a row of the record: how many products were looked at, and which of them are wrong."""
        begin = time.perf_counter()
        row: dict[str, Any] = {
            "library": self.library.name,
            "dtype": self.dtype,
            "result": self.result,
            "layouts": self.layouts,
        }
        wrong, looked, algorithms, worst = [], 0, 0, 0.0
        for first in range(0, len(problems), _BETWEEN):
            if time.perf_counter() - begin > seconds:
                break
            flags: dict[tuple[Sizes, str], list[Any]] = {}
            for sizes in problems[first : first + _BETWEEN]:
                for weights in self.patterns(sizes[2]):
                    for name, flag in self.wrong(sizes, weights):
                        flags.setdefault((sizes, name), []).append(flag)
                looked += 1
            algorithms += len(flags)
            any_wrong = self.torch.stack([self.torch.stack(each).any() for each in flags.values()]).tolist()
            wrong += [key for key, flag in zip(flags, any_wrong, strict=True) if flag]
            if first % _COMPARED_EVERY == 0:
                worst = max(worst, self.error(problems[first], first))
        described = [
            {"sizes": sizes, "algorithm": name, "terms": self.terms(sizes, name), "error": self.error(sizes, 0)}
            for sizes, name in wrong[:_DESCRIBED]
        ]
        shapes = sorted({sizes for sizes, _ in wrong})
        return row | {
            "products": looked, "algorithms": algorithms, "wrong_products": len(shapes), "wrong_algorithms": len(wrong),
            "refused_runs": self.refused, "worst_error": worst, "errors_expected_below": _ERRORS,
            "seconds": time.perf_counter() - begin, "described": described, "wrong": shapes,
        }  # fmt: skip


def drawn(count: int | None, seed: int) -> list[Sizes]:
    """Return the sizes of all products, or of so many, in an order of their own for each seed."""
    sizes = [(side, side, k) for side, k in pairs(SIDES, (*LENGTHS, *LONG))]
    random.Random(seed).shuffle(sizes)  # noqa: S311 — to be repeated, not to be secret
    return sizes[:count]


def measure(
    torch: Any, args: argparse.Namespace, every: list[Library], say: Callable[[Mapping[str, Any]], object]
) -> list[dict[str, Any]]:
    """Return a row for each library, type and layout; ``say`` gets each as it comes.

    What one leaves of its time others have.
    """
    looks = [
        Look(torch, args.device, library, dtype, layouts)
        for library in every
        for dtype, layouts in pairs(args.dtypes, args.layouts)
        if dtype in library.dtypes
    ]
    problems, end, rows = drawn(args.count, args.seed), time.perf_counter() + args.seconds, []
    wrong: dict[Sizes, None] = {}
    for index, look in enumerate(looks):
        share = look.library.share / sum(other.library.share for other in looks[index:])
        own = list(dict.fromkeys((*wrong, *problems))) if look.library.last else problems
        try:
            row = look.run(own, share * max(0.0, end - time.perf_counter()))
            wrong |= dict.fromkeys(row["wrong"])
        except (RuntimeError, TypeError, ValueError) as error:  # a library may lack a type or a layout
            names = {"library": look.library.name, "dtype": look.dtype, "result": look.result, "layouts": look.layouts}
            row = {**names, "products": 0, "refused": str(error).splitlines()[0]}
        say(row)
        rows.append(row)
    return rows


def _show(row: Mapping[str, Any]) -> None:
    name = f"{row['library']:32} {row['dtype']:9} {row['layouts']}"
    if "refused" in row:
        print(f"{name} refused: {row['refused']}", flush=True)
        return
    wrong = f"{row['wrong_products']} of {row['products']} products wrong"
    several = ""
    if row["algorithms"] > row["products"]:
        several = f", {row['wrong_algorithms']} of {row['algorithms']} algorithms"
    print(f"{name} {wrong}{several}; errors {row['worst_error']:.2g}; {row['seconds']:.1f} s", flush=True)
    for one in row["described"]:
        print(f"    {' x '.join(map(str, one['sizes']))} {one['algorithm']}: {one['terms']}; error {one['error']:.3g}")


def main() -> None:
    """Look, print and, with --out, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=110.0, help="of all looks together (default %(default)s)")
    parser.add_argument("--count", type=int, help="products of each library, type and layout (default: all)")
    parser.add_argument("--seed", type=int, default=20261127, help="of the order of products")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="default %(default)s")
    parser.add_argument("--dtypes", nargs="+", default=list(ALL), choices=ALL, help="default: all")
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=LAYOUTS, help="default: all")
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORDS", help="libraries whose names begin so")
    parser.add_argument("--cublaslt", default=library_path(), metavar="FILE", help="default %(default)s")
    parser.add_argument("--out", type=Path, help="write a JSON record to this file")
    args = parser.parse_args()
    torch: Any = importlib.import_module("torch")
    torch.backends.cuda.matmul.allow_tf32 = False
    every, versions = libraries(torch, args.device, args.cublaslt)
    with waiting_for_compiler():  # so that what is looked at is what later calls run
        rows = measure(torch, args, [one for one in every if one.name.startswith(tuple(args.only))], _show)
    if args.out is not None:
        own = {name: getattr(args, name) for name in ("seconds", "count", "seed", "device")}
        own["arch"] = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
        record = {
            "record": "library tails",
            **own,
            "versions": versions,
            "environment": describe(gpu=args.device == "cuda"),
        }
        args.out.write_text(by_line({**record, "rows": rows}, "rows"), encoding="utf-8")


if __name__ == "__main__":
    main()
