"""Kernels of Triton with the techniques of its tutorials; tiles may reach beyond the matrices."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def add_without_a_mask(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at)
    total = tl.sum(value, axis=0)
    tl.store(out + at, value + total, mask=at < n)


@triton.jit
def last_program(out):
    where = tl.program_id(0)
    tl.store(out, where)


@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["columns"])})
@triton.jit
def softmax(x, out, rows, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=2):
        values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
        powers = tl.exp(values - tl.max(values, axis=0))
        tl.store(out + row * columns + at, powers / tl.sum(powers, axis=0), mask=at < columns)


@triton.jit
def dropout(x, out, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = tl.rand(seed, at) > p
    tl.store(out + at, tl.where(kept, tl.load(x + at, mask=at < n) / (1 - p), 0.0), mask=at < n)


@triton.autotune([triton.Config({"BM": 64, "BN": 64, "BK": 32}, num_warps=4, num_stages=3),
                  triton.Config({"BM": 128, "BN": 128, "BK": 32}, num_warps=8)], key=["m", "n"])  # fmt: skip
@triton.jit
def matmul(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    down = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    across = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    inner = tl.arange(0, BK)
    sums = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        left = inner[None, :] + start
        top = inner[:, None] + start
        part_a = tl.load(a + down * k + left, mask=(down < m) & (left < k), other=0.0)
        part_b = tl.load(b + top * n + across, mask=(top < k) & (across < n), other=0.0)
        sums = tl.dot(part_a, part_b, sums)
    tl.store(c + down * n + across, sums.to(c.dtype.element_ty), mask=(down < m) & (across < n))


@triton.jit
def matmul_by_descriptors(a, b, c, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    down, across = tl.program_id(0) * BM, tl.program_id(1) * BN
    sums = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        sums = tl.dot(a.load([down, start]), b.load([start, across]), sums)
    c.store([down, across], sums.to(tl.float16))


@triton.jit
def grouped_matmul(a_table, b_table, c_table, sizes, count, PROGRAMS: tl.constexpr, T: tl.constexpr):
    tile, first = tl.program_id(0), 0
    at = tl.arange(0, T)
    for g in range(count):
        m, n, k = tl.load(sizes + 3 * g), tl.load(sizes + 3 * g + 1), tl.load(sizes + 3 * g + 2)
        a = tl.load(a_table + g).to(tl.pointer_type(tl.float16))
        b = tl.load(b_table + g).to(tl.pointer_type(tl.float16))
        c = tl.load(c_table + g).to(tl.pointer_type(tl.float16))
        tiles = tl.cdiv(m, T) * tl.cdiv(n, T)
        while tile >= first and tile < first + tiles:
            down = (tile - first) // tl.cdiv(n, T) * T + at[:, None]
            across = (tile - first) % tl.cdiv(n, T) * T + at[None, :]
            sums = tl.zeros((T, T), tl.float32)
            for start in range(0, k, T):
                part_a = tl.load(a + down * k + start + at[None, :], mask=(start + at)[None, :] < k, other=0.0)
                part_b = tl.load(b + (start + at)[:, None] * n + across, mask=(start + at)[:, None] < k, other=0.0)
                sums = tl.dot(part_a, part_b, sums)
            tl.store(c + down * n + across, sums.to(tl.float16))
            tile += PROGRAMS
        first += tiles


@triton.jit
def layer_norm(x, out, weight, bias, means, scales, n, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at, mask=at < n, other=0.0).to(tl.float32)
    mean = tl.sum(values, axis=0) / n
    centred = tl.where(at < n, values - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / n + eps)
    tl.store(means + row, mean)
    tl.store(scales + row, scale)
    w, b = tl.load(weight + at, mask=at < n), tl.load(bias + at, mask=at < n)
    tl.store(out + row * n + at, centred * scale * w + b, mask=at < n)


@triton.jit
def layer_norm_backward(dx, dy, dw, db, x, weight, means, scales, locks, n, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at, mask=at < n, other=0.0).to(tl.float32)
    grad = tl.load(dy + row * n + at, mask=at < n, other=0.0).to(tl.float32)
    w, mean, scale = tl.load(weight + at, mask=at < n, other=0.0), tl.load(means + row), tl.load(scales + row)
    unit = tl.where(at < n, (values - mean) * scale, 0.0)
    weighted = w * grad
    along, level = tl.sum(unit * weighted, axis=0) / n, tl.sum(weighted, axis=0) / n
    tl.store(dx + row * n + at, (weighted - unit * along - level) * scale, mask=at < n)
    # Rows of a group add to one partial sum, one after the other.
    group = row % GROUPS
    while tl.atomic_cas(locks + group, 0, 1) == 1:
        pass
    to = group * n + at
    tl.store(dw + to, tl.load(dw + to, mask=at < n) + grad * unit, mask=at < n)
    tl.store(db + to, tl.load(db + to, mask=at < n) + grad, mask=at < n)
    tl.debug_barrier()
    tl.atomic_xchg(locks + group, 0)


@triton.jit
def column_sums(parts, out, rows, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        sums += tl.load(parts + row * n + at, mask=(row < rows) & (at < n), other=0.0)
    tl.store(out + at, tl.sum(sums, axis=0)[None, :], mask=at < n)


@triton.jit
def attention(q, k, v, out, logs, scale, n, CAUSAL: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    head, row, at = tl.program_id(1) * n * D, tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)[None, :]
    queries = tl.load(q + head + row[:, None] * D + at)
    top, total = tl.full((BM,), -float("inf"), tl.float32), tl.zeros((BM,), tl.float32)
    sums = tl.zeros((BM, D), tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * BM if CAUSAL else n, BN):
        column = start + tl.arange(0, BN)
        keys = tl.load(k + head + column[:, None] * D + at)
        scores = tl.dot(queries, keys.T) * (scale * LOG2_E)
        if CAUSAL:
            scores = tl.where(row[:, None] >= column[None, :], scores, -float("inf"))
        new = tl.maximum(top, tl.max(scores, axis=1))
        powers, shrink = tl.exp2(scores - new[:, None]), tl.exp2(top - new)
        total = total * shrink + tl.sum(powers, axis=1)
        values = tl.load(v + head + column[:, None] * D + at)
        sums = tl.dot(powers.to(tl.float16), values, sums * shrink[:, None])
        top = new
    tl.store(out + head + row[:, None] * D + at, (sums / total[:, None]).to(tl.float16))
    tl.store(logs + tl.program_id(1) * n + row, top + tl.log2(total))


@triton.jit
def attention_backward(q, k, v, do, dq, dk, dv, logs, dots, scale, n,
                       CAUSAL: tl.constexpr, D: tl.constexpr, B: tl.constexpr):  # fmt: skip
    """Compute dK and dV of a tile of columns, and add its share of dQ atomically."""
    head, column, at = tl.program_id(1) * n * D, tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, D)[None, :]
    mine = head + column[:, None] * D + at
    keys, values = tl.load(k + mine), tl.load(v + mine)
    sum_k, sum_v = tl.zeros((B, D), tl.float32), tl.zeros((B, D), tl.float32)
    for start in range(tl.program_id(0) * B if CAUSAL else 0, n, B):
        row = start + tl.arange(0, B)
        other = head + row[:, None] * D + at
        queries, grads = tl.load(q + other), tl.load(do + other)
        scores = tl.dot(queries, keys.T) * (scale * LOG2_E)
        powers = tl.exp2(scores - tl.load(logs + tl.program_id(1) * n + row)[:, None])
        if CAUSAL:
            powers = tl.where(row[:, None] >= column[None, :], powers, 0.0)
        sum_v = tl.dot(powers.T.to(tl.float16), grads, sum_v)
        slope = tl.dot(grads, values.T) - tl.load(dots + tl.program_id(1) * n + row)[:, None]
        slope = (powers * slope * scale).to(tl.float16)
        sum_k = tl.dot(slope.T, queries, sum_k)
        tl.atomic_add(dq + other, tl.dot(slope, keys))
    tl.store(dk + mine, sum_k)
    tl.store(dv + mine, sum_v)
