"""Calls that are not inlined: recursion, tables of function pointers, virtual functions."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from matmill.emulator import KernelFault, Memory, run
from matmill.emulator.report.hazards import Report
from matmill.errors import EmulationError
from matmill.jit.compile import compile_ptx
from matmill.jit.source import Source
from matmill.launch import Launch

SOURCE = r"""
typedef int (*Op)(int, int);
typedef float (*Sum)(float, float*);
__device__ int plus(int a, int b) { return a + b; }
__device__ int minus(int a, int b) { return a - b; }
__device__ int power(int a, int b) { int r = 1; for (int i = 0; i < b; ++i) r *= a; return r; }
__device__ Op table[3] = {plus, minus, power};
struct Weighted { Op op; int weight; };
__constant__ Weighted weighted[2] = {{minus, 3}, {power, 5}};
extern "C" __global__ void tables(const int* which, int* out, int* after) {
  const int t = threadIdx.x;
  const Weighted w = weighted[t % 2];
  int r = table[which[t]](t, 3) * w.weight + w.op(t, 2);
  out[t] = r;
  after[t] = __shfl_xor_sync(~0u, r, 1);
}

struct Shape { __device__ virtual float area() const = 0; __device__ virtual ~Shape() {} int tag = 7; };
struct Square : Shape { float a; __device__ Square(float a) : a(a) {}
  __device__ float area() const override { return a * a; } };
struct Disc : Shape { float r; __device__ Disc(float r) : r(r) {}
  __device__ float area() const override { return 3.0f * r * r; } };
struct Ring : Disc { float s; __device__ Ring(float r, float s) : Disc(r), s(s) {}
  __device__ float area() const override { return Disc::area() - 3.0f * s * s; } };
extern "C" __global__ void shapes(float* out) {
  const int t = threadIdx.x;
  Shape* s = t % 3 == 0 ? (Shape*)new Square(t) : t % 3 == 1 ? (Shape*)new Disc(t) : new Ring(t, 2);
  out[t] = s->area() + s->tag;
  delete s;
}

__device__ long long factorial(int n) { return n < 2 ? 1 : n * factorial(n - 1); }
__device__ int ackermann(int m, int n) {
  return m == 0 ? n + 1 : n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}
__device__ int odd(int n);
__device__ int even(int n) { return n == 0 ? 1 : 3 * odd(n - 1) - n; }
__device__ int odd(int n) { return n == 0 ? 0 : 2 * even(n - 1) + n; }
extern "C" __global__ void numbers(long long* out, int* a, int* e) {
  const int t = threadIdx.x;
  if (t % 5) out[t] = factorial(t % 21);
  a[t] = ackermann(t % 3, t % 5);
  e[t] = even(t % 24);
}

__device__ void quicksort(int* x, int low, int high) {
  if (low >= high) return;
  const int pivot = x[high];
  int at = low;
  for (int i = low; i < high; ++i) if (x[i] < pivot) { const int y = x[i]; x[i] = x[at]; x[at++] = y; }
  x[high] = x[at]; x[at] = pivot;
  quicksort(x, low, at - 1);
  quicksort(x, at + 1, high);
}
extern "C" __global__ void sorts(int* x, int n) { quicksort(x + n * threadIdx.x, 0, n - 1 - threadIdx.x % 7); }

struct Node { int key; Node *left, *right; };
__device__ Node* inserted(Node* n, int key, Node* fresh) {
  if (!n) { *fresh = Node{key, nullptr, nullptr}; return fresh; }
  if (key < n->key) n->left = inserted(n->left, key, fresh); else n->right = inserted(n->right, key, fresh);
  return n;
}
__device__ int in_order(const Node* n, int* out, int at) {
  if (!n) return at;
  at = in_order(n->left, out, at);
  out[at++] = n->key;
  return in_order(n->right, out, at);
}
extern "C" __global__ void trees(const int* keys, int* out, Node* nodes, int n) {
  const int t = threadIdx.x;
  Node* root = nullptr;
  for (int i = 0; i < n; ++i) root = inserted(root, keys[t * n + i], nodes + t * n + i);
  in_order(root, out + t * n, 0);
}

struct Many { int x[6]; int k; };
__device__ Many spread(Many m, int n, int* most) {
  int here = n;
  if (n == 0) return m;
  m.x[n % 6] += n;
  if (*most < n) *most = here;
  Many r = spread(m, n - 1, n % 2 ? most : &here);
  r.k += m.k + here;
  return r;
}
extern "C" __global__ void structs(Many* out) {
  int most = 0;
  Many m = {};
  m.k = threadIdx.x;
  m = spread(m, threadIdx.x % 9, &most);
  m.k += 1000 * most;
  out[threadIdx.x] = m;
}

__device__ float by_shuffles(float x, float* s) {
  for (int o = 16; o; o /= 2) x += __shfl_xor_sync(~0u, x, o);
  if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = x;
  __syncthreads();
  return s[0] + s[1];
}
__device__ float in_order(float x, float* s) {
  s[threadIdx.x] = x;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < 64; ++i) sum += s[i];
  return sum;
}
__device__ float hasty(float x, float* s) {
  s[threadIdx.x] = x;
  return s[63 - threadIdx.x];
}
__device__ Sum sums[3] = {by_shuffles, in_order, hasty};
extern "C" __global__ void block_sums(float* out, int which) {
  __shared__ float s[64];
  out[blockIdx.x * 64 + threadIdx.x] = sums[which](threadIdx.x, s);
}

extern "C" __global__ void wrong(int* x, int how) {
  Op op = how == 0 ? (Op)nullptr : how == 1 ? (Op)by_shuffles : how == 2 ? (Op)x : table[1];
  x[threadIdx.x] = threadIdx.x < 40 ? 0 : op(x[threadIdx.x], 1);
}
__device__ int down(int n, int to) { return n == to ? 1 : n + 2 * down(n + 1, to); }
extern "C" __global__ void deep(int* x) { x[threadIdx.x] = down(0, x[threadIdx.x]); }
"""


@pytest.fixture(scope="module")
def ptx() -> str:
    return compile_ptx(Source("calls", "calls", SOURCE), "sm_90a")


def launched(ptx: str, entry: str, *args: NDArray[np.generic] | np.generic, blocks: int = 1, seed: int = 0) -> Report:
    memory = Memory()
    given = tuple(memory.bind(f"x{n}", a, access="rw") if isinstance(a, np.ndarray) else a for n, a in enumerate(args))
    return run(ptx, Launch("calls", entry, (blocks, 1, 1), (64, 1, 1), given), memory, schedule=seed)


T = np.arange(64)


def test_lanes_call_different_functions_and_meet_behind_the_call(ptx: str) -> None:
    which = np.random.default_rng(0).integers(0, 3, 64).astype(np.int32)
    out, after = np.zeros((2, 64), np.int32)
    report = launched(ptx, "tables", which, out, after)
    assert report.ok
    first = np.choose(which, [T + 3, T - 3, T**3])
    expected = np.where(T % 2, first * 5 + T**2, first * 3 + T - 2)
    assert (out == expected).all()
    assert (after == expected[T ^ 1]).all()
    # Whole warps go on behind the calls, and each function runs once for all lanes of a warp that make one call of it.
    assert report.by_line["calls.cu:14"].global_store_requests == 2
    assert [report.by_line[f"calls.cu:{line}"].instructions for line in (4, 5)] == [2 * 5, 2 * 2 * 5]


def test_virtual_functions_of_objects_made_in_the_kernel(ptx: str) -> None:
    out = np.zeros(64, np.float32)
    assert launched(ptx, "shapes", out).ok
    assert (out == np.choose(T % 3, [T * T, 3 * T * T, 3 * T * T - 12]) + 7).all()


def test_recursion_keeps_registers_and_parameters(ptx: str) -> None:
    out, small = np.zeros(64, np.int64), np.zeros((2, 64), np.int32)
    assert launched(ptx, "numbers", out, *small).ok
    factorials = np.cumprod([1, *range(1, 21)])
    assert (out == np.where(T % 5, factorials[T % 21], 0)).all()
    assert (small[0] == np.choose(T % 3, [T % 5 + 1, T % 5 + 2, 2 * (T % 5) + 3])).all()
    even, odd = [1], [0]
    for n in range(1, 24):
        even, odd = [*even, 3 * odd[-1] - n], [*odd, 2 * even[-1] + n]
    assert (small[1] == np.array(even)[T % 24]).all()


@pytest.mark.parametrize("seed", [0, 3])
def test_lanes_of_different_depths(ptx: str, seed: int) -> None:
    x = np.random.default_rng(seed).integers(0, 99, (64, 20)).astype(np.int32)
    expected = [np.concatenate((np.sort(row[: 20 - t % 7]), row[20 - t % 7 :])) for t, row in enumerate(x)]
    assert launched(ptx, "sorts", x, np.int32(20), seed=seed).ok
    assert (x == expected).all()


def test_trees_are_walked(ptx: str) -> None:
    keys = np.random.default_rng(1).integers(0, 99, (64, 12)).astype(np.int32)
    out, nodes = np.zeros_like(keys), np.zeros((64, 12, 3), np.int64)
    assert launched(ptx, "trees", keys, out, nodes, np.int32(12)).ok
    assert (out == np.sort(keys, axis=1)).all()


def spread(x: list[int], k: int, n: int, most: list[int]) -> tuple[list[int], int]:
    """Return what the kernel's function computes, with pointers as lists."""
    here = [n]
    if n == 0:
        return x, k
    x = [v + n * (i == n % 6) for i, v in enumerate(x)]
    if most[0] < n:
        most[0] = here[0]
    x, deeper = spread(x, k, n - 1, most if n % 2 else here)
    return x, deeper + k + here[0]


def test_structs_by_value_and_pointers_into_frames(ptx: str) -> None:
    out = np.zeros((64, 7), np.int32)
    assert launched(ptx, "structs", out).ok
    for t in range(64):
        most = [0]
        x, k = spread([0] * 6, t, t % 9, most)
        assert out[t].tolist() == [*x, k + 1000 * most[0]]


def test_barriers_shuffles_and_races_inside_called_functions(ptx: str) -> None:
    for which in (0, 1):
        out = np.zeros(3 * 64, np.float32)
        report = launched(ptx, "block_sums", out, np.int32(which), blocks=3)
        assert report.ok
        assert (out == 2016).all()
        assert report.counters.barriers == 6
    report = launched(ptx, "block_sums", out, np.int32(2), blocks=3)
    assert [hazard.kind for hazard in report.hazards] == ["race"]
    assert "calls.cu:" in report.hazards[0].where
    assert "block_sums::s + " in report.hazards[0].message


def test_wrong_calls_end_the_kernel(ptx: str) -> None:
    text = ["is null", "is to by_shuffles(float, float*), which takes other arguments or has no body", "no function is"]
    for how, words in enumerate(text):
        with pytest.raises(KernelFault, match=r"thread \(40, 0, 0\) of block \(0, 0, 0\) executes 'call") as raised:
            launched(ptx, "wrong", np.ones(64, np.int64), np.int32(how))
        assert words in raised.value.hazard.message
        assert raised.value.hazard.kind == "call-target"
        assert raised.value.hazard.where == "calls.cu:120"
    assert launched(ptx, "wrong", np.ones(64, np.int64), np.int32(3)).ok


def test_the_stack_ends(ptx: str) -> None:
    x = np.full(64, 400, np.int32)
    assert launched(ptx, "deep", x).ok
    x = T.astype(np.int32) - 33
    with pytest.raises(KernelFault, match=r"thread \(0, 0, 0\) of block \(0, 0, 0\) executes 'call") as raised:
        launched(ptx, "deep", x)
    assert raised.value.hazard.kind == "stack-overflow"
    assert raised.value.hazard.where == "calls.cu:122"
    assert (x == T - 33).all()


PTX = """.version 8.0 .target sm_90 .address_size 64
.func (.param .b32 r) f (.param .b32 a);
.func helper (.param .b64 p, .param .b32 v) { .reg .u64 %rd<2>; .reg .u32 %r<3>; .reg .pred %p;
  ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [v]; setp.eq.u32 %p, %r1, 3;
  @%p ret;
  { .reg .u32 %r<3>; ld.global.u32 %r2, [%rd1]; add.u32 %r2, %r2, 1; st.global.u32 [%rd1], %r2; }
  ret; }
.func (.param .b32 r) f (.param .b32 a) { .reg .u32 %r<3>; .reg .u64 %rd<2>; .local .b32 kept; .reg .pred %p;
  ld.param.u32 %r1, [a]; mov.u64 %rd1, kept; st.local.u32 [%rd1], %r1;
  setp.eq.u32 %p, %r1, 0;
  { .param .b32 q; .param .b32 s; sub.u32 %r2, %r1, 1; st.param.b32 [q], %r2; st.param.b32 [s], 0;
    @!%p call (s), f, (q);
    ld.param.b32 %r2, [s]; }
  ld.local.u32 %r1, [kept]; add.u32 %r1, %r1, %r2; st.param.b32 [r], %r1;
  @%p ret; ret; }
.func (.param .b32 r) g (.param .b32 a) { .reg .u32 %r<2>; .reg .u64 %rd<2>; ld.param.u32 %r1, [a];
  mov.u64 %rd1, counted;
  { .param .b64 p; .param .b32 v; st.param.b64 [p], %rd1; st.param.b32 [v], %r1; call helper, (p, v); }
  mul.lo.u32 %r1, %r1, 10; st.param.b32 [r], %r1; }
.func (.param .b32 r) h (.param .b32 a) { .reg .u32 %r<2>; .reg .u64 %rd<2>; ld.param.u32 %r1, [a];
  mov.u64 %rd1, counted;
  { .param .b64 p; .param .b32 v; st.param.b64 [p], %rd1; st.param.b32 [v], %r1; call helper, (p, v); }
  neg.s32 %r1, %r1; st.param.b32 [r], %r1; ret; }
.alias g_again, g;
.entry k(.param .u64 out, .param .u32 which) { .reg .u32 %r<4>; .reg .u64 %rd<6>; .reg .pred %p;
  ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [which]; mov.u32 %r2, %tid.x;
  mov.u64 %rd2, g; setp.gt.u32 %p, %r2, 3; @%p mov.u64 %rd2, h;
  { .param .b32 q; .param .b32 s; st.param.b32 [q], %r2; names: .calltargets f, g, h; call (s), %rd2, (q), names;
    ld.param.b32 %r3, [s]; }
  { .param .b32 q; .param .b32 s; st.param.b32 [q], %r2; call.uni (s), f, (q); ld.param.b32 %r1, [s]; }
  add.u32 %r3, %r3, %r1; mul.wide.u32 %rd3, %r2, 4; add.u64 %rd1, %rd1, %rd3; st.global.u32 [%rd1], %r3; ret; }
"""


def test_ptx_by_hand() -> None:
    text = PTX.replace(".func helper", ".global .u32 counted; .func helper", 1)
    memory, out = Memory(), np.zeros(7, np.int32)
    launch = Launch("calls", "k", (1, 1, 1), (7, 1, 1), (memory.bind("out", out, access="w"), np.uint32(0)))
    assert run(text, launch, memory).counters.global_store_requests == 3
    t = np.arange(7)
    assert (out == np.where(t > 3, -t, 10 * t) + t * (t + 1) // 2).all()
    for line, changed, words in [
        ("call.uni (s), f, (q)", "call.uni (s), f, (s, q)", "arguments that are not .param variables"),
        ("call.uni (s), f, (q)", "call.uni (s), nothing, (q)", "the module does not define"),
        ("call (s), %rd2", "call (s), %r2", "what it calls"),
        (".param .b32 q; .param .b32 s; sub", ".param .b32 q; .param .b64 s; sub", "arguments of other sizes"),
        ("@!%p call (s), f, (q)", "@!%p call (s), f, (a)", "another call's too"),
    ]:
        assert line in text
        with pytest.raises(EmulationError, match=words):
            run(text.replace(line, changed), launch, memory)
