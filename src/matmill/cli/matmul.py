"""``matmill matmul``: the product of two ``.npy`` files, with its time, rate and bound."""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill import arch as arches
from matmill import settings
from matmill.arch import Arch
from matmill.bench import units
from matmill.cli.console import show, show_json, table
from matmill.cli.options import Subparsers, writable
from matmill.errors import ArgumentError
from matmill.problem import Gemm

#: A first product pays for compiling and loading its kernel; one that took less than this many seconds is run again.
_WORTH_REPEATING = 2.0
_MAGIC = b"\x93NUMPY"


@dataclass(frozen=True)
class Bound:
    """The least time a product can take on an arch, in seconds, by arithmetic and by memory traffic."""

    arch: Arch
    compute: float
    memory: float

    @property
    def limit(self) -> str:
        """Which of the two is larger: ``compute`` or ``memory``."""
        return "compute" if self.compute >= self.memory else "memory"

    @property
    def seconds(self) -> float:
        """The larger of the two."""
        return max(self.compute, self.memory)


def add_parser(subparsers: Subparsers) -> None:
    """Declares the command's arguments."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "matmul",
        help="multiply two .npy files",
        description="OUT = alpha * A @ B + beta * C for .npy files of float32 or float64. Inputs are memory-mapped; "
        "the output appears whole or not at all.",
    )
    parser.add_argument("a", metavar="A.npy", type=Path)
    parser.add_argument("b", metavar="B.npy", type=Path)
    parser.add_argument("--out", metavar="OUT.npy", type=Path, required=True, help="where the product goes")
    parser.add_argument("--c", metavar="C.npy", type=Path, help="matrix to add, times beta")
    parser.add_argument("--alpha", type=float, default=1.0, help="factor of the product (default 1)")
    parser.add_argument("--beta", type=float, help="factor of C (default 1 with --c, else 0)")
    parser.add_argument("--executor", choices=settings.EXECUTORS, help="where to compute (default: auto)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Multiplies, writes the file, prints the report. Raises :class:`~matmill.errors.MatmillError` or ``OSError``."""
    from matmill.ops import matmul  # noqa: PLC0415 — other commands should not pay for its import

    writable(args.out, "--out")
    a, b = load(args.a, "A"), load(args.b, "B")
    c = None if args.c is None else load(args.c, "--c")
    beta = args.beta if args.beta is not None else float(c is not None)
    executor = args.executor or settings.default_executor()

    def once() -> tuple[NDArray[Any], float]:
        start = time.perf_counter()
        product = matmul(a, b, c, alpha=args.alpha, beta=beta, executor=executor)
        return product, time.perf_counter() - start

    product, seconds = once()
    if seconds < _WORTH_REPEATING and executor != "emulator":
        product, seconds = once()
    save(args.out, product)
    problem = _problem(a, b, product, has_c=beta != 0)
    _report(args, problem, product, executor, None if executor == "emulator" else seconds)
    return 0


def load(path: Path, argument: str) -> NDArray[Any]:
    """A ``.npy`` file, memory-mapped (an empty array, which cannot be mapped, is read)."""
    try:
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
    except OSError as error:
        raise _not_npy(path, argument, str(error.strerror)) from error
    if start != _MAGIC:
        raise _not_npy(path, argument, "not one, by its first bytes")
    try:
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError:
            array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise _not_npy(path, argument, str(error)) from error
    loaded: NDArray[Any] = array
    return loaded


def _not_npy(path: Path, argument: str, got: str) -> ArgumentError:
    return ArgumentError(
        argument=argument,
        got=f"{path}: {got}",
        wanted="a .npy file with one float32 or float64 array",
        fix="Write it with numpy.save.",
    )


def save(path: Path, array: NDArray[Any]) -> None:
    """Writes a ``.npy`` file beside its final name and moves it there, so that no reader sees half of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            np.lib.format.write_array(file, array, allow_pickle=False)
        # mkstemp makes private files; the result gets the permissions any new file would.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def bound(problem: Gemm, arch: Arch) -> Bound:
    """What an arch's peaks allow: its multiply-add rate, and reading every input and writing the output once.

    >>> bound(Gemm(m=4096, n=4096, k=4096), arches.get("h200")).limit
    'compute'
    >>> bound(Gemm(m=1, n=4096, k=4096), arches.get("h200")).limit
    'memory'
    """
    return Bound(arch, problem.flops / arch.peak(problem.dtype.name), problem.least_bytes / arch.dram_bytes_per_s)


def _problem(a: NDArray[Any], b: NDArray[Any], product: NDArray[Any], *, has_c: bool) -> Gemm:
    from matmill.dtypes import of_numpy  # noqa: PLC0415 — with ops

    m = a.shape[-2] if a.ndim > 1 else 1
    n = b.shape[-1] if b.ndim > 1 else 1
    matrix_axes = (a.ndim > 1) + (b.ndim > 1)
    batch = math.prod(product.shape[: product.ndim - matrix_axes])
    return Gemm(
        m=m,
        n=n,
        k=a.shape[-1],
        dtype=of_numpy(a.dtype, "A"),
        batch=batch,
        a_batch=0 if math.prod(a.shape[:-2]) == 1 else None,
        b_batch=0 if math.prod(b.shape[:-2]) == 1 else None,
        has_c=has_c,
    )


def _report(
    args: argparse.Namespace, problem: Gemm, product: NDArray[Any], executor: str, seconds: float | None
) -> None:
    from matmill import gpu  # noqa: PLC0415 — with ops

    on = executor
    if executor == "auto":
        on = "gpu" if gpu.unavailable() is None else "cpu"
    arch = gpu.GPU.get(0).arch if on == "gpu" else arches.get(arches.DEFAULT)
    least = bound(problem, arch)
    tflops = problem.flops / seconds / 1e12 if seconds else None
    if args.json:
        show_json(
            {
                "out": str(args.out),
                "shape": list(product.shape),
                "dtype": problem.dtype.name,
                "problem": {"batch": problem.batch, "m": problem.m, "n": problem.n, "k": problem.k},
                "on": on,
                "seconds": seconds,
                "tflops": tflops,
                "bound": {
                    "arch": arch.name,
                    "limit": least.limit,
                    "compute_seconds": least.compute,
                    "memory_seconds": least.memory,
                },
            }
        )
        return
    said = "-" if seconds is None else units.seconds(seconds)
    rate = "-" if tflops is None else units.rate(tflops)
    row = [str(problem), on, said, rate, f"{least.limit}, {units.seconds(least.seconds)} on {arch.title}"]
    columns = [("product", "left"), ("on", "left"), ("time", "right"), ("rate", "right"), ("bound", "left")]
    lines = [f"Wrote {args.out}: {product.shape} {problem.dtype.name}."]
    if on == "gpu":
        lines.append("The time includes the copies to the GPU and back.")
    if seconds is None:
        lines.append("Emulated: the kernel's own instructions on the CPU, so there is no time to compare.")
    show([table("matmul", columns, [row]), *lines])
