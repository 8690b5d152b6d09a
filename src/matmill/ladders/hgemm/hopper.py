"""The host code that rungs on wgmma share: constants, tensor maps, launch shapes, and why_not.

Their sums are float32. Tensor maps are arguments of a launch, so each launch has the maps of its own pointers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import GemmOperands, Geometry, Kernel
from matmill.kernels.shared.tensor_cores import ELEMENT_BYTES, why_not_tensor_cores
from matmill.kernels.shared.tiled import VECTOR_BYTES, tile_count, why_not_extents
from matmill.ladders.hgemm.common import why_not_aligned, why_not_packed
from matmill.launch import HOPPER, Argument, Pointer, TensorMap
from matmill.problem import Gemm

#: Bytes of the maps' swizzle, and the columns of a box, which has as many bytes per row.
_SWIZZLE, _ACROSS = 128, 64
#: Threads of a warp group, and bytes of an mbarrier.
_WARPGROUP, _BARRIER = 128, 8


def hopper_staged(
    bm: int, bn: int, *, stages: int = 1, warpgroups: int = 1, staging: int = 0, **constants: int
) -> Config:
    """Return a rung's constants: tiles of ``bm`` x ``bn`` with k 64 in ``stages``, and ``warpgroups`` in a block.

    Each stage has a full barrier and, if there are several stages, an empty barrier. ``staging`` is the number of tiles
    of D in shared memory besides the stages.

    >>> hopper_staged(128, 256, stages=4, warpgroups=3)["SHARED_BYTES"]
    196672
    """
    barriers = stages * _BARRIER * (2 if stages > 1 else 1)
    tile = stages * (bm + bn) * _SWIZZLE + staging * bm * bn * ELEMENT_BYTES
    config = Config.of(
        BM=bm,
        BN=bn,
        BK=_ACROSS,
        STAGES=stages,
        THREADS=warpgroups * _WARPGROUP,
        GROUP_M=8,
        SHARED_BYTES=tile + barriers,
        **constants,
    )
    return config.launched(ACC16=0)


def specialised(bm: int, bn: int, *, stages: int, staging: int = 0, **constants: int) -> Config:
    """Return constants for one warp group that copies and two that multiply, with the registers of each.

    40 + 2 x 232 is 3 x 168, the registers that a block of 384 threads has at launch.
    """
    registers = {"PRODUCER_REGISTERS": 40, "CONSUMER_REGISTERS": 232}
    return hopper_staged(bm, bn, stages=stages, warpgroups=3, staging=staging, **registers, **constants)


def why_not(problem: Gemm, config: Config, arch: Arch) -> str | None:
    """Return ``why_not_config`` of every rung on wgmma: rows on 16 bytes, as TMA needs them, of any length."""
    if arch.capability != HOPPER:
        needed, own = (".".join(map(str, version)) for version in (HOPPER, arch.capability))
        return f"wgmma needs compute capability {needed}, no other: {arch.name} has {own}"
    reason = why_not_tensor_cores(problem, arch, acc16=bool(config["ACC16"])) or why_not_packed(problem)
    if reason is not None:
        return reason
    if problem.k == 0:
        return "k = 0: TMA has nothing to copy"
    for name, columns in (("k", problem.k), ("n", problem.n)):
        if columns * ELEMENT_BYTES % VECTOR_BYTES:
            return f"rows of {name} = {columns} elements are not a multiple of {VECTOR_BYTES} bytes, as TMA needs them"
    return why_not_aligned(problem) or why_not_extents(problem)


def block_per_tile(problem: Gemm, config: Config) -> Geometry:
    """Return one block for each tile of D, in raster order."""
    return _launched(tile_count(problem, config), config)


def block_per_sm(problem: Gemm, config: Config) -> Geometry:
    """Return ``BLOCKS`` blocks that walk over tiles, or as many as there are tiles."""
    return _launched(min(config["BLOCKS"], tile_count(problem, config)), config)


def resident(config: Config) -> Callable[[Gemm, Arch], Config]:
    """Return a function that returns ``config`` for every problem, with one block per SM."""

    def tune(_problem: Gemm, arch: Arch) -> Config:
        return config.launched(BLOCKS=arch.sms)

    return tune


def matrix_map(problem: Gemm, pointer: Pointer, rows: int, columns: int) -> TensorMap:
    """Return the map of a packed matrix, for swizzled boxes of 64 x 64."""
    strides = (columns * ELEMENT_BYTES,)
    return TensorMap(pointer, problem.dtype.name, (columns, rows), strides, (_ACROSS, _ACROSS), _SWIZZLE)


def hopper_kernel(
    entry: str,
    file: str,
    config: Config,
    geometry: Callable[[Gemm, Config], Geometry] = block_per_tile,
    *,
    stores_boxes: bool = False,
) -> Kernel[Gemm]:
    """Return the descriptor of a rung's kernel, with the parameters (A, B, C, D, m, n, k, alpha, beta).

    A and B are tensor maps; C is a pointer, and so is D unless the rung ``stores_boxes``.
    """

    def arguments(problem: Gemm, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
        m, n, k = problem.m, problem.n, problem.k
        return (
            matrix_map(problem, operands.a, m, k),
            matrix_map(problem, operands.b, k, n),
            operands.c,
            matrix_map(problem, operands.d, m, n) if stores_boxes else operands.d,
            np.int32(m),
            np.int32(n),
            np.int32(k),
            np.float32(operands.alpha),
            np.float32(operands.beta),
        )

    return Kernel(
        entry=entry,
        package="matmill.ladders.hgemm",
        file=file,
        config=config,
        geometry=geometry,
        arguments=arguments,
        why_not_config=why_not,
    )


def _launched(blocks: int, config: Config) -> Geometry:
    return Geometry(grid=(blocks, 1, 1), block=(config["THREADS"], 1, 1), dynamic_shared=config["SHARED_BYTES"])
