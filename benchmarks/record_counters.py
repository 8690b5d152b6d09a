"""Records what Nsight Compute counts for every rung of the SGEMM ladder: the golden file of the emulator's counters.

    python benchmarks/record_counters.py --out tests/golden/nsight_sgemm_256.json

Runs itself under ``ncu``, which must be on the PATH and allowed to read the GPU's counters. Each rung is launched once
on random matrices at 256 cubed, or at the nearest size that it takes.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

from matmill.bench.environment import describe
from matmill.bench.inputs import InputsBySize
from matmill.bench.selection import nearest
from matmill.compile import compile_source
from matmill.emulator import Counters
from matmill.gpu import GPU
from matmill.kernel import GemmOperands
from matmill.ladder.sgemm import SGEMM
from matmill.problem import Gemm
from matmill.source import generate

PROBLEM = Gemm(m=256, n=256, k=256)
#: What cp.async counts, besides the metrics that the emulator names.
LDGSTS = ("global_op_ldgsts", "shared_op_ldgsts")


def launch_all() -> list[dict[str, object]]:
    """Launches every rung once, in order; says which, at which size."""
    gpu = GPU.get(0)
    inputs = InputsBySize(seed=1)
    launched: list[dict[str, object]] = []
    for rung in SGEMM:
        size, _ = nearest(rung.kernel_for(PROBLEM, gpu.arch), PROBLEM, gpu.arch)
        if size is None:
            continue
        kernel = rung.kernel_for(size, gpu.arch)
        given = inputs.of(size)
        a, b = gpu.upload(given.a, "A"), gpu.upload(given.b, "B")
        c = gpu.empty(size.m * size.n * 4)
        operands = GemmOperands(a.pointer("A"), b.pointer("B"), c.pointer("C"), c.pointer("C"))
        gpu.launch(compile_source(generate(kernel, size.dtype), gpu.arch.target), kernel.launch(size, operands))
        gpu.synchronize()
        for allocation in (a, b, c):
            allocation.close()
        launched.append({"rung": rung.label, "entry": kernel.entry, "problem": {"m": size.m, "n": size.n, "k": size.k}})
    return launched


def metrics(ncu: str) -> list[str]:
    """The emulator's metrics, and all that this ncu has for cp.async."""
    listed = subprocess.run([ncu, "--query-metrics", "--chip", "gh100"], capture_output=True, text=True, check=True)  # noqa: S603 — a tool of the caller's own PATH
    names = [line.split()[0] for line in listed.stdout.splitlines() if line.strip()]
    extra = [n for n in names if n.startswith("l1tex__") and any(part in n for part in LDGSTS)]
    return [f"{name}.sum" for name in (*Counters().nsight_names(), *extra)]


def main() -> None:
    """Profiles all rungs and writes the golden file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--launch", action="store_true", help="only launch the rungs (what runs under ncu)")
    args = parser.parse_args()
    if args.launch:
        args.out.write_text(json.dumps(launch_all()))
        return
    ncu = shutil.which("ncu")
    if ncu is None:
        sys.exit("ncu: not on the PATH; it comes with NVIDIA Nsight Compute")
    order = args.out.with_suffix(".order.json")
    command = [ncu, "--csv", "--print-units", "base", "--clock-control", "none", "--metrics", ",".join(metrics(ncu))]
    command += [sys.executable, __file__, "--launch", "--out", str(order)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 — as above
    if done.returncode:
        sys.exit(f"ncu failed with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    lines = done.stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    counted: dict[str, dict[str, float]] = {}
    entries = {row["entry"] for row in json.loads(order.read_text())}
    for record in csv.DictReader(lines[start:]):
        if record["Kernel Name"].split("(")[0] in entries:
            value = float(record["Metric Value"].replace(",", "")) if record["Metric Value"] else 0.0
            counted.setdefault(record["ID"], {})[record["Metric Name"].removesuffix(".sum")] = value
    rows = json.loads(order.read_text())
    order.unlink()
    if len(rows) != len(counted):
        sys.exit(f"{len(rows)} rungs were launched, but ncu reported on {len(counted)} kernels")
    for row, values in zip(rows, counted.values(), strict=True):
        row["metrics"] = {name: int(value) for name, value in values.items()}
    args.out.write_text(json.dumps({"environment": describe(gpu=True), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
