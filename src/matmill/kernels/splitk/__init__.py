"""Split-K: partial sums in a workspace, and the launches around a kernel that splits k over blocks.

Such a kernel leaves one sum per output and slice of k in the workspace, in the type that the element type is summed in
(``DType.accumulator``). The split-K reduction (``kernels/splitk/reduce``) adds them in fixed order and makes D of them,
or the last block of the kernel's own launch does (``kernels/splitk/last_block.cuh``). Kernels that add
atomically keep one sum per output, which ``CLEAR`` sets to zero first. A kernel that has no epilogue of its own leaves
its sums to the reduction also where k is whole (:func:`leaves_partials`). Where k itself comes in pieces,
``ACCUMULATE_PARTIAL`` adds each piece's sums to a running total.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matmill.arch import Arch
from matmill.config import Config, Configs
from matmill.kernel import AuxLaunch, GemmOperands, Geometry, ceil_div
from matmill.kernels.shared.outputs import OUTPUT_FIELDS, output_values, workspace
from matmill.launch import Argument, Pointer
from matmill.parameters import Parameters
from matmill.problem import NO_EPILOGUE, Gemm

_CLEAR_THREADS = 256
#: The most slices that one thread adds, which are what it loads at once.
LOADED_SLICES = 16
#: The fewest outputs that 4 threads add: an H200 has no room for all of the threads of 16 at once.
_MANY = 2**13
_VECTOR, _CACHE_LINE, _PADDING = 16, 128, 32  # bytes: of loads, of a cache line, of padding after whole cache lines
#: Bytes of partial sums that one block adds: on an H200 it takes as long as a second launch where they are 60 to 90 KB,
#: and 2 us longer where they are 256, which a host may still save.
MOST_ADDED_BY_ONE = 320 * 1024

Needed = Callable[[Gemm, Config], bool]


def padded_bytes(problem: Gemm, config: Config) -> int:
    """Return :func:`partials_bytes` where each block's sums are padded for one block to add, as the header says."""
    own = ceil_div(problem.m * problem.n * problem.dtype.accumulator.itemsize, _VECTOR) * _VECTOR
    return config["SPLIT_K"] * problem.batch * (own if own % _CACHE_LINE else own + _PADDING)


def sums_bytes(problem: Gemm, _config: Configs) -> int:
    """Count the bytes of one sum per output of the batch."""
    return problem.batch * problem.m * problem.n * problem.dtype.accumulator.itemsize


def partials_bytes(problem: Gemm, config: Config) -> int:
    """Count the bytes of one sum per output and block."""
    return config["SPLIT_K"] * sums_bytes(problem, config)


def splits(blocks: int, most: int, per_sm: int, arch: Arch) -> list[int]:
    """Return numbers of split-K slices worth considering where ``blocks`` make D and each SM holds ``per_sm`` of them.

    One; and as many as give every SM one block, or all that it holds at once, but at most ``most``.

    >>> from matmill.arch import get
    >>> splits(16, 100, 2, get("h200")), splits(200, 100, 2, get("h200")), splits(1, 5, 1, get("h200"))
    ([1, 8, 16], [1], [1, 5])
    """
    filling = {arch.sms * resident // blocks for resident in {1, per_sm}}
    return sorted({1, *(max(1, min(slices, most)) for slices in filling)})


def needs_epilogue(problem: Gemm) -> bool:
    """Tell whether D is more than the sums scaled, C added, and rounded to the type of A and B."""
    return problem.epilogue != NO_EPILOGUE or problem.d_dtype is not problem.dtype


def leaves_partials(problem: Gemm, config: Configs) -> Any:
    """Tell whether the kernel leaves its sums to the reduction: k is split, or the reduction has the epilogue.

    A kernel with an epilogue of its own has the constants of one (``Epilogue.constants``); rungs do not split k. The
    result is a truth value, or an array of them.
    """
    return (config.get("SPLIT_K", 1) > 1) | ("ACTIVATION" not in config and needs_epilogue(problem))


def why_not_precision(problem: Gemm, *, promotes: bool) -> str | None:
    """Say why a kernel without wgmma does not sum with the precision that was asked for, or None.

    ``promotes`` says that it adds few terms of k at a time to its float32 sums, or each by FMA, which is ``"high"``.

    >>> why_not_precision(Gemm(2, 3, 4, precision="tf32"), promotes=True)
    "precision 'tf32' needs wgmma: compute capability 9.0"
    """
    precision = problem.precision
    if precision == "default" or (promotes and precision == "high"):
        return None
    return f"precision {precision!r} needs wgmma: compute capability 9.0"


def why_not_split(problem: Gemm, config: Config) -> str | None:
    """Say why the partial sums of one product are too many for the launch that adds them, or None."""
    if leaves_partials(problem, config) and problem.m * problem.n >= 2**31:
        return f"{problem.m} x {problem.n} partial sums are more than are counted in 32 bits"
    return None


def split_bytes(problem: Gemm, config: Config) -> int:
    """Return :func:`partials_bytes`, or none where the one block of a tile makes D itself."""
    return partials_bytes(problem, config) if leaves_partials(problem, config) else 0


_REDUCE = Parameters.of(
    C="const void*",
    D="void*",
    workspace="const Acc*",
    slices="int",
    m="int",
    n="int",
    **OUTPUT_FIELDS,
    bias="const Scalar*",
    bias_stride="Index",
)


def _of_problem(problem: Gemm) -> dict[str, int]:
    """Return the constants of the reduction that depend on the problem.

    FLOAT32_D: C and D are of 32 bits, A and B of 16.
    """
    return {**problem.epilogue.constants, "FLOAT32_D": int(problem.d_dtype is not problem.dtype)}


#: Those of every plain problem.
_PLAIN = _of_problem(Gemm(1, 1, 1))


def _slices(config: Config) -> int:
    return config["SPLIT_K"]


def splitk_reduce(
    slices: Callable[[Config], int] = _slices,
    *,
    outputs: int = 32,
    ways: int = 16,
    mirrored: bool = False,
    needed: Needed | None = None,
) -> AuxLaunch[Gemm]:
    """Return the launch that makes D of so many partial sums per output, with the epilogue of the problem.

    A block makes ``outputs``, each by ``ways`` threads. ``mirrored`` says that there are no partial sums below the
    diagonal.
    """

    def arguments(problem: Gemm, config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
        return _REDUCE.pack(
            problem.dtype,
            C=operands.c,
            D=operands.d,
            bias=operands.bias or Pointer("no bias", 0),
            bias_stride=problem.epilogue.bias_stride,
            workspace=workspace(operands),
            slices=slices(config),
            m=problem.m,
            n=problem.n,
            **output_values(problem, operands),
        )

    constants = Config.of(OUTPUTS=outputs, WAYS=ways, MIRRORED=int(mirrored), **_PLAIN)
    package, geometry = "matmill.kernels.splitk.reduce", _by(outputs, ways)
    return AuxLaunch(
        "splitk_reduce", package, constants, _REDUCE, geometry, arguments, needed, pdl=True, constants=_of_problem
    )


def _by(outputs: int, ways: int) -> Callable[[Gemm, Config], Geometry]:
    """Return the launch whose blocks make so many outputs, by so many threads each."""

    def geometry(problem: Gemm, _config: Config) -> Geometry:
        blocks = ceil_div(problem.m * problem.n, outputs)
        return Geometry(grid=(blocks, problem.batch, 1), block=(outputs * ways, 1, 1))

    return geometry


#: After atomic adds, which leave one sum per output.
REDUCE_TOTALS = splitk_reduce(lambda _config: 1)


def reduction_ways(problem: Gemm, config: Configs) -> Any:
    """Count the threads that add the partial sums of one output, 0 where the kernel makes D itself."""
    shared = 4 if problem.batch * problem.m * problem.n >= _MANY else 16
    return leaves_partials(problem, config) * (1 + (config.get("SPLIT_K", 1) > LOADED_SLICES) * (shared - 1))


#: After a kernel that makes D itself where k is whole and the problem plain: few partial sums of an output are one
#: thread's work, many are shared. On an H200 16 threads to each of 512 x 512 outputs of 8 slices take longer than the
#: product saves, and 16 to each of 128 x 128 outputs of 33 slices 2 us longer than 4.
SPLITK_REDUCE: tuple[AuxLaunch[Gemm], ...] = (
    splitk_reduce(outputs=256, ways=1, needed=lambda *case: reduction_ways(*case) == 1),
    splitk_reduce(outputs=64, ways=4, needed=lambda *case: reduction_ways(*case) == 4),
    splitk_reduce(outputs=32, ways=16, needed=lambda *case: reduction_ways(*case) == 16),
)

_CLEAR = Parameters.of(workspace="Acc*", count="int")


def _clear_geometry(problem: Gemm, _config: Config) -> Geometry:
    return Geometry(grid=(ceil_div(problem.m * problem.n, _CLEAR_THREADS), 1, 1), block=(_CLEAR_THREADS, 1, 1))


def _clear_arguments(problem: Gemm, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    return _CLEAR.pack(problem.dtype, workspace=workspace(operands), count=problem.m * problem.n)


#: Sets one sum per output to zero.
CLEAR: AuxLaunch[Gemm] = AuxLaunch(
    "clear",
    "matmill.kernels.splitk.clear",
    Config.of(THREADS=_CLEAR_THREADS),
    _CLEAR,
    _clear_geometry,
    _clear_arguments,
)

_ACCUMULATE = Parameters.of(D="Acc*", workspace="const Acc*", slices="int", outputs="int")


def _accumulate_arguments(problem: Gemm, config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    return _ACCUMULATE.pack(
        problem.dtype,
        D=operands.d,
        workspace=workspace(operands),
        slices=_slices(config),
        outputs=problem.m * problem.n,
    )


#: Adds the partial sums of one piece of k to the totals at D, which start as zeros: an array of sums, not of elements,
#: packed, and of the accumulator's type. One product, no batch.
ACCUMULATE_PARTIAL: AuxLaunch[Gemm] = AuxLaunch(
    "accumulate_partial",
    "matmill.kernels.splitk.accumulate",
    Config.of(OUTPUTS=32, WAYS=16),
    _ACCUMULATE,
    _by(32, 16),
    _accumulate_arguments,
)
