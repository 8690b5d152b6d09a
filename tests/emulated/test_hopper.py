"""The kernels of examples/hopper in the emulator: right in every schedule, and each planted mistake is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hopper import run
from hopper.run import Trial
from matmill.dtypes import BF16
from matmill.emulator import Hazard, KernelFault
from support import hopper_defects
from support.hopper_defects import DEFECTS, Defect

TRIALS: dict[str, Callable[[], Trial]] = {
    name: getattr(hopper_defects, name)
    for name in ("copy", "single", "registers", "persistent", "multicast", "retarget")
}


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("schedule", [0, 1, 2])
@pytest.mark.parametrize("name", TRIALS)
def test_right_kernels_are_right_and_silent(name: str, schedule: int, *, late: bool) -> None:
    trial = TRIALS[name]()
    d, report = run.in_emulator(trial, late_copies=late, schedule=schedule)
    assert trial.excess(d) <= 1
    assert not report.hazards


def test_each_step_of_k_costs_the_same() -> None:
    few, more, most = (
        run.in_emulator(run.persistent_product(128, 128, 128 * n, BN=128, STAGES=2))[1].counters.as_dict()
        for n in (2, 3, 4)
    )
    step = {name: more[name] - few[name] for name in few}
    assert step == {name: most[name] - more[name] for name in few}
    # 128 of k are two stages: of each A and B, 128 rows of 128 bytes; and 4 instructions for each of 2 consumers.
    assert (step["bulk_loads"], step["bulk_load_bytes"]) == (4, 4 * 128 * 128)
    assert step["gmma"] == 2 * 4 * 2 * 4
    assert step["bulk_stores"] == 0


def test_tiles_stages_and_orders_change_no_bit() -> None:
    constants = ({"BN": 128, "STAGES": 2}, {"BN": 64, "STAGES": 3}, {"GROUP_M": 1})
    first, *others = (
        run.in_emulator(run.persistent_product(136, 72, 200, dtype=BF16, blocks=2, seed=0, **each))[0]
        for each in constants
    )
    for other in others:
        assert first.tobytes() == other.tobytes()


def found(defect: Defect) -> list[Hazard]:
    """Return the hazards of a planted mistake in both schedules of asynchronous units."""
    hazards: list[Hazard] = []
    for late in (False, True):
        try:
            hazards += run.in_emulator(defect.trial(), defect.changes, late_copies=late)[1].hazards
        except KernelFault as fault:
            hazards += [fault.hazard, *fault.earlier]
    return hazards


@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_planted_mistakes_are_found(defect: Defect) -> None:
    hazards = found(defect)
    named = [h for h in hazards if h.kind in defect.kinds and all(i in f"{h.message} {h}" for i in defect.instructions)]
    assert named, "\n".join(map(str, hazards)) or "nothing is reported"
