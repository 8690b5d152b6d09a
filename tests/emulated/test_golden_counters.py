"""The emulator's counters of every rung against what Nsight Compute counted on an H200, at 256 cubed.

``benchmarks/record_counters.py`` recorded the golden file; its ``why`` says where the two differ and for what reason.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matmill.arch import get
from matmill.compile import compile_source
from matmill.emulator import Memory, run
from matmill.kernel import GemmOperands
from matmill.ladder.sgemm import SGEMM
from matmill.problem import Gemm
from matmill.source import generate

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "nsight_sgemm_256.json").read_text())
ROWS = {row["rung"]: row for row in GOLDEN["rows"]}
EXACT = (
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st",
    "smsp__inst_executed_op_ldgsts",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on",
    "smsp__sass_thread_inst_executed_op_fmul_pred_on",
)
#: Metrics that contention may raise; all others must never vary between runs.
CONTENDED = ("wavefronts_mem_shared", "bank_conflicts")


def test_every_rung_is_recorded_and_every_metric_counted() -> None:
    assert list(ROWS) == [rung.label for rung in SGEMM]
    for row in GOLDEN["rows"]:
        assert set(EXACT) <= set(row["metrics"]) | set(row["varying"])
        assert all(any(part in name for part in CONTENDED) for name in row["varying"])


@pytest.mark.parametrize("rung", SGEMM, ids=lambda rung: rung.label)
def test_the_emulator_counts_what_nsight_compute_counted(rung: Any) -> None:
    row = ROWS[rung.label]
    size = Gemm(**row["problem"])
    arch = get("h200")
    kernel = rung.kernel_for(size, arch)
    generator = np.random.default_rng()
    a = generator.uniform(-1, 1, (size.m, size.k)).astype(np.float32)
    b = generator.uniform(-1, 1, (size.k, size.n)).astype(np.float32)
    c = np.full((size.m, size.n), np.nan, dtype=np.float32)
    memory = Memory()
    bound = memory.bind("C", c, access="rw")
    operands = GemmOperands(memory.bind("A", a, access="r"), memory.bind("B", b, access="r"), bound, bound)
    binary = compile_source(generate(kernel, size.dtype), arch.target)
    counted = run(binary.ptx, kernel.launch(size, operands), memory, races=False).counters.nsight_names()

    stable = {name: row["metrics"][name] for name in EXACT if name in row["metrics"]}
    assert {name: counted[name] for name in stable} == stable
    for name, runs in row["varying"].items():
        if name in EXACT:
            assert counted[name] <= min(runs), name
            # Contention adds little: a wrong bank rule would be off by a factor, not by a part.
            assert "wavefronts" not in name or counted[name] >= 0.85 * min(runs), name
