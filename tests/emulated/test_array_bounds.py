"""Accesses beyond the array that they are meant for, where something else of the block or thread is there."""

from __future__ import annotations

import numpy as np
import pytest

from matmill.emulator import KernelFault, Report
from support.ptx_tools import compile_ptx, entry, launch

KERNEL = """
__device__ __forceinline__ unsigned at(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }
__constant__ int table[8];
__device__ int counts[8];
extern "C" __global__ void k(int* o, int n) {
  __shared__ __align__(16) int first[64], tile[64], last[64];
  extern __shared__ int room[];
  const int t = threadIdx.x;
  first[t] = last[t] = tile[t] = 0;
  room[t] = n;
  __syncthreads();
  BODY
  __syncthreads();
  o[t] = first[t] + tile[t] + last[t] + room[t];
}
"""
LITERAL = 'if (t == 0) asm volatile("st.shared.u32 [%0 + 260], 1;" :: "r"(at(tile)));'
GENERIC = """asm volatile("{.reg .b64 p; cvta.shared.u64 p, %0; st.u32 [p + 256], 1;}"
  :: "l"(__cvta_generic_to_shared(tile)));"""
COPY = """asm volatile("cp.async.ca.shared.global [%0], [%1], 4; cp.async.wait_all;"
  :: "r"(at(tile + t + 1)), "l"(o + t) : "memory");"""
MATRIX = """int d; asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
  : "=r"(d) : "r"(at(tile + 36 + t % 8 * 4)) : "memory"); o[t] = d;"""
# Bodies that access tile outside its 64 elements, what thread does so first, and where; n is 64.
BEYOND = {
    "read behind": ("o[t] = tile[t + n / 64];", 63, "reads 4 bytes at {tile} + 256 B of 256"),
    "read before": ("o[t] = tile[t - n / 32];", 0, "reads 4 bytes at {tile} - 8 B of 256"),
    "write": ("if (t == n - 1) tile[t + 1] = 1;", 63, "writes 4 bytes at {tile} + 256 B of 256"),
    "literal": (LITERAL, 0, "writes 4 bytes at {tile} + 260 B of 256"),
    "vector": (
        "int4 v = *(int4*)(tile + t / 2 * 4); o[t] = v.x + v.y + v.z + v.w;",
        32,
        "reads 16 bytes at {tile} +",
    ),
    "atomic": ("atomicAdd(tile + t + (t == n - 1), 1);", 63, "updates 4 bytes at {tile} + 256 B of 256"),
    "generic pointer": (GENERIC, 0, "writes 4 bytes at {tile} + 256 B of 256"),
    "loop": ("int s = 0; for (int i = 0; i <= n; i++) s += tile[i]; o[t] = s;", 0, "reads 4 bytes at {tile} + 256 B"),
    "second round": ("for (int* p = tile + t; p < tile + 2 * n; p += 64) *p = 1;", 0, "writes 4 bytes at {tile} + 256"),
    "asynchronous copy": (COPY, 63, "copies 4 bytes at {tile} + 256 B of 256"),
    "matrix": (MATRIX, 7, "reads 16 bytes at {tile} + 256 B of 256"),
}
WITHIN = {
    "every element": "o[t] = tile[63 - t]; __syncthreads(); tile[t] = 1;",
    "one of two arrays": "int* p = o[t] ? tile : last; p[t] = 1; p = n > 64 ? first : tile; o[t] = p[t];",
    "a pointer past the end": "int s = 0; for (int* p = tile; p != tile + n; p++) s += *p; o[t] = s;",
    "a pointer before the beginning": "int s = 0; for (int* p = tile + n - 1; p >= tile; p--) s += *p; o[t] = s;",
    "lanes that do not take part": "if (t + n / 2 < 64) o[t] = tile[t + n / 2];",
    "pointers in memory": "int* p[2] = {tile, last}; for (int i = 0; i < n; i++) p[i & t & 1][t] = i;",
    "dynamic memory": "o[t] = room[63 - t];",
    "a swizzled address": "o[t] = tile[t ^ (t >> 3 & 7)];",
}


def ran(body: str) -> Report:
    """Return the report of a block of 64 threads with 256 bytes of dynamic shared memory."""
    ptx = compile_ptx(KERNEL.replace("BODY", body))
    return launch(
        ptx, {"o": np.zeros(64, np.int32)}, np.int32(64), block=(64, 1, 1), shared=256, options={"races": False}
    )


@pytest.mark.parametrize("name", BEYOND)
def test_an_access_beyond_its_array_is_reported(name: str) -> None:
    body, thread, words = BEYOND[name]
    report = ran(body)
    (hazard,) = (h for h in report.hazards if h.kind == "out-of-bounds")
    assert not report.ok
    assert f"thread ({thread}, 0, 0) of block (0, 0, 0) {words.format(tile='k::tile')}" in hazard.message
    assert hazard.where.startswith("test.cu:")


def test_the_message_names_what_is_there() -> None:
    (behind,) = ran(BEYOND["read behind"][0]).hazards
    (before,) = ran(BEYOND["read before"][0]).hazards
    others = {line.split("which is ")[1].split(",")[0] for line in (behind.message, before.message)}
    assert all(" in shared memory" in other for other in others)
    assert len(others) == 2


@pytest.mark.parametrize("name", WITHIN)
def test_accesses_within_their_arrays_are_silent(name: str) -> None:
    assert [h for h in ran(WITHIN[name]).hazards if h.kind == "out-of-bounds"] == []


def test_before_dynamic_memory_there_are_other_arrays() -> None:
    (hazard,) = ran("room[t - n / 64] = 1;").hazards
    assert "thread (0, 0, 0) of block (0, 0, 0) writes 4 bytes at room - 4 B of 256" in hazard.message


@pytest.mark.parametrize("body", ["o[t] = table[t];", "counts[t] = 1;", "room[t + 1] = 1;", "last[4 * t + n] = 1;"])
def test_nothing_behind_an_array_ends_the_run(body: str) -> None:
    with pytest.raises(KernelFault, match=r"behind the end of|of shared memory"):
        ran(body)


def test_local_arrays_end_where_they_are_declared_to() -> None:
    body = """.local .align 4 .b8 a[20]; .local .align 4 .b8 b[44]; .reg .b32 r; .reg .b64 p;
    mov.u64 p, a; add.u64 p, p, 16; st.local.u32 [p], 1; {} ld.local.u32 r, [b+40];"""
    for more, hazards in (("", []), ("st.local.u32 [p+4], 1;", ["a + 20 B of 20, which is b + 0 B in local memory"])):
        result = launch(entry(body.format(more)), {}).hazards
        assert len(result) == len(hazards)
        assert all(words in hazard.message for words, hazard in zip(hazards, result, strict=True))


def test_the_only_local_array_ends_before_its_memory_does() -> None:
    (hazard,) = launch(entry(".local .align 4 .b8 a[20]; st.local.u32 [a+20], 1;"), {}).hazards
    assert "writes 4 bytes at a + 20 B of 20, which is byte 20 of 32 B of local memory" in hazard.message


@pytest.mark.parametrize(
    ("steps", "checked"),
    [
        ("mov.u32 p, a; add.u32 p, p, 64;", True),
        ("mov.u32 q, a; sub.u32 q, q, 4; mov.u32 p, q; add.u32 p, 68, p;", True),
        ("mov.u32 q, 16; mov.u32 r, a; mad.lo.u32 p, q, 4, r;", True),
        ("mov.u32 r, a; mov.u32 q, b; sub.u32 q, q, r; add.u32 p, r, q;", False),
        ("mov.u32 r, a; mov.u32 q, b; setp.eq.u32 c, q, 0; selp.b32 p, r, q, c;", False),
        ("mov.u32 p, a; mov.u32 p, b;", False),
        ("mov.u32 r, a; shr.u32 r, r, 6; add.u32 r, r, 1; shl.b32 p, r, 6;", False),
        ("mov.u32 p, 1088;", False),
    ],
)
def test_an_address_of_one_origin_is_checked(steps: str, *, checked: bool) -> None:
    text = entry(
        f".reg .b32 p, q, r; .reg .pred c; {steps} st.shared.u32 [p], 1;",
        declarations=".shared .align 64 .b8 a[64]; .shared .align 64 .b8 b[64];",
    )
    result = launch(text, {}, options={"races": False}).hazards
    assert [hazard.kind for hazard in result] == ["out-of-bounds"] * checked
