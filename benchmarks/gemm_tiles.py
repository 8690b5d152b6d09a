"""Times every legal tile shape of a production product on a grid of problems: what its cost model is fitted on.

    python benchmarks/gemm_tiles.py --out benchmarks/results/gemm_tiles_h200.json
    python benchmarks/gemm_tiles.py --dtype float16 bfloat16 --out benchmarks/results/hgemm_tiles_h200.json

float32 goes to the FMA units, float16 and bfloat16 to the tensor cores, float64 to both. Each problem's tile shapes
(with split-K, and with unaligned matrices both in place and repacked) and cuBLAS (through torch, if it is installed)
run interleaved with a cold L2 cache, after each has been checked: rows drawn at random against float64. Large products
of 16 bits take tiles besides that no product is given: a record names those in ``extra``. Problems marked ``fit`` are
those that the constants of the models in ``matmill/kernels/*/cost.py`` are fitted on; the others judge them. Exits with
1 where a result is wrong.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from pathlib import Path

from lab.gemm.measure import MOST_SCRATCH, Memory, measure
from lab.gemm.tiles import LIBRARY
from matmill.bench.environment import describe
from matmill.bench.timing.clock import Clock
from matmill.config import Config
from matmill.dtypes import ALL, F32, F64, DType
from matmill.kernel import Kernel
from matmill.kernels.hgemm.tiles import tile, unaligned, with_vector_widths
from matmill.ladders.hgemm.subject import half_product
from matmill.problem import Gemm
from matmill.registry import PRODUCTION
from matmill.runtime.gpu import GPU

_LARGEST = 8192 * 8192
_SQUARES = (64, 128, 192, 256, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 6144, 8192)
_SLABS = (
    (256, 256, 8192),
    (512, 512, 4096),
    (1024, 1024, 128),
    (4096, 4096, 64),
    (128, 8192, 1024),
    (2048, 512, 512),
)
#: For 16 bits besides: few rows or columns, as in one step of a language model.
_SKINNY = ((1, 4096, 4096), (16, 4096, 4096), (64, 8192, 4096), (4096, 32, 4096), (128, 128, 65536))
#: And matrices whose rows start on 2 bytes, next to what is aligned.
_ODD = ((8191, 8191, 8191), (4095, 4095, 4095), (1000, 1000, 1000), (1001, 1001, 1001), (2047, 4097, 1023))
#: Tiles that 16-bit products might be given: other raster orders, deeper and shorter k-tiles, more and fewer stages.
_EXTRA = (
    *(tile(128, 256, 64, 2, 4, stages=4, group=group) for group in (4, 8, 16)),
    *(tile(256, 128, 64, 4, 2, stages=4, group=group) for group in (4, 8, 16)),
    tile(128, 256, 64, 2, 4, stages=3, group=16),
    tile(128, 256, 128, 2, 4, stages=2, group=16),
    tile(128, 256, 32, 2, 4, stages=4, group=16),
    tile(128, 256, 32, 2, 4, stages=6, group=16),
    tile(256, 128, 32, 4, 2, stages=6),
    tile(128, 128, 32, 2, 2, stages=4, blocks_per_sm=2),
    tile(128, 128, 32, 2, 2, stages=6, blocks_per_sm=2),
)
#: Products are given these from so many rows, columns and terms on.
_LARGE = 2048


def problems(dtypes: list[DType], seed: int) -> list[tuple[Gemm, bool]]:
    """Return the grid: squares and slabs to fit on, random shapes (odd ones among them) to judge by."""
    found: list[tuple[Gemm, bool]] = []
    for dtype in dtypes:
        shapes = [*((n, n, n) for n in _SQUARES), *_SLABS, *((*_SKINNY, *_ODD) if dtype.itemsize == 2 else ())]
        found += [(_packed(m, n, k, dtype), True) for m, n, k in shapes if dtype is not F64 or m * n * k <= 4096**3]
    draw = random.Random(seed)  # noqa: S311 — shapes, not secrets
    first, last = dtypes[0], dtypes[-1]
    for index in range(60):
        m, n, k = (int(2 ** draw.uniform(5, 13)) for _ in range(3))
        if index % 2 == 0:
            whole = 8 if first.itemsize == 2 else 4
            m, n, k = (max(whole, side // whole * whole) for side in (m, n, k))
        found.append((_packed(m, n, k, last if index % 4 == 3 else first), False))
    return found


def _packed(m: int, n: int, k: int, dtype: DType) -> Gemm:
    """Return the problem of packed matrices, with the alignment that their rows have."""
    if dtype.itemsize == 2:
        return half_product(m, n, k, dtype)
    a_align, b_align = (gcd(16, columns * dtype.itemsize) for columns in (k, n))
    return Gemm(m, n, k, dtype, a_align=a_align, b_align=b_align, d_align=b_align)


@dataclass(frozen=True)
class _Candidate:
    """A kernel with its constants, the seconds that its cost model expects, and whether products are never given it."""

    kernel: Kernel[Gemm]
    predicted: float
    extra: bool

    @property
    def name(self) -> str:
        """That of its configuration."""
        return str(self.kernel.config)


def _candidates(problem: Gemm, gpu: GPU) -> list[_Candidate]:
    """Return the kernels of tiles with every configuration that is legal for the problem, the model's choice first."""
    found: dict[str, _Candidate] = {}
    for production in PRODUCTION:
        if production.kernel.entry in {"gemm", "hgemm"}:
            configs = production.space(problem, gpu.arch)
            tried = [(config, False) for config in configs]
            if (
                production.kernel.entry == "hgemm"
                and problem.dtype.itemsize == 2
                and min(problem.m, problem.n, problem.k) >= _LARGE
            ):
                tried += [(config, True) for config in _extra(problem)]
            for config, extra in tried:
                kernel = production.kernel.with_config(config)
                if kernel.why_not(problem, gpu.arch) is None and kernel.workspace(problem) <= MOST_SCRATCH:
                    predicted = production.explain(problem, config, gpu.arch).seconds
                    found.setdefault(str(config), _Candidate(kernel, predicted, extra))
    return sorted(found.values(), key=lambda one: (one.extra, one.predicted))


def _extra(problem: Gemm) -> Iterator[Config]:
    """Yield the tiles of the list without split-K, unaligned matrices repacked."""
    pads = unaligned(problem)
    for shape in _EXTRA:
        config = with_vector_widths(shape, problem, pads)
        yield config.launched(SPLIT_K=1, REPACK_A=int("A" in pads), REPACK_B=int("B" in pads))


def main() -> None:
    """Measure the grid and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", nargs="+", choices=ALL, default=[F32.name, F64.name])
    args = parser.parse_args()
    dtypes = [ALL[name] for name in args.dtype]
    gpu = GPU.get(0)
    environment = describe(gpu=True)
    memories = {dtype: Memory.of(gpu, dtype, _LARGEST, args.seed) for dtype in dtypes}
    records = []
    with Clock(gpu, 2 * gpu.arch.l2_bytes) as clock:
        for problem, fit in problems(dtypes, args.seed):
            candidates = _candidates(problem, gpu)
            kernels = [one.kernel for one in candidates]
            seconds = measure(gpu, clock, problem, memories[problem.dtype], kernels, seed=args.seed)
            library, chosen = seconds.pop(LIBRARY, None), candidates[0].name
            extra = [one.name for one in candidates if one.extra]
            best = min(seconds, key=seconds.__getitem__)
            described = {"m": problem.m, "n": problem.n, "k": problem.k, "dtype": problem.dtype.name, "fit": fit}
            records.append({**described, "seconds": {LIBRARY: library, **seconds}, "extra": extra})
            line = f"{problem!s:32} best {seconds[best] * 1e6:9.1f} us ({best})"
            line += f"  chosen/best {seconds[chosen] / seconds[best]:.3f}"
            print(line if library is None else f"{line}  {LIBRARY} / best {library / seconds[best]:.2f}", flush=True)
            # Anew after every problem: a run that ends early leaves what it has.
            args.out.write_text(json.dumps({"environment": environment, "records": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
