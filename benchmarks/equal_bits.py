"""How often matmill's products have torch's bits: the share of equal elements, by type, layout and length of k.

    PYTHONPATH=src python benchmarks/equal_bits.py --out benchmarks/results/equal_bits_h200.json

Random normal numbers, products of several sizes and all layouts. A row of the record has the kernels that both ran,
whether they add slices of k, and how many elements are equal. ``docs/precision.md`` says why others are not. Needs a
GPU and torch.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from lab.gemm.shapes import packed
from lab.tensors import random_operands
from matmill.bench.environment import describe
from matmill.choose import choose
from matmill.config import Config
from matmill.dtypes import ALL
from matmill.ops import matmul
from matmill.runtime.gpu import GPU

SIZES = ((128, 128), (512, 384), (1000, 1000), (4096, 2048))
DEPTHS = (16, 64, 256, 1024, 4096)
#: Constants that say that terms of one output are added apart from others, where they are above 1.
APART = ("SPLIT_K", "CLUSTER_K", "SLICES", "CHAINS", "GROUPS_K", "WARPS_K", "LANES_K", "S")


def apart(config: Config) -> bool:
    """Tell whether a configuration adds slices of k, or other sums of an output, at the end.

    >>> apart(Config.of(SPLIT_K=1, CHAINS=4)), apart(Config.of(SPLIT_K=1))
    (True, False)
    """
    return any(config.get(name) > 1 for name in APART)


def measure(gpu: GPU, torch: Any) -> Iterator[dict[str, Any]]:
    """Yield a row for each product."""
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415 — the usage needs no torch

    torch.backends.cuda.matmul.allow_tf32 = False
    for name, layouts, (m, n), k in product(ALL, ("nn", "nt", "tn", "tt"), SIZES, DEPTHS):
        if name not in {"float16", "bfloat16", "float32", "float64"}:
            continue
        kernel = choose(packed(m, n, k, ALL[name], layouts=layouts), gpu.arch).kernel
        a, b = random_operands((m, n, k), name, layouts, batch=1)
        torch.matmul(a, b)
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            theirs = torch.matmul(a, b)
            torch.cuda.synchronize()
        names = [event.name for event in seen.events() if "gemm" in event.name.lower() or "nvjet" in event.name]
        ours = matmul(a, b)
        equal = (ours == theirs).double().mean().item()
        yield {
            "dtype": name, "layouts": layouts, "m": m, "n": n, "k": k,
            "kernel": kernel.entry, "apart": apart(kernel.config), "torch": names,
            "torch splits": any("split" in one.lower() for one in names), "equal": equal,
        }  # fmt: skip


def summary(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each type: products that neither library splits, and those whose bits are all equal.

    >>> row = {"dtype": "float16", "apart": False, "torch splits": False, "equal": 1.0, "kernel": "wgmma_gemm"}
    >>> list(summary([row, {**row, "equal": 0.5}, {**row, "apart": True}]))
    ['float16 wgmma_gemm: 1 of 2 products equal, 75.0000% of elements']
    """
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        if not row["apart"] and not row["torch splits"]:
            groups[row["dtype"], row["kernel"]].append(row["equal"])
    for (dtype, kernel), shares in groups.items():
        whole = sum(share == 1 for share in shares)
        yield f"{dtype} {kernel}: {whole} of {len(shares)} products equal, {sum(shares) / len(shares):.4%} of elements"


def main() -> None:
    """Measure, print a summary, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    import torch  # noqa: PLC0415 — the usage needs none

    rows = list(measure(GPU.get(0), torch))
    print(*summary(rows), sep="\n")
    record = {"environment": describe(gpu=True), "rows": rows}
    arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
