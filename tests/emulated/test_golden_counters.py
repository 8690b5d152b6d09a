"""The emulator's counters of every rung against what Nsight Compute counted on an H200, at 256 cubed.

``benchmarks/record_counters.py`` recorded the golden files; ``why`` says where the two differ, and for what reason.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matmill.arch import get
from matmill.emulator import Memory, run
from matmill.jit.compile import compile_ptx
from matmill.jit.source import generate
from matmill.kernel import GemmOperands, Rung
from matmill.ladders import registry
from matmill.ladders.hgemm.rungs import ON_MMA
from matmill.ladders.runner.emulated import kernel_like
from matmill.ladders.sgemm.rungs import ON_FMA
from matmill.problem import Gemm
from support.recorded import AGAIN, differences, rows_of

FOLDER = Path(__file__).parents[1] / "golden"
#: The rungs on wgmma, and float32 on tensor cores, are not among the recorded ones.
LADDERS: dict[str, tuple[Rung[Gemm], ...]] = {"sgemm": ON_FMA, "hgemm": ON_MMA}
FILES = {ladder: FOLDER / f"nsight_{ladder}_256.json" for ladder in LADDERS}
MEMORY = (
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st",
    "smsp__inst_executed_op_ldgsts",
)
#: The side of the product that rungs chose their constants for.
LARGE = 4096
#: What is counted exactly, by ladder.
EXACT = {
    "sgemm": (
        *MEMORY,
        "smsp__sass_thread_inst_executed_op_ffma_pred_on",
        "smsp__sass_thread_inst_executed_op_fmul_pred_on",
    ),
    "hgemm": (*MEMORY, "smsp__inst_executed_op_ldsm", "sm__inst_executed_pipe_tensor_op_hmma"),
}
#: Metrics that contention may raise; all others must never vary between runs.
CONTENDED = ("wavefronts_mem_shared", "bank_conflicts")


def recorded(ladder: str) -> dict[str, dict[str, Any]]:
    """Return the golden rows by rung; skips where nobody has recorded them."""
    if not FILES[ladder].is_file():
        pytest.skip(f"no {FILES[ladder].name}: benchmarks/record_counters.py --ladder {ladder} makes it on a GPU")
    return {row["rung"]: row for row in json.loads(FILES[ladder].read_text())["rows"]}


def test_the_first_ladder_is_recorded() -> None:
    assert FILES["sgemm"].is_file()


@pytest.mark.parametrize("ladder", LADDERS)
def test_every_rung_is_recorded_and_every_metric_counted(ladder: str) -> None:
    rows = recorded(ladder)
    assert list(rows) == [rung.label for rung in LADDERS[ladder]]
    for row in rows.values():
        assert set(EXACT[ladder]) <= set(row["metrics"]) | set(row["varying"])
        assert all(any(part in name for part in CONTENDED) for name in row["varying"])


@pytest.mark.parametrize(
    ("ladder", "rung"),
    [
        pytest.param(ladder, rung, id=rung.label if ladder == "sgemm" else f"{ladder}-{rung.label}")
        for ladder, rungs in LADDERS.items()
        for rung in rungs
    ],
)
def test_the_emulator_counts_what_nsight_compute_counted(ladder: str, rung: Rung[Gemm]) -> None:
    row = recorded(ladder)[rung.label]
    size: Gemm = registry.LADDERS[ladder].subject.problem(row["problem"])
    arch = get("h200")
    kernel = kernel_like(rung, size, registry.LADDERS[ladder].subject.resized(size, LARGE, LARGE, LARGE), arch)
    generator = np.random.default_rng()
    element = size.dtype.numpy
    a = generator.uniform(-1, 1, (size.m, size.k)).astype(element)
    b = generator.uniform(-1, 1, (size.k, size.n)).astype(element)
    c = np.full((size.m, size.n), np.nan, dtype=element)
    memory = Memory()
    bound = memory.bind("C", c, access="rw")
    operands = GemmOperands(memory.bind("A", a, access="r"), memory.bind("B", b, access="r"), bound, bound)
    ptx = compile_ptx(generate(kernel, size.dtype), arch.target)
    counters = run(ptx, kernel.launch(size, operands), memory, races=False).counters
    if ladder == "sgemm":
        known = {"counters": counters.as_dict()}
        assert differences(known, rows_of("sgemm_emulated_256")[rung.label]) == {}, AGAIN
    counted = counters.nsight_names()

    stable = {name: row["metrics"][name] for name in EXACT[ladder] if name in row["metrics"]}
    assert {name: counted[name] for name in stable} == stable
    for name, runs in row["varying"].items():
        if name in EXACT[ladder]:
            assert counted[name] <= min(runs), name
            # Contention adds little: a wrong bank rule would be off by a factor, not by a part.
            assert "wavefronts" not in name or counted[name] >= 0.85 * min(runs), name
