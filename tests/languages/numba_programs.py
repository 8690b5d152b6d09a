"""Kernels of numba-cuda with the techniques of its documentation: tiles, a tree of sums, histograms; and mistakes."""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32, int32

TILE = 16
BINS = 32


@cuda.jit(device=True)
def twice(value):
    return 2 * value


@cuda.jit
def axpy(a, x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] += a * twice(x[i]) + math.sin(x[i])


@cuda.jit
def matmul(a, b, c):
    tile_a, tile_b = cuda.shared.array((TILE, TILE), float32), cuda.shared.array((TILE, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.grid(2)
    total = float32(0)
    for start in range(0, a.shape[1], TILE):
        tile_a[ty, tx] = a[row, start + tx] if row < a.shape[0] and start + tx < a.shape[1] else 0
        tile_b[ty, tx] = b[start + ty, column] if start + ty < b.shape[0] and column < b.shape[1] else 0
        cuda.syncthreads()
        for k in range(TILE):
            total += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total


@cuda.jit
def total(x, out):
    parts = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    value = float32(0)
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        value += x[i]
    parts[t] = value
    step = cuda.blockDim.x // 2
    while step > 0:
        cuda.syncthreads()
        if t < step:
            parts[t] += parts[t + step]
        step //= 2
    if t == 0:
        cuda.atomic.add(out, 0, parts[0])


@cuda.jit
def total_without_barriers(x, out):
    parts = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    parts[t] = x[t]
    if t == 0:
        result = float32(0)
        for i in range(128):
            result += parts[i]
        out[0] = result


@cuda.jit
def histogram(x, low, width, counts):
    own = cuda.shared.array(BINS, int32)
    t = cuda.threadIdx.x
    if t < BINS:
        own[t] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        bin_number = int32((x[i] - low) / width)
        if bin_number >= 0 and bin_number < BINS:
            cuda.atomic.add(own, bin_number, 1)
    cuda.syncthreads()
    if t < BINS:
        cuda.atomic.add(counts, t, own[t])


@cuda.jit
def shift(x):
    i = cuda.grid(1)
    x[i + 1] = twice(x[i])


def doubled(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = twice(x[i])


@cuda.jit
def everything(flag, number, pair, record, records, steps, out):
    i = cuda.grid(1)
    if flag and i < out.size:
        out[i] = number * pair[0] + pair[1][i] + record["scale"] * records[i]["scale"] + steps[i, 0]


@cuda.jit(debug=True, opt=False)
def checked(x):
    x[0] = 1


RECORD = np.dtype([("name", np.int16), ("scale", np.float64)], align=True)
