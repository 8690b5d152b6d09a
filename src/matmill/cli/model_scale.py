"""``matmill model scale``: the predicted time of a product on many GPUs, and the number from which more do not pay."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import ceil, log
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from matmill import arch as arches
from matmill.analysis import scale as cost
from matmill.analysis.scale import Limits, Links, Scaled
from matmill.arch import Arch
from matmill.bench import units
from matmill.bench.plots.scale import draw
from matmill.choose import choose
from matmill.cli.console import answer, table
from matmill.cli.options import Subparsers, plot_file, size
from matmill.dtypes import ALL, DType
from matmill.errors import ArgumentError, unknown_name
from matmill.problem import Gemm
from matmill.registry import PRODUCTION

#: The most terms of k in a prediction of one launch; longer products count as several.
_MOST_TERMS = 1 << 30
_MOST_GPUS = 1 << 20


def add_scale(models: Subparsers) -> None:
    """Declare the model's arguments."""
    add = models.add_parser(
        "scale",
        help="a product whose k is distributed over many GPUs: local time, all_reduce, efficiency",
        description="What E (m, k) @ F (k, n) takes where k is distributed over GPUs: the local product by the model "
        "that production kernels are chosen by, the all_reduce of its sums by NCCL's own model of rings and trees.",
    ).add_argument
    links = Links()
    add("--m", type=size, required=True, help="rows of E")
    add("--n", type=size, help="columns of F (default: m)")
    add("--k", type=size, required=True, help="columns of E, rows of F, in total, for instance 1e10")
    add("--gpus", default="8,64,512", metavar="G,G,...", help="numbers of GPUs (default: 8,64,512)")
    add("--dtype", default="float32", help=f"one of {', '.join(ALL)} (default: float32)")
    add("--gram", action="store_true", help="F is E's transpose: half of the sums are sent")
    add("--arch", default=arches.DEFAULT, help=f"which GPUs (default: {arches.DEFAULT})")
    add("--node", type=size, default=links.node, help=f"GPUs that NVLink connects (default: {links.node})")
    rate = links.network / 1e9
    add("--network", type=float, default=rate, metavar="GB/S", help=f"of each GPU's network card (default: {rate:g})")
    add("--json", action="store_true", help="print one JSON document")
    add("--plot", metavar="FILE", help="draw the times over the number of GPUs (.png or .svg)")


def run_scale(args: argparse.Namespace) -> int:
    """Show the model's predictions."""
    arch = arches.get(args.arch, "--arch")
    if args.dtype not in ALL:
        raise unknown_name("--dtype", args.dtype, ALL)
    counts = _counts(args.gpus)
    if not args.network > 0:
        raise ArgumentError(
            argument="--network", got=f"{args.network:g}", wanted="GB/s above 0", fix="400 Gbit/s are 50 GB/s."
        )
    plot = plot_file(args.plot)
    dtype, m, n, k = ALL[args.dtype], args.m, args.n or args.m, args.k
    if args.gram and m != n:
        raise ArgumentError(argument="--n", got=f"{n} with --gram", wanted=f"m, {m}", fix="Omit --n.")
    links = Links(node=args.node, network=args.network * 1e9)
    local = _local(m, n, dtype, arch, gram=args.gram)
    nbytes = dtype.accumulator.itemsize * (m * (m + 1) // 2 if args.gram else m * n)
    points = [cost.scaled(local, k, nbytes, count, links) for count in counts]
    limits = cost.limits(local, k, nbytes, links)
    record = {
        "model": "scale",
        "arch": arch.name,
        "problem": {"m": m, "n": n, "k": k, "dtype": dtype.name, "gram": args.gram},
        "links": {"node": links.node, "nvlink": links.nvlink, "network": links.network},
        "bytes": nbytes,
        "one_gpu_seconds": local(k),
        "rows": [_row(one) for one in points],
        "fastest": limits.fastest,
        "half_efficient": limits.half_efficient,
    }
    title = f"{'Gram matrix' if args.gram else 'inner'}, m={m} n={n} k={k:.3g} {dtype.name}, {arch.title}"
    most = max(*counts, 4 * limits.fastest, 16)
    curve = [cost.scaled(local, k, nbytes, 1 << power, links) for power in range(most.bit_length())]
    answer(
        record,
        _report(title, points, limits, record),
        as_json=args.json,
        plot=plot,
        draw=lambda path: draw(path, title, curve, points, limits),
    )
    return 0


def _counts(text: str) -> list[int]:
    counts = [int(word) if word.strip().isdecimal() else 0 for word in text.split(",")]
    if not all(1 <= count <= _MOST_GPUS for count in counts):
        raise ArgumentError(
            argument="--gpus",
            got=repr(text),
            wanted=f"whole numbers from 1 to {_MOST_GPUS}, with commas between them",
            fix="For instance --gpus 8,64,512.",
        )
    return counts


def _local(m: int, n: int, dtype: DType, arch: Arch, *, gram: bool) -> Callable[[int], float]:
    """Return a function that predicts the seconds of so many terms on one GPU."""

    def product(k: int) -> Gemm:
        return Gemm(m=m, n=n, k=k, dtype=dtype, gram=gram)

    @lru_cache
    def seconds(k: int) -> float:
        launches = ceil(k / _MOST_TERMS)
        problem = product(ceil(k / launches))
        # A choice takes 0.4 s: the configuration is the one for the nearest power of 16, if it is legal here.
        near = choose(product(16 ** round(log(problem.k, 16))), arch).kernel
        if near.why_not(problem, arch) is not None:
            return launches * choose(problem, arch).predicted_seconds
        (row,) = (row for row in PRODUCTION if row.kernel.entry == near.entry)
        return launches * row.explain(problem, near.config, arch).seconds

    return seconds


def _row(one: Scaled) -> dict[str, Any]:
    row: dict[str, Any] = {"gpus": one.gpus, "k": one.k, "local": one.local, "seconds": one.seconds}
    row |= {"efficiency": one.efficiency, "all_reduce": None}
    if one.reduction is not None:
        reduction = one.reduction
        row["all_reduce"] = {"seconds": reduction.seconds, "latency": reduction.latency, "transfer": reduction.transfer}
        row["all_reduce"] |= {"algorithm": reduction.algorithm, "protocol": reduction.protocol}
    return row


def _report(title: str, points: Sequence[Scaled], limits: Limits, record: dict[str, Any]) -> Iterable[RenderableType]:
    columns = [(name, "right") for name in ("GPUs", "k each", "local", "all_reduce", "latency", "transfer")]
    columns += [("by", "left"), ("time", "right"), ("efficiency", "right")]
    rows = []
    for one in points:
        reduction = one.reduction
        cells = ["-"] * 4
        if reduction is not None:
            cells = [units.seconds(value) for value in (reduction.seconds, reduction.latency, reduction.transfer)]
            cells.append(f"{reduction.algorithm}, {reduction.protocol}")
        shown = [str(one.gpus), units.count(one.k), units.seconds(one.local), *cells]
        rows.append([*shown, units.seconds(one.seconds), units.percent(one.efficiency)])
    yield table(title, columns, rows)
    yield Text()
    nbytes, nvlink, network = record["bytes"], record["links"]["nvlink"], record["links"]["network"]
    yield Text(
        f"One GPU: {units.seconds(record['one_gpu_seconds'])}. The all_reduce sums {units.quantity(nbytes, 'B')}, "
        f"over NVLink ({units.quantity(nvlink, 'B/s')}) between\n{record['links']['node']} GPUs, and beyond them over "
        f"a network card of each ({units.quantity(network, 'B/s')})."
    )
    yield Text(
        f"The time falls up to {limits.fastest} GPUs; up to {limits.half_efficient} are at least half efficient "
        "(of 1, 2, 4, ...).\nPredicted, with NCCL's own constants: docs/distributed.md says how far that is measured."
    )
