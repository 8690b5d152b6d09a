"""``matmill.emulate``: runs any CUDA kernel without a GPU, in one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matmill.emulator import Order
from matmill.errors import ArgumentError
from matmill.launch import Dim3
from matmill.testing.arguments import At
from matmill.testing.findings import seen
from matmill.testing.kernel import Settings, load
from matmill.testing.languages import Call, in_order, python_launch
from matmill.testing.report import LaunchReport
from matmill.testing.suppressions import Suppression, read


def emulate(
    source: object, entry: str | None, grid: Any, block: int | Sequence[int] | None, *args: object,
    shared: int = 0, cluster: int | Sequence[int] | None = None, cooperative: bool = False,
    symbols: Mapping[str, object] | None = None, strict: bool = False, races: bool = True, initcheck: bool = False,
    late_copies: bool = False, schedule: int = 0, orders: Sequence[Order] = (), pdl: bool = False,
    pdl_writes: Sequence[str] | None = None, include: Iterable[str | Path] = (), options: Iterable[str] = (),
    target: str = "sm_90a", suppressions: str | Path | Sequence[Suppression] = (), **named: object,
) -> LaunchReport:  # fmt: skip
    """Run one launch of a kernel on the CPU, on NumPy arrays in place, and report its counters and hazards.

    ``source`` is CUDA C++ or PTX: a path, or the text itself. It may contain host code, host headers and launches;
    ``report.left_out`` describes the omitted code. ``entry`` is the kernel's name in C++, with the arguments of a
    template (``"scale<float, 4>"``), or None for the only one. ``grid`` and ``block`` are one to three extents,
    ``shared`` the bytes of dynamic shared memory, ``cluster`` blocks per cluster.

    ``source`` may also be a kernel of numba-cuda, Triton, CuPy or cuda-core as its library has it; for Triton, which
    has 32 threads per warp, ``block`` is None.

    ``args`` are the kernel's arguments, ``named`` those by the names of its parameters: arrays in host memory (NumPy,
    torch, anything with DLPack), on which the kernel works in place (read-only arrays may only be read); :func:`at` for
    an address inside one; Python numbers, which become the parameter's type; NumPy scalars of that type; None for a
    null pointer; tuples, NumPy records and ctypes structures for structs by value; a :class:`~matmill.textures.Texture`
    or :class:`~matmill.textures.Surface`, also in tuples, and in arrays and records of objects. Element types that
    differ from the parameter's are refused.

    ``symbols`` are arrays or NumPy scalars for ``__constant__`` and ``__device__`` variables by their names: what
    ``cudaMemcpyToSymbol`` stores there before the launch. Afterwards an array has the contents that
    ``cudaMemcpyFromSymbol`` would return, so that one array for several launches keeps the variable's value between
    them. Other variables begin each launch with their initial value.

    ``cooperative`` allows ``grid.sync()``. With ``strict`` warnings and notes make the report not ``ok``, too, and each
    warp itself must wait for the operands of ``wgmma``, as the PTX ISA requires. ``races`` detects data races,
    ``initcheck`` treats arrays that are all NaN (or all bits set) as unwritten memory and reports reads of it,
    ``late_copies`` delays the effect of asynchronous copies as long as their waits allow. ``schedule`` is the seed of
    another order of warps, and ``orders`` are more in which it runs too: hazards that only they show, and results that
    differ, are reported. (Kernels that read ``__activemask()`` always run once more, with diverged lanes that meet
    late.) ``pdl`` makes the launch a programmatic dependent one, whose threads must come after a
    ``griddepcontrol.wait`` before they access arrays; ``pdl_writes`` are the parameters whose arrays the launch before
    writes, so that others may be read at any time. ``include`` names folders of headers, ``options`` are NVRTC's
    (``"-DN=4"``), ``target`` is the GPU. ``suppressions`` is a file of accepted hazards, one per line: kind, source
    line, reason.

    Raises :class:`~matmill.errors.ArgumentError` for arguments that contradict each other,
    :class:`~matmill.errors.CompileError` with the compiler's log, and :class:`~matmill.errors.EmulationError` for an
    instruction that is not emulated. Hazards are in the report: :meth:`~matmill.testing.report.LaunchReport.raise_if`
    raises them.

    >>> import numpy as np
    >>> x = np.arange(100, dtype=np.float32)
    >>> twice = "__global__ void twice(float* x, int n) { int i = threadIdx.x; if (i < n) x[i] *= 2; }"
    >>> report = emulate(twice, "twice", 1, 128, x, 100)
    >>> report.ok, float(x[99]), report.counters.global_load_sectors
    (True, 198.0, 13)
    """
    folders, given = [Path(each) for each in include], tuple(options)
    if isinstance(source, str | Path):
        kernel = load(source, entry, folders, given, target)
        values = in_order(kernel, args, named)
    else:
        python = python_launch(source, Call(entry, grid, block, args, named, target))
        kernel, values = python.load(folders, given, target)
        grid, block, cluster = python.grid or grid, python.block or block, python.cluster or cluster
        shared, cooperative, pdl = python.shared or shared, python.cooperative or cooperative, python.pdl or pdl
    order = Order(schedule, late_lanes=bool(schedule % 2), late_copies=late_copies)
    return kernel.launch(
        extent("grid", grid), extent("block", block), values, shared=shared,
        cluster=extent("cluster", cluster) if cluster is not None else (1, 1, 1), cooperative=cooperative, pdl=pdl,
        pdl_writes=pdl_writes, strict=strict, initcheck=initcheck, symbols=symbols,
        settings=Settings(races, order, lambda program, _: seen(program, orders, first=schedule)),
        suppressions=read(suppressions) if isinstance(suppressions, str | Path) else suppressions,
    )  # fmt: skip


def at(array: object, index: int | tuple[int, ...]) -> At:
    """Return an argument of :func:`emulate` that points to the element ``index`` of an array, as ``&x[3]`` in C.

    The kernel may access the whole array through it, also the elements before ``index``. A slice ``x[3:]`` is a
    separate array instead: elements before it are out of bounds.

    >>> import numpy as np
    >>> x, y = np.arange(5, dtype=np.float32), np.zeros(4, np.float32)
    >>> steps = "__global__ void steps(const float* x, float* y) { int i = threadIdx.x; y[i] = x[i] - x[i - 1]; }"
    >>> emulate(steps, "steps", 1, 4, at(x, 1), y).ok, y.tolist()
    (True, [1.0, 1.0, 1.0, 1.0])
    """
    return At(array, index)


def extent(argument: str, value: int | Sequence[int] | None) -> Dim3:
    """Return one to three positive extents, with ones appended, as three.

    >>> extent("grid", 4), extent("block", (16, 16))
    ((4, 1, 1), (16, 16, 1))
    """
    parts: tuple[Any, ...] = (value,) if isinstance(value, int | None) else tuple(value)
    if not 1 <= len(parts) <= 3 or not all(isinstance(each, int) or hasattr(each, "__index__") for each in parts):
        raise ArgumentError(
            argument=argument,
            got=repr(value),
            wanted="one to three whole numbers",
            fix="Write 4, (4,), (16, 16) or (8, 8, 4).",
        )
    x, y, z = (*(int(each) for each in parts), 1, 1)[:3]
    return x, y, z
