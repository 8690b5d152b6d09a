"""What cp.async asks of global memory, as an H200 counted it for one warp at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matmill.emulator import Memory, run
from matmill.jit.compile import compile_ptx
from matmill.jit.source import Source
from matmill.launch import Launch

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "golden" / "h200_cp_async.json").read_text())
KERNEL = """
extern "C" __global__ void copies(const int* source, const int* target, const int* size, const char* from) {
  __shared__ __align__(128) char to[8192];
  const unsigned d = unsigned(__cvta_generic_to_shared(to)) + target[threadIdx.x];
  const char* s = from + source[threadIdx.x];
  const int bytes = size[threadIdx.x];
  if (bytes >= 0) {
    asm volatile("cp.async.CACHE.shared.global [%0], [%1], WIDTH, %2;" ::"r"(d), "l"(s), "r"(bytes) : "memory");
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
}
"""


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['cache']}{case['width']}-{case['name']}")
def test_an_h200_counted_the_same(case: dict[str, Any]) -> None:
    text = KERNEL.replace("CACHE", case["cache"]).replace("WIDTH", str(case["width"]))
    ptx = compile_ptx(Source("copies", "copies", text), "sm_90a")
    memory = Memory()
    arrays = {name: np.array(case[name], np.int32) for name in ("source", "target", "size")}
    arrays["from"] = np.zeros(8192, np.int32)
    pointers = tuple(memory.bind(name, array, access="r") for name, array in arrays.items())
    report = run(ptx, Launch("copies", "copies", (1, 1, 1), (32, 1, 1), pointers), memory)
    counted = report.counters
    # A negative size stands for a lane that does not execute the copy.
    assert report.ok
    assert counted.cp_async_requests == case["instructions"]
    assert (counted.cp_async_global_requests, counted.cp_async_sectors) == (case["requests"], case["sectors"])
