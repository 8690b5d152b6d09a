"""Counting in machine code: the path through a loop, and the script that does so for the inner kernel."""

from __future__ import annotations

import runpy
from collections import Counter

import pytest

from lab.machine_code import code, disassembler, main_path
from matmill.errors import MatmillError
from support.scripts import BENCHMARKS, run_script

SCRIPT = "inner_sass.py"
LISTING = """
.text.other:
        /*0000*/                   FADD R0, R1, R2 ;
//--------------------- .text.f
.text.f:
        /*0000*/                   MOV R0, R1 ;
.L_x_0:
        /*0010*/              @P0 BRA `(.L_x_2) ;
.L_x_1:
        /*0020*/                   LDGSTS.ZFILL [R0], [R2] ;
        /*0030*/              @P1 BRA `(.L_x_1) ;
        /*0040*/                   BRA `(.L_x_3) ;
.L_x_2:
        /*0050*/                   LDGSTS [R0], [R2] ;
.L_x_3:
        /*0060*/                   IADD3 R0, R0, R1, RZ ;
.L_x_4:
        /*0070*/                   FFMA R0, R1, R2, R0 ;
        /*0080*/              @P2 BRA `(.L_x_4) ;
        /*0090*/             @!P3 BRA `(.L_x_0) ;
        /*00a0*/                   EXIT ;
.L_x_5:
        /*00b0*/                   BRA `(.L_x_5) ;
//--------------------- .nv.shared.f
"""


def test_a_side_path_is_left_out_and_loops_inside_count_as_often_as_they_run() -> None:
    found = code(LISTING, "f")
    assert found.lines[0] == "MOV R0, R1"
    assert sorted(found.loops()) == [(1, 9), (2, 3), (7, 8)]

    def times(body: Counter[str]) -> float:
        return 5.0 if body["FFMA"] else 3.0

    whole = main_path(found, (1, 9), lambda line: -1e9 if "ZFILL" in line else -1.0, times)
    assert whole == {"BRA": 7, "LDGSTS": 1, "IADD3": 1, "FFMA": 5}
    short = main_path(found, (1, 9), lambda line: 1e9 if "ZFILL" in line else -1.0, times)
    assert short == {"BRA": 1 + 3 + 1 + 5 + 1, "LDGSTS": 3, "IADD3": 1, "FFMA": 5}


@pytest.mark.usefixtures("machine_code")
def test_the_script_counts_what_the_kernel_must_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        disassembler()
    except MatmillError as error:
        pytest.skip(str(error))
    arguments = ["--dtypes", "float32", "--layouts", "column", "gram", "--sizes", "3x3", "16x16"]
    run_script(monkeypatch, SCRIPT, *arguments)
    lines = capsys.readouterr().out.splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    head, rows = table[0], [dict(zip(table[0], cells, strict=True)) for cells in table[2:]]
    assert "slots/k" in head
    assert [float(row["FMA/k"]) for row in rows] == [9.0, 256.0, 6.0, 136.0]
    for row in rows:
        most = 4 if row["product"].startswith("3x3") else 3  # which has a step of 2 k's for each barrier
        assert float(row["slots/k"]) < most * float(row["FMA/k"])
        assert row["spilled"] == "0"
        assert float(row["KB in flight"]) > 46  # twice what an H200's latency and bandwidth ask for
        assert float(row["sectors/ideal"]) < 1.01
        assert max(int(row[name].rstrip("%")) for name in ("issue", "passes")) <= 70


def test_copies_of_zeros_are_known_by_name_or_by_their_predicate() -> None:
    fills = runpy.run_path(str(BENCHMARKS / SCRIPT))["fills"]
    assert fills("LDGSTS.E.BYPASS.128.ZFILL [R13], desc[UR14][R4.64]")
    assert fills("LDGSTS.E.BYPASS.128 [R13], desc[UR14][R4.64], P1")
    assert not fills("@!P1 LDGSTS.E.128 [R17+0x1000], desc[UR14][R14.64]")
