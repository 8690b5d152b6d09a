"""Times every configuration of the kernels behind transpose+add on one sum: what their cost model is fitted on.

A record's lines (:mod:`matmill.bench.records`) hold one sum each, with seconds and prediction of every configuration
and the bandwidth of a copy timed in turns with them.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from matmill.arch import DEFAULT, Arch, get
from matmill.arrays import Operand, inspect
from matmill.bench.clock import Clock, Competitor
from matmill.bench.compiler import KernelCompiler
from matmill.bench.contest import Rules, contest
from matmill.bench.copying import COPY_NAME, Copying
from matmill.bench.enqueue import enqueuer
from matmill.bench.model_fit import Found
from matmill.bench.records import Kind, append
from matmill.bench.sum_compare import Matrices
from matmill.bench.sum_peers import EAGER, TorchSum
from matmill.bench.sum_shapes import CASE, Shape
from matmill.config import Config
from matmill.cost import transpose_add as cost
from matmill.dtypes import ELEMENTWISE
from matmill.kernel import GemmOperands, Kernel
from matmill.kernels.transpose_add import TRANSPOSE_ADD
from matmill.launch import Pointer
from matmill.layout import lower_sum
from matmill.problem import Geam
from matmill.registry import TRANSPOSE_ADD_KERNELS
from matmill.runtime.gpu import GPU
from matmill.tiling.transpose import layout, tiles

_KIND = Kind("transpose_add search", "benchmarks/transpose_add_search.py")
#: Rows and columns of x, all a multiple of 64, and what is added to both: whole vectors, halves of them, one element.
_SIZES = ((1024, 1024), (4096, 2048), (12288, 8192))
_ODD = (0, 1, 2, 4)
#: Rows and columns of x whose rows, or y's, lie further apart than they are long, by so many elements: those of the
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
    """The sums to search, what matters most first: the article's, then every type and alignment, large ones first.

    Last come rows that lie apart, and batches.
    """
    sizes = product(reversed(_SIZES), _ODD, ELEMENTWISE.values())
    found = [Shape("grid", m + odd, n + odd, dtype) for (m, n), odd, dtype in sizes if odd * dtype.itemsize < 16]
    (rows, columns), pads = _PITCHED, product(_PADS, ELEMENTWISE.values())
    found += [Shape("grid", rows, columns, dtype, x_pad=x_pad, y_pad=y_pad) for (x_pad, y_pad), dtype in pads]
    count, m, n = _BATCHED
    return [CASE, *found, *(Shape("grid", m, n, dtype, batch=count) for dtype in ELEMENTWISE.values())]


def slim_grid() -> list[Shape]:
    """Sums that are made by portions to search: either side short, of every type, and batches of small matrices.

    Long sides are of whole vectors and, in turns, not.
    """
    found = []
    for (side, short), (place, dtype) in product(enumerate(_SLIM), enumerate(ELEMENTWISE.values())):
        long, odd = _SLIM_ELEMENTS // short // 64 * 64, (side + place) % 2
        found += [Shape("slim", m, n, dtype) for m, n in ((short, long + odd), (long + 1 - odd, short))]
    batches = product(_SMALL, ELEMENTWISE.values())
    return [*found, *(Shape("small", m, n, dtype, batch=_SLIM_ELEMENTS // (m * n)) for (m, n), dtype in batches)]


@dataclass(frozen=True)
class Candidate:
    """A kernel with its constants, and the seconds that its cost model expects."""

    kernel: Kernel[Geam]
    predicted: float


def problem_of(matrices: Matrices) -> Geam:
    """The one problem that a sum of packed matrices is."""
    return _lowered(inspect(matrices.x, "x"), inspect(matrices.y, "y"), inspect(matrices.out, "out"))


def _lowered(x: Operand, y: Operand, out: Operand) -> Geam:
    (stage,) = lower_sum(x, y, out)
    return stage.problem


def _operand(shape: Shape, rows: int, columns: int, pad: int) -> Operand:
    """What a GPU's own matrices of ``shape`` are, without any memory."""
    pitch = columns + pad
    extents, strides = (shape.batch, rows, columns), (rows * pitch, pitch, 1)
    first = int(shape.batch == 1)
    return Operand(
        extents[first:], strides[first:], shape.dtype, _DEVICE, 0, readonly=False, library="torch", owner=None
    )


def candidates(problem: Geam, arch: Arch) -> list[Candidate]:
    """Every legal configuration that is chosen from, the chosen one first, and the tiles whose vectors never shift."""
    found = [
        Candidate(kernel, one.predict(problem, kernel.config, arch))
        for one in TRANSPOSE_ADD_KERNELS
        for kernel in one.legal(problem, arch)
    ]
    known = {candidate.kernel.config for candidate in found}
    found.sort(key=lambda candidate: candidate.predicted)
    for config in tiles(problem, arch, layout(problem, shifted=False)):
        kernel = TRANSPOSE_ADD.with_config(config)
        if config not in known and kernel.why_not(problem, arch) is None:
            found.append(Candidate(kernel, cost.predict(problem, config, arch)))
    return found


@dataclass(frozen=True)
class Tools:
    """What a search works with; ``seed`` is that of the matrices and of the order of turns."""

    gpu: GPU
    clock: Clock
    compiler: KernelCompiler
    copying: Copying
    rules: Rules
    seed: int


def search(tools: Tools, shape: Shape) -> dict[str, Any]:
    """Times all configurations, each checked to the bit, eager torch and a copy in turns; the line of the record."""
    gpu, clock = tools.gpu, tools.clock
    matrices = Matrices(shape, tools.seed)
    eager = TorchSum(EAGER, lambda x, y: x.transpose(-2, -1) + y, matrices.x, matrices.y, shape.dtype)
    matrices.synchronize()
    eager.run(clock.stream)
    matrices.synchronize()
    problem = problem_of(matrices)
    found = candidates(problem, gpu.arch)
    tools.compiler.order([one.kernel for one in found], problem.dtype)
    tensors = zip("XYD", (matrices.x, matrices.y, matrices.out), strict=True)
    x, y, d = (Pointer(name, tensor.data_ptr()) for name, tensor in tensors)
    operands = GemmOperands(x, y, d, d, 1.0, 1.0)
    runs, wrong = [], []
    for one in found:
        binary = tools.compiler.binary(one.kernel, problem.dtype)
        run = enqueuer(gpu, binary, one.kernel.launches(problem, operands))
        matrices.poison()
        matrices.synchronize()
        run(clock.stream)
        gpu.synchronize()
        if not matrices.same(matrices.out, eager.sum):
            wrong.append(f"{one.kernel.entry} ({one.kernel.config})")
        runs.append(run)
    competitors = [Competitor(str(place), run) for place, run in enumerate(runs)]
    others = [Competitor(EAGER, eager.run), Competitor(COPY_NAME, tools.copying.run)]
    named = {other.name for other in others}
    samples = contest(clock.once, [*competitors, *others], tools.rules, tools.seed, always=named)
    rows = [
        {
            "kernel": one.kernel.entry,
            "config": dict((*one.kernel.config.constants, *one.kernel.config.launch)),
            "predicted": one.predicted,
            "seconds": statistics.median(samples[str(place)]),
            "rounds": len(samples[str(place)]),
        }
        for place, one in enumerate(found)
    ]
    return {
        "shape": shape.record(),
        "bytes": shape.nbytes,
        "copy_bytes_per_s": tools.copying.rate(statistics.median(samples[COPY_NAME])),
        EAGER: statistics.median(samples[EAGER]),
        "wrong": wrong,
        "rows": rows,
    }


class Record:
    """A file of what was searched; what is in it already is read, what comes is appended.

    Raises :class:`~matmill.errors.ArgumentError` where the file holds another seed or is no such record.
    """

    def __init__(self, path: Path, seed: int, environment: dict[str, Any]) -> None:
        self.path = path
        self._done = {_key(line["shape"]) for line in _KIND.open(path, seed, {"environment": environment})}

    def left(self, shapes: list[Shape]) -> Iterator[Shape]:
        """Those that the record does not have yet."""
        return (shape for shape in shapes if _key(shape.record()) not in self._done)

    def add(self, line: dict[str, Any]) -> None:
        """Appends what :func:`search` found of one sum."""
        append(self.path, line)


def read(paths: Sequence[Path]) -> list[Found[Geam]]:
    """The sums of several records, each once, with what is chosen from today; every third of them is one to judge by.

    Sums are left out of which nothing was measured of what is chosen from today, of any kernel.

    Raises :class:`~matmill.errors.ArgumentError` for a file that is none.
    """
    lines = {_key(line["shape"]): line for path in paths for line in _KIND.read(path)[1]}
    found = (_found(line, _PARTS[place % len(_PARTS)]) for place, line in enumerate(lines.values()))
    return [one for one in found if one is not None]


def _found(line: dict[str, Any], part: str) -> Found[Geam] | None:
    shape = Shape.restored(line["shape"])
    problem = _lowered(
        _operand(shape, shape.m, shape.n, shape.x_pad),
        _operand(shape, shape.n, shape.m, shape.y_pad),
        _operand(shape, shape.n, shape.m, 0),
    )
    arch = get(DEFAULT)
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
    """Without what the register estimate says of resident blocks: that is the model's own business."""
    return config.replace(BLOCKS_PER_SM=0, BLOCKS=0)


def _key(shape: dict[str, Any]) -> str:
    return json.dumps(shape, sort_keys=True)
