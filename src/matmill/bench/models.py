"""The cost models that are fitted to records of searches, and what reads the records of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matmill.bench import gemm_tiles, inner_search, sum_search
from matmill.bench.model_fit import Found, Model
from matmill.bench.products import layout_of
from matmill.cost import hgemm, inner, transpose_add
from matmill.problem import Geam


@dataclass(frozen=True)
class Fitted:
    """A model, the reader of its records, and what a problem is besides its sizes and type, in a word or two."""

    model: Model[Any]
    read: Callable[[Sequence[Path]], list[Found[Any]]]
    layout: Callable[[Any], str]


def alignment_of(problem: Geam) -> str:
    """Bytes that lines of the result start on."""
    return f"on {problem.d.align}"


MODELS: dict[str, Fitted] = {
    "hgemm": Fitted(
        Model(
            hgemm.DEFAULT,
            hgemm.demand,
            hgemm.times,
            Path(hgemm.__file__),
            {
                "read_share": (0.5, 1.0),
                "copy_share": (0.5, 1.0),
                "mma_share": (0.3, 1.0),
                "line_cycles": (0.25, 8.0),
                "pace_overlap": (1.0, 32.0),
                "overlap": (1.0, 16.0),
            },
        ),
        gemm_tiles.read,
        gemm_tiles.alignment_of,
    ),
    "inner": Fitted(
        Model(
            inner.DEFAULT,
            inner.demand,
            inner.times,
            Path(inner.__file__),
            {
                "read_share": (0.5, 1.05),
                "fma_share": (0.3, 1.0),
                "overlap": (1.0, 16.0),
                "line_cycles": (0.25, 8.0),
                "mma_share": (0.25, 0.65),
                "mma_overlap": (1.0, 16.0),
            },
        ),
        inner_search.read,
        layout_of,
    ),
    "transpose_add": Fitted(
        Model(
            transpose_add.DEFAULT,
            transpose_add.demand,
            transpose_add.times,
            Path(transpose_add.__file__),
            {"copy_share": (0.5, 1.0), "issue_share": (0.3, 1.0), "overlap": (1.0, 16.0)},
        ),
        sum_search.read,
        alignment_of,
    ),
}
