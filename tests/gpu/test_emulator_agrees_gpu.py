"""The emulator against a GPU: the same kernels on the same values leave the same bits.

Approximate functions need to be near; NaN payloads are not compared.
"""

from __future__ import annotations

import pytest

from agreement import floats, integers, matrix, memory, warps
from agreement.case import Case
from agreement.on_gpu import on_gpu
from matmill.runtime.gpu import GPU

CASES = (*integers.CASES, *floats.CASES, *warps.CASES, *memory.CASES, *matrix.CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_emulator_leaves_what_the_gpu_leaves(device: GPU, case: Case) -> None:
    if device.arch.capability < (9, 0):
        pytest.skip("the kernels use instructions of sm_90")
    emulated, report = case.emulate()
    assert report.ok, report.hazards
    differences = case.compare(on_gpu(device, case), emulated)
    assert not differences, "\n" + "\n".join(differences)
