"""The kernels that tests/gpu compares with a GPU: here each must compile, run without hazards and fill its outputs."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest

from agreement import floats, integers, matrix, memory, warps
from agreement.case import POISON, TARGET, Array, Case, Op, same
from agreement.on_gpu import on_gpu
from matmill.emulator import Memory, Report, run
from matmill.jit.compile import Binary
from matmill.launch import Launch, Pointer


@cache
def emulated(case: Case) -> tuple[dict[str, Array], Report]:
    """Return one run for all tests of a case."""
    return case.emulate()


CASES = (*integers.CASES, *floats.CASES, *warps.CASES, *memory.CASES, *matrix.CASES)


class StandIn:
    """What ``on_gpu`` asks of a GPU, done by the emulator under another order of warps."""

    arch = SimpleNamespace(target=TARGET)

    def __init__(self) -> None:
        self.memory = Memory()

    def upload(self, array: Array, name: str) -> StandInAllocation:
        """Return a copy of the array, as memory of this device."""
        copy = np.array(array)
        return StandInAllocation(copy, self.memory.bind(name, copy, access="rw"))

    def launch(self, binary: Binary, launch: Launch) -> None:
        """Run the kernel."""
        run(binary.ptx, launch, self.memory, schedule=3, late_copies=True)

    def synchronize(self) -> None:
        """Wait for nothing: launches end before they return."""


class StandInAllocation:
    """An array in the place of device memory."""

    def __init__(self, array: Array, pointer: Pointer) -> None:
        self.array = array
        self._pointer = pointer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Free nothing."""

    def pointer(self, _name: str) -> Pointer:
        """Return the address."""
        return self._pointer

    def download(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return a copy of what is there now."""
        return np.array(self.array, dtype).reshape(shape)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases_run_and_do_not_depend_on_the_order_of_warps(case: Case) -> None:
    arrays, report = emulated(case)
    assert report.ok, report.hazards
    other = on_gpu(StandIn(), case)  # type: ignore[arg-type] # all that it asks for is there
    assert case.compare(other, arrays) == []
    # Only lanes outside a member mask, threads beyond the end and bytes beside a value leave their output as it was.
    if case.name not in {"members", "divergence", "vector widths"}:
        assert all(
            (arrays[name] != np.array(POISON, np.uint64).astype(arrays[name].dtype)).all() for name in case.outputs
        )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
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
