"""The layout of the inner kernel's stages in shared memory, and a block's bytes of it. The device asserts the same.

Rows of E and columns of F along which k is contiguous are PITCH elements apart; other matrices are stored k by k, PITCH
elements apart. The pitch is the smallest one for which a warp's reads take the fewest passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from matmill.config import Config
from matmill.kernel import ceil_div
from matmill.kernels.inner.passes import (
    ALONG_K,
    PACKED,
    SHIFTED,
    STRIDED,
    VECTOR_BYTES,
    Reads,
    groups,
    k_contiguous,
    k_groups,
    last_block,
    outputs_of,
    packed,
    remainder,
)
from matmill.problem import Gemm

#: The fewest bytes that cp.async copies.
LEAST_COPY = 4

_LANES = 32
#: Vectors in a row of all banks, and the most vectors that a warp's lanes add among themselves.
_VECTORS, _IN_WARP = 8, 4
#: Two groups, of which one passes its sums to the other.
_PAIR = 2


@dataclass(frozen=True)
class Layout:
    """The layout of one matrix: how it is read (``mode``), and the most elements per copy or load (``width``).

    ``extent`` is its number of rows (of E) or columns (of F). ``shifts`` says that k is contiguous and that the
    matrix's first element is on 16 bytes and at its lowest address. Rows or columns may then start anywhere: whole
    vectors are copied from aligned addresses (mode SHIFTED).
    """

    mode: int
    extent: int
    width: int
    shifts: bool = False

    @property
    def along_k(self) -> bool:
        """True if k is contiguous."""
        return self.mode == ALONG_K


def with_stages(config: Config, problem: Gemm) -> Config:
    """Return ``config`` with the pitches of its stages and the shared memory for them and for the block's reduction."""
    size = problem.dtype.itemsize
    e_pitch = _pitch(config, "E", problem)
    f_pitch = e_pitch if problem.gram else _pitch(config, "F", problem)
    config = config.replace(E_PITCH=e_pitch, F_PITCH=f_pitch)
    stage = 0
    if config["BK"]:
        stage = _elements(config, "E", problem.m) + (0 if problem.gram else _elements(config, "F", problem.n))
    stages, wide = k_groups(config) * config["STAGES"] * stage * size, problem.dtype.accumulator.itemsize
    sums = max(_reduce_bytes(config, wide, stages), _remainder_bytes(config, wide))
    sums = max(sums + _packed_bytes(config, sums, wide), _last_block_bytes(config, wide))
    return config.replace(SHARED_BYTES=max(stages, sums))


def _elements(config: Config, name: str, extent: int) -> int:
    """Return the elements of one matrix in one stage."""
    return (extent if k_contiguous(config, name) else config["BK"]) * config[f"{name}_PITCH"]


def _pitch(config: Config, name: str, problem: Gemm) -> int:
    """Return the elements of a stage from one row or column (or k) to the next; 0 without stages."""
    if not config["BK"]:
        return 0
    mode, vector = config[f"{name}_MODE"], VECTOR_BYTES // problem.dtype.itemsize
    extent = problem.m if name == "E" else problem.n
    if mode == PACKED or (mode == STRIDED and extent % vector):
        return extent
    # Shifted rows start up to one vector late.
    least = {STRIDED: extent, ALONG_K: config["BK"], SHIFTED: config["BK"] + vector}[mode]
    return _with_fewest_passes(Reads.of(config, name, problem), least, vector)


@lru_cache(maxsize=4096)
def _with_fewest_passes(reads: Reads, least: int, vector: int) -> int:
    """Return the pitch from ``least`` elements on, in steps of ``vector``, with which a load takes fewest passes."""
    return min((least + vector * more for more in range(_VECTORS)), key=reads.passes)


def _reduce_bytes(config: Config, itemsize: int, available: int) -> int:
    """Return the bytes of the groups' sums, of all at once if ``available`` bytes hold them (``block_reduce.cuh``)."""
    outputs, s, bs = outputs_of(config), config["S"], config["BS"]
    if _LANES // 2 % s == 0:
        alike = _LANES // s
        return bs // _LANES * s * ceil_div(outputs, alike) * alike * itemsize
    whole = bs * outputs * itemsize
    return whole if groups(config) > _PAIR and whole <= available else groups(config) // 2 * s * outputs * itemsize


def _remainder_bytes(config: Config, itemsize: int) -> int:
    """Return the bytes of the remainder's sums in warps that share outputs (``kernels/inner/remainder.cuh``)."""
    rows, columns = remainder(config)
    tm, tn = config["TM"], config["TN"]
    return groups(config) * config["S"] // _LANES * (8 * (tm * columns + tn * rows) + rows * columns) * itemsize


def _packed_bytes(config: Config, sums: int, itemsize: int) -> int:
    """Return the bytes of the block's sums in whole rows, after ``sums`` bytes of the groups' (``packed_sums.cuh``).

    Reserved only for tensor cores: GPUs without them have less shared memory.
    """
    if not (config["MMA"] and packed(config)):
        return 0
    pitch = config["N"] + (_LANES + 9 - config["N"] % _LANES) % _LANES
    return -sums % VECTOR_BYTES + config["M"] * pitch * itemsize


def _last_block_bytes(config: Config, itemsize: int) -> int:
    """Return the bytes that the last block needs to reduce all partial sums (``kernels/splitk/last_block.cuh``)."""
    vectors, lanes = last_block(config, itemsize)
    ways = config["BS"] // lanes
    slices = config["BS"] // _LANES if vectors <= _IN_WARP else ways
    return slices * lanes * VECTOR_BYTES if ways > 1 else 0
