"""Records what Nsight Compute counts for every rung of a ladder of products: a golden file of the emulator's counters.

    python benchmarks/record_counters.py --ladder sgemm --out tests/golden/nsight_sgemm_256.json
    python benchmarks/record_counters.py --ladder hgemm --out tests/golden/nsight_hgemm_256.json

Launches the rungs under ``ncu``, which must be on the PATH and allowed to read the GPU's counters: each once on random
matrices at 256 cubed, or at the nearest size that it takes. ``--launch FILE`` does that alone, checks the results, and
writes what was launched, in order. Exits with 1 where a result is wrong.
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

from matmill.arch import get
from matmill.bench.environment import describe
from matmill.emulator import Counters
from matmill.jit.steps import binaries
from matmill.kernel import GemmOperands, Rung
from matmill.ladders.hgemm.rungs import ON_MMA
from matmill.ladders.hgemm.subject import half_product
from matmill.ladders.registry import LADDERS
from matmill.ladders.runner.emulated import kernel_like
from matmill.ladders.runner.selection import nearest
from matmill.ladders.sgemm.rungs import ON_FMA
from matmill.problem import Gemm
from matmill.runtime.gpu import GPU

RUNGS: dict[str, tuple[Rung[Gemm], ...]] = {"sgemm": ON_FMA, "hgemm": ON_MMA}
SIDE, SEED = 256, 20261120
#: The side of the product that rungs choose their constants for, as benchmarks/ladder.py has it.
LARGE = 4096
#: Every byte of a float that is NaN.
NAN_BYTE = 0xFF

#: What cp.async counts, besides the metrics that the emulator names.
LDGSTS = ("global_op_ldgsts", "shared_op_ldgsts")
#: Where the emulator's counts differ from these, and why; kept in the golden file beside the counts.
WHY = {
    "shared wavefronts and bank conflicts listed under 'varying'": "They change from run to run of the same binary on "
    "the same data, so the excess is contention between an SM's warps and not a property of the accesses: "
    "a warp by itself counts exactly what the emulator does (h200_warp_counters.json). The emulator counts the passes "
    "that the accesses need, which is never more than any run counted.",
    "smsp__inst_executed_op_{global_ld,global_st,shared_ld}": "Instructions of the machine code, those counted too "
    "that a whole warp skips by predicate (the read of C where beta is 0, and three idle LDS that the assembler places "
    "before cp.async). The emulator runs PTX, where neither exists.",
    "smsp__sass_thread_inst_executed_op_hfma_pred_on": "The assembler sets registers to constants with HFMA2.MMA.",
    "shared wavefronts of cp.async": "No metric of this ncu counts them; the emulator's are its own bank rule.",
}


def metrics(ncu: str) -> list[str]:
    """Return the emulator's metrics, those that this ncu has, and all that it has for cp.async."""
    listed = subprocess.run([ncu, "--query-metrics", "--chip", "gh100"], capture_output=True, text=True, check=True)
    names = [line.split()[0] for line in listed.stdout.splitlines() if line.strip()]
    # Counts that ncu makes by patching the code are in none of its lists.
    ours = [name for name in Counters().nsight_names() if name in names or "__sass_" in name]
    missing = Counters().nsight_names().keys() - set(ours)
    print(*(f"this ncu does not have {name}" for name in sorted(missing)), sep="\n")
    extra = [n for n in names if n.startswith("l1tex__") and any(part in n for part in LDGSTS)]
    return [f"{name}.sum" for name in (*ours, *extra)]


def launch(gpu: GPU, ladder: str, order: Path) -> bool:
    """Launch every rung of a ladder into a poisoned output; write what ran, in order, and tell whether all is right."""
    subject = LADDERS[ladder].subject
    asked = half_product(SIDE, SIDE, SIDE) if ladder == "hgemm" else Gemm(SIDE, SIDE, SIDE)
    large = subject.resized(asked, LARGE, LARGE, LARGE)
    rows, right = [], True
    for rung in RUNGS[ladder]:
        size, reason = nearest(rung, asked, gpu.arch, subject)
        if size is None:
            print(f"{rung.label}: not launched, {reason}")
            continue
        kernel, inputs = kernel_like(rung, size, large, get("h200")), subject.inputs(SEED).of(size)
        with (
            gpu.upload(inputs.a, "A") as a,
            gpu.upload(inputs.b, "B") as b,
            gpu.empty(size.m * size.n * size.dtype.itemsize) as d,
        ):
            d.fill_bytes(NAN_BYTE)
            to_d = d.pointer("D")
            operands = GemmOperands(a.pointer("A"), b.pointer("B"), to_d, to_d)
            for binary, launched in binaries(kernel, size, operands, gpu.arch.target):
                gpu.launch(binary, launched)
            gpu.synchronize()
            ok = subject.check(inputs, kernel, d.download((size.m, size.n), size.dtype.numpy)).ok
        print(f"{rung.label} {size}{'' if ok else '  WRONG'}", flush=True)
        rows.append({"rung": rung.label, "entry": kernel.entry, "problem": subject.record(size)})
        right = right and ok
    order.write_text(json.dumps(rows))
    return right


def profile(ncu: str, ladder: str, names: str, order: Path) -> list[dict[str, object]]:
    """Return every rung with what ncu counts for it."""
    command = [ncu, "--csv", "--print-units", "base", "--clock-control", "none", "--metrics", names]
    command += [sys.executable, __file__, "--ladder", ladder, "--launch", str(order)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"ncu failed with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    lines = done.stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    rows: list[dict[str, object]] = json.loads(order.read_text())
    order.unlink()
    entries = {row["entry"] for row in rows}
    counted: dict[str, dict[str, int]] = {}
    for record in csv.DictReader(lines[start:]):
        if record["Kernel Name"].split("(")[0] in entries:
            values = counted.setdefault(record["ID"], {})
            # Some of the metrics that ncu lists for cp.async it cannot collect: "n/a".
            with contextlib.suppress(ValueError):
                values[record["Metric Name"].removesuffix(".sum")] = int(record["Metric Value"].replace(",", ""))
    if len(rows) != len(counted):
        sys.exit(f"{len(rows)} rungs were launched, but ncu reported on {len(counted)} kernels")
    return [{**row, "metrics": values} for row, values in zip(rows, counted.values(), strict=True)]


def merged(runs: list[list[dict[str, object]]]) -> list[dict[str, object]]:
    """Return one row per rung: ``metrics`` that all runs agree on, and ``varying`` ones with the value of each run."""
    rows = []
    for same in zip(*runs, strict=True):
        every: list[dict[str, int]] = [row["metrics"] for row in same]
        seen = {name: [values[name] for values in every] for name in every[0]}
        stable = {name: values[0] for name, values in seen.items() if len(set(values)) == 1}
        varying = {name: values for name, values in seen.items() if len(set(values)) > 1}
        rows.append({**same[0], "metrics": stable, "varying": varying})
    return rows


def main() -> None:
    """Profile all rungs and write the golden file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ladder", choices=RUNGS, required=True)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="the golden file to write")
    what.add_argument("--launch", type=Path, metavar="FILE", help="launch alone, and write the order to FILE")
    parser.add_argument("--runs", type=int, default=3, help="how often to count; what differs is kept apart")
    args = parser.parse_args()
    if args.launch is not None:
        sys.exit(0 if launch(GPU.get(0), args.ladder, args.launch) else 1)
    ncu = shutil.which("ncu")
    if ncu is None:
        sys.exit("ncu: not on the PATH; it comes with NVIDIA Nsight Compute")
    names = ",".join(metrics(ncu))
    runs = [profile(ncu, args.ladder, names, args.out.with_suffix(".order.json")) for _ in range(args.runs)]
    record = {"environment": describe(gpu=True), "why": WHY, "rows": merged(runs)}
    args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
