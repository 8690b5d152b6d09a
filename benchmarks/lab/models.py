"""The cost models that are fitted to records of searches, and what reads the records of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
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


MODELS: dict[str, Fitted] = {
    "gemm": Fitted(
        Model(
            gemm.DEFAULT,
            gemm.demand,
            gemm.times,
            Path(gemm.__file__).with_name("constants.json"),
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
        Model(
            hgemm.DEFAULT,
            hgemm.demand,
            hgemm.times,
            Path(hgemm.__file__).with_name("constants.json"),
            {
                "read_share": (0.5, 1.0),
                "copy_share": (0.5, 1.0),
                "mma_share": (0.3, 1.0),
                "line_cycles": (0.25, 8.0),
                "pace_overlap": (1.0, 32.0),
                "overlap": (1.0, 16.0),
            },
        ),
        tiles.read,
        tiles.alignment_of,
    ),
    "hgemm_float64": Fitted(
        Model(
            hgemm.DOUBLE,
            hgemm.demand,
            hgemm.times,
            Path(hgemm.__file__).with_name("constants.json"),
            {
                "read_share": (0.5, 0.7),
                "copy_share": (0.5, 1.0),
                "mma_share": (0.3, 1.0),
                "line_cycles": (0.25, 8.0),
                "pace_overlap": (1.0, 32.0),
                "overlap": (1.0, 16.0),
            },
            "h200 float64",
        ),
        partial(shapes.read, kernel=HGEMM, dtype=F64),
        tiles.alignment_of,
    ),
    "inner": Fitted(
        Model(
            inner.DEFAULT,
            inner.demand,
            inner.times,
            Path(inner.__file__).with_name("constants.json"),
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
        Model(
            short_k.DEFAULT,
            short_k.demand,
            short_k.times,
            Path(short_k.__file__).with_name("constants.json"),
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
        Model(
            transpose_add.DEFAULT,
            transpose_add.demand,
            transpose_add.times,
            Path(transpose_add.__file__).with_name("constants.json"),
            {"copy_share": (0.5, 1.0), "issue_share": (0.3, 1.0), "overlap": (1.0, 16.0)},
        ),
        read_transpose_add,
        alignment_of,
    ),
    "wgmma": Fitted(
        Model(
            wgmma.DEFAULT,
            wgmma.demand,
            wgmma.times,
            Path(wgmma.__file__).with_name("constants.json"),
            {
                "read_share": (0.5, 1.0),
                "copy_share": (0.5, 1.0),
                "mma_share": (0.5, 1.1),
                "exposed": (0.01, 1.0),
                "shared_bytes": (100.0, 256.0),
                "line_cycles": (0.25, 8.0),
                "pace_overlap": (1.0, 32.0),
                "overlap": (1.0, 16.0),
            },
        ),
        wgmma_tiles.read,
        tiles.alignment_of,
    ),
}
