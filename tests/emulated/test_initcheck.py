"""Reads of memory that nothing was stored to: buffers bound as uninitialised, and atomics on shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from matmill.emulator import Memory, Report, run
from matmill.launch import Launch
from support.ptx_tools import compile_ptx

KERNEL = """
struct alignas(16) Four { int v[4]; };
extern "C" __global__ void k(int* x, int* y, int n) {
  __shared__ __align__(16) int s[64];
  const int t = threadIdx.x;
  s[t] = 0;
  __syncthreads();
  BODY
}
"""
COPY = 'asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"((unsigned)__cvta_generic_to_shared(s + t)),'
WAIT = '; asm volatile("cp.async.wait_all;" ::: "memory"); y[t] = s[t];'
# Bodies that read x, which is uninitialised: 64 threads, n is 64.
READS = {
    "load": "y[t] = x[t];",
    "after stores elsewhere": "if (t < 32) x[t + 32] = 1; __syncthreads(); y[t] = x[t];",
    "vector": "if (t < 32) reinterpret_cast<Four*>(y)[t] = reinterpret_cast<Four*>(x)[t];",
    "one byte of a word": "reinterpret_cast<char*>(x)[4 * t] = 1; __syncthreads(); y[t] = x[t];",
    "one lane": "if (t != 40) x[t] = 1; __syncthreads(); y[t] = x[t];",
    "atomic": "atomicAdd(x + t, 1);",
    "compare and swap": "atomicCAS(x + t, 0, 1);",
    "asynchronous copy": COPY + '"l"(x + t), "r"(4) : "memory")' + WAIT,
    "part of an asynchronous copy": "reinterpret_cast<short*>(x)[2 * t] = 1; __syncthreads();"
    + COPY
    + '"l"(x + t), "r"(3) : "memory")'
    + WAIT,
    "generic pointer": "int* p = t < n ? x + t : s; y[t] = *p;",
    "before the store": "int v = x[t]; x[t] = 1; y[t] = v;",
}
RIGHT = {
    "stored first": "x[t] = t; __syncthreads(); y[t] = x[63 - t];",
    "by bytes": "for (int i = 0; i < 4; i++) reinterpret_cast<char*>(x)[4 * t + i] = i; y[t] = x[t];",
    "vector, then words": "if (t < 16) reinterpret_cast<Four*>(x)[t] = Four{}; __syncthreads(); y[t] = x[t];",
    "exchange": "atomicExch(x + t, 0); atomicAdd(x + t, 1); y[t] = x[t];",
    "not read": "y[t] = t; x[t] = 1;",
    "guarded": "if (n > 64) y[t] = x[t];",
    "copy of what is there": "x[t] = 1; __syncthreads();" + COPY + '"l"(x + t), "r"(4) : "memory")' + WAIT,
    "copy of nothing": COPY + '"l"(x + t), "r"(0) : "memory")' + WAIT,
}


class Buffers:
    """An uninitialised x and an initialised y, of 128 integers each, for one launch or more."""

    def __init__(self, **options: Any) -> None:
        self.memory = Memory()
        x, y = np.full(128, -1, np.int32), np.zeros(128, np.int32)
        self.pointers = (
            self.memory.bind("x", x, access="rw", **({"initialised": False} | options)),
            self.memory.bind("y", y, access="rw"),
        )

    def launch(self, body: str, **options: Any) -> Report:
        """Run a kernel with this body."""
        launch = Launch("k", "k", (1, 1, 1), (64, 1, 1), (*self.pointers, np.int32(64)))
        return run(compile_ptx(KERNEL.replace("BODY", body)), launch, self.memory, **options)


@pytest.mark.parametrize("name", READS)
def test_a_read_of_what_nobody_stored_is_reported(name: str) -> None:
    for late in (False, True):
        report = Buffers().launch(READS[name], late_copies=late)
        assert [(h.severity, h.kind) for h in report.hazards] == [("error", "uninitialised-global")]
        assert " at x + " in report.hazards[0].message
        assert "that nothing was stored to" in report.hazards[0].message


@pytest.mark.parametrize("name", RIGHT)
def test_what_was_stored_may_be_read(name: str) -> None:
    assert Buffers().launch(RIGHT[name]).hazards == ()


@pytest.mark.parametrize("name", READS)
def test_buffers_count_as_initialised_unless_bound_otherwise(name: str) -> None:
    assert Buffers(initialised=True).launch(READS[name]).hazards == ()


def test_the_first_bad_lane_is_named() -> None:
    (hazard,) = Buffers().launch(READS["one lane"]).hazards
    assert "thread (40, 0, 0) of block (0, 0, 0) reads 4 bytes at x + 160 B of 512" in hazard.message


def test_an_earlier_launch_may_have_stored_it() -> None:
    buffers = Buffers()
    assert buffers.launch("x[t] = t;").hazards == ()
    assert buffers.launch("y[t] = x[t];").hazards == ()
    assert [h.kind for h in buffers.launch("y[t] = x[t + 64];").hazards] == ["uninitialised-global"]


@pytest.mark.parametrize("operation", ["atomicAdd(s + t, 1)", "atomicMax(s + 2, t)", "atomicCAS(s + t, 0, 1)"])
def test_atomics_read_shared_memory_too(operation: str) -> None:
    text = (
        'extern "C" __global__ void k(int* x, int* y, int n) { __shared__ int s[64]; const int t = threadIdx.x; BODY; }'
    )
    for first, kinds in (("", {"uninitialised-shared"}), ("s[t] = 0; __syncthreads();", set())):
        buffers = Buffers()
        launch = Launch("k", "k", (1, 1, 1), (64, 1, 1), (*buffers.pointers, np.int32(64)))
        body = f"{first} {operation}; __syncthreads(); y[t] = s[2]"
        report = run(compile_ptx(text.replace("BODY", body)), launch, buffers.memory)
        assert {h.kind for h in report.hazards} == kinds
