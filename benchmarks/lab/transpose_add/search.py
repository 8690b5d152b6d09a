"""What differs in the search over configurations of the kernels behind transpose_add, beside eager torch and a copy.

A record's lines hold one shape each, with seconds and prediction of every configuration and the bandwidth of a copy
interleaved with them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from lab.model_fit import Found
from lab.records import Kind
from lab.search import Candidate, Search, Timed, Tools, Trial
from lab.transpose_add.matrices import TransposeAddMatrices
from lab.transpose_add.shapes import CASE, Shape
from matmill.arch import DEFAULT, Arch, get
from matmill.arrays import Operand
from matmill.bench.libraries.transpose_add import EAGER, TorchSum
from matmill.bench.timing.clock import Competitor, StreamHandle
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

KIND = Kind(
    "transpose_add search",
    "benchmarks/search.py transpose_add",
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


def _trial(tools: Tools, copying: Copying, shape: Shape) -> Trial:
    """Return one shape's matrices, eager torch's result, with which all are compared to the bit, and the copy."""
    matrices = TransposeAddMatrices(shape, tools.seed)
    eager = TorchSum(EAGER, lambda x, y: x.transpose(-2, -1) + y, matrices.x, matrices.y, shape.dtype)
    matrices.synchronize()
    eager.run(tools.clock.stream)
    matrices.synchronize()
    wrong: list[str] = []

    def try_out(kernel: Kernel[Any], run: Callable[[StreamHandle], None]) -> None:
        """Run and check each."""
        matrices.poison()
        run(tools.clock.stream)
        tools.gpu.synchronize()
        if not matrices.same(matrices.out, eager.sum):
            wrong.append(f"{kernel.entry} ({kernel.config})")

    def line(timed: Sequence[Timed], others: Mapping[str, float]) -> dict[str, Any]:
        """Return bytes, the copy's rate, eager torch's seconds, what is wrong, and a row for each configuration."""
        rows = [
            {
                "kernel": one.candidate.kernel.entry,
                "config": named(one.candidate.kernel.config),
                "predicted": one.candidate.predicted,
                "seconds": one.seconds,
                "rounds": one.rounds,
            }
            for one in timed
        ]
        rate = copying.rate(others[COPY_NAME])
        return {"bytes": shape.nbytes, "copy_bytes_per_s": rate, EAGER: others[EAGER], "wrong": wrong, "rows": rows}

    others = Competitor(EAGER, eager.run), Competitor(COPY_NAME, copying.run)
    return Trial(others, lambda _workspace: matrices.operands(), try_out, line)


def named(config: Config) -> dict[str, int]:
    """Return a configuration as a record holds it."""
    return dict((*config.constants, *config.launch))


@contextmanager
def _trials(tools: Tools) -> Iterator[Callable[[Shape], Trial]]:
    with Copying(tools.gpu, CASE.nbytes) as copying:
        yield partial(_trial, tools, copying)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--slim", action="store_true", help="shapes that are processed in chunks")
    parser.add_argument("--limit", type=int, help="take this many shapes alone")


def _said(line: Mapping[str, Any]) -> str:
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


SEARCH: Search[Shape] = Search(
    kind=KIND,
    noun="shapes",
    header={},
    add_arguments=_add_arguments,
    tasks=lambda args, _arch: (slim_grid() if args.slim else grid())[: args.limit],
    problem=problem_of,
    described=lambda shape: {"shape": shape.record()},
    candidates=lambda shape, arch, _seed: candidates(problem_of(shape), arch),
    trials=_trials,
    wrong=lambda line: len(line["wrong"]),
    said=_said,
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
