"""Constants of the rungs that load 16 bytes along k, and the layouts that they need."""

from __future__ import annotations

from matmill.arch import Arch
from matmill.config import Config
from matmill.ladders.inner.common import (
    VECTOR_BYTES,
    blocks,
    fixed_size,
    most_outputs,
    thread_tile,
    threads,
    tile_config,
    width,
)
from matmill.problem import Gemm

#: Modes of reading F, as in kernels/inner/piece.cuh.
ALONG_K, PACKED, STRIDED = range(3)
#: Loads of 16 bytes that a thread keeps in flight if its registers allow: 64 KiB per SM with 256 threads.
_IN_FLIGHT = 16


def vector(problem: Gemm) -> int:
    """Return the elements in 16 bytes."""
    return VECTOR_BYTES // problem.dtype.itemsize


def rounds(vectors: int) -> int:
    """Return the pieces of that many loads each that are loaded before the first is used."""
    return max(1, min(4, _IN_FLIGHT // vectors))


def per_sm(outputs: int, in_flight: int, itemsize: int, bs: int) -> int:
    """Return the blocks that an SM's registers hold: sums, loads in flight (4 registers each), about 40 more."""
    registers = outputs * itemsize // 4 + 4 * in_flight + 40
    return max(1, 65536 // (min(255, registers) * bs))


def _start_align(problem: Gemm) -> int:
    return problem.b_align if problem.b_start_align is None else problem.b_start_align


def _f_layout(problem: Gemm) -> int:
    f_k, f_column = problem.b_row_col
    if f_k == 1:
        return ALONG_K
    # A run of memory with n elements per k: for any n, 16 bytes' worth of k's is a whole number of 16-byte loads.
    return PACKED if (f_k, f_column) == (problem.n, 1) and problem.n <= most_outputs(problem) else STRIDED


def _widths(problem: Gemm, f_mode: int) -> dict[str, int]:
    along_k = width(problem.b_align, problem, problem.b_row_col[1], problem.n)
    packed = width(_start_align(problem), problem, 0, 1)
    e_width = width(problem.a_align, problem, problem.a_row_col[0], problem.m)
    return {"E_WIDTH": e_width, "F_WIDTH": {ALONG_K: along_k, PACKED: packed, STRIDED: 1}[f_mode]}


def tune(problem: Gemm, arch: Arch) -> Config:
    """Return tile, loads and launch for ``problem`` on ``arch``."""
    f_mode = _f_layout(problem)
    tile = thread_tile(problem, whole_rows=f_mode == PACKED)
    config = tile_config(problem, tile)
    bs, v, u = threads(tile.sharing), vector(problem), rounds(tile.tm + tile.tn)
    resident = per_sm(tile.tm * tile.tn, u * (tile.tm + tile.tn), problem.dtype.accumulator.itemsize, bs)
    gs = blocks(problem, arch, per_sm=resident, k_per_block=bs // tile.sharing * v)
    return config.replace(V=v, U=u, F_MODE=f_mode, BS=bs, GS=gs, **_widths(problem, f_mode))


def contiguous_e(problem: Gemm) -> str | None:
    """Return why E cannot be read along k, or None."""
    stride = problem.a_row_col[1]
    return None if stride == 1 or problem.k <= 1 else f"E's rows are not contiguous: their stride is {stride}"


def wide_loads(problem: Gemm, config: Config, arch: Arch) -> str | None:
    """Return ``why_not_config`` of rungs that load 16 bytes along k.

    They read E along its rows, and F in the layout of the constants.
    """
    reason = fixed_size(problem, config, arch) or contiguous_e(problem)
    if reason:
        return reason
    mode = config["F_MODE"]
    if mode == ALONG_K and problem.b_row_col[0] != 1:
        return f"F's columns are not contiguous: their stride is {problem.b_row_col[0]}"
    if mode == PACKED and (problem.b_row_col != (problem.n, 1) or config["TN"] != problem.n):
        return f"F with strides {problem.b_row_col} is not one run of memory for tiles {config['TN']} wide"
    for name, most in _widths(problem, mode).items():
        if config[name] > most:
            nbytes = config[name] * problem.dtype.itemsize
            return f"{name} = {config[name]} needs rows or columns aligned to {nbytes} bytes"
    return None


DEFAULT = Config.of(M=3, N=3, TM=3, TN=3, S=1, ACROSS=1, V=4, U=2, E_WIDTH=4, F_WIDTH=4, F_MODE=ALONG_K, BS=256, GS=264)
