"""Split-K: partial sums in a workspace, and the launches around a kernel that splits k over blocks.

Such a kernel writes one sum per output and slice of k to the workspace, in the type of ``DType.accumulator``. The
split-K reduction (``kernels/splitk/reduce``), or the last block of the kernel's own launch
(``kernels/splitk/last_block.cuh``), adds them in fixed order and computes D. Kernels that add atomically keep one sum
per output, which ``CLEAR`` sets to zero first. A kernel without an epilogue leaves its sums to the reduction even if k
is not split (:func:`leaves_partials`). If k comes in pieces, ``ACCUMULATE_PARTIAL`` adds each piece's sums to a running
total.
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
#: The most slices that one thread adds; it loads all of them at once.
LOADED_SLICES = 16
#: The fewest outputs that are added by 4 threads each: an H200 cannot hold the threads of 16 per output at once.
_MANY = 2**13
_VECTOR, _CACHE_LINE, _PADDING = 16, 128, 32  # bytes: of loads, of a cache line, of padding after whole cache lines
#: Bytes of partial sums that one block adds. On an H200 that takes as long as a second launch for 60 to 90 KB, and 2 µs
#: longer for 256 KB, which the host may still save.
MOST_ADDED_BY_ONE = 320 * 1024

Needed = Callable[[Gemm, Configs], Any]


def padded_bytes(problem: Gemm, config: Config) -> int:
    """Return :func:`partials_bytes` with padding after each block's sums, so that one block can add them."""
    own = ceil_div(problem.m * problem.n * problem.dtype.accumulator.itemsize, _VECTOR) * _VECTOR
    return config["SPLIT_K"] * problem.batch * (own if own % _CACHE_LINE else own + _PADDING)


def sums_bytes(problem: Gemm, _config: Configs) -> int:
    """Return the bytes of one sum per output of the batch."""
    return problem.batch * problem.m * problem.n * problem.dtype.accumulator.itemsize


def partials_bytes(problem: Gemm, config: Config) -> int:
    """Return the bytes of one sum per output and block."""
    return config["SPLIT_K"] * sums_bytes(problem, config)


def splits(blocks: int, most: int, per_sm: int, arch: Arch) -> list[int]:
    """Return the numbers of split-K slices worth considering if ``blocks`` make D and each SM holds ``per_sm`` of them.

    These are one, and as many as give every SM one block, or all that it holds at once, but at most ``most``.

    >>> from matmill.arch import get
    >>> splits(16, 100, 2, get("h200")), splits(200, 100, 2, get("h200")), splits(1, 5, 1, get("h200"))
    ([1, 8, 16], [1], [1, 5])
    """
    filling = {arch.sms * resident // blocks for resident in {1, per_sm}}
    return sorted({1, *(max(1, min(slices, most)) for slices in filling)})


def batch_invariant_slices(problem: Gemm) -> int:
    """Return the slices of k of batch-invariant sums.

    >>> batch_invariant_slices(Gemm(2, 3, 4096, slice_k=1024)), batch_invariant_slices(Gemm(2, 3, 0, slice_k=32))
    (4, 1)
    """
    return max(1, ceil_div(problem.k, problem.slice_k))


def epilogue_constants(problem: Gemm, slices: int = 1) -> dict[str, int]:
    """Return the constants of the problem's epilogue, which the reduction has where k is split."""
    epilogue = problem.epilogue if slices == 1 else NO_EPILOGUE
    return {**epilogue.constants, "HAS_C": int(problem.has_c and slices == 1)}


def needs_epilogue(problem: Gemm) -> bool:
    """Tell whether D needs more than scaling the sums, adding C, and rounding to the type of A and B."""
    return problem.epilogue != NO_EPILOGUE or problem.d_dtype is not problem.dtype


def leaves_partials(problem: Gemm, config: Configs) -> Any:
    """Tell whether the kernel leaves its sums to the reduction, because k is split or the reduction has the epilogue.

    A kernel with its own epilogue has constants for it (``Epilogue.constants``); rungs do not split k. The result is a
    truth value, or an array of them.
    """
    return (config.get("SPLIT_K", 1) > 1) | ("ACTIVATION" not in config and needs_epilogue(problem))


def why_not_precision(problem: Gemm, *, promotes: bool) -> str | None:
    """Return why a kernel without wgmma does not sum with the requested precision, or None.

    ``promotes`` says that the kernel has precision ``"high"``: it adds few terms of k at a time to its float32 sums, or
    each term by FMA.

    >>> why_not_precision(Gemm(2, 3, 4, precision="tf32"), promotes=True)
    "precision 'tf32' needs wgmma: compute capability 9.0"
    """
    precision = problem.precision
    if precision == "default" or (promotes and (precision == "high" or problem.split_methods)):
        return None
    return f"precision {precision!r} needs wgmma: compute capability 9.0"


def why_not_split(problem: Gemm, config: Config) -> str | None:
    """Return why the partial sums of one product are too many for the launch that adds them, or None."""
    if leaves_partials(problem, config) and problem.m * problem.n >= 2**31:
        return f"{problem.m} x {problem.n} partial sums are more than are counted in 32 bits"
    return None


def split_bytes(problem: Gemm, config: Config) -> int:
    """Return :func:`partials_bytes`, or 0 if the only block of a tile computes D itself."""
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


def _of_problem(problem: Gemm, _config: Config) -> dict[str, int]:
    """Return the constants of the reduction that depend on the problem.

    FLOAT32_D means that C and D have 32 bits, A and B 16.
    """
    return {**problem.epilogue.constants, "FLOAT32_D": int(problem.d_dtype is not problem.dtype)}


#: The constants of every plain problem.
_PLAIN = _of_problem(Gemm(1, 1, 1), Config.of())


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
    """Return the launch that reduces so many partial sums per output to D, with the problem's epilogue.

    A block computes ``outputs``, each with ``ways`` threads. With ``mirrored`` there are no partial sums below the
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
    """Return the geometry of blocks that compute so many outputs, with so many threads each."""

    def geometry(problem: Gemm, _config: Config) -> Geometry:
        blocks = ceil_div(problem.m * problem.n, outputs)
        return Geometry(grid=(blocks, problem.batch, 1), block=(outputs * ways, 1, 1))

    return geometry


#: The launch after atomic adds, which leave one sum per output.
REDUCE_TOTALS = splitk_reduce(lambda _config: 1)


def reduction_ways(problem: Gemm, config: Configs) -> Any:
    """Return the threads that add the partial sums of one output, or 0 if the kernel computes D itself."""
    shared = 4 if problem.batch * problem.m * problem.n >= _MANY else 16
    return leaves_partials(problem, config) * (1 + (config.get("SPLIT_K", 1) > LOADED_SLICES) * (shared - 1))


#: The launch after a kernel that computes D itself if k is not split and the problem is plain. Few partial sums of an
#: output are added by one thread, many are shared. On an H200, 16 threads for each of 512 x 512 outputs of 8 slices
#: take longer than the product saves, and 16 for each of 128 x 128 outputs of 33 slices take 2 µs longer than 4.
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


#: Adds the partial sums of one piece of k to the totals at D, which start as zeros: a packed array of sums in the
#: accumulator's type, not of elements. For one product, without a batch.
ACCUMULATE_PARTIAL: AuxLaunch[Gemm] = AuxLaunch(
    "accumulate_partial",
    "matmill.kernels.splitk.accumulate",
    Config.of(OUTPUTS=32, WAYS=16),
    _ACCUMULATE,
    _by(32, 16),
    _accumulate_arguments,
)
