"""The records of ``benchmarks/wgmma_tiles.py``, read back: every configuration of the warp-specialised kernel."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import gcd
from pathlib import Path
from typing import Any

from lab.gemm.configs import config_of
from lab.model_fit import Found
from matmill.dtypes import ALL, DType
from matmill.kernels.wgmma import WGMMA
from matmill.problem import Gemm

#: The entry of a record's seconds that is no configuration.
LIBRARY = "torch.mm"


def packed(m: int, n: int, k: int, dtype: DType, layout: str) -> Gemm:
    """A problem of packed matrices; B's rows are contiguous along n (``"row"``) or along k (``"column"``).

    >>> packed(8, 16, 20, ALL["float16"], "column").b_align
    8
    """
    size, b_pitch = dtype.itemsize, n if layout == "row" else k
    return Gemm(
        m, n, k, dtype, b_strides=(n, 1) if layout == "row" else (1, k),
        a_align=gcd(16, k * size), b_align=gcd(16, b_pitch * size), d_align=gcd(16, n * size),
    )  # fmt: skip


def read(paths: Sequence[Path]) -> list[Found[Gemm]]:
    """The problems of records. Every fourth one judges."""
    records = [record for path in paths for record in json.loads(path.read_text(encoding="utf-8"))["records"]]
    return [_found(record, "judge" if index % 4 == 3 else "fit") for index, record in enumerate(records)]


def _found(record: Mapping[str, Any], part: str) -> Found[Gemm]:
    seconds = dict(record["seconds"])
    library = seconds.pop(LIBRARY, None)
    problem = packed(record["m"], record["n"], record["k"], ALL[record["dtype"]], record["layout"])
    configs = tuple(config_of(name, WGMMA) for name in seconds)
    return Found(problem, part, exhaustive=True, configs=configs, seconds=tuple(seconds.values()), library=library)
