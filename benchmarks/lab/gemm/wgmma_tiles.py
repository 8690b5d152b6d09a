"""The records of the warp-specialised kernel, read back: tiles of 2026-11-24, and those of ``benchmarks/shapes.py``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.gemm import shapes
from lab.gemm.configs import config_of
from lab.model_fit import Found
from matmill.dtypes import ALL, DType
from matmill.kernels.wgmma import WGMMA
from matmill.problem import Gemm

#: The entry of a record's seconds that is no configuration.
LIBRARY = "torch.mm"


def packed(m: int, n: int, k: int, dtype: DType, layout: str, *, a_layout: str = "row") -> Gemm:
    """Return a problem of packed matrices; B's rows are contiguous (``"row"``) or its columns, and A's likewise.

    >>> packed(8, 16, 20, ALL["float16"], "column").b_align
    8
    """
    return shapes.packed(m, n, k, dtype, layouts="".join("n" if one == "row" else "t" for one in (a_layout, layout)))


def read(paths: Sequence[Path]) -> list[Found[Gemm]]:
    """Return the problems of records. Every fourth one judges."""
    records = [record for path in paths for record in json.loads(path.read_text(encoding="utf-8"))["records"]]
    result = [_of_tiles(record) if "layout" in record else shapes.found(record, WGMMA) for record in records]
    timed = [one for one in result if one.configs]
    return [replace(one, part="judge" if index % 4 == 3 else "fit") for index, one in enumerate(timed)]


def _of_tiles(record: Mapping[str, Any]) -> Found[Gemm]:
    problem = packed(
        record["m"],
        record["n"],
        record["k"],
        ALL[record["dtype"]],
        record["layout"],
        a_layout=record.get("a_layout", "row"),
    )
    seconds = {name: taken for name, taken in record["seconds"].items() if name != LIBRARY}
    configs, library = tuple(config_of(name, WGMMA) for name in seconds), record["seconds"].get(LIBRARY)
    return Found(problem, "fit", exhaustive=True, configs=configs, seconds=tuple(seconds.values()), library=library)
