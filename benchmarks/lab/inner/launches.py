"""The rungs of the inner ladder and the production kernel, to be launched once each and checked.

Every element type and layout, sizes that no tile divides, an odd k; of the production kernel what is chosen and one
configuration of each kind that is not: loads straight into registers and through stages, the latter also multiplied on
tensor cores, by one k-group and several; one block and several. Where a kernel's blocks can count themselves it runs
without a counter and with one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product

from lab.launches import Launches, Product
from matmill.arch import Arch
from matmill.config import Config
from matmill.dtypes import ALL
from matmill.kernel import Kernel
from matmill.kernels.inner import INNER
from matmill.kernels.inner.space import space
from matmill.ladders.inner.launches import for_emulator
from matmill.ladders.inner.rungs import INNER as LADDER
from matmill.ladders.inner.subject import GRAM, LAYOUTS, TRAFFIC, gram_of, inner_product, layout_of
from matmill.ladders.runner.selection import nearest
from matmill.problem import Gemm

_SIZES = ((1, 1, 3001), (3, 3, 40_001), (5, 2, 2002), (16, 16, 5000), (17, 9, 3003), (33, 65, 999), (128, 100, 515))


def production(arch: Arch) -> Iterator[Product]:
    """Yield the production kernel with some configurations of each kind for each product."""
    for (m, n, k), dtype, layout in product(_SIZES, ALL.values(), (*LAYOUTS, GRAM)):
        plain = inner_product(m, n, k, dtype, LAYOUTS[0] if layout == GRAM else layout)
        problem = gram_of(plain) if layout == GRAM else plain
        kinds: dict[tuple[str, bool], Kernel[Gemm]] = {}
        for config in space(problem, arch):
            kind, kernel = (_way(config), config["SPLIT_K"] > 1), INNER.with_config(config)
            if kind not in kinds and kernel.why_not(problem, arch) is None:
                kinds[kind] = kernel
        for (way, several), kernel in kinds.items():
            name = f"inner {way} {'blocks' if several else 'block'} {layout_of(problem)}"
            yield Product(name, kernel, problem, TRAFFIC, also_without_counter=True)


def _way(config: Config) -> str:
    if config["MMA"]:
        return "mma, k-groups" if config["U"] > 1 else "mma"
    return "staged" if config["BK"] else "direct"


def rungs(arch: Arch) -> Iterator[Product]:
    """Yield every rung at one size, with few blocks where the paper leaves that open."""
    for dtype, layout in product(ALL.values(), LAYOUTS):
        asked = inner_product(5, 3, 4001, dtype, layout)
        for rung in for_emulator(LADDER)[0]:
            size, reason = nearest(rung, asked, arch, TRAFFIC)
            if size is None:
                sys.exit(f"{rung.label}: {reason}")
            yield Product(
                f"{rung.label} {layout_of(size)}", rung.kernel_for(size, arch), size, TRAFFIC, also_without_counter=True
            )


LAUNCHES: Launches[Product] = Launches("kernels", lambda arch, _args: ([], [*rungs(arch), *production(arch)]))
