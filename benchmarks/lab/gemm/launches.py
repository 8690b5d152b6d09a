"""The rungs of the SGEMM and HGEMM ladders and the production products, to be launched once each and checked.

Rungs run on random matrices at 256 cubed, or at the nearest size that they take, those of the HGEMM ladder in float16
and bfloat16 and, where they take them, at odd sizes too; the production products run on odd sizes, every layout and
type, once per configuration.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from lab.launches import Launches, Product
from matmill.analysis.candidates import label
from matmill.arch import Arch
from matmill.bench.problems.inputs import alignment
from matmill.dtypes import ALL
from matmill.kernel import Rung
from matmill.kernels.inner import INNER
from matmill.ladders.hgemm.rungs import HGEMM as HGEMM_LADDER
from matmill.ladders.hgemm.subject import HALVES, half_product
from matmill.ladders.registry import LADDERS
from matmill.ladders.runner.selection import nearest
from matmill.ladders.runner.subject import ARITHMETIC
from matmill.ladders.sgemm.rungs import SGEMM
from matmill.problem import Gemm
from matmill.registry import PRODUCTION

SIZES = (256, 256, 256)
#: Rows of A and of B and D start at multiples of 2 and of 4 bytes.
ODD = (200, 134, 133)
#: (m, n, k) of the production products; where k is long it may be split over blocks.
PRODUCTS = ((131, 67, 45), (160, 272, 40), (70, 90, 2100))


def rungs(arch: Arch, ladder: str, asked: Gemm) -> Iterator[Product]:
    """Yield every rung of a ladder with the size it runs at."""
    subject = LADDERS[ladder].subject
    products: tuple[Rung[Gemm], ...] = {"sgemm": SGEMM, "hgemm": HGEMM_LADDER}[ladder]
    for rung in products:
        size, reason = nearest(rung, asked, arch, subject)
        if size is None:
            print(f"{rung.label}: not launched, {reason}")
            continue
        yield Product(rung.label, rung.kernel_for(size, arch), size, subject)


def halves(arch: Arch) -> Iterator[Product]:
    """Yield the rungs of the HGEMM ladder in both types, those that take any size at odd ones too."""
    for dtype in HALVES.values():
        yield from rungs(arch, "hgemm", half_product(*SIZES, dtype))
        odd = half_product(*ODD, dtype)
        yield from (task for task in rungs(arch, "hgemm", odd) if task.problem == odd)


def production(arch: Arch) -> Iterator[Product]:
    """Yield the production products on odd and even sizes and a long k, with A and B row- and column-major."""
    # The inner kernel's launches are apart.
    entries = [entry for entry in PRODUCTION if entry.kernel.entry != INNER.entry]
    for entry, dtype, (m, n, k) in product(entries, ALL.values(), PRODUCTS):
        for a_transposed, b_transposed in product((False, True), repeat=2):
            problem = Gemm(
                m,
                n,
                k,
                dtype,
                a_strides=(1, m) if a_transposed else (k, 1),
                b_strides=(1, k) if b_transposed else (n, 1),
                a_align=alignment(2, m if a_transposed else k, dtype),
                b_align=alignment(2, k if b_transposed else n, dtype),
                d_align=alignment(2, n, dtype),
            )
            for config in entry.space(problem, arch):
                kernel = entry.kernel.with_config(config)
                if kernel.why_not(problem, arch) is None:
                    tile = label(config) if "BM" in config else str(config)
                    name = f"{kernel.entry} {tile} {'NT'[a_transposed]}{'NT'[b_transposed]}"
                    yield Product(name, kernel, problem, ARITHMETIC)


def _tasks(arch: Arch, args: argparse.Namespace) -> tuple[list[Product], list[Product]]:
    plain = Gemm(*SIZES)
    if args.ladder is None:
        return [*rungs(arch, "sgemm", plain), *halves(arch)], list(production(arch))
    return list(rungs(arch, args.ladder, half_product(*SIZES) if args.ladder == "hgemm" else plain)), []


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ladder", choices=("sgemm", "hgemm"), help="its rungs at 256 cubed, and nothing else")
    parser.add_argument("--out", type=Path, help="write what was launched, in order, to this JSON file")


def _finish(args: argparse.Namespace, launched: Sequence[Product]) -> None:
    described = LADDERS[args.ladder or "hgemm"].subject.record
    rows = [{"rung": one.name, "entry": one.kernel.entry, "problem": described(one.problem)} for one in launched]
    if args.out:
        args.out.write_text(json.dumps(rows))


LAUNCHES: Launches[Product] = Launches("launches", _tasks, _add_arguments, _finish)
