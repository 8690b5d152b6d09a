"""Dependent launches wait for the one before: threads that touch global memory first, or end without, are reported."""

from __future__ import annotations

import numpy as np
import pytest

from matmill.emulator import Memory, Report, run
from matmill.launch import Launch
from support.ptx_tools import compile_ptx

WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory"); '
LET = 'asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); '
# One thread arrives at an mbarrier for which all wait.
PHASE = (
    "__shared__ alignas(8) unsigned long long b; const unsigned at = __cvta_generic_to_shared(&b); "
    'if (t % 64 == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at) : "memory"); __syncthreads(); '
    'if (t % 64 == 0) { FIRST asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory"); } '
    'asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra again; }" '
    ':: "r"(at) : "memory"); '
)
COPY = (
    "__shared__ float s[64]; const unsigned at = __cvta_generic_to_shared(s + t); "
    'asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at), "l"(x + t) : "memory"); '
    'asm volatile("cp.async.wait_all;" ::: "memory"); '
)


def launched(
    body: str, *, pdl: bool = True, target: str = "", blocks: int = 2, writes: list[str] | None = None
) -> Report:
    """Return a run of a kernel of 64 threads with this body on ``float* x`` and ``float* y``, 64 elements a block."""
    index = "const int t = blockIdx.x * 64 + threadIdx.x;"
    ptx = compile_ptx(f'extern "C" __global__ void k(float* x, float* y) {{ {index} {body} }}')
    memory, arrays = Memory(), {name: np.ones(64 * blocks, np.float32) for name in "xy"}
    pointers = tuple(memory.bind(name, array, access="rw") for name, array in arrays.items())
    launch = Launch("demo", "k", (blocks, 1, 1), (64, 1, 1), pointers, pdl=pdl)
    return run(ptx.replace(".target sm_90", f".target {target}") if target else ptx, launch, memory, pdl_writes=writes)


def said(body: str, *, pdl: bool = True) -> list[str]:
    report = launched(body, pdl=pdl)
    assert {hazard.kind for hazard in report.hazards} <= {"dependent-launch"}
    return [hazard.message for hazard in report.hazards]


@pytest.mark.parametrize(
    "body",
    [
        WAIT + "y[t] = x[t];",
        LET + WAIT + "y[t] = x[t];",
        "__shared__ float s[64]; s[t % 64] = 1; " + WAIT + "y[t] = s[t % 64];",
        "if (t % 2) { " + WAIT + "y[t] = 1; } else { " + WAIT + "y[t] = 2; }",
        "if (t % 64 == 40) { " + WAIT + "} __syncthreads(); y[t] = x[t];",
        "if (t % 32 == 4) { " + WAIT + "} __syncwarp(); y[t] = x[t];",
        "if (t % 64 < 32) { "
        + WAIT
        + 'asm volatile("bar.arrive 1, 64;"); } else asm volatile("bar.sync 1, 64;"); y[t] = 1;',
        "if (t % 32 < 8) { if (t % 8 == 0) { " + WAIT + "} __syncwarp(255); y[t] = x[t]; } else { " + WAIT + "}",
        PHASE.replace("FIRST", WAIT) + "y[t] = x[t];",
    ],
)
def test_kernels_that_wait_first_are_right(body: str) -> None:
    assert said(body) == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "float a = x[t]; " + WAIT + "y[t] = a;",
            "demo: thread (0, 0, 0) of block (0, 0, 0) reads 4 bytes at x + 0 B of 512",
        ),
        ("y[t] = 1; " + WAIT, "demo: thread (0, 0, 0) of block (0, 0, 0) writes 4 bytes at y + 0 B of 512"),
        (
            "atomicAdd(y + t, 1.f); " + WAIT,
            "demo: thread (0, 0, 0) of block (0, 0, 0) updates 4 bytes at y + 0 B of 512",
        ),
        (
            COPY.replace("[64]", "[128]") + WAIT,
            "demo: thread (0, 0, 0) of block (0, 0, 0) copies 4 bytes at x + 0 B of 512",
        ),
        (
            "if (t > 95) y[t] = 1; " + WAIT,
            "demo: thread (32, 0, 0) of block (1, 0, 0) writes 4 bytes at y + 384 B of 512",
        ),
    ],
)
def test_who_touches_global_memory_before_it_waits_is_named(body: str, message: str) -> None:
    (result,) = said(body)
    assert result.startswith(
        f"{message} before griddepcontrol.wait, while the launch before this dependent one may still"
    )


@pytest.mark.parametrize(
    ("body", "thread"),
    [
        ("if (t % 64 == 40) { " + WAIT + "} y[t] = x[t]; __syncthreads();", 0),
        ("if (t % 32 == 4) { " + WAIT + "} __syncwarp(); if (t % 64 > 31) y[t] = 1; " + WAIT, None),
        ("if (t % 64 < 32) { " + WAIT + "} __syncwarp(); y[t] = 1;", 32),
        (
            'if (t % 64 < 32) { asm volatile("bar.arrive 1, 64;"); '
            + WAIT
            + '} else asm volatile("bar.sync 1, 64;"); y[t] = 1;',
            32,
        ),
        (PHASE.replace("FIRST", "") + "y[t] = 1; " + WAIT, 0),
    ],
)
def test_a_wait_that_is_not_passed_on(body: str, thread: int | None) -> None:
    result = said(body)
    assert ([] if thread is None else [f"thread ({thread}, 0, 0)"]) == [m.split(" of ")[0][6:] for m in result[:1]]


def test_arrays_that_the_launch_before_does_not_write_may_be_read_early() -> None:
    body = "float a = x[t]; " + WAIT + "y[t] = a;"
    assert not launched(body).ok
    assert launched(body, writes=["y"]).ok
    (hazard,) = launched(body, writes=["x"]).hazards
    assert "reads 4 bytes at x + 0 B" in hazard.message
    assert not launched("x[t] = 1; " + WAIT, writes=["y"]).ok
    assert launched("int a = __ldg((int*)x + t); " + WAIT + "y[t] = a;", writes=[]).ok


def test_every_instruction_is_reported_once_and_only_the_threads_that_have_not_waited() -> None:
    result = said("if (t % 2) { " + WAIT + "} y[t] = x[t]; " + WAIT)
    assert len(result) == 2
    assert all("thread (0, 0, 0) of block (0, 0, 0)" in message for message in result)


def test_a_launch_of_which_no_thread_waits_is_reported() -> None:
    (result,) = said("")
    assert result.startswith("demo: no thread executes griddepcontrol.wait: ")


def test_one_thread_that_waits_holds_back_the_launches_behind() -> None:
    assert said("if (t != 66) return; " + WAIT + "y[t] = x[t];") == []


def test_a_launch_that_is_not_early_need_not_wait() -> None:
    assert said("y[t] = x[t];", pdl=False) == []


def test_older_gpus_have_no_early_launches() -> None:
    assert launched("y[t] = x[t];", target="sm_80").ok
    assert not launched("y[t] = x[t];", target="sm_100").ok


def test_every_batch_of_blocks_waits_anew() -> None:
    body = "if (blockIdx.x < 200) { " + WAIT + "} y[t] = 1;"
    result = [hazard.message for hazard in launched(body, blocks=300).hazards]
    assert [message.split(" of block ")[1].split(",")[0] for message in result] == ["(200"]
