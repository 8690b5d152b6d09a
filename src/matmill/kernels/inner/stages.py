"""How the inner kernel's stages lie in shared memory, and what a block needs of it; the device asserts the same.

Lines (rows of E, columns of F) of which k is contiguous lie PITCH elements apart, others k by k. The pitch is the least
with which a warp's reads take the fewest passes.
"""

from __future__ import annotations

from matmill.config import Config
from matmill.cost.inner_passes import (
    ALONG_K,
    PACKED,
    SHIFTED,
    STRIDED,
    VECTOR_BYTES,
    Reads,
    border,
    groups,
    last_block,
    lies_along_k,
    outputs_of,
    packed,
    teams,
)
from matmill.kernel import ceil_div
from matmill.problem import Gemm

#: Bytes that cp.async copies at a time, at least.
LEAST_COPY = 4

_LANES = 32
#: Vectors in a row of all banks, and as few that a warp's lanes add them among themselves.
_VECTORS, _IN_WARP = 8, 4
#: Groups of which one hands its sums to the other.
_PAIR = 2


def with_stages(config: Config, problem: Gemm) -> Config:
    """``config`` with the pitches of its stages and the shared memory that they and the block's sum need."""
    size = problem.dtype.itemsize
    e_pitch = _pitch(config, "E", problem)
    f_pitch = e_pitch if problem.gram else _pitch(config, "F", problem)
    config = config.replace(E_PITCH=e_pitch, F_PITCH=f_pitch)
    stage = 0
    if config["BK"]:
        stage = _elements(config, "E", problem.m) + (0 if problem.gram else _elements(config, "F", problem.n))
    stages, wide = teams(config) * config["STAGES"] * stage * size, problem.dtype.accumulator.itemsize
    sums = max(_sum_bytes(config, wide, stages), _border_bytes(config, wide))
    sums = max(sums + _packed_bytes(config, sums, wide), _last_block_bytes(config, wide))
    return config.replace(SHARED_BYTES=max(stages, sums))


def _elements(config: Config, name: str, lines: int) -> int:
    """Elements of one matrix in one stage."""
    return (lines if lies_along_k(config, name) else config["BK"]) * config[f"{name}_PITCH"]


def _pitch(config: Config, name: str, problem: Gemm) -> int:
    """Elements from one line, or k, of a stage to the next; 0 where there are no stages."""
    if not config["BK"]:
        return 0
    mode, vector = config[f"{name}_MODE"], VECTOR_BYTES // problem.dtype.itemsize
    lines = problem.m if name == "E" else problem.n
    if mode == PACKED or (mode == STRIDED and lines % vector):
        return lines
    # Shifted lines begin up to a vector late.
    least = {STRIDED: lines, ALONG_K: config["BK"], SHIFTED: config["BK"] + vector}[mode]
    pitches = [least + vector * more for more in range(_VECTORS)]
    return min(pitches, key=Reads.of(config, name, problem).passes)


def _sum_bytes(config: Config, itemsize: int, room: int) -> int:
    """Where a block's groups add theirs, at once if ``room`` bytes hold them all (``tile_sum.cuh``)."""
    outputs, s, bs = outputs_of(config), config["S"], config["BS"]
    if _LANES // 2 % s == 0:
        alike = _LANES // s
        return bs // _LANES * s * ceil_div(outputs, alike) * alike * itemsize
    whole = bs * outputs * itemsize
    return whole if groups(config) > _PAIR and whole <= room else groups(config) // 2 * s * outputs * itemsize


def _border_bytes(config: Config, itemsize: int) -> int:
    """Where warps that share outputs beyond the tiles add theirs, as ``include/matmill/inner/remainder.cuh`` has them."""
    rows, columns = border(config)
    tm, tn = config["TM"], config["TN"]
    return groups(config) * config["S"] // _LANES * (8 * (tm * columns + tn * rows) + rows * columns) * itemsize


def _packed_bytes(config: Config, sums: int, itemsize: int) -> int:
    """What the block's sums, in whole rows, take behind ``sums`` bytes of parts of them (``packed_sums.cuh``).

    Room is made for the matrix units alone: GPUs without have less of it.
    """
    if not (config["UNITS"] and packed(config)):
        return 0
    pitch = config["N"] + (_LANES + 9 - config["N"] % _LANES) % _LANES
    return -sums % VECTOR_BYTES + config["M"] * pitch * itemsize


def _last_block_bytes(config: Config, itemsize: int) -> int:
    """Where the last block adds the sums of all, as ``include/matmill/splitk/last_block.cuh`` lays them out."""
    places, lanes = last_block(config, itemsize)
    ways = config["BS"] // lanes
    slices = config["BS"] // _LANES if places <= _IN_WARP else ways
    return slices * lanes * VECTOR_BYTES if ways > 1 else 0
