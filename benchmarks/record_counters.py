"""Records what Nsight Compute counts for every rung of the SGEMM ladder: the golden file of the emulator's counters.

    python benchmarks/record_counters.py --out tests/golden/nsight_sgemm_256.json

Runs ``launch_all.py`` under ``ncu``, which must be on the PATH and allowed to read the GPU's counters.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

from matmill.bench.environment import describe
from matmill.emulator import Counters

#: What cp.async counts, besides the metrics that the emulator names.
LDGSTS = ("global_op_ldgsts", "shared_op_ldgsts")


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
    args = parser.parse_args()
    ncu = shutil.which("ncu")
    if ncu is None:
        sys.exit("ncu: not on the PATH; it comes with NVIDIA Nsight Compute")
    order = args.out.with_suffix(".order.json")
    command = [ncu, "--csv", "--print-units", "base", "--clock-control", "none", "--metrics", ",".join(metrics(ncu))]
    command += [sys.executable, str(Path(__file__).with_name("launch_all.py")), "--ladder-only", "--out", str(order)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 — as above
    if done.returncode:
        sys.exit(f"ncu failed with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    lines = done.stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    counted: dict[str, dict[str, float]] = {}
    rows = json.loads(order.read_text())
    entries = {row["entry"] for row in rows}
    for record in csv.DictReader(lines[start:]):
        if record["Kernel Name"].split("(")[0] in entries:
            values = counted.setdefault(record["ID"], {})
            # Some of the metrics that ncu lists for cp.async it cannot collect: "n/a".
            with contextlib.suppress(ValueError):
                values[record["Metric Name"].removesuffix(".sum")] = float(record["Metric Value"].replace(",", ""))
    order.unlink()
    if len(rows) != len(counted):
        sys.exit(f"{len(rows)} rungs were launched, but ncu reported on {len(counted)} kernels")
    for row, values in zip(rows, counted.values(), strict=True):
        row["metrics"] = {name: int(value) for name, value in values.items()}
    args.out.write_text(json.dumps({"environment": describe(gpu=True), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
