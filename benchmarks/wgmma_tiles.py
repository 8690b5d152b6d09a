"""Time every configuration of the warp-specialised kernel beside torch.mm, on one GPU of compute capability 9.0.

    python benchmarks/wgmma_tiles.py --out benchmarks/results/wgmma_tiles_h200.json --seconds 480

Squares and rectangles, aligned and odd ones, in float16 and bfloat16, with B's rows contiguous along n and along k. All
kernels are compiled first, by as many processes as there are cores. Each result is compared with float64 in rows drawn
at random, and as a whole with torch's float32. Then all configurations of a problem and torch.mm run interleaved with
a cold L2 cache. The record is written after each problem: a run that is given an earlier one's file goes on where that
ended.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.compiler import compile_sources
from lab.enqueue import enqueuer
from lab.gemm.wgmma_tiles import LIBRARY, packed
from matmill.arch import get
from matmill.bench.environment import describe
from matmill.bench.timing.clock import Clock, Competitor, StreamHandle, flush_bytes
from matmill.config import Config
from matmill.dtypes import BF16, F16, DType
from matmill.jit.source import Source, generate
from matmill.jit.steps import binaries
from matmill.kernel import GemmOperands
from matmill.kernels.wgmma import WGMMA, space
from matmill.kernels.wgmma.cost import explain
from matmill.kernels.wgmma.tiles import Shape, configured, runs, unaligned
from matmill.launch import Pointer
from matmill.problem import Gemm
from matmill.runtime.gpu import GPU

SQUARES = (256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384)
#: Rows that start on 16 bytes and straddle cache lines.
STRADDLING = (816, 1000, 1816, 1960, 4104, 5552)
#: Products of language models, and others that fill a GPU badly.
RECTANGLES = (
    (1, 4096, 4096), (16, 4096, 4096), (64, 4096, 4096), (128, 14336, 4096), (512, 4096, 14336), (2048, 4096, 4096),
    (8192, 1280, 8192), (8192, 28672, 4096), (2048, 512, 512), (256, 256, 8192), (8, 616, 3208), (8, 864, 4136),
    (560, 16, 1104), (72, 72, 8152), (40, 4896, 7048), (1504, 264, 712), (3680, 424, 320), (344, 5128, 1032),
)  # fmt: skip
ODD = (
    (4097, 4097, 4097), (4096, 4095, 4096), (1023, 1023, 1023), (8191, 1000, 513), (2047, 2049, 2051), (633, 7007, 22),
)  # fmt: skip
#: Aligned operands whose D has rows anywhere: vocabularies, features, tokens; and some of their aligned neighbours.
ODD_D = (
    (8192, 50257, 768), (4096, 30522, 1024), (2048, 4097, 4096), (1500, 51865, 768), (32768, 479, 1024),
    (8192, 1023, 1024), (197, 1001, 768), (8192, 4095, 512), (4096, 4099, 8192), (16384, 319, 256), (1024, 2050, 1024),
    (8192, 50264, 768), (2048, 4096, 4096), (8192, 1024, 1024),
)  # fmt: skip
#: Operands with rows anywhere, with the layouts of A and B: gradients of a vocabulary's head, features, tokens; and
#: aligned neighbours of some.
ODD_OPERANDS = (
    (8192, 768, 50257, "row", "row"), (50257, 768, 8192, "column", "row"), (4096, 1024, 30522, "row", "row"),
    (30522, 1024, 4096, "column", "row"), (8191, 1000, 513, "row", "row"), (4096, 4095, 4096, "row", "row"),
    (1023, 1023, 1023, "row", "row"), (4097, 4097, 4097, "row", "row"), (2047, 2049, 2051, "row", "column"),
    (32768, 1024, 479, "row", "column"), (32768, 479, 1024, "row", "row"), (1024, 479, 32768, "column", "row"),
    (262144, 256, 63, "row", "column"), (2048, 2048, 2047, "row", "column"), (2048, 2048, 2047, "row", "row"),
    (4096, 4096, 4095, "row", "column"), (4095, 4096, 4096, "column", "row"), (4095, 4096, 4096, "column", "column"),
    (8192, 768, 50264, "row", "row"), (50264, 768, 8192, "column", "row"), (4096, 1024, 30528, "row", "row"),
    (30528, 1024, 4096, "column", "row"), (8192, 1000, 512, "row", "row"), (1024, 1024, 1024, "row", "row"),
    (4096, 4096, 4096, "row", "row"), (4096, 4096, 4096, "column", "column"), (2048, 2048, 2048, "row", "column"),
    (32768, 1024, 480, "row", "column"), (1024, 480, 32768, "column", "row"),
)  # fmt: skip
#: Tiles that no product is given, to see what the choice of shapes costs.
EXTRA = (Shape(128, 256, 2), Shape(128, 160, 2, pingpong=True))
#: Configurations that are predicted to take longer than the fastest one by this factor are timed for the page alone.
WITHIN, PAGE = 1.5, (4096, 8192)
#: Of each problem so many are timed whatever is predicted.
LEAST = 24
#: Raster groups to compare on large products.
GROUPS, LARGE = (4, 8, 16, 32), 4096
_CHECKED, _TOLERANCE = 32, 2.0**-6


@dataclass(frozen=True)
class Task:
    """A problem with packed matrices, of which ``"row"`` and ``"column"`` say which are contiguous."""

    m: int
    n: int
    k: int
    dtype: DType
    layout: str
    a_layout: str = "row"

    @property
    def problem(self) -> Gemm:
        """With the alignment that packed rows have."""
        return packed(self.m, self.n, self.k, self.dtype, self.layout, a_layout=self.a_layout)

    @property
    def key(self) -> dict[str, Any]:
        """How a record names it."""
        key = {"m": self.m, "n": self.n, "k": self.k, "dtype": self.dtype.name, "layout": self.layout}
        return key if self.a_layout == "row" else {**key, "a_layout": self.a_layout}


def tasks(only: str | None = None) -> Iterator[Task]:
    """Yield every problem, the more telling ones first: bfloat16 in both layouts, then float16.

    With ``only`` they are those of :data:`ODD_D` (``"odd-d"``) or of :data:`ODD_OPERANDS` (``"odd-operands"``).
    """
    if only == "odd-operands":
        for m, n, k, a_layout, layout in ODD_OPERANDS:
            yield Task(m, n, k, F16 if 1024 in (n, k) else BF16, layout, a_layout)
        return
    if only == "odd-d":
        yield from (Task(*shape, (BF16, F16)[index % 2], "column") for index, shape in enumerate(ODD_D))
        return
    shapes = [*((n, n, n) for n in (*SQUARES, *STRADDLING)), *RECTANGLES, *ODD]
    for dtype in (BF16, F16):
        for layout in ("column", "row"):
            yield from (Task(m, n, k, dtype, layout) for m, n, k in shapes)


def configs_of(problem: Gemm) -> list[Config]:
    """Return the legal configurations that are predicted to be fast, and the extra ones of large problems."""
    arch = get("h200")
    result = _fast(problem, [config for config in space(problem, arch) if _is_legal(problem, config)])
    if min(problem.m, problem.n) >= LARGE // 2:
        repack = unaligned(problem)
        shapes = [shape for shape in EXTRA if runs(problem, "B").along_k or shape.bn % 64 == 0]
        result += [configured(shape, problem, arch, repack=repack) for shape in shapes]
    if min(problem.m, problem.n) >= LARGE:
        result += [config.replace(GROUP_M=group) for config in result if _large(config) for group in GROUPS]
    return [config for config in dict.fromkeys(result) if _is_legal(problem, config)]


def _is_legal(problem: Gemm, config: Config) -> bool:
    return WGMMA.with_config(config).why_not(problem, get("h200")) is None


def _fast(problem: Gemm, configs: list[Config]) -> list[Config]:
    """Return those within WITHIN of the least predicted time; of squares on the page all."""
    if problem.dtype is BF16 and problem.m == problem.n == problem.k and problem.k in PAGE:
        return configs
    ways: dict[tuple[int, int], list[Config]] = {}
    for config in configs:
        ways.setdefault((config["A_IN_REGISTERS"], config["REPACK_A"]), []).append(config)
    return [config for way in ways.values() for config in _within(problem, way, LEAST // len(ways))]


def _within(problem: Gemm, configs: list[Config], least: int) -> list[Config]:
    """Return those within WITHIN of the least predicted time, and so many whatever is predicted."""
    seconds = [explain(problem, config, get("h200")).seconds for config in configs]
    most = max(WITHIN * min(seconds), sorted(seconds)[:least][-1])
    return [config for config, predicted in zip(configs, seconds, strict=True) if predicted <= most]


def _large(config: Config) -> bool:
    """Tell whether it is one of the two largest tiles, without anything special."""
    special = config["EXCHANGED"] + config["PINGPONG"] + config["CLUSTER_M"] + config["CLUSTER_N"] - 2
    return not special and config["BM"] * config["BN"] == 128 * 256


def sources(problem: Gemm, configs: Sequence[Config]) -> Iterator[Source]:
    """Yield the translation units of all launches."""
    a, b, d, workspace = (Pointer(name, 256) for name in ("A", "B", "D", "workspace"))
    operands = GemmOperands(a, b, d, d, workspace=workspace)
    for config in configs:
        for program, _ in WGMMA.with_config(config).steps(problem, operands):
            yield generate(program, problem.dtype)


def compile_all(todo: Sequence[Task]) -> int:
    """Compile what the tasks need into the cache, and count the translation units."""
    needed = (one for task in todo for one in sources(task.problem, configs_of(task.problem)))
    return compile_sources(needed, get("h200").target)


class Measurement:
    """One task on the GPU: its matrices as torch's tensors, checks, and times."""

    def __init__(self, gpu: GPU, clock: Clock, task: Task) -> None:
        import torch  # noqa: PLC0415 — the usage needs no GPU

        self.torch, self.gpu, self.clock, self.task = torch, gpu, clock, task
        kind = getattr(torch, task.dtype.name)
        shape = (task.m, task.k) if task.a_layout == "row" else (task.k, task.m)
        a = torch.randn(*shape, device="cuda", dtype=kind)
        self.a = a if task.a_layout == "row" else a.t()
        shape = (task.k, task.n) if task.layout == "row" else (task.n, task.k)
        b = torch.randn(*shape, device="cuda", dtype=kind)
        self.b = b if task.layout == "row" else b.t()
        self.d = torch.empty(task.m, task.n, device="cuda", dtype=kind)
        self.theirs = torch.empty_like(self.d)
        torch.mm(self.a, self.b, out=self.theirs)
        # In float32: torch may add the partial sums of 16 bits in 16 bits.
        self.whole = self.a.float() @ self.b.float()
        rows = torch.randint(0, task.m, (_CHECKED,), device="cuda")
        rows[0], rows[-1] = 0, task.m - 1
        self.rows = rows
        wide = self.a[rows].double(), self.b.double()
        self.expected = wide[0] @ wide[1]
        sums = wide[0].abs() @ wide[1].abs() * (max(task.k, 16) * 2.0**-23)
        self.limit = sums + task.dtype.roundoff * (self.expected.abs() + sums) + task.dtype.tiny

    def excess(self) -> float:
        """Return the largest error over its limit in the checked rows.

        It is infinite where D as a whole is far from torch's.
        """
        error = ((self.d[self.rows].double() - self.expected).abs() / self.limit).max().item()
        size = self.whole.abs().clip(min=float(self.task.k) ** 0.5)
        apart = ((self.d.float() - self.whole).abs() / size).max().item()
        return error if apart <= _TOLERANCE else float("inf")

    def run(self, configs: Sequence[Config]) -> dict[str, float]:
        """Return seconds of each configuration and of the library."""
        problem, torch = self.task.problem, self.torch
        room = max(WGMMA.with_config(config).workspace(problem) for config in configs)
        workspace = torch.empty(room + 16, device="cuda", dtype=torch.uint8)
        a, b, d = (Pointer(name, one.data_ptr()) for name, one in (("A", self.a), ("B", self.b), ("D", self.d)))
        operands = GemmOperands(a, b, d, d, workspace=Pointer("workspace", workspace.data_ptr()))
        competitors = []
        for config in configs:
            kernel = WGMMA.with_config(config)
            launch = enqueuer(self.gpu, binaries(kernel, problem, operands, self.gpu.arch.target))
            self.d.fill_(float("nan"))
            torch.cuda.synchronize()
            launch(self.clock.stream)
            torch.cuda.synchronize()
            excess = self.excess()
            if not excess <= 1:
                raise SystemExit(f"{self.task.key}, {config}: {excess:.3g} of the allowed error")
            competitors.append(Competitor(str(config), launch))
        competitors.append(Competitor(LIBRARY, self._library))
        timings = self.clock.compare(competitors, seconds_each=0.01, most_rounds=9, settle=0.03)
        return {one.name: timing.median for one, timing in zip(competitors, timings, strict=True)}

    def _library(self, stream: StreamHandle) -> None:
        with self.torch.cuda.stream(self.torch.cuda.ExternalStream(stream.address)):
            self.torch.mm(self.a, self.b, out=self.theirs)


def main() -> None:
    """Measure what the record does not have yet, until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the record, which is gone on with where it exists")
    parser.add_argument("--seconds", type=float, default=480, help="when to stop, default %(default)s")
    parser.add_argument("--most", type=int, default=10**6, help="of how many problems")
    parser.add_argument(
        "--only", choices=("odd-d", "odd-operands"), help="products of which D or operands start anywhere"
    )
    arguments = parser.parse_args()
    begin = time.monotonic()
    known: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"records": []}
    done = [{name: value for name, value in record.items() if name != "seconds"} for record in known["records"]]
    todo = [task for task in tasks(arguments.only) if task.key not in done][: arguments.most]
    print(f"{compile_all(todo)} kernels compiled in {time.monotonic() - begin:.0f} s", flush=True)
    gpu = GPU.get(0)
    known["environment"] = describe(gpu=True)
    with Clock(gpu, flush_bytes(gpu.arch, cold=True)) as clock:
        for task in todo:
            if time.monotonic() - begin > arguments.seconds:
                print(f"the time is over: {len(todo) - todo.index(task)} problems are left", flush=True)
                break
            seconds = Measurement(gpu, clock, task).run(configs_of(task.problem))
            known["records"].append({**task.key, "seconds": seconds})
            arguments.out.write_text(json.dumps(known, indent=1) + "\n")
            library = seconds[LIBRARY]
            ranked = sorted(seconds.keys() - {LIBRARY}, key=seconds.__getitem__)
            shown = "; ".join(f"{_short(name)} {library / seconds[name]:.3f}" for name in ranked[:4])
            named = f"{task.m}x{task.n}x{task.k} {task.dtype.name} {task.layout}"
            print(f"{named}: {library * 1e6:.1f} us, {shown}", flush=True)


def _short(name: str) -> str:
    """Return the tile of a configuration in a few characters."""
    c = dict(word.split("=") for word in name.split())
    tile = f"{c['BM']}x{c['BN']}" + ("p" if c["PINGPONG"] == "1" else "") + f"/{c['STAGES']}"
    cluster = f" {c['CLUSTER_M']}x{c['CLUSTER_N']}" if c["CLUSTER_M"] + c["CLUSTER_N"] != "11" else ""
    slices = f"k{c['CLUSTER_K']} in clusters" if c["CLUSTER_K"] != "1" else f"k{c['SPLIT_K']}"
    swap, registers = " swap" * int(c["EXCHANGED"]), " registers" * int(c["A_IN_REGISTERS"])
    return f"{tile}{cluster} g{c['GROUP_M']}{swap}{registers} {slices}"


if __name__ == "__main__":
    main()
