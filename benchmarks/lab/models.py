"""The cost models that are fitted to records of searches, and what reads the records of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from lab.gemm import inner_search, shapes, tiles, wgmma_tiles
from lab.model_fit import Found, Model
from lab.transpose_add.search import read as read_transpose_add
from matmill.dtypes import F64
from matmill.kernels.gemm import GEMM
from matmill.kernels.gemm import cost as gemm
from matmill.kernels.hgemm import HGEMM
from matmill.kernels.hgemm import cost as hgemm
from matmill.kernels.inner import cost as inner
from matmill.kernels.short_k import cost as short_k
from matmill.kernels.transpose import cost as transpose_add
from matmill.kernels.wgmma import cost as wgmma
from matmill.ladders.inner.subject import layout_of
from matmill.problem import Geam


@dataclass(frozen=True)
class Fitted:
    """A model, the reader of its records, and what a problem is besides its sizes and type, in a word or two."""

    model: Model[Any]
    read: Callable[[Sequence[Path]], list[Found[Any]]]
    layout: Callable[[Any], str]


def alignment_of(problem: Geam) -> str:
    """Return bytes that the rows of the result start on."""
    return f"on {problem.d.align}"


def _model(cost: ModuleType, bounds: Mapping[str, tuple[float, float]]) -> Model[Any]:
    """Return the model of a kernel's module ``cost``, with the constants that are its default."""
    path = Path(str(cost.__file__)).with_name("constants.json")
    return Model(cost.DEFAULT, cost.demand, cost.times, path, bounds)


_HGEMM = _model(
    hgemm,
    {
        "read_share": (0.5, 1.0),
        "mma_share": (0.3, 1.0),
        "line_cycles": (0.25, 8.0),
        "pace_overlap": (1.0, 32.0),
        "overlap": (1.0, 16.0),
    },
)

MODELS: dict[str, Fitted] = {
    "gemm": Fitted(
        _model(
            gemm,
            {
                "store_share": (0.2, 1.0),
                "load_share": (0.5, 1.0),
                "pace_overlap": (1.0, 32.0),
                "overlap": (1.0, 16.0),
            },
        ),
        partial(shapes.read, kernel=GEMM),
        tiles.alignment_of,
    ),
    "hgemm": Fitted(
        _HGEMM,
        tiles.read,
        tiles.alignment_of,
    ),
    "hgemm_float64": Fitted(
        replace(
            _HGEMM,
            constants=hgemm.DOUBLE,
            bounds={**_HGEMM.bounds, "read_share": (0.5, 0.7)},
            section="h200 float64",
        ),
        partial(shapes.read, kernel=HGEMM, dtype=F64),
        tiles.alignment_of,
    ),
    "inner": Fitted(
        _model(
            inner,
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
    "short_k": Fitted(
        _model(
            short_k,
            {
                "stream_share": (0.5, 1.0),
                "narrow": (1.0, 8.0),
                "one_stage": (0.2, 1.0),
                "term": (1.0, 2.0),
                "overlap": (1.0, 16.0),
            },
        ),
        shapes.read,
        tiles.alignment_of,
    ),
    "transpose_add": Fitted(
        _model(
            transpose_add,
            {"copy_share": (0.5, 1.0), "issue_share": (0.3, 1.0), "overlap": (1.0, 16.0)},
        ),
        read_transpose_add,
        alignment_of,
    ),
    "wgmma": Fitted(
        _model(
            wgmma,
            {
                "read_share": (0.5, 1.0),
                "mma_share": (0.5, 1.1),
                "exposed": (0.01, 1.0),
                "shared_bytes": (100.0, 256.0),
                "pace_overlap": (1.0, 32.0),
                "overlap": (1.0, 16.0),
            },
        ),
        wgmma_tiles.read,
        tiles.alignment_of,
    ),
}
