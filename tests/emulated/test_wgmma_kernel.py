"""The warp-specialised kernel: every class of configuration is right and free of races, however late copies land."""

from __future__ import annotations

import pytest

from support.wgmma_cases import ALL_CASES, OPERANDS, SHAPED, Case


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_every_class_of_configuration(case: Case, request: pytest.FixtureRequest) -> None:
    trial = case.made()
    kernel = case.kernel(trial.problem)
    found = []
    # Tiles and operands decide what waits for copies, layouts and epilogues do not; every third tile stands for all.
    both = case in {*SHAPED[::3], *OPERANDS} or request.config.getoption("--exhaustive")
    for late in (False, True) if both else (True,):
        # Races do not depend on when copies land: they are looked for once.
        reports = trial.emulated(kernel, late_copies=late, schedule=int(late), races=late)
        # Notes tell of boxes beyond the matrices, which remainders and clusters have.
        assert [str(one) for report in reports for one in report.hazards if one.severity != "note"] == []
        assert trial.excess() <= 1
        found.append(trial.arrays["D"].tobytes())
    assert found[0] == found[-1]
