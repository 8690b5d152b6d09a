"""A batch of products of any strides by the kernel of mma.sync, in the emulator: what tests of its types share."""

from __future__ import annotations

from dataclasses import replace

from matmill.arch import ARCHES
from matmill.config import Config
from matmill.dtypes import ALL, F32
from matmill.emulator import Report
from matmill.kernel import Kernel
from matmill.kernels.hgemm import HGEMM
from matmill.kernels.hgemm.tiles import space, tile, with_epilogue, with_vector_widths
from matmill.problem import Gemm
from support.strided import COLUMN, ROW, Layout
from support.strided_product import StridedProduct

SMALL = tile(64, 64, 64, 2, 2, stages=2)
ODD = Layout(start=1)
#: Both orders of A and of B, and their names in tests' ids.
LAYOUTS = [(a, b) for a in (ROW, COLUMN) for b in (ROW, COLUMN)]


def order(layout: Layout) -> str:
    """Name a layout in a test's id."""
    return "transposed" if layout.transposed else "plain"


def mma_tiles(arch: str) -> list[Config]:
    """List the tile shapes of a GPU, for aligned matrices and for odd ones."""
    whole = Gemm(4096, 4096, 4096, dtype=ALL["float16"])
    odd = replace(whole, m=4095, n=4095, k=4095, a_align=2, b_align=2, d_align=2)
    return list({config: None for problem in (whole, odd) for config in space(problem, ARCHES[arch])})


def on_tiles(product: StridedProduct, config: Config, *, parts: int = 1, pads: str = "") -> Kernel[Gemm]:
    """Give HGEMM the tile shape ``config`` for a product, k in ``parts`` slices and the operands ``pads`` repacked."""
    config = with_vector_widths(config, product.problem, pads)
    if product.problem.dtype is F32:
        config = with_epilogue(config, product.problem, parts)
    return HGEMM.with_config(config.launched(SPLIT_K=parts, REPACK_A=int("A" in pads), REPACK_B=int("B" in pads)))


class Product:
    """A product on fresh random numbers, by HGEMM with a tile shape and k in some slices."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        a: Layout,
        b: Layout,
        d: Layout,
        *,
        c: Layout | None = None,
        dtype: str = "float16",
        batch: int = 1,
        arch: str = "h200",
        config: Config = SMALL,
        parts: int = 1,
        pads: str = "",
    ) -> None:
        self.arch = ARCHES[arch]
        precision = "tf32x3" if dtype == "float32" else "default"
        self.product = StridedProduct(shape, a, b, d, c, dtype=ALL[dtype], batch=batch, alpha=-1.5, precision=precision)
        self.kernel = on_tiles(self.product, config, parts=parts, pads=pads)

    def run(self, schedule: int = 0) -> list[Report]:
        """Run the kernel, what repacks matrices before it and what adds split-K partial sums after it."""
        return self.product.emulated(self.kernel, arch=self.arch, late_copies=True, schedule=schedule)

    def right_report(self, schedule: int = 0) -> Report:
        """Run a kernel of one launch; assert that it is right and silent, without bank conflicts; return its report."""
        (report,) = self.run(schedule)
        assert report.ok
        assert self.right()
        assert report.counters.bank_conflicts == 0
        return report

    def right(self) -> bool:
        """Tell whether every element is within its bound, and nothing was written beside D."""
        return self.product.excess() <= 1
