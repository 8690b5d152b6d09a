"""The records of the inner kernel's configurations, read back: the search of 2026-11-23, and ``benchmarks/shapes.py``.

The first line of the search's records names the constants of a configuration; each other holds one product, its
configurations as rows of numbers, and their seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.gemm import shapes
from lab.gemm.tiles import LIBRARY
from lab.model_fit import Found
from lab.records import Kind
from matmill.arch import DEFAULT, get
from matmill.config import Config
from matmill.kernels.inner import INNER
from matmill.kernels.inner.space import space
from matmill.ladders.inner.subject import restored
from matmill.problem import Gemm

KIND = Kind("inner search", "a search", lambda line: (json.dumps(line["problem"]), line["exhaustive"]))


def read(paths: Sequence[Path]) -> list[Found[Gemm]]:
    """Return the products of several records, each once: where it was searched exhaustively too, that counts.

    With those configurations alone that are offered today, on :data:`~matmill.arch.DEFAULT`.
    """
    result: dict[Gemm, Found[Gemm]] = {}
    for path in paths:
        if path.suffix == ".json":
            result |= {one.problem: one for one in shapes.read([path], INNER)}
            continue
        header, lines = KIND.read(path)
        for line in lines:
            one = _found(header, line)
            known = result.get(one.problem)
            if known is None or one.exhaustive >= known.exhaustive:
                # A product of the fit grid stays one, whoever else met it.
                result[one.problem] = replace(one, part=known.part) if known is not None else one
    return [one for every in result.values() if (one := _offered(every)).configs]


def _offered(one: Found[Gemm]) -> Found[Gemm]:
    considered = set(space(one.problem, get(DEFAULT)))
    kept = [(config, seconds) for config, seconds in zip(one.configs, one.seconds, strict=True) if config in considered]
    configs, seconds = zip(*kept, strict=True) if kept else ((), ())
    return replace(one, configs=configs, seconds=seconds)


def _found(header: Mapping[str, Any], line: Mapping[str, Any]) -> Found[Gemm]:
    constants, launch = header["constants"], header["launch"]
    configs, seconds = [], []
    for *values, median, _rounds in line["configs"]:
        named = dict(zip((*constants, *launch), values, strict=True))
        result = Config.of(**{name: named[name] for name in constants})
        configs.append(result.launched(**{name: named[name] for name in launch}))
        seconds.append(median)
    problem = restored(line["problem"])
    return Found(problem, line["part"], line["exhaustive"], tuple(configs), tuple(seconds), line[LIBRARY])
