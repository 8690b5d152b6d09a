"""Times the configurations of transpose_add's kernels beside eager torch and a copy: what its model is fitted on.

A record's lines hold one shape each, with seconds and prediction of every configuration and the bandwidth of a copy
interleaved with them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from lab.clean_clock import clean_clock
from lab.compiler import KernelCompiler, add_workers
from lab.contest import Rules, contest
from lab.enqueue import enqueuer
from lab.model_fit import Found
from lab.records import Kind, append
from lab.tensors import needs_torch
from lab.transpose_add.matrices import TransposeAddMatrices
from lab.transpose_add.shapes import CASE, Shape
from matmill import arch as arches
from matmill.arch import DEFAULT, Arch, get
from matmill.arrays import Operand
from matmill.bench.environment import describe
from matmill.bench.libraries.transpose_add import EAGER, TorchSum
from matmill.bench.timing.device_copy import COPY_NAME, Copying
from matmill.config import Config
from matmill.dtypes import ELEMENTWISE
from matmill.kernel import Kernel
from matmill.kernels.transpose import cost
from matmill.kernels.transpose.add import TRANSPOSE_ADD
from matmill.kernels.transpose.tiles import layout, tiles
from matmill.lowering import lower_transpose
from matmill.problem import Geam
from matmill.registry import TRANSPOSE_ADD_KERNELS
from matmill.runtime.clock import Clock, Competitor
from matmill.runtime.gpu import GPU

KIND = Kind(
    "transpose_add search",
    "benchmarks/search.py",
    lambda line: json.dumps(line["shape"], sort_keys=True),
)
#: Rows and columns of x, all a multiple of 64, and what is added to both: whole vectors, halves of them, one element.
_SIZES = ((1024, 1024), (4096, 2048), (12288, 8192))
_ODD = (0, 1, 2, 4)
#: Rows and columns of x whose rows, or y's, have a pitch longer than themselves by so many elements: those of the
#: result start on whole vectors.
_PITCHED, _PADS = (6144, 5120), ((1, 1), (3, 5), (1, 0), (0, 2))
#: Matrices of a batch, and rows and columns of each, that few tiles cover.
_BATCHED = (300, 411, 283)
#: Short sides of x, and elements of the long one for a short one of 1: 200 MB of float32 move.
_SLIM, _SLIM_ELEMENTS = (3, 8, 17, 30, 48), 2**24
#: Rows and columns of x of which a batch has as many elements as a slim one.
_SMALL = ((8, 8), (17, 23), (32, 32), (40, 48), (64, 64), (90, 5))
_PARTS = ("fit", "fit", "judge")
_DEVICE = ("cuda", 0)
#: The longest that the last shape may take after the time is over, in seconds, and shapes compiled ahead of time.
_RESERVE, _AHEAD = 15.0, 40


@dataclass(frozen=True)
class Candidate:
    """A kernel with its configuration, and the seconds that its cost model predicts."""

    kernel: Kernel[Any]
    predicted: float


@dataclass(frozen=True)
class Tools:
    """A search's inputs; ``seed`` is that of the matrices and of the order of runs."""

    gpu: GPU
    clock: Clock
    compiler: KernelCompiler
    copying: Copying
    rules: Rules
    seed: int


def grid() -> list[Shape]:
    """Return the shapes to search, what matters most first.

    They are the article's, then every type and alignment, large ones first.

    Last come rows with a pitch, and batches.
    """
    sizes = product(reversed(_SIZES), _ODD, ELEMENTWISE.values())
    result = [Shape("grid", m + odd, n + odd, dtype) for (m, n), odd, dtype in sizes if odd * dtype.itemsize < 16]
    (rows, columns), pads = _PITCHED, product(_PADS, ELEMENTWISE.values())
    result += [Shape("grid", rows, columns, dtype, x_pad=x_pad, y_pad=y_pad) for (x_pad, y_pad), dtype in pads]
    count, m, n = _BATCHED
    return [CASE, *result, *(Shape("grid", m, n, dtype, batch=count) for dtype in ELEMENTWISE.values())]


def slim_grid() -> list[Shape]:
    """List the shapes searched in chunks.

    Long sides are alternately of whole vectors and not.
    """
    result = []
    for (side, short), (index, dtype) in product(enumerate(_SLIM), enumerate(ELEMENTWISE.values())):
        long, odd = _SLIM_ELEMENTS // short // 64 * 64, (side + index) % 2
        result += [Shape("slim", m, n, dtype) for m, n in ((short, long + odd), (long + 1 - odd, short))]
    batches = product(_SMALL, ELEMENTWISE.values())
    return [*result, *(Shape("small", m, n, dtype, batch=_SLIM_ELEMENTS // (m * n)) for (m, n), dtype in batches)]


def problem_of(shape: Shape) -> Geam:
    """Return the one problem that a GPU's own matrices of ``shape`` make, without any memory."""
    x = _operand(shape, shape.m, shape.n, shape.x_pad)
    y, out = (_operand(shape, shape.n, shape.m, pad) for pad in (shape.y_pad, 0))
    (stage,) = lower_transpose(x, y, out)
    return stage.problem


def _operand(shape: Shape, rows: int, columns: int, pad: int) -> Operand:
    pitch = columns + pad
    extents, strides = (shape.batch, rows, columns), (rows * pitch, pitch, 1)
    first = int(shape.batch == 1)
    return Operand(
        extents[first:], strides[first:], shape.dtype, _DEVICE, 0, readonly=False, library="torch", owner=None
    )


def candidates(problem: Geam, arch: Arch) -> list[Candidate]:
    """Return every legal configuration, the chosen one first, and the tiles whose vectors never shift."""
    result = [
        Candidate(kernel, one.explain(problem, kernel.config, arch).seconds)
        for one in TRANSPOSE_ADD_KERNELS
        for kernel in one.legal(problem, arch)
    ]
    known = {candidate.kernel.config for candidate in result}
    result.sort(key=lambda candidate: candidate.predicted)
    for config in tiles(problem, arch, layout(problem, shifted=False)):
        kernel = TRANSPOSE_ADD.with_config(config)
        if config not in known and kernel.why_not(problem, arch) is None:
            result.append(Candidate(kernel, cost.explain(problem, config, arch).seconds))
    return result


def left(shapes: Sequence[Shape], path: Path, seed: int, environment: Mapping[str, Any]) -> list[Shape]:
    """Return the shapes that the record at ``path`` has no line of yet; begins it where there is none."""
    done = {KIND.key(line) for line in KIND.open(path, seed, {"environment": environment})}
    return [shape for shape in shapes if KIND.key({"shape": shape.record()}) not in done]


def measure(tools: Tools, shape: Shape, candidates: Sequence[Candidate]) -> dict[str, Any]:
    """Time ``candidates``, eager torch and a copy, interleaved, and compare all results to the bit.

    Returns the line of the record.
    """
    matrices, problem = TransposeAddMatrices(shape, tools.seed), problem_of(shape)
    eager = TorchSum(EAGER, lambda x, y: x.transpose(-2, -1) + y, matrices.x, matrices.y, shape.dtype)
    matrices.synchronize()
    eager.run(tools.clock.stream)
    matrices.synchronize()
    wrong, competitors, operands = [], [], matrices.operands()
    for index, one in enumerate(candidates):
        run = enqueuer(tools.gpu, tools.compiler.steps(one.kernel, problem, operands))
        matrices.poison()
        run(tools.clock.stream)
        tools.gpu.synchronize()
        if not matrices.same(matrices.out, eager.sum):
            wrong.append(f"{one.kernel.entry} ({one.kernel.config})")
        competitors.append(Competitor(str(index), run))
    competitors += [Competitor(EAGER, eager.run), Competitor(COPY_NAME, tools.copying.run)]
    samples = contest(tools.clock.once, competitors, tools.rules, tools.seed, always={EAGER, COPY_NAME})
    medians = {name: statistics.median(seconds) for name, seconds in samples.items()}
    rows = [
        {
            "kernel": one.kernel.entry,
            "config": named(one.kernel.config),
            "predicted": one.predicted,
            "seconds": medians[str(index)],
            "rounds": len(samples[str(index)]),
        }
        for index, one in enumerate(candidates)
    ]
    rate = tools.copying.rate(medians[COPY_NAME])
    fields = {"shape": shape.record(), "bytes": shape.nbytes, "copy_bytes_per_s": rate, EAGER: medians[EAGER]}
    return {**fields, "wrong": wrong, "rows": rows}


def named(config: Config) -> dict[str, int]:
    """Return a configuration as a record holds it."""
    return dict((*config.constants, *config.launch))


def main(description: str | None) -> None:
    """Search what the command line asks for, or compile alone; end with 1 where a result is wrong."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the record, to which lines are appended")
    parser.add_argument("--seed", type=int, default=20261120)
    parser.add_argument("--seconds", type=float, default=500.0, help="when to stop (default: 500)")
    parser.add_argument("--rounds", type=int, default=5, help="of whatever is not far from the best (default: 5)")
    parser.add_argument("--compile-only", action="store_true", help="fill the cache of kernels; needs no GPU")
    parser.add_argument("--arch", default=DEFAULT, help=f"what --compile-only compiles for (default: {DEFAULT})")
    parser.add_argument("--slim", action="store_true", help="shapes that are processed in chunks")
    parser.add_argument("--limit", type=int, help="take this many shapes alone")
    add_workers(parser)
    args = parser.parse_args()
    shapes = (slim_grid() if args.slim else grid())[: args.limit]
    if args.compile_only:
        _compile(shapes, arches.get(args.arch), args.workers)
    elif args.out is None:
        parser.error("--out is needed, but for --compile-only")
    else:
        sys.exit(1 if _search(shapes, args) else 0)


def _compile(shapes: Sequence[Shape], arch: Arch, workers: int) -> None:
    """Fill the cache of kernels."""
    begin = time.monotonic()
    with KernelCompiler(arch.target, workers) as compiler:
        for shape in shapes:
            compiler.order([one.kernel for one in candidates(problem_of(shape), arch)], shape.dtype)
        compiler.wait()
        print(f"{compiler.ordered} kernels for {arch.target} in {time.monotonic() - begin:.0f} s")


def _search(shapes: Sequence[Shape], args: argparse.Namespace) -> int:
    """Go through the shapes until the time is over; kernels are ordered some shapes ahead. Count wrong results."""
    begin = time.monotonic()
    needs_torch()
    gpu = GPU.get(0)
    todo = left(shapes, args.out, args.seed, {**describe(gpu=True), "rounds": args.rounds})
    ahead, ready = iter(todo), deque[tuple[Shape, list[Candidate]]]()
    done = wrong = 0
    with (
        KernelCompiler(gpu.arch.target, args.workers) as compiler,
        clean_clock(gpu) as clock,
        Copying(gpu, CASE.nbytes) as copying,
    ):
        rules = Rules(rounds=args.rounds, deadline=begin + args.seconds - _RESERVE)
        tools = Tools(gpu, clock, compiler, copying, rules, args.seed)
        while time.monotonic() < rules.deadline:
            while len(ready) < _AHEAD and (shape := next(ahead, None)) is not None:
                ready.append((shape, candidates(problem_of(shape), gpu.arch)))
                compiler.order([one.kernel for one in ready[-1][1]], shape.dtype)
            if not ready:
                break
            line = measure(tools, *ready.popleft())
            append(args.out, line)
            done += 1
            wrong += len(line["wrong"])
            print(_in_words(line), flush=True)
        print(
            f"{done} of {len(todo)} shapes in {time.monotonic() - begin:.0f} s, of which {compiler.waited:.0f} s "
            f"waiting for {compiler.ordered} kernels; {wrong} wrong results"
        )
    return wrong


def _in_words(line: Mapping[str, Any]) -> str:
    """Return the best, the chosen beside it, and the best that does not shift."""
    rows = line["rows"]
    best = min(rows, key=lambda row: row["seconds"])
    share = line["bytes"] / best["seconds"] / line["copy_bytes_per_s"]
    sizes = (best["config"].get(name) for name in ("BR", "BC", "G", "M", "N", "THREADS"))
    tile = "x".join(str(size) for size in sizes if size is not None)
    plain = min((row["seconds"] for row in rows if not row["config"].get("SHIFTED", 0)), default=0.0)
    beside = f"  unshifted/best {plain / best['seconds']:.3f}" if plain else ""
    wrong = f"  WRONG: {'; '.join(line['wrong'])}" if line["wrong"] else ""
    return (
        f"{Shape.restored(line['shape'])!s:24} {len(rows):3} configurations  best {best['seconds'] * 1e6:8.1f} us, "
        f"{share:6.1%} of a copy, {best['kernel']} {tile}  "
        f"chosen/best {rows[0]['seconds'] / best['seconds']:.3f}{beside}{wrong}"
    )


def read(paths: Sequence[Path]) -> list[Found[Geam]]:
    """Return the shapes of several records, each once, with what is chosen from today; every third is one to judge by.

    Shapes are left out of which nothing was measured of what is chosen from today, of any kernel.

    Raises :class:`~matmill.errors.ArgumentError` for a file that is none.
    """
    lines = {KIND.key(line): line for path in paths for line in KIND.read(path)[1]}
    result = (_found(line, _PARTS[index % len(_PARTS)]) for index, line in enumerate(lines.values()))
    return [one for one in result if one is not None]


def _found(line: dict[str, Any], part: str) -> Found[Geam] | None:
    problem, arch = problem_of(Shape.restored(line["shape"])), get(DEFAULT)
    spaces = [
        {_measured(kernel.config): kernel.config for kernel in one.legal(problem, arch)}
        for one in TRANSPOSE_ADD_KERNELS
    ]
    considered = {key: config for space in spaces for key, config in space.items()}
    rows = [(_measured(Config.of(**row["config"])), row["seconds"]) for row in line["rows"]]
    known = [(considered[key], seconds) for key, seconds in rows if key in considered]
    measured = {key for key, _ in rows}
    if any(space and measured.isdisjoint(space) for space in spaces):
        return None
    configs, seconds = zip(*known, strict=True)
    return Found(problem, part, exhaustive=True, configs=configs, seconds=seconds, library=line[EAGER])


def _measured(config: Config) -> Config:
    """Drop what the register estimate says of resident blocks: that is the model's own business."""
    return config.replace(BLOCKS_PER_SM=0, BLOCKS=0)
