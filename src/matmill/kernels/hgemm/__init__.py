"""D = alpha * A @ B + beta * C on the matrix units, for float16 and bfloat16 of any sizes, strides and alignments.

The twin of ``kernels/gemm`` for 16-bit types: sums are float32 and rounded once. Where D has too few tiles to occupy
the GPU and k is long, k is split over GS blocks, whose sums a second launch adds in fixed order. A matrix whose lines
do not start on 16 bytes is copied in small parts or, where PAD_A or PAD_B says so, packed by a launch before.
"""

from __future__ import annotations

from collections.abc import Collection

from matmill.arch import Arch
from matmill.config import Config
from matmill.dtypes import BF16, F16
from matmill.kernel import GemmOperands, Geometry, Kernel, ceil_div
from matmill.kernels.hgemm.repack import REPACK, copied_bytes, rewrite, workspace_bytes
from matmill.launch import Argument
from matmill.parameters import Parameters
from matmill.problem import Gemm
from matmill.tiling.mma import LARGEST, padded, threads, unaligned, why_not, why_not_tensor_cores, with_vector_widths
from matmill.tiling.mma import space as shapes
from matmill.tiling.simt import STRIDED, strided_values, tiles
from matmill.tiling.split_k import SPLITK_REDUCE, splits, why_not_split

#: Steps of BK that a part of k has at the least: below that it is filling the pipeline that takes the time.
_LEAST_STEPS = 4
#: Bytes of packed copies at the most: A and B of up to 32767 x 32767 elements. What larger ones would take besides
#: themselves is memory that a caller may not have left, and each of their vectors is counted in 32 bits.
MOST_COPIED = 2**32
#: Repacked copies are stored in the workspace, so many elements from its start.
_PARAMETERS = Parameters((*STRIDED.fields, ("a_first", "Index"), ("b_first", "Index")))


def space(problem: Gemm, arch: Arch) -> tuple[Config, ...]:
    """Every configuration worth considering: the GPU's tile shapes, with k whole and, where blocks lack, in parts.

    Where matrices are not aligned, each is there twice: with these as they lie, and with these padded. Where no matrix
    unit takes the elements it is the first alone, so that the reason is given once; and there is none for types that
    are not of 16 bits, which have a kernel of their own.
    """
    if problem.dtype not in (F16, BF16):
        return ()
    configs = shapes(problem, arch)
    if why_not_tensor_cores(problem, configs[0], arch) is not None:
        return (_launched(configs[0], 1),)
    pads = unaligned(problem)
    direct = [_launched(config, gs) for config in configs for gs in _parts(problem, config, arch)]
    if not pads:
        return tuple(direct)
    packed = shapes(problem, arch, pads)
    return (*direct, *(_launched(config, gs, pads) for config in packed for gs in _parts(problem, config, arch)))


def _launched(config: Config, gs: int, pads: Collection[str] = ()) -> Config:
    return config.launched(GS=gs, PAD_A=int("A" in pads), PAD_B=int("B" in pads))


def _parts(problem: Gemm, config: Config, arch: Arch) -> list[int]:
    most = ceil_div(problem.k, config["BK"]) // _LEAST_STEPS
    return splits(tiles(problem, config) * problem.batch, most, config["BLOCKS_PER_SM"], arch)


def _geometry(problem: Gemm, config: Config) -> Geometry:
    return Geometry(
        grid=(tiles(problem, config), problem.batch, config["GS"]),
        block=(threads(config), 1, 1),
        dynamic_shared=config["SHARED_BYTES"],
    )


def _arguments(problem: Gemm, operands: GemmOperands) -> tuple[Argument, ...]:
    firsts = {"a_first": operands.a_first, "b_first": operands.b_first}
    return _PARAMETERS.pack(problem.dtype, **strided_values(problem, operands), **firsts)


def _why_not(problem: Gemm, config: Config, arch: Arch) -> str | None:
    missing = why_not_tensor_cores(problem, config, arch)
    if missing is not None:
        return f"{missing} (float32 needs no matrix unit, float16 one of 7.5)"
    return why_not(problem, config, arch) or why_not_split(problem, config) or _why_not_repack(problem, config)


def _why_not_repack(problem: Gemm, config: Config) -> str | None:
    """Why the matrices that are to be padded cannot be, or None."""
    if not padded(config):
        return None
    if problem.k == 0:
        return "k = 0 leaves nothing to pad"
    copied = copied_bytes(problem, config)
    return f"padded copies take {copied} > {MOST_COPIED} bytes" if copied > MOST_COPIED else None


_WHOLE = Gemm(m=LARGEST["BM"], n=LARGEST["BN"], k=LARGEST["BK"], dtype=F16)

HGEMM: Kernel[Gemm] = Kernel(
    entry="hgemm",
    package=__name__,
    config=_launched(with_vector_widths(LARGEST, _WHOLE), 1),
    geometry=_geometry,
    arguments=_arguments,
    legality=_why_not,
    before=(REPACK,),
    after=SPLITK_REDUCE,
    workspace_bytes=workspace_bytes,
    rewrite=rewrite,
    early=True,
    parameters=_PARAMETERS,
)
