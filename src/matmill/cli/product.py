"""One product of ``matmul`` or ``inner``: shared options, its run, its time and rate, and the bound of the arch."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

from matmill import arch as arches
from matmill import settings
from matmill.analysis.floor import floor
from matmill.arch import Arch
from matmill.bench import units
from matmill.choose import choose
from matmill.cli.console import say_how_long, show, show_json, table
from matmill.cli.files import load, save
from matmill.cli.options import writable
from matmill.config import Config
from matmill.dtypes import REAL_AND_COMPLEX, DType, long_name
from matmill.errors import ArgumentError, IllegalConfigError
from matmill.problem import Gemm

Product: TypeAlias = Callable[..., NDArray[Any]]

#: Seconds: the first product includes compiling and loading the kernel, so a product faster than this is run again.
_WORTH_REPEATING = 2.0


def timed(product: Callable[[], NDArray[Any]], executor: str) -> tuple[NDArray[Any], float | None]:
    """Return the product and its seconds, or None for the emulator, whose time means nothing."""

    def once() -> tuple[NDArray[Any], float]:
        start = time.perf_counter()
        result = product()
        return result, time.perf_counter() - start

    result, seconds = once()
    if executor == "emulator":
        return result, None
    return once() if seconds < _WORTH_REPEATING else (result, seconds)


def number(text: str) -> complex:
    """Return the number of a command line, a float unless it is complex. Raises ``ValueError``."""
    value = complex(text)
    return value if value.imag else value.real


def add_arguments(parser: argparse.ArgumentParser, types: Mapping[str, DType] = REAL_AND_COMPLEX) -> None:
    """Declare the options that both commands share, for elements of ``types``."""
    add = parser.add_argument
    add("--out", metavar="OUT.npy", type=Path, required=True, help="where the product goes; no input's file")
    add(
        "--dtype",
        metavar="TYPE",
        help=f"type of the elements, which the files must have: {', '.join(types)}, or short, as bf16; bfloat16 takes "
        "two bytes without a type, which is how NumPy writes it, and uint16",
    )
    add("--c", metavar="C.npy", type=Path, help="matrix to add, times beta")
    add("--alpha", type=number, default=1.0, help="factor of the product (default 1)")
    add("--beta", type=number, help="factor of C (default 1 with --c, else 0); of complex elements both may be as 1+2j")
    add("--executor", choices=settings.EXECUTORS, help="where to compute (default: auto)")
    add("--json", action="store_true", help="print one JSON document")


def reader(
    args: argparse.Namespace, types: Mapping[str, DType] = REAL_AND_COMPLEX
) -> Callable[[Path, str], NDArray[Any]]:
    """Return the function that reads the command's files, whose elements have the type of ``--dtype``.

    Raises :class:`~matmill.errors.ArgumentError` if ``--out`` cannot be written. The function raises it for a file that
    is not such an array, or that is ``--out`` itself.
    """
    writable(args.out, "--out")
    dtype = None if args.dtype is None else types[long_name(args.dtype, types)]

    def read(path: Path, argument: str) -> NDArray[Any]:
        loaded = load(path, argument, dtype, wanted=" or ".join(types))
        if args.out.exists() and args.out.samefile(path):
            raise ArgumentError(
                argument="--out",
                got=f"{str(args.out)!r}, which is the input {argument}",
                wanted="a file of its own for the product",
                fix="Name another one: no input is written over.",
            )
        return loaded

    return read


@dataclass(frozen=True)
class Run:
    """A computed product: its executor, its seconds (None for the emulator), and whether C was added."""

    product: NDArray[Any]
    executor: str
    seconds: float | None
    has_c: bool


#: Rough seconds of the emulator on one core for an FMA of a product, and for an element of its matrices (AMD EPYC,
#: 2026-11-24).
_FMA_SECONDS, _ELEMENT_SECONDS = 1.1e-8, 3e-7


def run_product(
    args: argparse.Namespace, factors: tuple[NDArray[Any], ...], c: NDArray[Any] | None, product: Product
) -> Run:
    """Call ``product`` with C and the shared options, and time it; ``factors`` are its two arrays."""
    beta = args.beta if args.beta is not None else float(c is not None)
    executor = args.executor or settings.default_executor()
    if executor == "emulator":
        a, b = factors
        say_how_long(_FMA_SECONDS * a.size * (b.shape[-1] if b.ndim > 1 else 1) + _ELEMENT_SECONDS * (a.size + b.size))
    result, seconds = timed(lambda: product(c=c, alpha=args.alpha, beta=beta, executor=executor), executor)
    return Run(result, executor, seconds, beta != 0)


def finish(args: argparse.Namespace, ran: Run, problem: Gemm, *, by_bytes: bool = False) -> int:
    """Write the product to its file, print the report and return the exit code.

    The report is one JSON document with ``args.json``, else a table, whose rate is that of bytes with ``by_bytes`` and
    else of arithmetic. Raises ``OSError``.
    """
    product, executor, seconds = ran.product, ran.executor, ran.seconds
    save(args.out, product)
    from matmill.runtime import gpu  # noqa: PLC0415 — other commands should not pay for its import

    on = executor
    if executor == "auto":
        on = "gpu" if gpu.unavailable() is None else "cpu"
    arch = gpu.GPU.get(0).arch if on == "gpu" else arches.get(arches.DEFAULT)
    least = floor(problem, arch, _configs(problem, arch))
    limit = "compute" if least.compute_seconds >= least.memory_seconds else "memory"
    tflops = problem.flops / seconds / 1e12 if seconds else None
    moved = problem.least_bytes / seconds if seconds else None
    if args.json:
        show_json(
            {
                "out": str(args.out),
                "shape": list(product.shape),
                "dtype": problem.dtype.name,
                "problem": {"batch": problem.batch, "m": problem.m, "n": problem.n, "k": problem.k},
                "gram": problem.gram,
                "on": on,
                "seconds": seconds,
                "tflops": tflops,
                "bytes_per_second": moved,
                "bound": {
                    "arch": arch.name,
                    "limit": limit,
                    "seconds": least.seconds,
                    "compute_seconds": least.compute_seconds,
                    "memory_seconds": least.memory_seconds,
                },
            }
        )
        return 0
    time = "-" if seconds is None else units.seconds(seconds)
    rate = "-"
    if tflops is not None and moved is not None:
        rate = units.quantity(moved, "B/s") if by_bytes else units.rate(tflops)
    row = [str(problem), on, time, rate, f"{limit}, {units.seconds(least.seconds)} on {arch.title}"]
    columns = [("product", "left"), ("on", "left"), ("time", "right"), ("rate", "right"), ("bound", "left")]
    lines = [f"Wrote {args.out}: {product.shape} {problem.d_dtype.name}."]
    if on == "gpu":
        lines.append("The time includes the copies to the GPU and back.")
    if seconds is None:
        lines.append("Emulated: the kernel's own instructions on the CPU, so there is no time to compare.")
    show([table(args.command, columns, [row]), *lines])
    return 0


def _configs(problem: Gemm, arch: Arch) -> tuple[Config, ...]:
    """Return the configuration that a GPU would run a product with, if one kernel takes it."""
    if not problem.flops or problem.dtype.part is not None:
        return ()
    try:
        return (choose(problem, arch).kernel.config,)
    except IllegalConfigError:
        return ()
