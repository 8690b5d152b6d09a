"""The ratios that ``matmill why`` shows beside a product: torch's time over ours, of all records that have both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.gemm.shapes import ratio_of
from matmill.ladders.inner.subject import inner_product
from matmill.ladders.registry import LADDERS

#: Records of calls, by the GPU they ran on.
_CALLS = {"h200": ("matmul_h200", "products_h200"), "h100": ("matmul_h100", "products_h100")}
#: Records of configurations beside torch.matmul.
_CONFIGURATIONS = {
    "h200": ("shapes", "thin", "doubles", "short_k", "attention", "wgmma_gradients", "wgmma_steps", "lost"),
    "h100": ("kernels",),
}
_LIBRARY = "torch.mm"

Row = tuple[str, str, int, int, int, int, str, float]


def ratios_text(results: Path) -> str:
    """Return the document ``analysis/recorded.json``: the rows of each GPU, a line each."""
    arches = []
    for arch, names in _CALLS.items():
        rows = [*_configurations(results, arch), *(row for name in names for row in _calls(_read(results, name)))]
        if arch == "h200":
            rows += [*_in_pieces(results), *_inner(results)]
        latest = {row[:-1]: row for row in rows}  # of a product in several records the last counts
        lines = ",\n".join(json.dumps(row) for row in sorted(latest.values()))
        arches.append(f'"{arch}": [\n{lines}\n]')
    return "{{\n{}\n}}\n".format(",\n".join(arches))


def _configurations(results: Path, arch: str) -> Iterator[Row]:
    for name in _CONFIGURATIONS[arch]:
        for one in _read(results, f"{name}_{arch}")["records"]:
            yield _row(one, one.get("precision", "default"), ratio_of(one))


def _in_pieces(results: Path) -> Iterator[Row]:
    for one in _read(results, "float32_h200")["products"]:
        seconds = one["seconds"]
        if not one["phi"]:  # the others have numbers of wide range, which take as long
            for precision in seconds.keys() - {_LIBRARY}:
                yield _row(one | {"dtype": "float32"}, precision, seconds[_LIBRARY] / seconds[precision])


def _inner(results: Path) -> Iterator[Row]:
    for one in _read(results, "inner_h200_cases")["products"]:
        sizes, times = one["problem"], {row["name"]: row["median"] for row in one["rows"]}
        problem = inner_product(sizes["m"], sizes["n"], sizes["k"], layout=sizes["layout"])
        layouts = "n" + ("n" if problem.b_row_col[1] == 1 else "t")
        yield _row(sizes | {"layouts": layouts}, "default", times[_LIBRARY] / times["matmill.inner"])


def _calls(record: dict[str, Any]) -> Iterator[Row]:
    return (_row(one, one["precision"], one["theirs"] / one["ours"]) for one in record["products"])


def _row(one: dict[str, Any], precision: str, ratio: float) -> Row:
    sizes = one.get("batch", 1), one["m"], one["n"], one["k"]
    return (one["dtype"], precision, *sizes, one["layouts"], round(ratio, 3))


def _read(results: Path, name: str) -> Any:
    return json.loads((results / f"{name}.json").read_text(encoding="utf-8"))


#: For each ladder the record whose rates ``matmill ladder`` shows in the emulator, and the library beside it.
_LADDERS = {
    "sgemm": ("sgemm_h100_4096", "cuBLAS"),
    "hgemm": ("hgemm_h100_4096_float16", "cuBLAS"),
    "inner": ("inner_h200_3x3x50000000_float32_column", "torch"),
    "transpose_add": ("transpose_add_h200_24300x11520_bfloat16", "torch"),
}


def rungs_text(results: Path) -> str:
    """Return the document ``ladders/recorded.json``: each ladder's rates at one size, and its shares of a library's."""
    lines = []
    for ladder, (name, library) in _LADDERS.items():
        record = _read(results, name)
        subject = LADDERS[ladder].subject
        problem = subject.problem(record["problem"])
        sizes = subject.sizes(problem)
        document = {
            "gpu": record["arch"].upper(),
            "sizes": f"{'='.join(sizes)}={sizes['m']}"
            if len({*sizes.values()}) == 1
            else subject.format_sizes(problem),
            "library": library,
            "rates": {
                row["rung"]: (float(f"{row[subject.rate]:.6g}"), float(f"{row['library_fraction']:.6g}"))
                for row in record["rows"]
                if row["library_fraction"]
            },
        }
        lines.append(f"{json.dumps(ladder)}: {json.dumps(document)}")
    return "{{\n{}\n}}\n".format(",\n".join(lines))
