"""Each rule of a verdict, on a kernel that has the problem and on the same kernel without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import matmill
from matmill.testing import verdict
from matmill.testing.report import LaunchReport
from matmill.testing.verdict import Advice

N = 64


def ones(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.ones(shape, dtype)


@dataclass(frozen=True)
class Case:
    """A kernel of ``rule``'s problem: with ``wrong`` put in for CODE, and without it, with ``right``."""

    rule: str
    text: str
    wrong: str
    right: str
    line: int
    words: tuple[str, ...]
    args: tuple[Any, ...]
    block: tuple[int, ...] = (32, 32)
    grid: tuple[int, ...] = (2, 2)
    shared: tuple[int, int] = (0, 0)
    right_block: tuple[int, ...] | None = None
    right_grid: tuple[int, ...] | None = None

    def run(self, *, wrong: bool) -> LaunchReport:
        """Emulate one of both."""
        text = self.text.replace("CODE", self.wrong if wrong else self.right)
        grid = self.grid if wrong else self.right_grid or self.grid
        block = self.block if wrong else self.right_block or self.block
        args = [each.copy() if isinstance(each, np.ndarray) else each for each in self.args]
        return matmill.emulate(text, None, grid, block, *args, shared=self.shared[not wrong])


TRANSPOSE = """__global__ void k(const float* in, float* out, int n) {
  __shared__ float tile[32]CODE;
  const int x = blockIdx.x * 32, y = blockIdx.y * 32, i = threadIdx.x, j = threadIdx.y;
  tile[j][i] = in[(y + j) * n + x + i];
  __syncthreads();
  out[(x + j) * n + y + i] = tile[i][j];
}
"""
DYNAMIC = """__global__ void k(const float* in, float* out, int n) {
  extern __shared__ float tile[];
  const int i = threadIdx.x, j = threadIdx.y;
  tile[j * CODE + i] = in[j * n + i];
  __syncthreads();
  out[j * n + i] = tile[i * CODE + j];
}
"""
STRIDED = """__global__ void k(float* out, int n) {
  __shared__ float pairs[2048];
  const int t = threadIdx.x;
  pairs[CODE * t] = t;
  __syncthreads();
  out[t] = pairs[CODE * t];
}
"""
PRODUCT = """__global__ void k(const float* a, const float* b, float* c, int n) {
  const int CODE;
  float sum = 0;
  for (int i = 0; i < n; i++) sum += a[row * n + i] * b[i * n + col];
  c[row * n + col] = sum;
}
"""
COPY = """__global__ void k(const float* in, float* out, int n) {
  const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
  out[y * n + x] = in[CODE];
}
"""
ROWS = """__global__ void k(const float* in, float* out, int n) {
  const int t = threadIdx.x;
  for (int i = 0; i < 64; i++) out[CODE] = in[CODE] + 1;
}
"""
GATHER = """__global__ void k(const float* in, const int* at, float* out) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  out[t] = in[CODE];
}
"""
STRUCTS = """struct P { float x, y, z; };
__global__ void k(const float* in, float* out) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  out[t] = CODE;
}
"""
HALVES = """#include <cuda_fp16.h>
__global__ void k(const __half* in, float* out) {
  const int t = threadIdx.x;
  float sum = 0;
  for (int i = t CODE
  out[t] = sum;
}
"""
COUNT = """__global__ void k(const float* in, float* total) {
  float x = in[blockIdx.x * blockDim.x + threadIdx.x];
  CODE
}
"""
LOCAL = """__global__ void k(const float* in, float* out, int n) {
  const int t = threadIdx.x;
  float window[8];
  #pragma unroll
  for (int i = 0; i < 8; i++) window[i] = in[t + 256 * i];
  out[t] = window[CODE];
}
"""
BRANCH = """__global__ void k(const float* in, float* out) {
  const int t = threadIdx.x;
  float x = in[t];
  if (CODE)
    for (int i = 0; i < 500; i++) x = x * x + 1;
  out[t] = x;
}
"""
TREE = """__global__ void k(const float* in, float* out) {
  __shared__ float s[256];
  const int t = threadIdx.x;
  s[t] = in[blockIdx.x * 256 + t];
  __syncthreads(); for (int CODE s[t] += s[t + step]; __syncthreads(); }
  if (t == 0) out[blockIdx.x] = s[0];
}
"""
COPIES = """#include <cuda_pipeline.h>
__global__ void k(const float4* in, float* out, int tiles) {
  __shared__ float4 tile[2][64];
  const int t = threadIdx.x;
  float sum = 0;
  __pipeline_memcpy_async(&tile[0][t], &in[t], 16);
  __pipeline_commit();
  for (int i = 0; i < tiles; i++) {
    CODE
    __syncthreads();
    const float4 x = tile[i % 2][63 - t];
    sum += x.x * x.y + x.z * x.w;
    __syncthreads();
  }
  out[t] = sum;
}
"""
NEXT = (
    "if (i + 1 < tiles) __pipeline_memcpy_async(&tile[(i + 1) % 2][t], &in[(i + 1) * 64 + t], 16); __pipeline_commit();"
)
SCALE = """__global__ void k(float* x) {
  CODE
  x[blockIdx.x * blockDim.x + threadIdx.x] *= 2;
}
"""
HALF_WRITTEN = """__global__ void k(float* x, int n) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t < CODE) x[t] = 1;
}
"""
EMPTY = np.full(256, np.nan, np.float32)
SQUARE = ones(N, N)
CASES = {
    "a column of a tile": Case(
        "bank conflicts", TRANSPOSE, "[32]", "[33]", 6,
        ("32 passes where 1 would do", "pad tile to [32][33]", "shared passes 4,096 → 128"), (SQUARE, SQUARE, N),
    ),
    "a column of a dynamic tile": Case(
        "bank conflicts", DYNAMIC, "32", "33", 6, ("pad the rows of tile from 128 to 132 bytes",), (SQUARE, SQUARE, N),
        grid=(1,), shared=(4096, 4224),
    ),
    "every eighth word": Case(
        "bank conflicts", STRIDED, "8", "1", 4, ("8 passes where 1", "are 32 bytes apart in pairs"), (ones(256), N),
        block=(256,), grid=(1,),
    ),
    "a product with its threads along columns": Case(
        "uncoalesced", PRODUCT,
        "row = blockIdx.x * 32 + threadIdx.x, col = blockIdx.y * 32 + threadIdx.y",
        "row = blockIdx.y * 32 + threadIdx.y, col = blockIdx.x * 32 + threadIdx.x", 4,
        ("32 sectors a request where 4 would do", "read a column, 256 bytes apart",
         "swap the roles of threadIdx.x and .y", "sectors 262,144 → 8,192"), (SQUARE, SQUARE, SQUARE, N),
    ),
    "a transpose without a tile": Case(
        "uncoalesced", COPY, "x * n + y", "y * n + x", 3, ("read a column", "stage a tile in shared memory"),
        (SQUARE, SQUARE, N),
    ),
    "a row for each thread": Case(
        "uncoalesced", ROWS, "t * 64 + i", "i * 64 + t", 3, ("let neighbouring threads take neighbouring elements",),
        (SQUARE, SQUARE, N), block=(64,), grid=(1,),
    ),
    "a gather": Case(
        "uncoalesced", GATHER, "at[t]", "t", 3, ("scattered addresses", "sort the indices"),
        (ones(4096), np.random.default_rng(0).permutation(4096)[:1024].astype(np.int32), ones(1024)), block=(256,),
        grid=(4,),
    ),
    "a member of structs": Case(
        "unused bytes", STRUCTS, "((const P*)in)[t].x", "in[t]", 4,
        ("12 sectors a request where 4", "threads read 4 of every 12 bytes"), (ones(3072), ones(1024)), block=(256,),
        grid=(4,),
    ),
    "halves one by one": Case(
        "small vectors", HALVES,
        "; i < 8192; i += 128) sum += __half2float(in[i]);",
        " * 8; i < 8192; i += 1024) { uint4 v = *(const uint4*)(in + i); sum += v.x ^ v.y ^ v.z ^ v.w; }",
        5, ("2 bytes a read, 64 reads a thread", "requests 256 → 32"), (ones(8192, dtype=np.float16), ones(128)),
        block=(128,), grid=(1,),
    ),
    "a sum by atomics": Case(
        "atomics on one address", COUNT, "atomicAdd(total, x);",
        "for (int i = 16; i; i /= 2) x += __shfl_down_sync(~0u, x, i); if (threadIdx.x % 32 == 0) atomicAdd(total, x);",
        3, ("1,024 atomics on one address", "sum in the warp first", "atomics 1,024 → 32"), (ones(1024), ones(1)),
        block=(256,), grid=(4,),
    ),
    "a histogram of few bins": Case(
        "atomics on one address", COUNT, "atomicAdd(total + threadIdx.x % 4, x);",
        "__shared__ float s[4]; if (threadIdx.x < 4) s[threadIdx.x] = 0; __syncthreads(); "
        "atomicAdd(s + threadIdx.x % 4, x); __syncthreads(); "
        "if (threadIdx.x < 4) atomicAdd(total + threadIdx.x, s[threadIdx.x]);", 3,
        ("1,024 atomics on 4 addresses", "count in shared memory first", "atomics 1,024 → 16"),
        (ones(1024), ones(4)), block=(256,), grid=(4,),
    ),
    "an array that is indexed at run time": Case(
        "local memory", LOCAL, "n", "3", 5, ("local memory", "unroll the loops"), (ones(2048), ones(256), 3),
        block=(256,), grid=(1,),
    ),
    "every fourth lane": Case(
        "divergence", BRANCH, "t % 4 == 0", "t / 32 % 4 == 0", 5,
        ("8 of 32 lanes work", "let whole warps take one way"), (ones(256), ones(256)), block=(256,), grid=(1,),
    ),
    "a tree that skips threads": Case(
        "divergence", TREE, "step = 1; step < 256; step *= 2) { if (t % (2 * step) == 0)",
        "step = 128; step; step /= 2) { if (t < step)", 5, ("let whole warps take one way",), (ones(256 * 8), ones(8)),
        block=(256,), grid=(8,),
    ),
    "blocks of 8 threads": Case(
        "divergence", BRANCH, "true", "true", 0, ("8 of 32 lanes work", "a multiple of 32 threads, not 8"),
        (ones(256), ones(256)), block=(8,), grid=(1,), right_block=(64,),
    ),
    "a copy that is waited for at once": Case(
        "serialised copies", COPIES,
        f"{NEXT} __pipeline_wait_prior(0);",
        f"{NEXT} __pipeline_wait_prior(1);", 9, ("waited for as soon as it is issued", "wait_group 1"),
        (ones(8 * 64, 4), ones(64), 8), block=(64,), grid=(1,),
    ),
    "four blocks": Case(
        "idle SMs", SCALE, "", "", 0, ("no work for 128 of 132 SMs: grid of 4", "SMs at work 4 → 132"),
        (ones(132 * 32),), block=(32,), grid=(4,), right_grid=(132,),
    ),
    "a large buffer for few threads": Case(
        "low occupancy", SCALE, "", "", 0,
        ("4 blocks of 64 threads at most, for 50,000 bytes of shared memory", "occupancy 12% → 100%"),
        (ones(256),), block=(64,), grid=(4,), shared=(50_000, 0), right_block=(64,),
    ),
    "a guard that is too low": Case(
        "uncovered output", HALF_WRITTEN, "n / 2", "n", 0, ("wrote only 50.0% of x", "elements written 50% → 100%"),
        (EMPTY, 256), block=(256,), grid=(1,),
    ),
}  # fmt: skip


def of_rule(report: LaunchReport, rule: str) -> list[Advice]:
    assert report.ok, str(report)
    return [advice for advice in report.verdict if advice.rule == rule]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_rule_speaks_of_the_problem_and_of_nothing_else(case: Case) -> None:
    spoken = of_rule(case.run(wrong=True), case.rule)
    assert spoken, case.run(wrong=True)
    assert spoken[0].where == (f"kernel.cu:{case.line}" if case.line else "")
    for words in case.words:
        assert words in str(spoken[0])
    assert not of_rule(case.run(wrong=False), case.rule)


def test_every_rule_has_a_case() -> None:
    rules = {rule.__name__.replace("_", " ") for rule in verdict.RULES}
    names = {case.rule.lower().replace("atomics on one address", "contended atomics") for case in CASES.values()}
    assert rules == names


VECTORS = """if (i < 8) {
    float4 v = *(float4*)&tile[j][4 * i];
    v.x *= 2;
    *(float4*)&tile[j][4 * i] = v;
  }
  __syncthreads();
  out[(x"""


def test_rows_are_not_padded_off_the_alignment_of_vectors() -> None:
    case = CASES["a column of a tile"]
    text = case.text.replace("CODE", case.wrong).replace("out[(x", VECTORS)
    advice = of_rule(matmill.emulate(text, None, case.grid, case.block, SQUARE, SQUARE.copy(), N), case.rule)[0]
    assert advice.remedy.startswith("swizzle tile")  # [32][33] does not suit float4, [32][36] has conflicts


def test_a_kernel_without_problems_has_no_verdict() -> None:
    x = ones(132 * 256)
    report = matmill.emulate(SCALE.replace("CODE", ""), None, 132, 256, x)
    assert report.verdict == ()
    assert "verdict" not in str(report)


def test_the_costliest_line_comes_first_and_launches_last() -> None:
    case = CASES["a column of a tile"]
    text = case.text.replace("CODE", case.wrong).replace("in[(y + j) * n + x + i]", "in[(x + i) * n + y + j]")
    report = matmill.emulate(text, None, case.grid, case.block, *(each for each in case.args))
    assert [advice.rule for advice in report.verdict] == ["bank conflicts", "uncoalesced", "idle SMs"]


def test_a_launch_that_faults_has_no_verdict() -> None:
    report = matmill.emulate(SCALE.replace("CODE", ""), None, 2, 64, ones(100))
    assert report.faulted
    assert report.verdict == ()


def test_bfloat16_counts_as_two_bytes() -> None:
    text = HALVES.replace("CODE", CASES["halves one by one"].wrong).replace("fp16", "bf16")
    text = text.replace("__half2float", "__bfloat162float").replace("__half", "__nv_bfloat16")
    report = matmill.emulate(text, None, 1, 128, ones(8192, dtype=ml_dtypes.bfloat16), ones(128))
    assert str(of_rule(report, "small vectors")[0]).startswith("kernel.cu:5: 2 bytes a read")
