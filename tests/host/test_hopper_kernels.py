"""The kernels of ``examples/hopper`` compile as they are meant to, and so do the mistakes to plant in them."""

from __future__ import annotations

import re

import pytest

from hopper import run
from hopper.run import Trial
from matmill.jit.compile import assembler_report, compile_ptx, parse_resources
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


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: f"{trial.kernel} {trial.config}")
def test_nothing_is_spilled_serialized_or_ignored(trial: Trial) -> None:
    report = assembler_report(trial.source(), run.TARGET)
    assert REMARK.search(report) is None, report
    needs = parse_resources(report, trial.kernel)
    assert needs.registers > 0
    assert (needs.spill_stores, needs.spill_loads, needs.stack) == (0, 0, 0)


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
