"""Barriers inside of a branch that some threads do not take: an error that names it, and no other branch."""

from __future__ import annotations

import numpy as np
import pytest

import matmill

HEAD = """#include <cassert>
__device__ __forceinline__ void meet(int* s, int t) {
  s[t] = t;
  __syncthreads();
}
__device__ __forceinline__ bool odd(int t) {
  if (t > 100) return false;
  return t % 2;
}
__device__ __noinline__ void called(int* s, int t) {
  s[t] = t;
  __syncthreads();
}
__device__ __noinline__ void calls(int* s, int t) {
  s[t] += 1;
  called(s, t);
}
#define BARRIER __syncthreads()
extern "C" __global__ void k(int* o, int n) {
  __shared__ int s[128];
  const int t = threadIdx.x;
  s[t] = t;
"""
FIRST = HEAD.count("\n") + 1
#: The body of a kernel of 64 threads, n = 40, with the line of the branch, from 1.
DIVERGENT = {
    "one line": ("if (t % 2) { __syncthreads(); o[t] = s[63 - t]; }", 1),
    "several lines": ("if (t % 2) {\n  o[t] = 3;\n  __syncthreads();\n  o[t] += s[63 - t];\n}", 1),
    "without braces": ("if (t < n)\n  __syncthreads();\no[t] = 1;", 1),
    "else": ("if (t >= n) {\n  o[t] = 1;\n} else {\n  o[t] = 2;\n  __syncthreads();\n}", 1),
    "reduction": (
        (
            "__syncthreads();\nfor (int d = 32; d > 0; d /= 2) {\n  if (t < d) {\n    s[t] += s[t + d];\n"
            "    __syncthreads();\n  }\n}\nif (t == 0) o[0] = s[0];"
        ),
        3,
    ),
    "reduction that is not unrolled": (
        (
            "__syncthreads();\n#pragma unroll 1\nfor (int d = 32; d > 0; d /= 2)\n  if (t < d) {\n"
            "    s[t] += s[t + d];\n    __syncthreads();\n  }\nif (t == 0) o[0] = s[0];"
        ),
        4,
    ),
    "a function that is inlined": ("if (t < n) {\n  o[t] = 2;\n  meet(s, t);\n}", 1),
    "a function that is called": ("if (t < n) {\n  o[t] = 2;\n  called(s, t);\n}", 1),
    "a function that a called one calls": ("if (t < n) {\n  o[t] = 2;\n  calls(s, t);\n}", 1),
    "a condition": ("if (t % 2 && __syncthreads_or(t)) o[t] = 2;", 1),
    "a conditional expression": ("o[t] = t % 2 ? __syncthreads_count(t) : 1;", 1),
    "a reduction in one line": (
        (
            "__syncthreads(); for (int d = 32; d > 0; d /= 2) if (t < d) { s[t] += s[t + d]; __syncthreads(); } "
            "if (t == 0) o[0] = s[0];"
        ),
        1,
    ),
    "a condition that is inlined": ("if (odd(t)) {\n  o[t] = 2;\n  __syncthreads();\n}", 1),
    "a condition of two lines": ("if (t < n &&\n    o[t] == 0) {\n  o[t] = 2;\n  __syncthreads();\n}", None),
    "a macro": ("if (t < n) {\n  o[t] = 2;\n  BARRIER;\n}", 1),
    "a loop of its own length": ("#pragma unroll 1\nfor (int i = t; i < n; i += 7) {\n  __syncthreads();\n}", 2),
    "while": ("int i = t;\nwhile (i < n) {\n  o[t] += s[i];\n  __syncthreads();\n  i += 8;\n}", None),
    "break": ("for (int i = 0; i < n; i++) {\n  if (i == t) break;\n  o[t] += s[i];\n  __syncthreads();\n}", None),
    "return behind it": ("if (t % 2) {\n  __syncthreads();\n  o[t] = 1;\n  return;\n}\no[t] = 2;", 1),
    "a count": ("if (t < n) {\n  o[t] = __syncthreads_count(t % 3);\n}", 1),
    "switch": ("switch (t % 3) {\n  case 0:\n    o[t] = 4;\n    __syncthreads();\n  default:\n    o[t] = 1;\n}", 1),
}  # fmt: skip
#: Right since sm_70: who has returned counts as arrived.
RETURNED = {
    "one line": "if (t >= n) return; __syncthreads(); o[t] = s[n - 1 - t];",
    "several lines": "if (t >= n)\n  return;\n__syncthreads();\no[t] = s[n - 1 - t];",
    "braces": "if (t >= n) {\n  o[t] = 1;\n  return;\n}\n__syncthreads();\no[t] = s[n - 1 - t];",
    "nested": "if (t >= 32) {\n  if (t >= n) {\n    return;\n  }\n  o[t] = 3;\n}\n__syncthreads();\no[t] = 2;",
    "inside of a branch": "if (n == 40) {\n  if (t >= n) return;\n  __syncthreads();\n  o[t] = s[n - 1 - t];\n}",
    "in a loop": "for (int i = 0; i < 3; i++) {\n  if (t >= n) return;\n  __syncthreads();\n  o[t] += s[i];\n}",
    "else": "if (t < n) {\n  o[t] = 2;\n  __syncthreads();\n} else {\n  o[t] = 1;\n  return;\n}",
}
SILENT = {
    "whole warps that return": "if (t < 32) {\n  o[t] = s[t];\n  __syncthreads();\n} else {\n  return;\n}",
    "whole warps that have returned": "if (t >= 32) return;\n#pragma unroll 1\nwhile (n-- > 37) __syncthreads();",
    "the same way for all": "if (n > 3) {\n  __syncthreads();\n  o[t] = s[63 - t];\n}",
    "no barrier inside": "if (t % 2) {\n  o[t] = 1;\n}\n__syncthreads();\no[t] += s[63 - t];",
    "copies by unrolling": "for (int i = 0; i < 4; i++) { s[t] = i; __syncthreads(); o[t] += s[9]; __syncthreads(); }",
    "copies by jump threading": "int v = 1; if (n > 3) v = o[t]; __syncthreads(); if (n > 3) o[t] = v + s[63 - t];",
    "sides that all take alike": "if (n > 3) { __syncthreads(); } else { __syncthreads(); o[t] = 1; }",
    "roles of one number": """if (t < 32) {
  asm volatile("bar.sync 1, 64;");
  o[t] = s[63 - t];
} else {
  asm volatile("bar.sync 1, 64;");
}""",
    "roles": 'if (t < 32) {\n  asm volatile("bar.sync 1, 64;");\n} else {\n  asm volatile("bar.arrive 1, 64;");\n}',
}  # fmt: skip


#: Warps that pass barrier 0 at different lines, or some of them not at all: the text that names the others.
WHOLE = {
    "both sides in one line": ("if (t < 32) { __syncthreads(); o[t] = 1; } else __syncthreads();", "both"),
    "both sides": ("if (t < 32) {\n  __syncthreads();\n  o[t] = 1;\n} else {\n  __syncthreads();\n}", "both"),
    "both sides by calls": ("if (t < 32) {\n  meet(s, t);\n  o[t] = 1;\n} else {\n  meet(s, t);\n}", "called at"),
    "a reduction": ("if (t < 32) o[t] = __syncthreads_or(t);\nelse {\n  __syncthreads();\n}", "bar.red"),
    "one side": ("if (t < 32) {\n  o[t] = s[t];\n  __syncthreads();\n  o[t]++;\n}", "warp 1 of block (0, 0, 0) ended"),
    "one side by a call": ("if (t < 32) {\n  meet(s, t);\n  o[t]++;\n}", "warp 1 of block (0, 0, 0) ended without"),
    "a reduction that halves": (
        "for (int d = 64; d > 16; d /= 2)\n  if (t < d) {\n    __syncthreads();\n  }",
        "warp 1 of block (0, 0, 0) ended without",
    ),
    "loops of two lengths": ("for (int i = 0; i < 2 + t / 32; i++) {\n  o[t] = i;\n  __syncthreads();\n}", "ended"),
}  # fmt: skip


def emulate(body: str, schedule: int) -> tuple[list[tuple[str, str]], list[str]]:
    """Return kinds and severities of hazards, and their messages."""
    o = np.zeros(64, np.int32)
    report = matmill.emulate(f"{HEAD}{body}\n}}\n", "k", 1, 64, o, np.int32(40), races=False, schedule=schedule)
    return [(h.severity, h.kind) for h in report.hazards], [h.message for h in report.hazards]


@pytest.mark.parametrize("schedule", [0, 1])
@pytest.mark.parametrize("name", DIVERGENT)
def test_a_barrier_inside_of_a_branch(name: str, schedule: int) -> None:
    body, line = DIVERGENT[name]
    kinds, messages = emulate(body, schedule)
    assert ("error", "divergent-barrier") in kinds
    assert ("note", "early-exit") not in kinds
    if line is not None:  # others wait at another barrier of the loop
        assert any(f"the branch at kernel.cu:{FIRST + line - 1} has gone round it" in each for each in messages)


@pytest.mark.parametrize("schedule", [0, 1])
@pytest.mark.parametrize("name", RETURNED)
def test_threads_that_have_returned(name: str, schedule: int) -> None:
    kinds, messages = emulate(RETURNED[name], schedule)
    assert set(kinds) == {("note", "early-exit")}
    assert all("had returned" in each for each in messages)


@pytest.mark.parametrize("schedule", [0, 1])
@pytest.mark.parametrize("name", WHOLE)
def test_warps_at_different_barriers_of_the_source(name: str, schedule: int) -> None:
    body, text = WHOLE[name]
    kinds, messages = emulate(body, schedule)
    assert kinds == [("error", "divergent-barrier")]
    assert text in messages[0]


@pytest.mark.parametrize("schedule", [0, 1])
@pytest.mark.parametrize("name", SILENT)
def test_whole_warps_and_roles(name: str, schedule: int) -> None:
    assert emulate(SILENT[name], schedule)[0] == []


def test_ptx_without_a_source_says_no_more_than_it_knows() -> None:
    from support.ptx_tools import compile_ptx  # noqa: PLC0415 — of this test alone

    ptx = compile_ptx(f"{HEAD}{DIVERGENT['one line'][0]}\n}}\n".replace("#include <cassert>", ""))
    report = matmill.emulate(ptx, "k", 1, 64, np.zeros(64, np.int32), np.int32(40), races=False)
    assert [(h.severity, h.kind) for h in report.hazards] == [("note", "early-exit")]
    assert "had ended when" in report.hazards[0].message
    whole = compile_ptx(f"{HEAD}{WHOLE['both sides'][0]}\n}}\n".replace("#include <cassert>", ""))
    bare = "\n".join(line for line in whole.splitlines() if ".loc" not in line and ".file" not in line)
    for text, kinds in ((whole, ["divergent-barrier"]), (bare, [])):
        report = matmill.emulate(text, "k", 1, 64, np.zeros(64, np.int32), np.int32(40), races=False)
        assert [h.kind for h in report.hazards] == kinds
