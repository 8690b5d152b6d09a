"""Cases: exchange inside warps, divergence, loops, barriers, special registers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from agreement.case import POISON, Case
from agreement.values import words

Array = NDArray[Any]
# Member masks: everybody, one lane, halves, every second lane, and odd ones.
MEMBERS = (0xFFFFFFFF, 0x1, 0x80000000, 0xFFFF, 0xFFFF0000, 0x55555555, 0xAAAAAAAA, 0x7FFFFFFE, 0x00F0A5C3, 0x80000001)


def slots(count: int) -> Array:
    """Return poisoned 64-bit outputs."""
    return np.full(count, POISON, np.uint64)


def _shuffles() -> Case:
    """Return shuffles whose warps have one clamp operand each (segment mask and bound).

    Each lane has a distance of its own and one in common.
    """
    bounds = [
        0x1F,
        0x0,
        0x181F,
        0x1C1F,
        0x1003,
        0x1E1F,
        0x1F1F,
        0x0A07,
        0x0515,
        0x1800,
        0x1C03,
        0x001E,
        0x0010,
        0xFF1F,
        0x12F3,
        0xFFFFFFFF,
    ]
    rng = np.random.default_rng(20)
    lines, n = [], 0
    for mode in ("up", "down", "bfly", "idx"):
        for distance in ("own", "common"):
            lines.append(
                f'{{ unsigned d, q; asm volatile("{{.reg .pred p; shfl.sync.{mode}.b32 %0|p, %2, %3, %4, 0xffffffff; '
                f'selp.u32 %1, 1, 0, p;}}" : "=r"(d), "=r"(q) : "r"(v), "r"({distance}), "r"(c)); '
                f"o[{n} * n + i] = (unsigned long long)q << 32 | d; }}\n"
            )
            n += 1
    source = f"""extern "C" __global__ void k(const unsigned* value, const unsigned* clamp, const unsigned* distance,
    unsigned long long* o, int n) {{
  const int i = blockIdx.x * 32 + threadIdx.x;
  const unsigned v = value[i], c = clamp[blockIdx.x], own = distance[i], common = distance[blockIdx.x * 32];
  {"".join(lines)} }}"""
    warps = len(bounds) * 8

    def arrays() -> dict[str, Array]:
        distances = rng.integers(0, 80, warps * 32).astype(np.uint32)
        return {
            "value": np.arange(warps * 32, dtype=np.uint32) * np.uint32(2654435761),
            "clamp": np.repeat(np.array(bounds, np.uint32), 8),
            "distance": distances,
            "o": slots(n * warps * 32),
        }

    fixed = arrays()
    return Case(
        "shuffles", source, lambda: {k: v.copy() for k, v in fixed.items()}, ("o",), (warps, 1, 1), (32, 1, 1),
        values=(np.int32(warps * 32),),
    )  # fmt: skip


_COLLECTIVES = (
    "vote.sync.ballot.b32 d, p, m;", "vote.sync.any.pred q, p, m; selp.u32 d, 1, 0, q;",
    "vote.sync.all.pred q, p, m; selp.u32 d, 1, 0, q;",
    "vote.sync.uni.pred q, p, m; selp.u32 d, 1, 0, q;",
    "vote.sync.ballot.b32 d, !p, m;", "vote.sync.uni.pred q, !p, m; selp.u32 d, 1, 0, q;",
    "match.any.sync.b32 d, %1, m;", "match.all.sync.b32 d|q, %1, m; @q add.u32 d, d, 3;",
    "match.any.sync.b64 d, %5, m;", "match.all.sync.b64 d|q, %5, m; @!q add.u32 d, d, 7;",
    *(f"redux.sync.{name}.{t} d, %2, m;" for name in ("add", "min", "max") for t in ("u32", "s32")),
    *(f"redux.sync.{name}.b32 d, %2, m;" for name in ("and", "or", "xor")),
    "shfl.sync.idx.b32 d|q, %2, %4, 31, m; @q add.u32 d, d, 1;",
    "bar.warp.sync m; mov.u32 d, 5;",
)  # fmt: skip


def _collectives(*calls: str) -> str:
    """Return CUDA C++ that executes each call with the lane's mask, and stores its result."""
    return "".join(
        f'{{ unsigned d; asm volatile("{{.reg .pred p, q; .reg .u32 d, m; mov.u32 m, %3; setp.ne.u32 p, %1, 0; '
        f'{text} mov.u32 %0, d;}}" : "=r"(d) : "r"(small), "r"(v), "r"(mask), "r"(lane), "l"(wide)); '
        f"o[{n} * n + i] = d; }}\n"
        for n, text in enumerate(calls)
    )


def _exchange(name: str, masks: Array, ways: Array, body: str, calls: int) -> Case:
    """Return collectives by all lanes of warps.

    ``masks`` and ``ways`` are those of each thread, ``body`` has the calls.
    """
    source = f"""
extern "C" __global__ void k(const unsigned* value, const unsigned* members, const unsigned* ways,
    unsigned long long* o, int n) {{
  const int i = blockIdx.x * 32 + threadIdx.x;
  const unsigned mask = members[i], v = value[i], small = v % (1 + blockIdx.x / 10);
  const unsigned long long wide = (unsigned long long)(small * 3) << 33 | 5;
  // Which member to read from: the one that many members on, modulo their number.
  unsigned left = mask;
  for (int skip = (v >> 8) % __popc(mask); skip; skip--) left &= left - 1;
  const unsigned lane = __ffs(left) - 1;
  {body}
}}"""
    value = words(32, masks.size, seed=21)[2]
    return Case(
        name, source,
        lambda: {
            "value": value.copy(), "members": masks.ravel().astype(np.uint32), "ways": ways.ravel().astype(np.uint32),
            "o": slots(calls * masks.size),
        },
        ("o",), (masks.size // 32, 1, 1), (32, 1, 1), values=(np.int32(masks.size),),
    )  # fmt: skip


def _members() -> Case:
    """Return odd sets of lanes that diverged from the rest of their warp."""
    masks = np.repeat(np.tile(np.array(MEMBERS, np.uint32), 6), 32).reshape(-1, 32)
    calls = (*_COLLECTIVES, "activemask.b32 d;")
    body = f"if (mask >> threadIdx.x & 1) {{ {_collectives(*calls)} }}"
    return _exchange("members", masks, np.zeros_like(masks), body, len(calls))


def _partitions() -> tuple[Case, ...]:
    """Return warps divided into groups, each with a mask of its own.

    They run together, on two ways, and with each group on both.

    Lanes of one mask may meet at different instructions with the same qualifiers.
    """
    rng, lane = np.random.default_rng(24), np.arange(32)
    groups = np.array([
        lane // 16, lane // 8, lane // 4, lane // 2, lane, lane % 2, lane % 3, 0 * lane,
        rng.integers(0, 2, 32), rng.integers(0, 5, 32),
    ] * 6)  # fmt: skip
    masks = ((groups[:, :, None] == groups[:, None, :]) << lane).sum(axis=2)
    calls = _collectives(*_COLLECTIVES)
    body = f"if (ways[i]) {{ {calls} }} else {{ {calls} }}"
    ways = {
        "partitions": 0 * groups,
        "partitions apart": groups % 2,
        "partitions across": rng.integers(0, 2, masks.shape),
    }
    return tuple(_exchange(name, masks, way, body, len(_COLLECTIVES)) for name, way in ways.items())


def _divergence() -> Case:
    source = """__device__ __noinline__ unsigned step(unsigned v) { return v % 2 ? 3 * v + 1 : v / 2; }
extern "C" __global__ void k(const unsigned* value, unsigned long long* o, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n - 5) return;
  unsigned v = value[i] % 1000 + 1, steps = 0, hash = 0;
  while (v != 1) { v = step(v); steps++; }
  for (int a = 0; a < int(i % 7); a++) {
    if (i % 3 == 0) continue;
    for (int b = a; b < 9; b++) {
      if ((a + b + i) % 11 == 0) break;
      switch ((hash + b) % 6) {
        case 0: hash = hash * 31 + b; break;
        case 1: hash ^= 0x9E3779B9u; // fall through
        case 2: hash += i; break;
        case 4: if (hash & 64) goto out; hash -= 5; break;
        default: hash = hash << 3 | hash >> 29;
      }
    }
    hash += __popc(hash);
  }
out:
  do { hash = hash * 1664525u + 1013904223u; } while (hash % 5 > unsigned(i % 4));
  o[i] = (unsigned long long)steps << 32 | hash;
}"""
    value = words(32, 1024, seed=22)[2]
    return Case(
        "divergence", source, lambda: {"value": value.copy(), "o": slots(1024)}, ("o",), (11, 1, 1), (96, 1, 1),
        values=(np.int32(1024),),
    )  # fmt: skip


def _barriers() -> Case:
    """Return named barriers with partial counts: two producers' warps feed two consumers' through two slots.

    A bar.red follows.
    """
    source = """extern "C" __global__ void k(const unsigned* value, unsigned long long* o, int n) {
  __shared__ unsigned slot[2][64];
  const int t = threadIdx.x, role = t / 64;
  unsigned sum = 0;
  if (role < 2) {
    for (int round = 0; round < 6; round++) {
      const int s = round % 2, full = 1 + s, empty = 3 + s;
      if (role == 0) {
        if (round >= 2) asm volatile("bar.sync %0, 128;" :: "r"(empty) : "memory");
        slot[s][t] = value[(blockIdx.x * 6 + round) * 64 + t] + round;
        asm volatile("bar.arrive %0, 128;" :: "r"(full) : "memory");
      } else {
        asm volatile("bar.sync %0, 128;" :: "r"(full) : "memory");
        sum = sum * 31 + slot[s][(t * 7 + 3) % 64];
        if (round < 4) asm volatile("bar.arrive %0, 128;" :: "r"(empty) : "memory");
      }
    }
  } else {
    for (int i = 0; i < t % 5; i++) sum += i * t;
    asm volatile("barrier.sync 7, 32;" ::: "memory");
  }
  int count = __syncthreads_count(sum % 3 == 0), all = __syncthreads_and(sum != 1), any = __syncthreads_or(sum == 77);
  unsigned half = 0;
  if (role == 1)
    asm volatile("{.reg .pred p; setp.gt.u32 p, %1, 0x7fffffff; barrier.red.popc.u32 %0, 9, 64, p;}"
                 : "=r"(half) : "r"(sum));
  o[blockIdx.x * blockDim.x + t] = (unsigned long long)(half << 16 | count << 8 | all << 4 | any) << 32 | sum;
}"""
    value = words(32, 8 * 6 * 64, seed=23)[2]
    return Case(
        "barriers", source, lambda: {"value": value.copy(), "o": slots(8 * 160)}, ("o",), (8, 1, 1), (160, 1, 1),
        values=(np.int32(0),),
    )  # fmt: skip


def _special_registers() -> Case:
    names = [f"{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]
    names += [
        "laneid",
        *(f"lanemask_{m}" for m in ("eq", "lt", "le", "gt", "ge")),
        "dynamic_smem_size",
        "total_smem_size",
    ]
    lines = "".join(
        f'{{ unsigned d; asm volatile("mov.u32 %0, %%{name};" : "=r"(d)); o[{n} * n + i] = d; }}\n'
        for n, name in enumerate(names)
    )
    source = f"""extern "C" __global__ void k(unsigned long long* o, int n) {{
  __shared__ int fixed[64];
  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  fixed[thread] = thread;
  __syncthreads();
  const int i = block * blockDim.x * blockDim.y * blockDim.z + fixed[(thread + 1) % 60];
  {lines} }}"""
    count = 2 * 3 * 2 * 5 * 3 * 4
    return Case(
        "special registers", source, lambda: {"o": slots(len(names) * count)}, ("o",), (2, 3, 2), (5, 3, 4),
        values=(np.int32(count),), shared=100,
    )  # fmt: skip


CASES = (_shuffles(), _members(), *_partitions(), _divergence(), _barriers(), _special_registers())
