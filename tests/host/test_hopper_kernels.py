"""Kernels on wgmma compile as they are meant to: the ladder's, those of ``examples/hopper``, and their mistakes."""

from __future__ import annotations

import re

import pytest

from hopper import run
from hopper.run import Trial
from matmill.arch import get
from matmill.dtypes import BF16, F16, DType
from matmill.jit.compile import assembler_report, compile_ptx, parse_resources
from matmill.jit.source import Source, generate
from matmill.kernel import Rung
from matmill.ladders.hgemm.rungs import ON_WGMMA
from matmill.problem import Gemm
from support.hopper_defects import DEFECTS, Defect, registers, retarget

#: Remarks of the assembler: products serialized, waits or moves injected, setmaxnreg ignored.
REMARK = re.compile(r"C75\d\d|serializ|setmaxnreg ignored", re.IGNORECASE)
TRIALS = (
    run.copy(8, 8),
    run.wgmma_product(8, 8, 8, A_TRANSPOSED=1),
    run.wgmma_product(8, 8, 8, B_TRANSPOSED=1),
    run.wgmma_product(8, 8, 8, A_REGISTERS=1),
    *(run.persistent_product(8, 8, 8, BN=bn, B_TRANSPOSED=bt) for bn, bt in ((128, 0), (192, 1), (256, 0), (256, 1))),
    *(run.multicast_product(8, 8, 8, BN=bn, SHARES_B=sb) for bn, sb in ((128, 0), (256, 1))),
    retarget(),
)


#: The rungs of the HGEMM ladder, the one with clusters in both shapes: tiles below one another, and side by side.
RUNGS = [
    *((rung, F16, (256, 256)) for rung in ON_WGMMA),
    *((rung, BF16, (128, 512)) for rung in ON_WGMMA if rung.name in {"wgmma", "multicast"}),
]


def _compiles_well(source: Source) -> int:
    """Count the registers of the kernel, after a look at what the assembler has to say."""
    report = assembler_report(source, run.TARGET)
    assert REMARK.search(report) is None, report
    needs = parse_resources(report, source.entry)
    assert (needs.spill_stores, needs.spill_loads, needs.stack) == (0, 0, 0)
    return needs.registers


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: f"{trial.kernel} {trial.config}")
def test_nothing_is_spilled_serialized_or_ignored(trial: Trial) -> None:
    assert _compiles_well(trial.source()) > 0


@pytest.mark.parametrize(("rung", "dtype", "shape"), RUNGS, ids=lambda one: getattr(one, "name", str(one)))
def test_no_rung_is_spilled_serialized_or_ignored(rung: Rung[Gemm], dtype: DType, shape: tuple[int, int]) -> None:
    kernel = rung.kernel_for(Gemm(*shape, 64, dtype), get("h200"))
    registers = _compiles_well(generate(kernel, dtype))
    constants = dict(kernel.config.constants)
    if "SHARES_B" in constants:
        assert constants["SHARES_B"] == (shape[0] > 128)
    if "CONSUMER_REGISTERS" in constants:
        # What setmaxnreg moves: three warp groups get 168 each.
        assert registers == 168
        assert constants["PRODUCER_REGISTERS"] + 2 * constants["CONSUMER_REGISTERS"] <= 3 * registers
    else:
        assert registers <= 168


def test_a_remark_is_found() -> None:
    without_wait = ("wgmma_product.cuh", "    wgmma_wait<0>();\n", "")
    report = assembler_report(run.wgmma_product(8, 8, 8).source([without_wait]), run.TARGET)
    assert REMARK.search(report) is not None, report


@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_a_planted_mistake_changes_its_source_once_and_compiles(defect: Defect) -> None:
    trial = defect.trial()
    files = dict(trial.source().headers)
    for file, old, _ in defect.changes:
        assert files[f"hopper/{file}"].count(old) == 1
    assert ".entry" in compile_ptx(trial.source(defect.changes), run.TARGET)


def test_the_registers_that_are_changed_in_flight_are_those_of_the_product() -> None:
    (defect,) = (defect for defect in DEFECTS if defect.trial is registers)
    ptx = compile_ptx(defect.trial().source(defect.changes), run.TARGET)
    product = re.search(r"wgmma\.mma_async.*?\}, \{(%r\d+),", ptx)
    change = re.search(r"xor\.b32 (%r\d+), \1, 1;", ptx)
    assert product is not None
    assert change is not None
    assert product[1] == change[1]
