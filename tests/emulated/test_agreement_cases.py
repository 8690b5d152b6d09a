"""The kernels that tests/gpu compares with a GPU: here rows are compared with Python, and all run without hazards."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from agreement import floats, integers, matrix, memory, warps
from agreement.case import POISON, Array, Case, Op, same
from agreement.reference import WIDTHS, atomic, evaluate
from matmill.emulator import Report


@cache
def emulated(case: Case) -> tuple[dict[str, Array], Report]:
    """Return one run for all tests of a case."""
    return case.emulate()


CASES = (*integers.CASES, *floats.CASES, *warps.CASES, *memory.CASES, *matrix.CASES)
TABLES = (*integers.CASES, *floats.CASES, *floats.LATER)
ATOMICS = tuple(case for case in memory.CASES if case.ops)
EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
#: Every so many-th value is compared with Python. The edges' numbers have no factor in common with it: all meet.
STEP = 23


@pytest.mark.parametrize("case", TABLES, ids=lambda case: case.name)
def test_rows_leave_what_python_computes(case: Case) -> None:
    arrays, report = emulated(case)
    assert report.ok
    inputs = [values[::STEP].tolist() for values in case.operands]
    wrong = []
    for op, row in zip(case.ops, arrays["o"].reshape(len(case.ops), -1)[:, ::STEP], strict=True):
        wanted = np.array(evaluate(op, inputs), np.uint64)
        # Approximate functions are rounded from float64 here as there.
        wrong += [
            f"{op.ptx} of {[hex(x[i]) for x in inputs]}: {int(row[i]):#x}, not {int(wanted[i]):#x}"
            for i in np.flatnonzero(~same(replace(op, near=None), row, wanted))[:3]
        ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("case", ATOMICS, ids=lambda case: case.name)
def test_atomics_leave_what_python_computes(case: Case) -> None:
    arrays, report = emulated(case)
    assert report.ok
    step = 3
    olds, firsts, seconds = (values[::step].tolist() for values in case.operands)
    for n, op in enumerate(case.ops):
        _, space, name = op.ptx.split(".", maxsplit=2)
        result, left = (arrays[k].reshape(len(case.ops), -1)[n, ::step] for k in "om")
        mask = (1 << WIDTHS[op.out]) - 1
        function = atomic(name, shared=space == "shared")
        rows = [(old & mask, a & mask, b & mask) for old, a, b in zip(olds, firsts, seconds, strict=True)]
        assert result.tolist() == [old for old, _, _ in rows], op
        wanted = np.array([function(*row) & mask for row in rows], np.uint64)
        assert same(op, left & np.uint64(mask), wanted).all(), op
        # Beside a narrow value memory stays as it was.
        assert not ((left ^ np.array(olds, np.uint64)) & ~np.uint64(mask)).any(), op


@EACH
def test_cases_run_without_hazards(case: Case) -> None:
    arrays, report = emulated(case)
    assert report.ok, report.hazards
    # Only lanes outside a member mask, threads beyond the end and bytes beside a value leave their output as it was.
    if case.name not in {"members", "divergence", "vector widths"}:
        assert all(
            (arrays[name] != np.array(POISON, np.uint64).astype(arrays[name].dtype)).all() for name in case.outputs
        )


@pytest.mark.parametrize("case", [case for case in CASES if not case.ops], ids=lambda case: case.name)
def test_results_do_not_depend_on_the_order_of_warps(case: Case) -> None:
    other, _ = case.emulate(schedule=3, late_copies=True)
    assert case.compare(other, emulated(case)[0]) == []


@EACH
def test_a_wrong_result_is_noticed(case: Case) -> None:
    arrays, _ = emulated(case)
    wrong = {name: array.copy() for name, array in arrays.items()}
    spoilt = wrong[case.outputs[0]]
    # A bit that counts in all types: above what tf32 drops, and well above the last bits of approximate results.
    spoilt ^= spoilt.dtype.type(1 << min(18, 8 * spoilt.dtype.itemsize - 4))
    assert case.compare(wrong, arrays)


def test_what_counts_as_the_same() -> None:
    def bits(*values: int) -> Array:
        return np.array(values, np.uint64)

    assert same(Op("", "f4"), bits(0x7FC00000, 0), bits(0xFFFFFFFF, 0)).tolist() == [True, True]
    assert same(Op("", "f4"), bits(0x7F800000, 0), bits(0x7F800001, 0x80000000)).tolist() == [False, False]
    assert same(Op("", "bf"), bits(0x7FC0, 0x7F80), bits(0x7FFF, 0x7F81)).tolist() == [True, False]
    assert same(Op("", "f2x2"), bits(0x7C01_0001, 0x0001_7C01), bits(0x7FFF_0001, 0x0001_7C00)).tolist() == [
        True,
        False,
    ]
    assert same(Op("", "tf"), bits(0x3F800FFF), bits(0x3F800000)).tolist() == [True]
    near = Op("", "f4", (2.0**-20, 0.0))
    assert same(near, bits(0x3F800001, 0x7F7FFFFF), bits(0x3F800000, 0x7F800000)).tolist() == [True, True]
    assert same(near, bits(0x3F800100, 0x7FC00000), bits(0x3F800000, 0x3F800000)).tolist() == [False, False]
