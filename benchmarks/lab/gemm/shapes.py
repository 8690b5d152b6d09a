"""The records of ``benchmarks/shapes.py``, read back for cost models and for the page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd
from pathlib import Path
from typing import Any

from lab.gemm.configs import config_of
from lab.model_fit import Found
from matmill.analysis.candidates import label
from matmill.config import Config
from matmill.dtypes import ALL, DType
from matmill.kernel import Kernel
from matmill.kernels.short_k import SHORT_K
from matmill.kernels.thin import THIN
from matmill.problem import Gemm

#: Entries of a record's seconds that are no configurations.
LIBRARY, FLOOR = "torch.matmul", "moving the bytes"
#: FLOP/s that an H200 reaches on random data: tensor cores in 16 bits, FMA units, tensor cores in float64.
PEAKS = {"float16": 790e12, "bfloat16": 790e12, "float32": 60e12, "float64": 60e12}


def packed(m: int, n: int, k: int, dtype: DType, *, batch: int = 1, layouts: str = "nn") -> Gemm:
    """Return a problem of packed matrices.

    ``layouts`` are those of A and B: n for rows, t for columns that are contiguous.

    >>> packed(8, 16, 20, ALL["float16"], layouts="nt").b_align
    8
    """
    size, a, b = dtype.itemsize, layouts[0], layouts[1]
    pitches = (k if a == "n" else m, n if b == "n" else k, n)
    a_align, b_align, d_align = (gcd(16, pitch * size) for pitch in pitches)
    return Gemm(
        m, n, k, dtype, batch,
        a_strides=(k, 1) if a == "n" else (1, m), b_strides=(n, 1) if b == "n" else (1, k),
        a_align=a_align, b_align=b_align, d_align=d_align, a_start_align=16, b_start_align=16, base_align=16,
    )  # fmt: skip


def floor_of(record: Mapping[str, Any]) -> float:
    """Return seconds that no kernel is far below: moving the bytes, with its launch, or the FLOP at the peak."""
    flops = 2 * record["batch"] * record["m"] * record["n"] * record["k"]
    return float(max(record["seconds"][FLOOR], flops / PEAKS[record["dtype"]]))


def ratio_of(record: Mapping[str, Any]) -> float:
    """Return the time of torch.matmul over that of the chosen configuration."""
    seconds = record["seconds"]
    return float(seconds[LIBRARY] / seconds[record["chosen"]])


def in_words(name: str, dtype: str) -> str:
    """Return the kernel and the tile of a configuration that a record names, for elements of a type.

    >>> in_words(f"short_k {SHORT_K.config}", "float32")
    'short_k: 64x64, threads of 8x8, two stages, quads'
    >>> in_words("inner MMA=0", "float32")
    'inner'
    """
    entry, _, constants = name.partition(" ")
    pairs = (word.partition("=") for word in constants.split())
    config = Config.of(**{key: int(value) for key, _, value in pairs})
    if entry == SHORT_K.entry:
        return f"{entry}: {_short_k_in_words(config, ALL[dtype])}"
    if entry == THIN.entry:
        slices = f", split-K {config['SPLIT_K']}" if config["SPLIT_K"] > 1 else ""
        return f"{entry}: {config['ROWS']} rows a lane, k divided among {config['WARPS_K']} of 8 warps{slices}"
    return f"{entry}: {label(config)}" if all(side in config for side in ("BM", "BN", "BK")) else entry


def _short_k_in_words(config: Config, dtype: DType) -> str:
    tile = f"{config['BM']}x{config['BN']}"
    workers = "warps" if dtype.itemsize == 2 else "threads"
    parts = [
        f"{config['PRODUCTS']} products of {tile}" if config["PRODUCTS"] > 1 else tile,
        f"{workers} of {config['TM']}x{config['TN']}",
        "two stages" if config["STAGES"] == 2 else "",
        "B kept" if config.get("KEEP_B") else "",
        "one run" if config["A_ONE_RUN"] or config["B_ONE_RUN"] else "",
        "quads" if config["QUADS"] else "",
    ]
    return ", ".join(part for part in parts if part)


def found(record: Mapping[str, Any], kernel: Kernel[Gemm]) -> Found[Gemm]:
    """Return the problem of a record with the configurations of one kernel that were timed, perhaps none."""
    sizes = (record["m"], record["n"], record["k"], ALL[record["dtype"]])
    problem = packed(*sizes, batch=record["batch"], layouts=record["layouts"])
    problem = replace(problem, precision=record.get("precision", "default"))
    names = {name: name.partition(" ") for name in record["seconds"]}
    timed = {
        constants: record["seconds"][name] for name, (entry, _, constants) in names.items() if entry == kernel.entry
    }
    configs, seconds = tuple(config_of(name, kernel) for name in timed), tuple(timed.values())
    return Found(problem, "fit", exhaustive=True, configs=configs, seconds=seconds, library=record["seconds"][LIBRARY])


def read(paths: Sequence[Path], kernel: Kernel[Gemm] = SHORT_K, dtype: DType | None = None) -> list[Found[Gemm]]:
    """Return the problems of records that the kernel was timed on, perhaps of one type. Every fourth one judges."""
    records = [record for path in paths for record in json.loads(path.read_text(encoding="utf-8"))["records"]]
    records = [record for record in records if dtype is None or record["dtype"] == dtype.name]
    timed = [one for record in records if (one := found(record, kernel)).configs]
    return [replace(one, part="judge" if index % 4 == 3 else "fit") for index, one in enumerate(timed)]
