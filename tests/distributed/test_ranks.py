"""Cases of groups, DTensors and FSDP on several ranks: over NCCL with two GPUs, else over gloo on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

TESTS = Path(__file__).parents[1]


@pytest.mark.alone
def test_all_cases_are_right_on_all_ranks(tmp_path: Path) -> None:
    if not torch.distributed.is_available():
        pytest.skip("this torch is built without torch.distributed")
    gpus = torch.cuda.device_count()
    # Groups of two ranks are made of four, so that one start serves both.
    ranks, backend = (min(gpus, 4), "nccl") if gpus > 1 else (4, "gloo")
    out = tmp_path / "rows.json"
    done = subprocess.run(
        [
            sys.executable,
            TESTS / "support" / "run_ranks.py",
            f"--ranks={ranks}",
            f"--backend={backend}",
            f"--out={out}",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(TESTS.parent / "src"), str(TESTS))),
            "OMP_NUM_THREADS": "1",
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(out.read_text(encoding="utf-8"))
    # 23 cases on each rank; then all ranks but the one that ends.
    assert len(rows) == 23 * ranks + ranks - 1
    assert {row["rank"] for row in rows if row["case"] == "a_rank_that_ends"} == set(range(ranks - 1))
    assert max(row["seconds"] for row in rows if row["case"] == "a_rank_that_ends") < 30
