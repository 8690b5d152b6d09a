"""The record of every configuration of 16-bit products on the tensor cores, read back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.gemm.configs import config_of
from lab.model_fit import Found
from matmill.kernels.hgemm import HGEMM
from matmill.ladders.hgemm.subject import HALVES, restored
from matmill.problem import Gemm

#: The entry of a record's seconds that is no configuration.
LIBRARY = "torch.mm"


def read(paths: Sequence[Path]) -> list[Found[Gemm]]:
    """Return the 16-bit products of records; those of float32 and float64, which have another model, are left out."""
    records = [record for path in paths for record in json.loads(path.read_text(encoding="utf-8"))["records"]]
    return [_found(record) for record in records if record["dtype"] in HALVES]


def alignment_of(problem: Gemm) -> str:
    """Return bytes that the rows of A and of B start on.

    >>> from matmill.ladders.hgemm.subject import half_product
    >>> alignment_of(half_product(1000, 1002, 1000))
    'on 16, 4'
    """
    return f"on {problem.a_align}, {problem.b_align}"


def _found(record: Mapping[str, Any]) -> Found[Gemm]:
    seconds = dict(record["seconds"])
    library = seconds.pop(LIBRARY)
    configs = tuple(config_of(name, HGEMM) for name in seconds)
    part = "fit" if record["fit"] else "judge"
    return Found(
        restored(record), part, exhaustive=True, configs=configs, seconds=tuple(seconds.values()), library=library
    )
