"""Time products of every shape beside torch.matmul and beside moving as many bytes, on one GPU.

    python benchmarks/shapes.py --out benchmarks/results/shapes_h200.json --seconds 300

Batches of small products, tall times small, outer products, few rows, sizes off the tile grid, float32 squares. Where
``--only`` names them, also squares and layers of 16 bits (``layers``), such as need tiles of many sizes (``steps``),
operands with rows anywhere (``unaligned``), and few outputs of a long k (``long k``), which find L2 cold and clean.
Of each kernel the configurations with the least predicted time are timed, ``--each`` of them; ``--every`` names a
kernel of which all are timed, or ``--most``, for the fit of its cost model.

All are compiled first, by as many processes as there are cores. Each result is compared with float64 in products and
rows drawn at random. Then the configurations, torch.matmul and a kernel that reads and writes as many bytes as the
product needs run interleaved with a cold L2. The record is written after each problem; no problem is begun after
``--seconds``. Exits with 1 where a result is wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab.clean_clock import clean_clock
from lab.compiler import compile_sources
from lab.enqueue import enqueuer
from lab.gemm.shapes import FLOOR, LIBRARY, floor_of, packed
from lab.tensors import random_operands
from matmill.arch import Arch
from matmill.bench.environment import describe
from matmill.bench.problems.error_bounds import random_limit
from matmill.choose import choose
from matmill.dtypes import ALL, F32, DType
from matmill.jit.compile import compile_source
from matmill.jit.source import Source, generate
from matmill.jit.steps import binaries
from matmill.kernel import GemmOperands, Kernel
from matmill.kernels.probe import buffers
from matmill.kernels.probe.stream import MOVE, moved
from matmill.launch import Pointer
from matmill.problem import Gemm
from matmill.registry import PRODUCTION
from matmill.runtime.clock import Clock, Competitor, StreamHandle, flush_bytes
from matmill.runtime.gpu import GPU

#: Products that are drawn at random.
_DRAWN, _SEED = 60, 24
#: What :func:`drawn` draws: sizes of layers, the share of products of any size, of tf32 among float32, and the most
#: elements of a product's matrices.
_LAYERS = (
    16, 63, 64, 128, 197, 256, 257, 319, 333, 479, 512, 768, 777, 1000, 1024, 1201, 2048, 3072, 4096, 8192, 50257,
)  # fmt: skip
_ANY, _TF32, _MOST_ELEMENTS = 0.35, 0.3, 2**28
#: Largest error of a product of tf32 over |A||B|, and the most bytes of a workspace.
_TF32_ROUNDOFF, _MOST_WORKSPACE = 2.0**-10, 2**30
#: Rows of a result that are checked; a batch is checked in so many products.
_CHECKED = 16


@dataclass(frozen=True)
class Task:
    """A product of packed matrices; ``layouts`` are those of A and B: n for rows, t for columns that are contiguous."""

    kind: str
    m: int
    n: int
    k: int
    dtype: DType
    batch: int = 1
    layouts: str = "nn"
    precision: str = "default"

    @property
    def problem(self) -> Gemm:
        """Give rows and columns the alignment that packed ones have."""
        problem = packed(self.m, self.n, self.k, self.dtype, batch=self.batch, layouts=self.layouts)
        return replace(problem, precision=self.precision)

    @property
    def key(self) -> dict[str, Any]:
        """How a record names it."""
        return {
            "kind": self.kind, "batch": self.batch, "m": self.m, "n": self.n, "k": self.k, "dtype": self.dtype.name,
            "layouts": self.layouts, "precision": self.precision,
        }  # fmt: skip


_TWO, _EVERY = ("bfloat16", "float32"), tuple(ALL)
#: Class, types, sizes m, n and k, products of a batch, and layouts.
_CLASSES: tuple[tuple[str, tuple[str, ...], tuple[tuple[int, int, int], ...], int, str], ...] = (
    ("batched", _TWO, ((8, 8, 8), (16, 16, 16), (17, 17, 17), (32, 32, 32)), 20000, "nn"),
    ("batched", _TWO, ((64, 64, 64), (100, 100, 100)), 4000, "nn"),
    ("batched", _EVERY, ((54, 10, 14),), 3800, "nn"),
    ("batched", _EVERY, ((24, 48, 31),), 5000, "nt"),
    ("batched", _EVERY, ((128, 5, 77),), 2000, "tn"),
    ("tall", _TWO, tuple((10**6, n, 64) for n in (1, 4, 16, 17, 64)), 1, "nn"),
    ("outer", _TWO, tuple((8192, 8192, k) for k in (8, 17, 32, 64, 100)), 1, "nn"),
    ("few rows", _TWO, tuple((m, n, 4096) for m in (1, 4, 16, 64, 128) for n in (4096, 14336)), 1, "nt"),
    ("few rows", _EVERY, ((3, 5000, 3001),), 1, "nn"),
    ("few rows", _TWO, ((1, 4096, 4096), (8, 14336, 4096), (404, 3, 2157), (100000, 8, 600)), 1, "nn"),
    ("ragged", _TWO, ((2040, 2056, 2056), (4104, 4104, 4104), (1000, 3000, 520), (344, 5128, 1032)), 1, "nn"),
    (
        "short k",
        _TWO,
        ((633, 7007, 22), (3191, 4530, 33), (833, 890, 36), (1497, 3907, 103), (7604, 22, 44), (516, 21, 223)),
        1,
        "nn",
    ),
    (
        "small",
        _TWO,
        ((8, 8, 8), (16, 8, 40), (32, 32, 32), (64, 64, 8), (64, 64, 64), (120, 70, 50), (13, 75, 190)),
        1,
        "nn",
    ),
    ("squares", ("float32",), tuple((side, side, side) for side in (2048, 4096, 8192)), 1, "nn"),
    ("squares", ("float64",), tuple((side, side, side) for side in (1024, 1536, 2048)), 1, "nn"),
)


#: Elements of A and B together of a product with a long k, and its rows and columns.
_LONG, _LONG_ELEMENTS = "long k", 10**8
_SIDES = (
    *((1, 1), (2, 4), (3, 3), (5, 9), (8, 8), (12, 16), (16, 16)),
    *((33, 5), (32, 32), (64, 64), (100, 20), (128, 128)),
)
#: Classes that are measured where they are named: few outputs of a long k; squares, layers and others of 16 bits;
#: operands with rows anywhere, among them gradients of a vocabulary's head, and some aligned neighbours.
_NAMED = (
    *(
        (_LONG, _EVERY, tuple((m, n, _LONG_ELEMENTS // (m + n) // 64 * 64 + odd) for m, n in _SIDES), 1, layouts)
        for odd, layouts in ((0, "nn"), (0, "nt"), (1, "nn"))
    ),
    ("layers", ("bfloat16", "float16"), tuple((n, n, n) for n in (512, 1000, 1024, 2048, 4096, 4097, 8192)), 1, "nt"),
    (
        "layers",
        ("bfloat16", "float16"),
        (
            (64, 4096, 4096), (128, 14336, 4096), (512, 4096, 14336), (2048, 4096, 4096), (8192, 1280, 8192),
            (8192, 28672, 4096), (8, 616, 3208), (1504, 264, 712), (8191, 1000, 513), (8192, 50257, 768),
        ),
        1,
        "nn",
    ),
    ("steps", ("bfloat16",), tuple((n, n, n) for n in (200, 456, 920, 1312, 2456, 3560, 4216, 6800)), 1, "nt"),
    ("steps", ("bfloat16",), tuple((n, n, n) for n in (328, 656, 1080, 1640, 2680, 4488)), 1, "nn"),
    (
        "steps",
        ("bfloat16",),
        (
            (16, 28672, 4096), (8192, 16, 4096), (56, 5248, 6592), (24, 4408, 1240), (464, 136, 304), (248, 104, 2352),
            (8, 144, 1200), (856, 72, 360), (352, 344, 1088), (776, 4096, 14336), (3000, 28672, 4096),
            (8192, 256, 7168), (8192, 768, 3072), (8192, 4096, 16),
        ),
        1,
        "nt",
    ),
    (
        "steps",
        ("bfloat16",),
        ((4096, 768, 3072), (376, 152, 1720), (1760, 16, 1760), (2456, 7712, 48), (8192, 768, 3072), (192, 96, 744)),
        1,
        "nn",
    ),
    (
        "steps",
        ("bfloat16",),
        ((768, 3072, 4096), (1024, 1024, 32768), (768, 768, 8192), (104, 312, 7808), (2304, 768, 8192)),
        1,
        "tn",
    ),
    (
        "off the tile",
        ("float32",),
        (
            (169343, 40, 256), (10**6, 100, 64), (10007, 10007, 21), (5000, 5000, 1201), (16384, 333, 777),
            (307, 2090, 1363), (1758, 2654, 94), (1068, 1490, 598), (856, 856, 856), (2832, 2832, 2832),
            (1222, 5066, 2460), (294, 1171, 3902), (3432, 1376, 3112), (600, 600, 600), (1000, 1000, 1000),
            (4096, 768, 768), (777, 479, 333), (100000, 24, 300), (20000, 56, 500), (2048, 112, 2048),
        ),
        1,
        "nn",
    ),
    (
        "off the tile",
        ("float32",),
        (
            (5928, 5928, 5928), (3336, 3336, 3336), (2024, 2024, 2024), (2208, 79, 1318), (43, 4966, 475),
            (3408, 78, 209), (4096, 1000, 512), (12608, 768, 768), (512, 512, 4096), (80, 8192, 1024),
        ),
        1,
        "nt",
    ),
    (
        "off the tile",
        ("float32",),
        ((4596, 2140, 262), (768, 768, 5000), (1852, 143, 95), (1480, 1480, 1480), (300, 1000, 20000), (48, 5000, 700)),
        1,
        "tn",
    ),
    ("off the tile", ("float32",), ((1856, 1856, 1856), (4742, 371, 1085), (71, 3393, 2290)), 1, "tt"),
    ("off the tile", ("float32",), ((97, 119, 251), (197, 64, 197), (160, 96, 320)), 40, "nn"),
    ("off the tile", ("float32",), ((197, 197, 64), (112, 250, 90)), 96, "nt"),
    (
        "doubles",
        ("float64",),
        (
            (280, 280, 280), (896, 896, 896), (3056, 3056, 3056), (448, 120, 464), (381, 145, 1627), (1200, 1243, 110),
            (6620, 31, 203), (5576, 264, 96), (1000, 1000, 1000), (200, 5000, 600), (2000, 300, 2000), (37, 381, 569),
        ),
        1,
        "nn",
    ),
    (
        "doubles",
        ("float64",),
        ((37, 381, 569), (5479, 646, 116), (896, 896, 896), (160, 160, 160), (3056, 3056, 3056), (8, 464, 1472)),
        1,
        "nt",
    ),
    ("doubles", ("float64",), ((280, 280, 280), (448, 120, 464), (700, 900, 3000)), 1, "tn"),
    ("doubles", ("float64",), ((143, 109, 13), (11, 39, 79), (64, 64, 64)), 400, "nn"),
    ("short batches", ("float32",), ((175, 187, 4), (29, 191, 101), (111, 125, 18), (50, 228, 77)), 200, "nt"),
    ("short batches", ("float32",), ((235, 37, 91), (100, 100, 100), (64, 48, 32)), 200, "nn"),
    ("short batches", ("float32",), ((2560, 2544, 8), (936, 2136, 8), (4698, 2269, 44), (4167, 189, 47)), 1, "nt"),
    (
        "gradients",
        ("bfloat16",),
        (
            (1024, 1024, 32768), (768, 3072, 4096), (768, 768, 8192), (2304, 768, 8192), (3072, 768, 8192),
            (4096, 4096, 2048), (1024, 4096, 8192), (512, 512, 16384),
        ),
        1,
        "tn",
    ),
    (
        "lost",
        ("bfloat16",),
        (
            (200, 200, 200), (216, 216, 216), (296, 296, 296), (384, 384, 384), (448, 448, 448), (672, 672, 672),
            (1272, 1272, 1272), (2600, 2600, 2600), (8, 1448, 1800), (2296, 8, 168), (528, 8, 248), (240, 96, 2328),
            (824, 72, 1776), (2360, 5168, 712), (16, 3392, 288), (48, 3728, 1248), (128, 2960, 24), (544, 368, 424),
        ),
        1,
        "nt",
    ),
    (
        "lost",
        ("bfloat16",),
        (
            (144, 144, 144), (176, 176, 176), (224, 224, 224), (288, 288, 288), (720, 720, 720), (1264, 1264, 1264),
            (2104, 2104, 2104), (8, 32, 368), (304, 16, 176), (8, 1096, 448), (8, 1608, 504), (2264, 8, 584),
            (180, 1728, 3872), (280, 3968, 6544), (2224, 856, 848), (420, 1762, 18), (149, 5725, 21), (896, 8176, 72),
        ),
        1,
        "nn",
    ),
    (
        "lost",
        ("bfloat16",),
        ((992, 992, 992), (1176, 1176, 1176), (32, 8, 616), (40, 8, 1016), (67, 1221, 20), (3941, 148, 13)),
        1,
        "tn",
    ),
    ("attention", ("bfloat16",), ((197, 197, 64), (257, 257, 64)), 768, "nt"),
    ("attention", ("bfloat16",), ((197, 64, 197), (257, 64, 257)), 768, "nn"),
    ("attention", ("float16",), ((49, 49, 32), (64, 64, 32)), 4096, "nt"),
    ("attention", ("float16",), ((49, 32, 49), (64, 32, 64)), 4096, "nn"),
    ("attention", ("bfloat16",), ((512, 512, 64), (1024, 1024, 64)), 96, "nt"),
    ("attention", ("bfloat16",), ((512, 64, 512), (1024, 64, 1024)), 96, "nn"),
    ("attention", ("bfloat16",), ((77, 77, 64), (128, 128, 128)), 512, "nt"),
    (
        "unaligned",
        ("bfloat16", "float16"),
        (
            (8192, 768, 50257), (4096, 1024, 30522), (8191, 1000, 513), (4096, 4095, 4096), (1023, 1023, 1023),
            (4097, 4097, 4097), (32768, 479, 1024), (2048, 2048, 2047), (8192, 768, 50264), (4096, 1024, 30528),
        ),
        1,
        "nn",
    ),
    (
        "unaligned",
        ("bfloat16", "float16"),
        (
            (50257, 768, 8192), (30522, 1024, 4096), (1024, 479, 32768), (4095, 4096, 4096), (50264, 768, 8192),
            (30528, 1024, 4096),
        ),
        1,
        "tn",
    ),
    (
        "unaligned",
        ("bfloat16", "float16"),
        ((2047, 2049, 2051), (32768, 1024, 479), (262144, 256, 63), (4096, 4096, 4095)),
        1,
        "nt",
    ),
)  # fmt: skip


def tasks(only: Sequence[str]) -> Iterator[Task]:
    """Yield the problems of the classes named, or of all but those that have to be named."""
    for kind, dtypes, sizes, batch, layouts in (*_CLASSES, *(_NAMED if only else ())):
        yield from (Task(kind, *size, ALL[name], batch, layouts) for name in dtypes for size in sizes)
    yield from _random()


def _random() -> Iterator[Task]:
    """Yield products of any size, alone and in batches, whose k is short for at least half of them."""
    draw = random.Random(_SEED)  # noqa: S311 — sizes, no secrets

    def size(low: float, high: float) -> int:
        return int(2 ** draw.uniform(low, high))

    for index in range(_DRAWN):
        batch = size(4, 12) if index % 3 == 0 else 1
        m, n, k = (size(2, 7.5) for _ in range(3)) if batch > 1 else (size(2, 12), size(2, 12), size(2, 9.5))
        if index % 4 == 1:
            m, n, k = (max(8, extent // 8 * 8) for extent in (m, n, k))
        layouts = draw.choice("nnt") + draw.choice("nnt")
        yield Task("random", m, n, k, ALL[_EVERY[index % len(_EVERY)]], batch, layouts)


def drawn(count: int, seed: int) -> Iterator[Task]:
    """Draw products as programs make them: any sizes, layers' sizes, weight gradients, few rows, small batches."""
    draw = random.Random(seed)  # noqa: S311 — sizes, no secrets

    def sizes(*ranges: tuple[float, float]) -> tuple[int, ...]:
        return tuple(int(2 ** draw.uniform(*each)) for each in ranges)

    while count > 0:
        dtype, batch = ALL[draw.choice(("float16", "bfloat16", "bfloat16", "float32", "float64"))], 1
        kind, share = "any", draw.random()
        if share < _ANY:
            m, n, k = sizes((2, 13), (2, 13), (2, 13))
        elif share < _ANY + 0.25:
            kind, (m, n, k) = "layer", (draw.choice(_LAYERS) for _ in range(3))
        elif share < _ANY + 0.4:
            kind, (m, n, k) = "gradient", sizes((3, 9), (3, 9), (11, 17))
        elif share < _ANY + 0.5:
            kind, (m, n, k) = "few rows", sizes((0, 7), (8, 14), (8, 13))
        else:
            kind, (batch, m, n, k) = "batched", sizes((3, 11), (2, 8), (2, 8), (2, 8))
        precision: str = "tf32" if dtype is F32 and draw.random() < _TF32 else "default"
        if batch * (m * k + k * n + m * n) <= _MOST_ELEMENTS:
            yield Task(kind, m, n, k, dtype, batch, draw.choice(("nn", "nt", "tn", "nn")), precision)
            count -= 1


def kernels(problem: Gemm, arch: Arch, each: int, every: str, most: int) -> list[Kernel[Gemm]]:
    """Return the chosen kernel, and of each other one the ``each`` configurations that are predicted to be fastest.

    Of the kernel called ``every`` it is the ``most``.
    """
    chosen = choose(problem, arch).kernel
    result = {(chosen.entry, chosen.config): chosen}
    for production in PRODUCTION:
        legal = [one for one in production.legal(problem, arch) if one.workspace(problem) <= _MOST_WORKSPACE]
        predicted = production.predict(problem, [one.config for one in legal], arch)
        ranked = [legal[index] for index in sorted(range(len(legal)), key=predicted.__getitem__)]
        some = ranked[: most if production.kernel.entry == every else each]
        result |= {(kernel.entry, kernel.config): kernel for kernel in some}
    return list(result.values())


def sources(task: Task, arch: Arch, *limits: Any) -> Iterator[Source]:
    """Generate the translation units of all launches."""
    a, b, d, workspace, counter = (Pointer(name, 256) for name in ("A", "B", "D", "workspace", "counter"))
    operands = GemmOperands(a, b, d, d, workspace=workspace, counter=counter)
    for kernel in kernels(task.problem, arch, *limits):
        for program, _ in kernel.steps(task.problem, operands):
            yield generate(program, task.dtype)


class Measurement:
    """One task on the GPU: its matrices as torch's tensors, checks, and times."""

    def __init__(self, gpu: GPU, clock: Clock, task: Task) -> None:
        import torch  # noqa: PLC0415 — the usage needs no GPU

        self.torch, self.gpu, self.clock, self.task = torch, gpu, clock, task
        kind, batch = getattr(torch, task.dtype.name), (task.batch,) if task.batch > 1 else ()

        sizes = (task.m, task.n, task.k)
        self.a, self.b = random_operands(sizes, task.dtype.name, task.layouts, batch=task.batch)
        self.d = torch.empty(*batch, task.m, task.n, device="cuda", dtype=kind)
        self.theirs = torch.empty_like(self.d)
        torch.matmul(self.a, self.b, out=self.theirs)
        self.rows = torch.arange(task.m, device="cuda")
        if task.m > _CHECKED:
            self.rows = torch.randint(0, task.m, (_CHECKED,), device="cuda")
            self.rows[0], self.rows[-1] = 0, task.m - 1
        self.of = torch.randint(0, task.batch, (64,), device="cuda") if batch else None
        a, b = self._some(self.a), self.b if self.of is None else self.b[self.of]
        self.expected = a.double() @ b.double()
        roundoff = _TF32_ROUNDOFF if task.precision == "tf32" else max(task.k, 16) * self.summed.eps
        sizes = a.double().abs() @ b.double().abs()
        if task.kind == _LONG:
            total, size = (one.cpu().numpy() for one in (self.expected, sizes))
            self.limit = torch.from_numpy(random_limit(total, size, task.k, task.dtype)).to(self.d.device)
        else:
            sums = sizes * roundoff
            self.limit = sums + task.dtype.roundoff * (self.expected.abs() + sums) + task.dtype.tiny

    @property
    def summed(self) -> Any:
        """What is known of the type that products are summed in."""
        return self.torch.finfo(getattr(self.torch, self.task.dtype.accumulator.name))

    def _some(self, matrices: Any) -> Any:
        """Return the checked rows of the checked products."""
        return matrices[self.rows] if self.of is None else matrices[self.of][:, self.rows]

    def excess(self, d: Any) -> float:
        """Return the largest error over its limit in the checked rows.

        It is infinite where D has a number that is not finite.
        """
        error = ((self._some(d).double() - self.expected).abs() / self.limit).max().item()
        return float(error) if bool(self.torch.isfinite(d).all()) else float("inf")

    def error(self, d: Any) -> float:
        """Return the root of the mean square error over that of the results."""
        difference = self._some(d).double() - self.expected
        return float((difference.square().mean() / self.expected.square().mean()).sqrt())

    def run(self, wanted: list[Kernel[Gemm]]) -> dict[str, Any]:
        """Give the seconds of each configuration, the library and moving the bytes, and errors of the first and it."""
        problem, torch = self.task.problem, self.torch
        most = max(kernel.workspace(problem) for kernel in wanted)
        workspace = torch.empty(most + 16, device="cuda", dtype=torch.uint8)
        a, b, d = (Pointer(name, one.data_ptr()) for name, one in (("A", self.a), ("B", self.b), ("D", self.d)))
        counter = torch.zeros(1, device="cuda", dtype=torch.int32)
        room, word = Pointer("workspace", workspace.data_ptr()), Pointer("counter", counter.data_ptr())
        operands = GemmOperands(a, b, d, d, workspace=room, counter=word)
        competitors: list[Competitor] = []
        errors: dict[str, float] = {}
        for kernel in wanted:
            launch = enqueuer(self.gpu, binaries(kernel, problem, operands, self.gpu.arch.target))
            self.d.fill_(float("nan"))
            torch.cuda.synchronize()
            launch(self.clock.stream)
            torch.cuda.synchronize()
            excess = self.excess(self.d)
            if not excess <= 1:
                sys.exit(f"{self.task.key}, {kernel.entry} {kernel.config}: {excess:.3g} of the allowed error")
            competitors.append(Competitor(f"{kernel.entry} {kernel.config}", launch))
            errors.setdefault("chosen", self.error(self.d))
        errors[LIBRARY] = self.error(self.theirs)
        competitors.append(Competitor(LIBRARY, self._library))
        competitors.append(Competitor(FLOOR, self._moving()))
        timings = self.clock.compare(competitors, seconds_each=0.004, most_rounds=7, settle=0.02)
        seconds = {one.name: timing.median for one, timing in zip(competitors, timings, strict=True)}
        return {"chosen": competitors[0].name, "seconds": seconds, "errors": errors}

    def _library(self, stream: StreamHandle) -> None:
        with self.torch.cuda.stream(self.torch.cuda.ExternalStream(stream.address)):
            self.torch.matmul(self.a, self.b, out=self.theirs)

    def _moving(self) -> Any:
        problem, torch = self.task.problem, self.torch
        written = self.d.numel() * problem.d_dtype.itemsize
        stream = moved(problem.least_bytes - written, written)
        self.source = torch.zeros(4 * stream.vectors, device="cuda", dtype=torch.int32)
        self.target = torch.zeros(4 * stream.written, device="cuda", dtype=torch.int32)
        pointers = (Pointer(name, one.data_ptr()) for name, one in (("A", self.source), ("D", self.target)))
        launch = MOVE.launch(stream, buffers(*pointers))
        return enqueuer(self.gpu, [(compile_source(generate(MOVE, F32), self.gpu.arch.target), launch)])


def main() -> None:
    """Measure all problems until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the record, written after each problem")
    parser.add_argument("--seconds", type=float, default=480, help="when to stop, default %(default)s")
    parser.add_argument("--each", type=int, default=1, help="configurations of every kernel, default %(default)s")
    parser.add_argument("--only", default="", help="classes to measure, with commas between them")
    parser.add_argument("--drawn", type=int, default=0, metavar="COUNT", help="so many products as programs make them")
    parser.add_argument("--seed", type=int, default=11, help="of these products, default %(default)s")
    parser.add_argument("--every", default="", metavar="ENTRY", help="the kernel whose configurations are all timed")
    parser.add_argument("--most", type=int, default=1 << 30, help="at most so many of its configurations")
    arguments = parser.parse_args()
    begin = time.monotonic()
    only = arguments.only.split(",") if arguments.only else ()
    gpu = GPU.get(0)
    limits = gpu.arch, arguments.each, arguments.every, arguments.most
    offered = drawn(arguments.drawn, arguments.seed) if arguments.drawn else tasks(only)
    todo = [task for task in offered if not only or task.kind in only]
    count = compile_sources((one for task in todo for one in sources(task, *limits)), gpu.arch.target)
    print(f"{count} kernels compiled in {time.monotonic() - begin:.0f} s", flush=True)
    records: list[dict[str, Any]] = []
    environment = describe(gpu=True)
    with clean_clock(gpu) if _LONG in only else Clock(gpu, flush_bytes(gpu.arch, cold=True)) as clock:
        for task in todo:
            if time.monotonic() - begin > arguments.seconds:
                print(f"the time is over: {len(todo) - todo.index(task)} problems are left", flush=True)
                break
            records.append({**task.key, **Measurement(gpu, clock, task).run(kernels(task.problem, *limits))})
            arguments.out.write_text(json.dumps({"environment": environment, "records": records}, indent=1) + "\n")
            print(_line(task, records[-1]), flush=True)


def _line(task: Task, record: dict[str, Any]) -> str:
    seconds = dict(record["seconds"])
    theirs, floor, chosen = seconds[LIBRARY], floor_of(record), seconds[record["chosen"]]
    best = min(seconds.keys() - {LIBRARY, FLOOR}, key=seconds.__getitem__)
    errors = record["errors"]
    error = errors["chosen"] / max(errors[LIBRARY], 1e-30)
    return (
        f"{task.kind} {task.problem} {task.layouts}: {chosen * 1e6:.1f} us, theirs {theirs / chosen:.2f}, "
        f"floor {floor / chosen:.2f} (theirs {floor / theirs:.2f}), error {error:.2f}, "
        f"{record['chosen'].split()[0]}; best {seconds[best] * 1e6:.1f} {best[:60]}"
    )


if __name__ == "__main__":
    main()
