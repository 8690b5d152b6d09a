"""What the emulator counts of the kernels that are chosen for products of every shape, on smaller products.

The kernel is the one that ``choose`` picks for the product that ``benchmarks/shapes.py`` times. It runs on a product
with fewer outputs, or fewer products of a batch, whose work tiles are alike. Where blocks are persistent, as many
work tiles follow one another in each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.gemm.shapes import packed
from matmill import reference
from matmill.analysis.candidates import waves
from matmill.arch import Arch, get
from matmill.choose import choose
from matmill.dtypes import ALL, F32, DType
from matmill.emulator import Memory, run
from matmill.jit.steps import binaries
from matmill.kernel import GemmOperands, Kernel
from matmill.kernels.short_k import SHORT_K
from matmill.problem import Gemm

#: Bytes of a sector.
SECTOR = 32
#: Work tiles of a batch that are emulated.
_TILES = 4


@dataclass(frozen=True)
class Entry:
    """A product that is timed, and the smaller one on which its kernel is emulated.

    ``small`` are m, n and k. A batch is cut to a few work tiles. ``b`` says which dimension of B is contiguous, ``n``
    for rows, ``t`` for columns.
    """

    kind: str
    m: int
    n: int
    k: int
    dtype: DType
    batch: int = 1
    b: str = "n"
    small: tuple[int, int, int] | None = None

    @property
    def timed(self) -> Gemm:
        """The product that is timed."""
        return packed(self.m, self.n, self.k, self.dtype, batch=self.batch, layouts=f"n{self.b}")

    @cached_property
    def chosen(self) -> Kernel[Gemm]:
        """The kernel and the configuration that are chosen for it on an H200."""
        return choose(self.timed, get("h200")).kernel

    @property
    def emulated(self) -> Gemm:
        """The smaller product."""
        sizes = self.small or (self.m, self.n, self.k)
        batch = min(self.batch, _TILES * self.chosen.config.get("PRODUCTS", 1))
        return packed(*sizes, self.dtype, batch=batch, layouts=f"n{self.b}")

    @property
    def kernel(self) -> Kernel[Gemm]:
        """The chosen kernel, launched for the smaller product: with as many persistent blocks or slices as suit it.

        A product whose k is too short for all slices has the most that are legal.
        """
        arch, config = get("h200"), self.chosen.config
        if self.chosen.entry == SHORT_K.entry:
            few, many = (_work_tiles(self.chosen, problem, arch) for problem in (self.emulated, self.timed))
            config = config.launched(BLOCKS=max(1, round(config["BLOCKS"] * few / many)))
        counts = range(config["SPLIT_K"], 0, -1) if "SPLIT_K" in config else (None,)
        for count in counts:
            kernel = self.chosen.with_config(config if count is None else config.launched(SPLIT_K=count))
            if kernel.why_not(self.emulated, arch) is None:
                return kernel
        return choose(self.emulated, arch).kernel


def entries() -> Iterator[Entry]:
    """Yield the products, class by class."""
    two = ALL["bfloat16"], F32
    for dtype in two:
        for side in (8, 17, 32):
            yield Entry("batched", side, side, side, dtype, 20000)
        yield Entry("batched", 64, 64, 64, dtype, 4000)
    for dtype in two:
        for n in (1, 4, 16, 17, 64):
            yield Entry("tall", 10**6, n, 64, dtype, small=(500, n, 64))
    for dtype in two:
        for k in (8, 17, 64):
            yield Entry("outer", 8192, 8192, k, dtype, small=(256, 256, k))
    for dtype in two:
        for m in (1, 4, 16):
            yield Entry("few rows", m, 4096, 4096, dtype, b="t", small=(m, 256, 512))
    for dtype in two:
        yield Entry("ragged", 1000, 3000, 520, dtype, small=(120, 136, 72))
    yield Entry("squares", 4096, 4096, 4096, F32, small=(256, 256, 64))


def emulate(entry: Entry) -> dict[str, Any]:
    """Run an entry's kernel on the smaller product, and say what each launch asked of memory, and what it needs.

    Raises :class:`ArithmeticError` where a result is wrong.
    """
    arch, small, kernel = get("h200"), entry.emulated, entry.kernel
    rng = np.random.default_rng([small.m, small.n, small.k, small.batch])
    batch = (small.batch,) if small.batch > 1 else ()
    a = _drawn(rng, (*batch, small.m, small.k), small.dtype)
    b_shape = (small.k, small.n) if entry.b == "n" else (small.n, small.k)
    b = _drawn(rng, (*batch, *b_shape), small.dtype)
    d = np.full((*batch, small.m, small.n), -1, f"i{small.dtype.itemsize}").view(small.dtype.numpy)
    memory = Memory()
    out = memory.bind("D", d, access="rw")
    workspace = memory.bind("workspace", np.full(max(16, kernel.workspace(small)), 0xFF, np.uint8), access="rw")
    operands = GemmOperands(
        memory.bind("A", a, access="r"), memory.bind("B", b, access="r"), out, out, workspace=workspace
    )
    launches = []
    for binary, launch in binaries(kernel, small, operands, arch.target):
        counters = run(binary.ptx, launch, memory, races=False).counters.as_dict()
        shared = binary.resources.shared + launch.dynamic_shared
        threads, registers = launch.threads_per_block, binary.resources.registers
        launches.append(
            {
                "entry": binary.entry,
                "registers": registers,
                "shared_bytes": shared,
                "threads": threads,
                "blocks_per_sm": arch.resident(threads, registers, shared)[0],
                "occupancy": arch.occupancy(threads, registers, shared),
                "counters": {name: count for name, count in counters.items() if count},
            }
        )
    right = b if entry.b == "n" else b.swapaxes(-1, -2)
    excess = reference.excess(d, reference.answer(a, right), reference.bound(a, right))
    if not excess <= 1:
        raise ArithmeticError(f"{small}: {excess:.3g} of the allowed error")
    return {**described(entry), "launches": launches}


def described(entry: Entry) -> dict[str, Any]:
    """Return what a record says of an entry that needs no run: the products, the kernels, and work tiles on an H200."""
    arch, timed, small = get("h200"), entry.timed, entry.emulated
    return {
        "kind": entry.kind,
        "dtype": timed.dtype.name,
        "layouts": f"n{entry.b}",
        "timed": _sizes(timed),
        "emulated": _sizes(small),
        "chosen": f"{entry.chosen.entry} {entry.chosen.config}",
        "kernel": f"{entry.kernel.entry} {entry.kernel.config}",
        "least_read": small.least_bytes - small.batch * small.m * small.n * small.d_dtype.itemsize,
        "least_written": small.batch * small.m * small.n * small.d_dtype.itemsize,
        "work_tiles": _work_tiles(entry.chosen, timed, arch),
    }


def sectors(record: Mapping[str, Any]) -> tuple[int, int]:
    """Return sectors that all launches read and write, by loads, asynchronous copies and TMA."""
    read = _total(record["launches"], ("global_load_sectors", "cp_async_sectors", "bulk_load_sectors"))
    return read, _total(record["launches"], ("global_store_sectors", "bulk_store_sectors"))


def over_least(record: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return sectors over the least that hold what the product needs: those read, those written, and both together."""
    read, written = sectors(record)
    least_read, least_written = record["least_read"] / SECTOR, record["least_written"] / SECTOR
    return read / least_read, written / least_written, (read + written) / (least_read + least_written)


def _total(launches: Sequence[Mapping[str, Any]], names: Sequence[str]) -> int:
    return sum(launch["counters"].get(name, 0) for launch in launches for name in names)


def _sizes(problem: Gemm) -> dict[str, int]:
    return {"batch": problem.batch, "m": problem.m, "n": problem.n, "k": problem.k}


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> NDArray[Any]:
    return rng.uniform(-1, 1, shape).astype(dtype.numpy)


def _work_tiles(kernel: Kernel[Gemm], problem: Gemm, arch: Arch) -> int:
    """Return work tiles, or blocks where a kernel has no tiles of D."""
    result = waves(kernel, problem, arch)
    return result.tiles if result else prod(kernel.geometry(problem, kernel.config).grid)
