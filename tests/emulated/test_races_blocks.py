"""Order by atomics and fences: kernels that hand sums from block to block, as they should and with a step left out."""

from __future__ import annotations

import numpy as np
import pytest

from support.ptx_tools import Array, Options, compile_ptx, launch

BLOCKS, THREADS = 5, 64

# Steps of the last block's pattern, to be put together and left out.
WRITE = "part[blockIdx.x * blockDim.x + threadIdx.x] = value;"
WRITE_ONE = "if (threadIdx.x == 0) part[blockIdx.x * blockDim.x] = value;"
MEET = "__syncthreads();"
FENCE = "__threadfence();"
FENCE_BLOCK = "__threadfence_block();"
FENCE_ACQ_REL = 'asm volatile("fence.acq_rel.gpu;" ::: "memory");'
READ = """if (last) {
  float sum = 0;
  for (int i = threadIdx.x; i < gridDim.x * blockDim.x; i += blockDim.x) sum += __ldcg(part + i);
  out[threadIdx.x] = sum;
}"""
READ_ONES = """if (last && threadIdx.x == 0) {
  float sum = 0;
  for (int i = 0; i < gridDim.x; i++) sum += part[i * blockDim.x];
  out[0] = sum;
}"""
RESET = "if (last && threadIdx.x == 0) *counter = 0;"


def inc(qualifiers: str) -> str:
    """Return thread 0's step of the counter."""
    return f"""if (threadIdx.x == 0) {{
      unsigned old;
      asm volatile("atom{qualifiers}.global.inc.u32 %0, [%1], %2;"
        : "=r"(old) : "l"(counter), "r"(gridDim.x - 1) : "memory");
      last = old == gridDim.x - 1;
    }}"""


def only(condition: str, step: str) -> str:
    return f"if ({condition}) {{ {step} }}"


ZERO = "threadIdx.x == 0"
ACQ_REL, RELAXED, ATOMIC_INC = inc(".acq_rel.gpu"), inc(".relaxed.gpu"), inc("")
ACQUIRE, RELEASE = inc(".acquire.gpu"), inc(".release.gpu")
FENCE_ZERO, FENCE_ACQ_REL_ZERO = only(ZERO, FENCE), only(ZERO, FENCE_ACQ_REL)
COUNTER_LAST = "if (threadIdx.x == 0) last = atomicInc(counter, gridDim.x - 1) == gridDim.x - 1;"


def kernel(*steps: str) -> str:
    body = "\n".join(steps)
    return f"""extern "C" __global__ void k(float* part, float* out, unsigned* counter) {{
      __shared__ bool last;
      const float value = blockIdx.x + 0.5f * threadIdx.x;
      {body}
    }}"""


def hazards(*steps: str, blocks: int = BLOCKS, threads: int = THREADS, options: Options | None = None) -> list[str]:
    """Return what is reported of a kernel of these steps."""
    arrays: dict[str, Array] = {
        "part": np.zeros(blocks * threads, np.float32),
        "out": np.zeros(threads, np.float32),
        "counter": np.zeros(1, np.uint32),
    }
    ptx = compile_ptx(kernel(*steps))
    report = launch(ptx, arrays, grid=(blocks, 1, 1), block=(threads, 1, 1), options=options)
    return [hazard.message for hazard in report.hazards]


RIGHT = {
    "acq_rel": (WRITE, MEET, ACQ_REL, MEET, READ),
    "acq_rel, reset": (WRITE, MEET, ACQ_REL, MEET, READ, RESET),
    "release, then a fence": (WRITE, MEET, RELEASE, FENCE_ACQ_REL_ZERO, MEET, READ),
    "a fence, then acquire": (WRITE, MEET, FENCE_ACQ_REL_ZERO, ACQUIRE, MEET, READ),
    "fences about a relaxed atomic": (WRITE, MEET, FENCE_ZERO, COUNTER_LAST, FENCE_ZERO, MEET, READ, RESET),
    "fence.acq_rel about it": (WRITE, MEET, FENCE_ACQ_REL_ZERO, RELAXED, FENCE_ACQ_REL_ZERO, MEET, READ),
    "one thread's sum": (WRITE_ONE, FENCE_ZERO, COUNTER_LAST, FENCE_ZERO, MEET, READ_ONES),
    "fence.sc before and after the barriers": (WRITE, FENCE, MEET, COUNTER_LAST, MEET, FENCE, READ),
    "fence.sc before the barrier": (WRITE, FENCE, MEET, COUNTER_LAST, FENCE_ZERO, MEET, READ),
    "fence.sc after the barrier": (WRITE, MEET, FENCE_ZERO, COUNTER_LAST, MEET, FENCE, READ),
}
WRONG = {
    "nothing": (WRITE, MEET, COUNTER_LAST, MEET, READ),
    "no release": (WRITE, MEET, ACQUIRE, MEET, READ),
    "no acquire": (WRITE, MEET, RELEASE, MEET, READ),
    "no fence before": (WRITE, MEET, COUNTER_LAST, FENCE_ZERO, MEET, READ),
    "no fence after": (WRITE, MEET, FENCE_ZERO, COUNTER_LAST, MEET, READ),
    "a fence before the write": (FENCE, WRITE, MEET, COUNTER_LAST, FENCE, MEET, READ),
    "fence.acq_rel on the wrong side of a barrier": (WRITE, FENCE_ACQ_REL, MEET, RELAXED, FENCE_ACQ_REL, MEET, READ),
    "fence.acq_rel too late": (WRITE, MEET, FENCE_ACQ_REL_ZERO, RELAXED, MEET, FENCE_ACQ_REL, READ),
    "fence.sc without the barrier": (WRITE, FENCE, COUNTER_LAST, MEET, FENCE, READ),
    "no barrier before": (WRITE, ACQ_REL, MEET, READ),
    "scope .cta": (WRITE, MEET, inc(".acq_rel.cta"), MEET, READ),
    "scope .cluster": (WRITE, MEET, inc(".acq_rel.cluster"), MEET, READ),
    "fences of scope .cta": (WRITE, FENCE_BLOCK, MEET, COUNTER_LAST, FENCE_BLOCK, MEET, READ),
    "any block reads": (WRITE, MEET, ACQ_REL, MEET, "last = true;", READ),
}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("schedule", [0, 2, 3])
def test_a_last_block_in_order_is_free_of_races(name: str, schedule: int) -> None:
    assert hazards(*RIGHT[name], options={"schedule": schedule}) == []


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("schedule", [0, 2, 3])
def test_a_last_block_with_a_step_left_out_is_reported(name: str, schedule: int) -> None:
    result = hazards(*WRONG[name], options={"schedule": schedule})
    assert any("part + " in each and "st.global" in each for each in result)
    hints = ("takes it up each need a fence)", "what the other sets behind its own)")
    assert any(each.endswith(hints) for each in result) == (name != "nothing")
    if name in {"any block reads", "no barrier before"}:  # no fence is missing
        assert not any(each.endswith(hints[0]) for each in result)
    elif name in {"no fence before", "no fence after", "scope .cta", "fences of scope .cta"}:
        assert not any(each.endswith(hints[1]) for each in result)


CHAIN = """extern "C" __global__ void k(volatile int* flags, int* o) {
  const int b = blockIdx.x;
  if (threadIdx.x == 0) {
    if (b > 0) { while (flags[b - 1] == 0) {} AFTER }
    o[b] = b == 0 ? 1 : o[b - 1] + (b > 1 ? o[b - 2] : 0);
    BEFORE
    flags[b] = 1;
  }
}
"""
ASM_CHAIN = """extern "C" __global__ void k(unsigned* flags, int* o) {
  const int b = blockIdx.x;
  unsigned flag = 0;
  if (b > 0 && threadIdx.x == 0) {
    while (flag == 0) asm volatile("LOAD %0, [%1];" : "=r"(flag) : "l"(flags + b - 1) : "memory");
  }
  __syncthreads();
  if (threadIdx.x == 32) o[b] = b == 0 ? 1 : o[b - 1] + (b > 1 ? o[b - 2] : 0);
  __syncthreads();
  if (threadIdx.x == 0) asm volatile("STORE [%0], 1;" :: "l"(flags + b) : "memory");
}
"""


def chain(source: str, **words: str) -> tuple[list[int], list[str]]:
    """Return what twelve blocks that wait for each other compute, and what is reported."""
    for word, meaning in words.items():
        source = source.replace(word, meaning)
    arrays = {"flags": np.zeros(12, np.int32), "o": np.zeros(12, np.int32)}
    report = launch(compile_ptx(source), arrays, grid=(12, 1, 1), block=(64, 1, 1))
    return arrays["o"].tolist(), [hazard.message for hazard in report.hazards]


FIBONACCI = [1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144]


def test_a_chain_of_blocks_hands_on_what_it_was_handed() -> None:
    assert chain(CHAIN, AFTER=FENCE, BEFORE=FENCE) == (FIBONACCI, [])
    assert chain(ASM_CHAIN, LOAD="ld.acquire.gpu.u32", STORE="st.release.gpu.u32") == (FIBONACCI, [])
    assert chain(ASM_CHAIN, LOAD="ld.acquire.gpu.global.u32", STORE="red.release.gpu.global.add.u32") == (FIBONACCI, [])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (CHAIN, {"AFTER": "", "BEFORE": FENCE}),
        (CHAIN, {"AFTER": FENCE, "BEFORE": ""}),
        (CHAIN, {"AFTER": FENCE_BLOCK, "BEFORE": FENCE}),
        (ASM_CHAIN, {"LOAD": "ld.relaxed.gpu.u32", "STORE": "st.release.gpu.u32"}),
        (ASM_CHAIN, {"LOAD": "ld.acquire.gpu.u32", "STORE": "st.relaxed.gpu.u32"}),
        (ASM_CHAIN, {"LOAD": "ld.acquire.cta.u32", "STORE": "st.release.gpu.u32"}),
    ],
)
def test_a_chain_with_a_step_left_out_is_reported(source: str, words: dict[str, str]) -> None:
    numbers, result = chain(source, **words)
    assert numbers == FIBONACCI
    assert result
    assert all("o + " in message for message in result)


def test_a_block_that_reads_what_has_not_arrived_is_reported_alone() -> None:
    # The first block to come reads the others' sums, though it did acquire.
    early = ACQ_REL.replace("last = old == gridDim.x - 1", "last = old == 0")
    result = hazards(WRITE, MEET, early, MEET, READ)
    assert any("ld.global.cg" in message for message in result)


def test_flags_in_shared_memory_need_barriers_or_fences() -> None:
    result = hazards(WRITE, MEET, ACQ_REL, READ)
    assert any("k::last" in message and "write by thread (0, 0, 0)" in message for message in result)
    source = """extern "C" __global__ void k(int* o) { __shared__ volatile int flag; __shared__ int data;
      if (threadIdx.x == 0) { flag = 0; data = 0; } __syncthreads();
      if (threadIdx.x == 0) { data = o[1]; FENCE flag = 1; }
      if (threadIdx.x == 32) { while (flag == 0) {} FENCE o[0] = data; } }"""
    for step, races in (("", ["k::data"]), (FENCE_BLOCK, [])):
        out = np.array([0, 7], np.int32)
        report = launch(compile_ptx(source.replace("FENCE", step)), {"o": out}, block=(64, 1, 1))
        assert out[0] == 7
        assert [hazard.message.split()[1] for hazard in report.hazards] == races


def test_scope_cta_orders_threads_of_one_block() -> None:
    source = """extern "C" __global__ void k(int* data, unsigned* flag, int* o) {
      unsigned seen = 0;
      if (threadIdx.x == 0) {
        data[0] = 7;
        asm volatile("st.release.cta.u32 [%0], 1;" :: "l"(flag) : "memory");
      }
      if (threadIdx.x == 32) {
        while (seen == 0) asm volatile("ld.acquire.cta.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        o[0] = data[0];
      } }"""
    for order in ("acquire", "relaxed"):
        arrays = {name: np.zeros(1, np.int32) for name in ("data", "flag", "o")}
        report = launch(compile_ptx(source.replace("ld.acquire", f"ld.{order}")), arrays, block=(64, 1, 1))
        assert arrays["o"][0] == 7
        assert report.ok == (order == "acquire")


def test_many_blocks_hand_their_sums_to_the_last() -> None:
    for name in ("acq_rel, reset", "fence.sc before and after the barriers"):
        assert hazards(*RIGHT[name], blocks=300, threads=256) == []
    assert hazards(*WRONG["no acquire"], blocks=300, threads=256)
