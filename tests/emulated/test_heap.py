"""malloc and free in device code: what is used after free, freed twice, or beyond what malloc returned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from matmill.emulator import KernelFault, Memory, Report, run
from matmill.jit.compile import compile_ptx
from matmill.jit.source import Source
from matmill.launch import Argument, Launch

SOURCE = r"""
struct Cell { volatile int value; Cell* next; };
extern "C" __global__ void lists(int* out, int n) {
  Cell* head = nullptr;
  for (int i = 0; i < n + threadIdx.x % 3; ++i) {
    Cell* c = new Cell; c->value = i * threadIdx.x; c->next = head; head = c; }
  int sum = 0;
  while (head) { sum += head->value; Cell* next = head->next; delete head; head = next; }
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
extern "C" __global__ void shared_piece(int* out) {
  __shared__ volatile int* p;
  if (threadIdx.x == 0) p = (int*)malloc(4 * blockDim.x);
  __syncthreads();
  p[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = p[blockDim.x - 1 - threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) free((void*)p);
}
extern "C" __global__ void wrong(int* out, int how) {
  const int t = threadIdx.x;
  volatile int* p = (int*)malloc(how == 4 ? 6 : 32);
  p[0] = t;
  if (how == 1) free((void*)p);
  if (how == 2 && t == 5) { free((void*)p); free((void*)p); }
  if (how == 3 && t == 5) free((void*)(p + 1));
  out[t] = p[how == 4 && t == 7 ? 1 : how == 5 && t == 7 ? 9 : 0];
  if (how == 6 && t == 5) free((void*)out);
  if (how == 7) { free((void*)p); if (t == 9) *p = 1; free(nullptr); }
  if (how == 8) out[t] = p[2];
}
extern "C" __global__ void none(long long* out) {
  out[0] = (long long)malloc(0); out[1] = (long long)malloc(1ll << 40);
}
"""


@pytest.fixture(scope="module")
def ptx() -> str:
    return compile_ptx(Source("heap", "heap", SOURCE), "sm_90a")


def launched(
    ptx: str, entry: str, out: NDArray[np.integer[Any]], *more: int, blocks: int = 1, threads: int = 64
) -> Report:
    memory = Memory()
    args: tuple[Argument, ...] = (memory.bind("out", out, access="rw"), *(np.int32(m) for m in more))
    return run(ptx, Launch("heap", entry, (blocks, 1, 1), (threads, 1, 1), args), memory)


def test_lists(ptx: str) -> None:
    out = np.zeros(128, np.int32)
    assert launched(ptx, "lists", out, 5, blocks=2).ok
    t = np.arange(128) % 64
    count = 5 + t % 3
    assert (out == t * count * (count - 1) // 2).all()


def test_one_piece_of_a_block(ptx: str) -> None:
    out = np.zeros(64, np.int32)
    assert launched(ptx, "shared_piece", out).ok
    assert (out == 63 - np.arange(64)).all()


def test_malloc_of_nothing_and_of_too_much(ptx: str) -> None:
    out = np.ones(2, np.int64)
    assert launched(ptx, "none", out, threads=1).ok
    assert (out == 0).all()


def piece(t: int) -> str:
    """Return what the messages call what thread ``t`` has from malloc."""
    return f"what thread ({t}, 0, 0) of block (0, 0, 0) has from malloc"


def lost(t: int, line: int) -> str:
    """Return what the messages call what thread ``t`` had from malloc, and freed."""
    return piece(t).replace("has", "had") + f" until thread ({t}, 0, 0) of block (0, 0, 0) freed it (heap.cu:{line})"


WRONG = {
    1: ("use-after-free", f"thread (0, 0, 0) of block (0, 0, 0) reads 4 bytes at {lost(0, 25)} + 0 B of 32"),
    2: ("invalid-free", f"thread (5, 0, 0) of block (0, 0, 0) frees {lost(5, 26)} + 0 B of 32 again"),
    3: ("invalid-free", f"frees {piece(5)} + 4 B of 32, where no memory from malloc begins"),
    6: ("invalid-free", "frees out + 0 B of 256, where no memory from malloc begins"),
    7: ("use-after-free", f"thread (9, 0, 0) of block (0, 0, 0) writes 4 bytes at {lost(9, 30)}"),
    8: ("uninitialised-global", f"reads 4 bytes at {piece(0)} + 8 B of 32 that nothing was stored to"),
}


@pytest.mark.parametrize("how", WRONG)
def test_what_is_reported(ptx: str, how: int) -> None:
    out = np.zeros(64, np.int32)
    report = launched(ptx, "wrong", out, how)
    kind, words = WRONG[how]
    hazard = next(hazard for hazard in report.hazards if hazard.kind == kind)
    assert words in hazard.message
    assert how == 8 or (out == np.arange(64)).all(), "the kernel goes on"


@pytest.mark.parametrize(
    ("how", "words"), [(4, f"{piece(7)} + 4 B of 6"), (5, f"4 B behind the end of {piece(7)} (32 B)")]
)
def test_beyond_a_piece(ptx: str, how: int, words: str) -> None:
    with pytest.raises(KernelFault) as raised:
        launched(ptx, "wrong", np.zeros(64, np.int32), how)
    assert raised.value.hazard.kind == "out-of-bounds"
    assert f"reads 4 bytes at {words}" in raised.value.hazard.message
    assert raised.value.hazard.where == "heap.cu:28"
