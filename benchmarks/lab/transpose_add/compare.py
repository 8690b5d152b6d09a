"""Compares ``matmill.transpose_add`` with what users have instead, on torch's tensors, group by group.

Every result is compared with eager torch's bit by bit.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lab import tensors
from lab.calls import by_every_way, host_seconds
from lab.clean_clock import clean_clock
from lab.records import by_line
from lab.tensors import needs_torch
from lab.transpose_add.matrices import TransposeAddMatrices
from lab.transpose_add.report import (
    FORMAT,
    HEADINGS,
    LIBRARY_HEADINGS,
    OURS,
    OURS_AS_X,
    cells,
    entries,
    library_cells,
    summary,
)
from lab.transpose_add.shapes import CASE, GROUPS, SHORT, Shape
from matmill.arch import Arch
from matmill.bench.environment import describe
from matmill.bench.libraries.gemm import BFLOAT, tried
from matmill.bench.libraries.torch_cupy import TorchCalls
from matmill.bench.libraries.transpose_add import (
    COMPILED,
    COMPILED_AS_Y,
    CUPY,
    EAGER,
    TUNED,
    CupySum,
    TorchSum,
    compiled_as_y,
    torch_peers,
)
from matmill.bench.timing.device_copy import COPY_NAME, Copying
from matmill.choose import choose_transpose_add
from matmill.cli.console import output, table
from matmill.dtypes import DType
from matmill.errors import ArgumentError
from matmill.lowering import lower_transpose
from matmill.ops import transpose_add
from matmill.runtime.clock import Clock, Competitor, StreamHandle, Timing
from matmill.runtime.gpu import GPU

TORCH_COPY = "torch copy_"
_SMALL = 64
#: Seconds before the end after which nothing is compiled any more: eager torch and a copy are still timed.
_UNCOMPILED = 30.0
#: Columns of the table, in a log that no terminal folds.
_WIDE = 150


class Copies:
    """Copies that calls are interleaved with: our kernel's, and torch's, which is the driver's."""

    def __init__(self, copying: Copying) -> None:
        self._calls, self._copying = TorchCalls(), copying
        torch = self._calls.torch
        self._source = torch.full((copying.nbytes // 2,), 0x5A, dtype=torch.uint8, device=tensors.DEVICE)
        self._target = torch.empty_like(self._source)
        torch.cuda.synchronize()
        self.competitors = (Competitor(COPY_NAME, copying.run), Competitor(TORCH_COPY, self._run))

    def _run(self, stream: StreamHandle) -> None:
        with self._calls.on(stream):
            self._target.copy_(self._source)

    def rates(self, timings: Sequence[Timing]) -> dict[str, float]:
        """Return bytes per second, read and written, of each."""
        named = zip(self.competitors, timings, strict=True)
        return {competitor.name: self._copying.rate(timing.median) for competitor, timing in named}


def own(matrices: TransposeAddMatrices, dtype: DType) -> list[TorchSum]:
    """Return ``matmill.transpose_add`` into tensors that exist already: one with y's layout, and one with x's."""
    torch = matrices.torch
    as_x = torch.empty_like(matrices.x, memory_format=torch.contiguous_format).transpose(-2, -1)
    result = []
    for name, out in ((OURS, matrices.out), (OURS_AS_X, as_x)):
        made = TorchSum(name, partial(transpose_add, out=out), matrices.x, matrices.y, dtype)
        made.version = "matmill"
        result.append(made)
    return result


def compare(
    arch: Arch, clock: Clock, copies: Copies, shape: Shape, seed: int, *, everything: bool, compile_until: float
) -> dict[str, Any]:
    """Return one entry of a record.

    It has times of single calls with a cold L2, interleaved with a copy, and what else is to know.

    ``everything`` takes all libraries and gives each more rounds, else torch alone, eager and compiled, with a result
    in x's layout and one in y's. torch.compile is left out after ``compile_until``, by ``time.monotonic``, and the
    entry says so.
    """
    matrices, dtype = TransposeAddMatrices(shape, seed), shape.dtype
    ours = own(matrices, dtype)
    matrices.poison()
    for one in ours:
        one.run(clock.stream)
    matrices.synchronize()
    makers: dict[str, Callable[[], Any]] = dict(torch_peers(matrices.x, matrices.y, dtype, tuned=everything))
    absent = []
    if not everything:
        makers = {name: makers[name] for name in (EAGER, COMPILED)}
    elif find_spec("cupy") is None:
        absent.append(f"not compared with {CUPY}, which is not installed")
    else:
        makers[CUPY] = lambda: _cupy(matrices, dtype)
    makers[COMPILED_AS_Y] = lambda: compiled_as_y(matrices.x, matrices.y, dtype)
    if time.monotonic() > compile_until:
        absent += [
            f"{name}: left out, no time to compile"
            for name in (COMPILED, COMPILED_AS_Y, TUNED)
            if makers.pop(name, None)
        ]
    importlib.import_module("torch._dynamo").reset()  # or a shape after the eighth would not be compiled
    begin = time.monotonic()
    peers, refused = tried(makers, clock.stream, lambda _peer: matrices.synchronize())
    spent = time.monotonic() - begin
    wanted = next((peer.sum for peer in peers if peer.name == EAGER), None)
    if wanted is None:
        raise ArgumentError(argument=EAGER, got="; ".join(refused), wanted="its result", fix="See above.")
    everyone = [*ours, *peers]
    checks = {one.name: matrices.same(matrices.tensor(one.sum), wanted) for one in everyone}
    timings = clock.compare(
        [*(Competitor(one.name, one.run) for one in everyone), *copies.competitors],
        seconds_each=0.1 if everything else 0.03,
        most_rounds=60 if everything else 20,
        settle=0.5 if everything else 0.05,
        seed=seed,
    )
    ways = by_every_way(matrices.torch, {one.name: one.call for one in everyone}) if shape.nbytes <= SHORT else {}
    rows = [
        {
            "name": one.name,
            "version": one.version,
            "strides": list(matrices.tensor(one.sum).stride()),
            "same": checks[one.name],
            **asdict(timing),
            **{way: seconds[one.name] for way, seconds in ways.items()},
        }
        for one, timing in zip(everyone, timings, strict=False)
    ]
    return {
        "shape": shape.record(),
        "bytes": shape.nbytes,
        "copy_bytes_per_s": copies.rates(timings[len(everyone) :]),
        **_choice(matrices, arch),
        "rows": rows,
        "absent": [*absent, *refused],
        "compile_seconds": spent,
    }


def _cupy(matrices: TransposeAddMatrices, dtype: DType) -> CupySum:
    """Measure CuPy on the same memory; bfloat16, which it does not have, goes as integers."""
    cupy: Any = importlib.import_module("cupy")
    x, y = (t.view(matrices.torch.int16) if dtype.name == BFLOAT else t for t in (matrices.x, matrices.y))
    return CupySum(cupy.from_dlpack(x), cupy.from_dlpack(y), dtype)


def _choice(matrices: TransposeAddMatrices, arch: Arch) -> dict[str, Any]:
    """Return what matmill runs for these tensors, and what its cost model predicts for that."""
    choices = [choose_transpose_add(stage.problem, arch) for stage in lower_transpose(*matrices.inspected())]
    return {
        "configs": [str(choice.kernel.config) for choice in choices],
        "predicted_seconds": sum(choice.predicted_seconds for choice in choices),
    }


def host_costs(seed: int) -> list[dict[str, Any]]:
    """Return seconds that the host spends on one call on small matrices: ours in every way, and torch's own."""
    torch: Any = importlib.import_module("torch")
    from_torch: Any = importlib.import_module("matmill.torch").transpose_add
    result = []
    for name in ("float32", "bfloat16"):
        x, y = (
            torch.rand((_SMALL, _SMALL), device=tensors.DEVICE, generator=_seeded(torch, seed)).to(getattr(torch, name))
            for _ in range(2)
        )
        out = torch.empty_like(y)
        ways: dict[str, Callable[[], object]] = {
            OURS: partial(transpose_add, x, y),
            f"{OURS}, out=": partial(transpose_add, x, y, out=out),
            "matmill.torch.transpose_add": partial(from_torch, x, y),
            "torch.ops.matmill.transpose_add": partial(torch.ops.matmill.transpose_add, x, y),
            "x.t() + y": partial(_eager, x, y),
        }
        result.append({"dtype": name, "size": _SMALL, "seconds": host_seconds(ways, torch.cuda.synchronize)})
    return result


def _eager(x: Any, y: Any) -> Any:
    return x.t() + y


def _seeded(torch: Any, seed: int) -> Any:
    generator = torch.Generator(device=tensors.DEVICE)
    generator.manual_seed(seed)
    return generator


def main(description: str | None) -> None:
    """Measure the groups that the command line names; end with 1 where a result is wrong."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--group", choices=(*GROUPS, "all"), default="all")
    parser.add_argument("--seed", type=int, default=20261120)
    parser.add_argument("--seconds", type=float, default=540.0, help="begin nothing after these (default: 540)")
    parser.add_argument("--limit", type=int, help="take this many shapes of each group alone")
    args = parser.parse_args()
    needs_torch()
    gpu, end = GPU.get(0), time.monotonic() + args.seconds
    args.out.mkdir(parents=True, exist_ok=True)
    right = True
    with clean_clock(gpu) as clock, Copying(gpu, CASE.nbytes) as copying:
        copies = Copies(copying)
        for group in GROUPS if args.group == "all" else [args.group]:
            shapes = GROUPS[group][: args.limit]
            record: dict[str, Any] = {
                "record": FORMAT.kind,
                "group": group,
                "arch": gpu.arch.name,
                "environment": {**describe(gpu=True), "seed": args.seed},
                "asked": len(shapes),
                "host": host_costs(args.seed) if group == CASE.kind else [],
                FORMAT.entries: [],
            }
            path = args.out / f"{FORMAT.operation}_{gpu.arch.name}_{group}.json"
            for shape in shapes:
                if time.monotonic() > end:
                    break
                whole, until = group == CASE.kind, end - _UNCOMPILED
                line = compare(gpu.arch, clock, copies, shape, args.seed, everything=whole, compile_until=until)
                record[FORMAT.entries].append(line)
                path.write_text(by_line(record, FORMAT.entries), encoding="utf-8")
            right = _show(record) and right
    sys.exit(0 if right else 1)


def _show(record: Mapping[str, Any]) -> bool:
    """Print a group's table and remarks, and tell whether all results are right."""
    result, whole = entries(record), record["group"] == CASE.kind
    console = output(width=_WIDE)
    title = f"{record['group']}: {len(result)} of {record['asked']} shapes on {record['arch']}"
    headings = LIBRARY_HEADINGS if whole else HEADINGS
    columns = [(heading, "right" if index else "left") for index, heading in enumerate(headings)]
    rows = [row for entry in result for row in (library_cells(entry) if whole else [cells(entry)])]
    console.print(table(title, columns, rows))
    for entry in result:
        rates = ", ".join(f"{name} {rate / 1e12:.3f} TB/s" for name, rate in entry.record["copy_bytes_per_s"].items())
        absent = "".join(f"; {reason}" for reason in entry.record["absent"])
        line = f"  {entry.shape}: {rates}; {' and '.join(entry.record['configs'])}{absent}"
        console.print(line, soft_wrap=True)
    for one in record["host"]:
        costs = ", ".join(f"{way} {seconds * 1e6:.2f} us" for way, seconds in one["seconds"].items())
        console.print(f"  host, {one['size']}x{one['size']} {one['dtype']}: {costs}", soft_wrap=True)
    for sentence in summary(result):
        console.print(sentence, soft_wrap=True)
    return all(entry.ok for entry in result)
