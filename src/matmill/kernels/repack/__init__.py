"""The launch that repacks A, B or both before a product, and the layout of the workspace.

    workspace   split-K partial sums │ A's copy │ B's copy      each starts on 256 bytes; any may be absent

Where B is A's transpose in the same memory, they share one copy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from matmill.config import Config, Configs
from matmill.kernel import AuxLaunch, GemmOperands, Geometry, ceil_div
from matmill.kernels.repack.copies import RepackedMatrix, repacked, repacked_matrix
from matmill.kernels.shared.outputs import workspace
from matmill.kernels.splitk import leaves_partials, split_bytes
from matmill.launch import Argument, Value
from matmill.parameters import Parameters
from matmill.problem import Gemm

_THREADS = 256  # of a block
_ALIGN = 256  # bytes, as for allocations: whole sectors and cache lines
#: The most bytes of repacked copies: A and B of up to 32767 x 32767 elements. Larger copies may not fit in the memory
#: that the caller has left, and the device counts their vectors in 32 bits.
MOST_REPACKED = 2**32


def repacked_bytes(problem: Gemm, config: Config) -> int:
    """Count the bytes of the repacked copies.

    >>> from matmill.dtypes import F16
    >>> from matmill.kernels.hgemm.tiles import LARGEST, with_vector_widths
    >>> odd = Gemm(5, 7, 13, F16, a_align=2, b_align=2)
    >>> repacked_bytes(odd, with_vector_widths(LARGEST, odd, "AB").launched(REPACK_A=1, REPACK_B=1))
    368
    """
    return sum(one.nbytes for one in _copies(problem, config).values())


def why_not_repack(problem: Gemm, config: Config) -> str | None:
    """Say why the matrices that the config repacks cannot be repacked, or None."""
    if not repacked(config):
        return None
    if problem.k == 0:
        return "k = 0 leaves nothing to repack"
    copied = repacked_bytes(problem, config)
    return f"repacked copies take {copied} > {MOST_REPACKED} bytes" if copied > MOST_REPACKED else None


def workspace_bytes(problem: Gemm, config: Config) -> int:
    """Count the bytes of the workspace: partial sums and copies."""
    return sum(_sizes(problem, config).values())


def rewrite(problem: Gemm, config: Config, operands: GemmOperands) -> tuple[Gemm, GemmOperands]:
    """Return the problem and operands that the product gets: copies in place of the matrices that are repacked.

    The workspace among the operands is that of the partial sums, or None.
    """
    sums = operands.workspace if leaves_partials(problem, config) else None
    copies = repacked(config)
    if not copies:
        return problem, replace(operands, workspace=sums)
    sizes, room = _sizes(problem, config), workspace(operands)
    a_strides, b_strides = problem.a_row_col, problem.b_row_col
    a_batch, b_batch, _, _ = problem.batch_strides
    a, b, a_first, b_first = operands.a, operands.b, operands.a_first, operands.b_first
    if "A" in copies:
        copy = repacked_matrix(problem, config, "A")
        a_strides, a_batch = copy.strides(outer_first=bool(config["A_K_INNER"])), copy.copy_batch
        a, a_first = room, sizes["sums"] // copy.itemsize
    if "B" in copies:
        copy = repacked_matrix(problem, config, "B")
        b_strides, b_batch = copy.strides(outer_first=not config["B_K_INNER"]), copy.copy_batch
        b, b_first = room, (sizes["sums"] + (0 if _shared(problem, config) else sizes["A"])) // copy.itemsize
    problem = replace(problem, gram=False, a_strides=a_strides, b_strides=b_strides, a_batch=a_batch, b_batch=b_batch)
    return problem, replace(operands, a=a, b=b, a_first=a_first, b_first=b_first, workspace=sums)


def _shared(problem: Gemm, config: Config) -> bool:
    """Tell whether A and B share one copy."""
    return problem.gram and len(repacked(config)) == 2 and config["A_K_INNER"] == config["B_K_INNER"]


def _copies(problem: Gemm, config: Config) -> dict[str, RepackedMatrix]:
    """Return the copies that are made, by name."""
    names = [name for name in repacked(config) if name == "A" or not _shared(problem, config)]
    return {name: repacked_matrix(problem, config, name) for name in names}


def _sizes(problem: Gemm, config: Config) -> dict[str, int]:
    """Return bytes of the workspace's parts, rounded up to the alignment of the next."""
    copies = _copies(problem, config)
    nbytes = {name: copies[name].nbytes if name in copies else 0 for name in "AB"}
    parts = {"sums": split_bytes(problem, config), **nbytes}
    return {name: ceil_div(size, _ALIGN) * _ALIGN for name, size in parts.items()}


#: Of each matrix: first element, vectors and pitch of its copy in the workspace, count and length of its contiguous
#: runs (rows or columns), and their strides in elements.
_FIELDS = {
    "first": "Index",
    "vectors": "int",
    "pitch": "int",
    "runs": "int",
    "length": "int",
    "run_stride": "Index",
    "stride": "Index",
    "batch_stride": "Index",
}
_PARAMETERS = Parameters.of(
    A="const Scalar*",
    B="const Scalar*",
    workspace="Scalar*",
    **{f"{matrix}_{name}": kind for matrix in "ab" for name, kind in _FIELDS.items()},
)


def _repack_geometry(problem: Gemm, config: Config) -> Geometry:
    blocks = sum(ceil_div(one.vectors, _THREADS) for one in _copies(problem, config).values())
    return Geometry(grid=(blocks, 1, 1), block=(_THREADS, 1, 1))


def _repack_arguments(problem: Gemm, config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    copies, sizes = _copies(problem, config), _sizes(problem, config)
    first = sizes["sums"]
    values: dict[str, Value | float] = {"A": operands.a, "B": operands.b, "workspace": workspace(operands)}
    for name in "AB":
        copy = repacked_matrix(problem, config, name)
        of_matrix = (
            first // copy.itemsize,
            copy.vectors if name in copies else 0,
            copy.pitch,
            copy.runs,
            copy.length,
            copy.run_stride,
            copy.stride,
            copy.batch_stride,
        )
        values |= {f"{name.lower()}_{field}": value for field, value in zip(_FIELDS, of_matrix, strict=True)}
        first += sizes[name]
    return _PARAMETERS.pack(problem.dtype, **values)


def _needs_repack(_problem: Gemm, config: Configs) -> Any:
    return (config.get("REPACK_A") > 0) | (config.get("REPACK_B") > 0)


#: Repacks the matrices that are not aligned.
REPACK: AuxLaunch[Gemm] = AuxLaunch(
    "repack",
    "matmill.kernels.repack",
    Config.of(THREADS=_THREADS),
    _PARAMETERS,
    _repack_geometry,
    _repack_arguments,
    _needs_repack,
    pdl=True,
)
