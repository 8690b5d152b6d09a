"""Check and time inner, gram and sharded products on several ranks: NCCL on as many GPUs, or gloo on the CPU.

    PYTHONPATH=src python benchmarks/ranks.py --ranks 2 --out benchmarks/results/ranks_h100x2.json

First the cases of ``tests/distributed`` run on all ranks, a rank that ends in mid-run among them. Then the tasks of
``lab/ranks.py`` are timed: weak scaling of inner and gram, strong scaling beside torch.mm and all_reduce and
beside an all_gather, all_reduce alone, column- and row-parallel products beside torch's own on DTensors, and the
overlap of an all_reduce with the next product. The record is written after each; no task is begun after ``--seconds``,
and the same command goes on where it stopped. Exits with 1 where a result is wrong. Without GPUs, sizes are tiny.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: Seconds that the cases may take, and what imports and compiling may take beyond --seconds.
_CASES, _PATIENCE = 150, 60
_TASK_SECONDS = 2.0


def main() -> int:
    """Start the cases, then the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, help="processes (default: as many as there are GPUs, else 2)")
    parser.add_argument("--out", type=Path, required=True, help="the record, JSON")
    parser.add_argument("--seconds", type=float, default=120, help="no timing is begun after so many (default: 120)")
    parser.add_argument("--only", default="", help="tasks whose names contain this; no cases then")
    args = parser.parse_args()
    if "RANK" in os.environ:
        return _rank(args)
    import torch  # noqa: PLC0415 — ranks import it by themselves

    gpus = torch.cuda.device_count()
    ranks = args.ranks or gpus or 2
    backend = "nccl" if gpus >= ranks else "gloo"
    # NVLink multicast needs rights that not every machine gives, and gains nothing for sums as small as these.
    environment = {**os.environ, "NCCL_NVLS_ENABLE": os.environ.get("NCCL_NVLS_ENABLE", "0")}
    record = _read(args.out)
    if record.get("ranks", ranks) != ranks or record.get("backend", backend) != backend:
        parser.error(f"{args.out} is of {record['ranks']} ranks over {record['backend']}: name another file")
    record |= {"ranks": ranks, "backend": backend, "tasks": record.get("tasks", {})}
    if not args.only and not record.get("cases", {}).get("ok"):
        record["cases"] = _cases(ranks, backend, args.out, environment)
        _write(args.out, record)
        print(f"cases: {record['cases']['right']} of {record['cases']['rows']} rows are right")
    _write(args.out, record)
    _start(ranks, backend, args, environment)
    record = _read(args.out)
    wrong = [name for name, row in record["tasks"].items() if not row.get("ok")]
    print(f"{len(record['tasks'])} tasks, wrong: {', '.join(wrong) or 'none'}")
    return 1 if wrong or not record.get("cases", {"ok": True})["ok"] else 0


def _cases(ranks: int, backend: str, out: Path, environment: dict[str, str]) -> dict[str, Any]:
    rows_file = out.with_suffix(".cases.json")
    command = [sys.executable, str(ROOT / "tests" / "support" / "run_ranks.py"), "--ranks", str(ranks)]
    command += ["--backend", backend, "--out", str(rows_file), "--limit", str(_CASES)]
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests")))
    started = time.monotonic()
    done = subprocess.run(
        command, env={**environment, "PYTHONPATH": path}, capture_output=True, text=True, check=False, cwd=ROOT
    )
    rows = json.loads(rows_file.read_text(encoding="utf-8")) if rows_file.exists() else []
    rows_file.unlink(missing_ok=True)
    failed = [row for row in rows if row["error"]]
    return {
        "ok": done.returncode == 0,
        "rows": len(rows),
        "right": len(rows) - len(failed),
        "seconds": time.monotonic() - started,
        "failed": failed,
        "output": "" if done.returncode == 0 else (done.stdout + done.stderr)[-6000:],
        "ended": [row for row in rows if row["case"] == "a_rank_that_ends"],
    }


def _start(ranks: int, backend: str, args: argparse.Namespace, environment: dict[str, str]) -> None:
    """Start the ranks, which write the record; whoever is left after the time given is ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env={
                **environment,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "BACKEND": backend,
                "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS", "1"),
            },
        )
        for rank in range(ranks)
    ]
    deadline = time.monotonic() + args.seconds + _PATIENCE
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _rank(args: argparse.Namespace) -> int:
    """Return one rank: the tasks that the record lacks, in time."""
    import torch  # noqa: PLC0415 — not in the process that starts the ranks
    import torch.distributed as dist  # noqa: PLC0415 — see above

    warnings.filterwarnings(
        "ignore", message=".*all_gather_into_tensor", category=FutureWarning
    )  # torch 2.11 has no other
    from lab.ranks import Ranks, tasks  # noqa: PLC0415 — see above
    from matmill.bench.environment import describe  # noqa: PLC0415 — see above

    started = time.monotonic()
    rank, backend = int(os.environ["RANK"]), os.environ["BACKEND"]
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # The product is float32's own on all sides.
    torch.backends.cuda.matmul.allow_tf32 = False
    dist.init_process_group(backend, timeout=timedelta(seconds=60), device_id=device if device.type == "cuda" else None)
    ranks = Ranks(device)
    record = _read(args.out)
    # Which tasks are left is rank 0's to say: the file changes while others read it.
    left = [[task.name for task in tasks() if task.name not in record["tasks"] and args.only in task.name]]
    dist.broadcast_object_list(left, 0)
    record["environment"] = describe(gpu=ranks.on_gpu)
    if ranks.on_gpu:
        record["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    for task in tasks():
        if task.name not in left[0]:
            continue
        if ranks.agreed(time.monotonic() - started) > args.seconds:
            break
        result = task.make(ranks)
        times = ranks.time(result.runs, _TASK_SECONDS)
        error = None if result.error is None else ranks.agreed(result.error(), dist.ReduceOp.MAX)
        ok = error is None or error <= result.tolerance  # NaN is wrong
        record["tasks"][task.name] = {**result.facts, "seconds": times, "error": error, "ok": ok}
        if not rank:
            _write(args.out, record)
            shown = ", ".join(f"{name} {1e6 * seconds:.1f} us" for name, seconds in times.items())
            print(f"{task.name}: {shown}{'' if ok else f', WRONG: {error}'}", flush=True)
        del result
        if ranks.on_gpu:
            torch.cuda.empty_cache()
    dist.destroy_process_group()
    return 0


def _read(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return result


def _write(path: Path, record: dict[str, Any]) -> None:
    """Write at once: a run that is ended leaves a whole record."""
    whole = path.with_suffix(".part")
    whole.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    whole.replace(path)


if __name__ == "__main__":
    sys.exit(main())
