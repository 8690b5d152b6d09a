"""D = alpha * A @ B + beta * C on the matrix units, for float16 and bfloat16 of any sizes, strides and alignments.

The twin of ``kernels/gemm`` for 16-bit types: sums are float32 and rounded once. Where D has too few tiles to occupy
the GPU and k is long, k is split over GS blocks, whose sums a second launch adds in fixed order.
"""

from __future__ import annotations

from matmill.arch import Arch
from matmill.config import Config
from matmill.dtypes import BF16, F16
from matmill.execute import Argument
from matmill.kernel import GemmOperands, Geometry, Kernel, ceil_div
from matmill.mma_tiles import LARGEST, against, no_unit, threads, with_copies
from matmill.mma_tiles import space as shapes
from matmill.partials import finish, partials_bytes, workspace
from matmill.problem import Gemm
from matmill.tiles import arguments, tiles

#: Steps of BK that a part of k has at the least: below that it is filling the pipeline that takes the time.
_LEAST_STEPS = 4


def space(problem: Gemm, arch: Arch) -> tuple[Config, ...]:
    """Every configuration worth considering: the GPU's tile shapes, with k whole and, where blocks lack, in parts.

    Where no matrix unit takes the elements it is the first alone, so that the reason is given once; and there is none
    for types that are not of 16 bits, which have a kernel of their own.
    """
    if problem.dtype not in (F16, BF16):
        return ()
    configs = shapes(problem, arch)
    if no_unit(problem, configs[0], arch) is not None:
        return (configs[0].launched(GS=1),)
    return tuple(config.launched(GS=gs) for config in configs for gs in _parts(problem, config, arch))


def _parts(problem: Gemm, config: Config, arch: Arch) -> list[int]:
    """Parts of k: one; and as many as give every multiprocessor one block, or all that it holds at once."""
    blocks = tiles(problem, config) * problem.batch
    most = ceil_div(problem.k, config["BK"]) // _LEAST_STEPS
    room = {arch.sms * resident // blocks for resident in {1, config["BLOCKS_PER_SM"]}}
    return sorted({1, *(max(1, min(parts, most)) for parts in room)})


def _geometry(problem: Gemm, config: Config) -> Geometry:
    return Geometry(
        grid=(tiles(problem, config), problem.batch, config["GS"]),
        block=(threads(config), 1, 1),
        dynamic_shared=config["SHARED_BYTES"],
    )


def _arguments(problem: Gemm, operands: GemmOperands) -> tuple[Argument, ...]:
    return (*arguments(problem, operands), workspace(operands))


def _legality(problem: Gemm, config: Config, arch: Arch) -> str | None:
    missing = no_unit(problem, config, arch)
    if missing is not None:
        return f"{missing} (float32 needs no matrix unit, float16 one of 7.5)"
    reason = against(problem, config, arch)
    if reason is None and config["GS"] > 1 and problem.m * problem.n >= 2**31:
        return f"{problem.m} x {problem.n} partial sums are more than are counted in 32 bits"
    return reason


def _scratch(problem: Gemm, config: Config) -> int:
    """One block per tile makes D itself."""
    return 0 if config["GS"] == 1 else partials_bytes(problem, config)


_WHOLE = Gemm(m=LARGEST["BM"], n=LARGEST["BN"], k=LARGEST["BK"], dtype=F16)

HGEMM: Kernel[Gemm] = Kernel(
    entry="hgemm",
    package=__name__,
    config=with_copies(LARGEST, _WHOLE).launched(GS=1),
    geometry=_geometry,
    arguments=_arguments,
    legality=_legality,
    after=(finish(lambda config: config["GS"], needed=lambda _problem, config: config["GS"] > 1),),
    scratch=_scratch,
)
