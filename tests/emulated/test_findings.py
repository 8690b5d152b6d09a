"""Mistakes that people have reported of their kernels, each found, and its repair silent and right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import matmill

N = 256


@dataclass(frozen=True)
class Mistake:
    """A kernel ``k(const float* x, float* y, int n)``, wrong and repaired, with a part of the message.

    The repaired one leaves ``y[i]``, of every thread i of a block, as ``answer`` has it. ``kind`` is the finding's.
    """

    kind: str
    wrong: str
    right: str
    text: str
    answer: Any
    grid: int = 1
    block: int = 64

    def report(self, body: str) -> tuple[matmill.testing.report.LaunchReport, Any]:
        """Return the report of a body, and y."""
        x, y = np.arange(1, N + 1, dtype=np.float32), np.full(N, -1, np.float32)
        source = (
            f"{HEAD}__global__ void k(const float* x, float* y, int n) {{\n  const int t = threadIdx.x;\n{body}\n}}\n"
        )
        report = matmill.emulate(source, "k", self.grid, self.block, x, y, 40)
        return report, y[: self.block]


HEAD = r"""
__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
#define PROXY_FENCE(space) asm volatile("fence.proxy.async" space ";" ::: "memory")
__device__ int flag;
// One thread loads 256 bytes by a bulk copy.
__device__ __forceinline__ void load(void* s, const void* from, unsigned long long* barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 256;" :: "r"(at(barrier)) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];"
               :: "r"(at(s)), "l"(from), "r"(at(barrier)) : "memory");
}
__device__ __forceinline__ void wait(unsigned long long* barrier) {
  asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0; @!done bra again; }"
               :: "r"(at(barrier)) : "memory");
}
#define BULK __shared__ alignas(128) float s[64]; __shared__ alignas(8) unsigned long long b; \
if (t == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at(&b)) : "memory"); \
__syncthreads();
"""
LINE = HEAD.count("\n") + 3
# Thread 0 of block 0 sets the flag, and thread 0 of block 1 waits for it.
BLOCKS = """BULK
if (blockIdx.x == 0) {{
  y[64 + t] = t; {writer} __syncthreads();
  if (t == 0) {{ __threadfence(); atomicExch(&flag, 1); }}
}}
else {{
  if (t == 0) {{ while (atomicAdd(&flag, 0) == 0); __threadfence(); {reader} load(s, y + 64, &b); }}
  wait(&b);
  y[t] = s[t];
}}"""
FLAG = """__shared__ float s[64]; __shared__ int f; if (t == 0) f = 0; __syncthreads();
if (t == 32) {{ s[32] = x[t]; {fence} {set} }}
if (t == 0) {{ while ({poll}); {fence} y[0] = s[32]; }} else y[t] = 33;"""
ARRIVE, SYNC = (f'asm volatile("bar.{how} 1, {{}};" ::: "memory");' for how in ("arrive", "sync"))
ROLES = "__shared__ float s[64]; if (t < 32) {{ {first} }} else {{ {second} }}"
BULK_LOAD = """BULK y[t + 64] = t; {writer} __syncthreads();
if (t == 0) {{ {reader} load(s, y + 64, &b); }}
wait(&b);
y[t] = s[t];"""
MISTAKES = {
    "__ldg of what the launch wrote": Mistake(
        kind="read-only-cache",
        wrong="y[t + 64] = t;\n__syncthreads();\ny[t] = __ldg(y + 127 - t);",
        right="y[t + 64] = t;\n__syncthreads();\ny[t] = y[127 - t];",
        text="reads 4 bytes at y[127] through the read-only cache, which does not see the stores of this launch "
        f"(kernel.cu:{LINE})",
        answer=np.arange(64)[::-1],
    ),
    "__ldg of what an atomic wrote": Mistake(
        kind="read-only-cache",
        wrong="atomicExch(y + t + 64, 3.0f);\n__syncthreads();\ny[t] = __ldg(y + 127 - t);",
        right="atomicExch(y + t + 64, 3.0f);\n__syncthreads();\ny[t] = y[127 - t] + 0 * __ldg(x + t);",
        text=f"(kernel.cu:{LINE})",
        answer=np.full(64, 3),
    ),
    "__ldg before the store": Mistake(
        kind="read-only-cache",
        wrong="y[t] = 2;\nfor (int i = 0; i < 2; i++) { y[t] = __ldg((const float4*)y).x; __syncthreads(); }",
        right="y[t] = 2 + 0 * __ldg(y + t);",
        text="reads 16 bytes at y[0]",
        answer=np.full(64, 2),
        block=32,
    ),
    "a bulk load of what threads stored": Mistake(
        kind="missing-proxy-fence",
        wrong=BULK_LOAD.format(writer="__threadfence();", reader=""),
        right=BULK_LOAD.format(writer='PROXY_FENCE("");', reader=""),
        text="ordered, but with no fence.proxy.async between the two",
        answer=np.arange(64),
    ),
    "a proxy fence of shared memory alone": Mistake(
        kind="missing-proxy-fence",
        wrong=BULK_LOAD.format(writer='PROXY_FENCE(".shared::cta");', reader=""),
        right=BULK_LOAD.format(writer='PROXY_FENCE(".global");', reader=""),
        text="y[64]: write by thread (0, 0, 0)",
        answer=np.arange(64),
    ),
    "a proxy fence before the stores": Mistake(
        kind="missing-proxy-fence",
        wrong='PROXY_FENCE(""); ' + BULK_LOAD.format(writer="", reader=""),
        right=BULK_LOAD.format(writer="", reader='PROXY_FENCE("");'),
        text="y[64]: write by thread (0, 0, 0)",
        answer=np.arange(64),
    ),
    "a bulk load of another block's stores": Mistake(
        kind="missing-proxy-fence",
        wrong=BLOCKS.format(writer="", reader=""),
        right=BLOCKS.format(writer="", reader='PROXY_FENCE("");'),
        text="asynchronous read by thread (0, 0, 0) of block (1, 0, 0)",
        answer=np.arange(64),
        grid=2,
    ),
    "another block's stores, fenced by them": Mistake(
        kind="missing-proxy-fence",
        wrong='PROXY_FENCE(""); ' + BLOCKS.format(writer="", reader=""),
        right=BLOCKS.format(writer='PROXY_FENCE(".global");', reader=""),
        text="asynchronous read by thread (0, 0, 0) of block (1, 0, 0)",
        answer=np.arange(64),
        grid=2,
    ),
    "a phase of arrivals alone": Mistake(
        kind="race",
        wrong=ROLES.format(first="s[t] = x[t];" + ARRIVE.format(32), second=SYNC.format(32) + "y[t] = s[63 - t];"),
        right=ROLES.format(
            first="s[t] = x[t];" + ARRIVE.format(64) + "y[t] = 7;", second=SYNC.format(64) + "y[t] = s[63 - t];"
        ),
        text="in shared memory: write by thread (31, 0, 0)",
        answer=[*[7] * 32, *range(32, 0, -1)],
    ),
    "a store behind the arrival": Mistake(
        kind="race",
        wrong=ROLES.format(first=ARRIVE.format(64) + "s[t] = x[t];", second=SYNC.format(64) + "y[t] = s[63 - t];"),
        right=ROLES.format(
            first="s[t] = 3;" + ARRIVE.format(64) + "y[t] = s[t];", second=SYNC.format(64) + "y[t] = s[63 - t];"
        ),
        text="in shared memory: write by thread (31, 0, 0)",
        answer=np.full(64, 3),
    ),
    "a load behind an arrival, which waits for nothing": Mistake(
        kind="race",
        wrong=ROLES.format(first=ARRIVE.format(64) + "y[t] = s[t];", second="s[t - 32] = x[t]; " + SYNC.format(64)),
        right=ROLES.format(
            first=SYNC.format(64) + "y[t] = s[t];", second="s[t - 32] = 4; y[t] = 4;" + ARRIVE.format(64)
        ),
        text="in shared memory: ",
        answer=np.full(64, 4),
    ),
    "a local array of counts": Mistake(
        kind="uninitialised-local",
        wrong="int bins[16];\nfor (int i = 0; i < 64; i++) bins[(int)x[i] & 15]++;\ny[t] = bins[t & 15];",
        right="int bins[16] = {0};\nfor (int i = 0; i < 64; i++) bins[(int)x[i] & 15]++;\ny[t] = bins[t & 15];",
        text=f"the local arrays + 0 B in local memory, read at kernel.cu:{LINE + 2}, in 'st.global",
        answer=np.full(64, 4),
    ),
    "a sum": Mistake(
        kind="uninitialised-register",
        wrong="float sum;\nfor (int i = 0; i < n; i++) sum += x[i] - i;\ny[t] = sum;",
        right="float sum = 0;\nfor (int i = 0; i < n; i++) sum += x[i] - i;\ny[t] = sum;",
        text="a variable that was given no value (register %f",
        answer=np.full(64, 40),
    ),
    "a value that some threads have": Mistake(
        kind="uninitialised-shared",
        wrong="__shared__ float s[64]; float v; if (t < n) v = x[t]; s[t] = v;\n__syncthreads();\ny[t] = s[63 - t];",
        right="__shared__ float s[64]; float v; if (t < n) v = x[t]; s[t] = v;\n__syncthreads();\n"
        "y[t] = t >= 64 - n ? s[63 - t] : 0;",
        text="stores what nothing has set: ",
        answer=[*[0] * 24, *range(40, 0, -1)],
    ),
    "a ballot among the lanes that are active": Mistake(
        kind="order",
        wrong="float v = t; if (t % 2) v = sqrtf(fabsf(v) * t);\ny[t] = __popc(__ballot_sync(__activemask(), v >= 0));",
        right="float v = t; if (t % 2) v = sqrtf(fabsf(v) * t);\ny[t] = __popc(__ballot_sync(~0u, v >= 0));",
        text="64 of 256 elements of y differ with the order of warps {'late_lanes': True}: y[0] is 16.0, and 32.0 in",
        answer=np.full(64, 32),
    ),
    "a value that one lane has, sent to the others": Mistake(
        kind="uninitialised-register",
        wrong="float v; if (t % 32 == 3) v = x[n - 1]; v = __shfl_sync(~0u, v, 4); y[t] = v;",
        right="float v; if (t % 32 == 3) v = x[n - 1]; v = __shfl_sync(~0u, v, 3); y[t] = v;",
        text="a variable that was given no value",
        answer=np.full(64, 40),
    ),
    "a branch on it": Mistake(
        kind="uninitialised-local",
        wrong="int v[64]; v[n] = 1; y[t] = 2; if (v[t]) atomicExch(y + t, x[t] - t);",
        right="int v[64]; for (int& each : v) each = 0; v[n] = 1; y[t] = 2; if (v[t]) atomicExch(y + t, x[t] - t);",
        text="branches on what nothing has set: ",
        answer=[*[2] * 40, 1, *[2] * 23],
    ),
    "accumulators": Mistake(
        kind="uninitialised-register",
        wrong="float d[4];\nfor (int i = 0; i < n; i++)\n"
        + (
            MMA := (
                'asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %4, %4, %4}, '
                '{%4, %4}, {%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(0x3f800000));'
            )
        )
        + "y[t] = d[0];",
        right="float d[4] = {0, 0, 0, 0};\nfor (int i = 0; i < n; i++)\n" + MMA + "y[t] = d[0];",
        text="multiplies or adds what nothing has set",
        answer=np.full(64, 320),
    ),
    "a pointer": Mistake(
        kind="uninitialised-local",
        wrong="int v[64]; v[n] = t; y[t] = 3; y[64 + (v[t] & 63)] = 3;",
        right="int v[64]; v[n] = t; y[t] = 3; y[64 + (v[40] & 63)] = 3;",
        text="takes as an address what nothing has set",
        answer=np.full(64, 3),
    ),
    "padding of a struct": Mistake(
        kind="uninitialised-local",
        wrong="struct S { float a; double b; }; S s[4]; for (int i = 0; i < 4; i++) s[(i + n) % 4].a = t;\n"
        "((S*)(y + 64))[t % 2] = s[t % 4]; y[t] = s[t % 4].b;",
        right="struct S { float a; double b; }; S s[4]; for (int i = 0; i < 4; i++) { s[(i + n) % 4].a = t; "
        "s[(i + n) % 4].b = 1; }\n((S*)(y + 64 + 4 * (t / 32)))[0] = s[n % 4]; y[t] = s[t % 4].b;",
        text="the local arrays + 8 B",
        answer=np.full(64, 1),
        block=1,
    ),
    "a shuffle among the lanes that are active": Mistake(
        kind="shuffle-source",
        wrong="float v = t; if (t % 2) v = sqrtf(fabsf(v) * t);\ny[t] = v + __shfl_xor_sync(__activemask(), v, 1);",
        right="float v = t; if (t % 2) v = sqrtf(fabsf(v) * t);\n__syncwarp();\n"
        "y[t] = v + __shfl_xor_sync(__activemask(), v, 1);",
        text="which its mask 0x55555555 does not name",
        answer=[t + (t ^ 1) for t in range(64)],
    ),
    "a volatile flag without a fence": Mistake(
        kind="race",
        wrong=FLAG.format(fence="", set="*(volatile int*)&f = 1;", poll="*(volatile int*)&f == 0"),
        right=FLAG.format(
            fence="__threadfence_block();", set="*(volatile int*)&f = 1;", poll="*(volatile int*)&f == 0"
        ),
        text="k::s[32] + 0 B in shared memory",
        answer=np.full(64, 33),
    ),
    "a flag that an atomic polls": Mistake(
        kind="race",
        wrong=FLAG.format(fence="__threadfence_block();", set="f = 1;", poll="atomicAdd(&f, 0) == 0"),
        right=FLAG.format(fence="__threadfence_block();", set="*(volatile int*)&f = 1;", poll="atomicAdd(&f, 0) == 0"),
        text="k::f + 0 B in shared memory",
        answer=np.full(64, 33),
    ),
    "warps in lockstep": Mistake(
        kind="race",
        wrong="__shared__ volatile float v[64]; v[t] = 1;\n"
        "for (int d = 32; d > 0; d /= 2) if (t < d) v[t] += v[t + d];\ny[t] = 64; if (t == 0) y[0] = v[0];",
        right="__shared__ volatile float v[64]; v[t] = 1;\nfor (int d = 32; d > 0; d /= 2) { __syncthreads(); "
        "if (t < d) v[t] += v[t + d]; }\ny[t] = 64; if (t == 0) y[0] = v[0];",
        text="v[32] in shared memory",
        answer=np.full(64, 64),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_mistake_is_found(name: str) -> None:
    mistake = MISTAKES[name]
    report, _ = mistake.report(mistake.wrong)
    assert mistake.kind in {hazard.kind for hazard in report.hazards}
    assert any(mistake.text in hazard.message for hazard in report.hazards if hazard.kind == mistake.kind)


@pytest.mark.parametrize("name", MISTAKES)
def test_the_repair_is_silent_and_right(name: str) -> None:
    mistake = MISTAKES[name]
    report, y = mistake.report(mistake.right)
    assert report.hazards == ()
    np.testing.assert_array_equal(y, np.asarray(mistake.answer)[: len(y)])


def test_variables_and_outputs_that_nobody_has_set() -> None:
    source = """__constant__ float filter[3]; __device__ int count; __device__ int offset = 0; __device__ float used;
    __global__ void k(float* y, int n) {
      const int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i == 0) used = 1;
      atomicAdd(&count, 1);
      if (i < n) y[i] = filter[1] + offset + used;
    }"""
    empty = np.full(100, np.nan, np.float32)
    report = matmill.emulate(source, "k", 1, 32, empty, 100, races=False)
    assert [(h.severity, h.kind) for h in report.hazards] == [("note", "unset-variable"), ("note", "unwritten-output")]
    assert "reads __constant__ filter, which neither" in report.hazards[0].message
    assert "wrote only 32.0% of y; the first element without a value is y[32]" in report.hazards[1].message
    symbols = {"filter": np.ones(3, np.float32)}
    assert (
        matmill.emulate(source, "k", 4, 32, np.full(100, np.nan, np.float32), 100, symbols=symbols, races=False).hazards
        == ()
    )
    report = matmill.emulate(source, "k", 4, 32, np.full(100, np.nan, np.float32), 0, symbols=symbols, races=False)
    assert [h.message for h in report.hazards] == ["k: wrote nothing of y: look at the grid, and at the guards"]
    # What has contents is none of the kernel's business.
    assert matmill.emulate(source, "k", 1, 32, np.zeros(100, np.float32), 100, symbols=symbols, races=False).ok


AGGREGATED = """if (t % 3) {
  const unsigned mask = __activemask();
  const int leader = __ffs(mask) - 1;
  float first = 0;
  if (t % 32 == leader) first = atomicAdd(y + 63, (float)__popc(mask));
  y[t % 60] = __shfl_sync(mask, first, leader) + __popc(mask & ((1u << t % 32) - 1));
}"""
#: Locks that each thread takes for itself, by their names.
LOCKS = {
    "a loop around the lock": "while (atomicCAS(&flag, 0, 1) != 0);\n{body} atomicExch(&flag, 0);",
    "a loop around all": """for (bool done = false; !done;)
      if (atomicCAS(&flag, 0, 1) == 0) {{ {body} atomicExch(&flag, 0); done = true; }}""",
    "tickets": "__shared__ int next; if (t == 0) next = 0; __syncthreads(); "
    "while (atomicAdd(&next, 0) != t); {body} atomicAdd(&next, 1);",
}


@pytest.mark.parametrize("schedule", [0, 1, 2])
@pytest.mark.parametrize("name", LOCKS)
def test_each_lane_may_wait_for_another(name: str, schedule: int) -> None:
    body = LOCKS[name].format(body="__threadfence(); y[100] += 1; __threadfence();")
    grid = 1 if name == "tickets" else 3
    x, y = np.zeros(1, np.float32), np.zeros(101, np.float32)
    source = f"{HEAD}__global__ void k(const float* x, float* y, int n) {{ const int t = threadIdx.x;\n{body}\n}}"
    report = matmill.emulate(source, "k", grid, 40, x, y, 40, schedule=schedule)
    assert report.hazards == ()
    assert y[100] == grid * 40
    never = source.replace("atomicExch(&flag, 0);", "").replace("atomicAdd(&next, 1);", "")
    report = matmill.emulate(never, "k", grid, 40, x, y, 40, schedule=schedule)
    assert [hazard.kind for hazard in report.hazards] == ["deadlock"]
    assert "on memory that nobody changes any more" in report.hazards[0].message


@pytest.mark.parametrize("schedule", [0, 1, 2, 3])
def test_lanes_that_meet_late_are_counted_all(schedule: int) -> None:
    x, y = np.zeros(1, np.float32), np.zeros(64, np.float32)
    source = f"__global__ void k(const float* x, float* y, int n) {{ const int t = threadIdx.x;\n{AGGREGATED}\n}}"
    assert matmill.emulate(source, "k", 1, 32, x, y, 40, schedule=schedule).hazards == ()
    assert sorted(y[[t for t in range(32) if t % 3]]) == list(range(21))
    assert y[63] == 21


WORDS = {
    "a byte far from any buffer": (
        "((char*)y)[(1ll << 33) + t] = 1;",
        "writes 1 byte at no buffer, 8589933568 B behind the end of y (1024 B)",
    ),
    "the end of shared memory": (
        "__shared__ float s[64]; volatile float* p = s; p[t + 64] = 1;",
        "byte 256 of 256 B of shared memory, 0 B behind the end of k::s (256 B)",
    ),
    "dynamic shared memory": (
        "extern __shared__ float d[]; d[n] = t; if (t == 0) y[0] = d[t + n];",
        ", d + 160 B: write",
    ),
    "warps that did not come": (
        """__shared__ float s[96]; s[t] = t;
        if (t < 64) asm volatile("bar.sync 1, 64;" ::: "memory");
        y[t] = s[95 - t];""",
        "with nothing that orders them: only warps 0, 1 came to 'bar.sync 1, 64;' (kernel.cu:",
    ),
    "one warp that came": (
        """__shared__ float s[96]; s[t] = t;
        if (t < 32) asm volatile("bar.sync 1, 32;" ::: "memory");
        y[t] = s[95 - t];""",
        "with nothing that orders them: only warp 0 came to 'bar.sync 1, 32;' (kernel.cu:",
    ),
}


@pytest.mark.parametrize("name", WORDS)
def test_words(name: str) -> None:
    body, text = WORDS[name]
    x, y = np.zeros(N, np.float32), np.zeros(N, np.float32)
    source = f"__global__ void k(const float* x, float* y, int n) {{ const int t = threadIdx.x;\n{body}\n}}"
    report = matmill.emulate(source, "k", 1, 96, x, y, 40, shared=1024 if "extern" in body else 0)
    assert any(text in hazard.message for hazard in report.hazards), report.hazards
