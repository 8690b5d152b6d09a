"""Unordered stores to one address: of one value a note, of several an error; reads and atomics make any of them one."""

from __future__ import annotations

import numpy as np
import pytest

from support.ptx_tools import Options, compile_ptx, launch

SCHEDULES = [0, 1, 2, 3, 4]
KERNEL = """
extern "C" __global__ void k(int* o, int zero) {
  __shared__ volatile int s[64];
  const int t = threadIdx.x + blockIdx.x * blockDim.x, w = threadIdx.x / 32, lane = threadIdx.x % 32;
  BODY
}
"""
# Bodies that store one value, or leave the same bytes in whichever order their stores come.
SAME = {
    "all threads of all blocks": "*o = 7;",
    "a flag that some set": "if (t % 3 == 0) *o = 1;",
    "shared memory": "s[zero] = 7;",
    "two instructions": "if (w) *o = 5; else { *(volatile int*)(o + zero) = 5; }",
    "plain stores at two lines": "if (w) o[zero] = 5; else { o[1] = 2; o[0] = 5; }",
    "one value of the data": "o[3] = o[5];",
    "rounds of a loop": "for (int i = 0; i < 40; i++) if (i % 32 == lane) o[zero] = 9;",
    "two values, each at its own address": "o[lane] = lane;",
    "vectors": "reinterpret_cast<int4*>(o)[lane % 2] = make_int4(1, 2, 3, zero);",
    "a vector and a part of it": "if (w) *reinterpret_cast<int4*>(o) = make_int4(1, 2, 3, 4); else o[2 + zero] = 3;",
    "bytes": "reinterpret_cast<char*>(o)[lane % 4] = 1;",
    "minus zero twice": "reinterpret_cast<float*>(o)[zero] = -0.f;",
}
DIFFERENT = {
    "each warp its own": "*o = w;",
    "one of many": "*o = t == 63 ? 8 : 7;",
    "shared memory": "s[zero] = w;",
    "two instructions": "if (w) *o = 5; else { *(volatile int*)(o + zero) = 6; }",
    "both zeros": "reinterpret_cast<float*>(o)[zero] = w ? 0.f : -0.f;",
    "a vector and a part of it": "if (w) *reinterpret_cast<int4*>(o) = make_int4(1, 2, 3, 4); else o[2 + zero] = 4;",
    "first alike, then not": "*o = 7; __threadfence_block(); o[zero] = w;",
    "lanes of a warp": "if (t < 32) o[zero] = lane;",
    "a value that is read meanwhile": "if (w) o[0] = 0; else o[1] = o[zero];",
    "atomics": "if (w) o[0] = 0; else atomicAdd(o + zero, 0);",
    "vectors that differ at their ends": "reinterpret_cast<int4*>(o)[lane % 2] = make_int4(1, 2, 3, w);",
}
SILENT = {
    "lanes of one warp": "if (t < 32) *o = 7;",
    "shared memory": "if (w == 0) s[zero] = 7; __syncthreads(); o[t] = s[zero];",
}


def kinds(body: str, *, schedule: int = 0, blocks: int = 1) -> set[tuple[str, str]]:
    """Return the severities and kinds of what is found in a kernel with this body."""
    out = np.zeros(256, np.int32)
    ptx, options = compile_ptx(KERNEL.replace("BODY", body)), Options(schedule=schedule)
    report = launch(ptx, {"o": out}, np.int32(0), grid=(blocks, 1, 1), block=(64, 1, 1), options=options)
    assert report.ok == all(hazard.severity != "error" for hazard in report.hazards)
    return {(hazard.severity, hazard.kind) for hazard in report.hazards}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", SAME)
def test_one_value_is_a_note(name: str, schedule: int) -> None:
    assert kinds(SAME[name], schedule=schedule) == {("note", "same-value")}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", DIFFERENT)
def test_several_values_are_an_error(name: str, schedule: int) -> None:
    assert kinds(DIFFERENT[name], schedule=schedule) - {("note", "same-value")} == {("error", "race")}


@pytest.mark.parametrize("name", SILENT)
def test_one_instruction_of_one_warp_is_silent(name: str) -> None:
    assert kinds(SILENT[name]) == set()


def test_blocks_that_run_in_other_batches_are_compared_too() -> None:
    assert kinds("*o = 7;", blocks=300) == {("note", "same-value")}
    assert kinds("*o = 7 + (blockIdx.x == 299);", blocks=300) == {("error", "race")}


def test_a_pair_of_instructions_that_ever_stores_two_values_is_no_note() -> None:
    assert kinds("for (int i = 0; i < 4; i++) o[i] = i == 3 ? w : 1;") >= {("error", "race")}
    assert kinds("o[lane] = lane == 31 ? w : 1;") == {("error", "race")}


def test_the_message_says_that_the_values_are_equal() -> None:
    out = np.zeros(1, np.int32)
    report = launch(compile_ptx(KERNEL.replace("BODY", "*o = 7;")), {"o": out}, np.int32(0), block=(64, 1, 1))
    (hazard,) = report.hazards
    assert "write by thread (31, 0, 0) of block (0, 0, 0)" in hazard.message
    assert hazard.message.endswith("both of one value, with nothing that orders them")
