"""Rungs of all ladders of products by ``ladder/label``, and problems on which each of them runs whole tiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matmill.arch import Arch
from matmill.config import Config
from matmill.dtypes import ELEMENTWISE
from matmill.emulator import Report
from matmill.kernel import Kernel, Rung
from matmill.kernels.hgemm.tiles import tile, with_vector_widths
from matmill.ladders.hgemm.common import in_float32
from matmill.ladders.hgemm.rungs import ON_MMA, ON_WGMMA
from matmill.ladders.memory.rungs import PRODUCT
from matmill.ladders.registry import LADDERS
from matmill.ladders.transpose_add.rungs import TRANSPOSE_ADD
from matmill.problem import Gemm
from support.strided import COLUMN, H200, ROW
from support.strided_sum import StridedSum
from support.trial import Case, Trial, problem_of

RUNGS: dict[str, Rung[Any]] = {
    f"{name}/{rung.label}": rung for name in ("sgemm", "hgemm", "inner") for rung in LADDERS[name].rungs
}
#: Whole tiles of the SGEMM ladder and several steps of k: the least that each rung takes.
WHOLE = {
    **dict.fromkeys(("uncoalesced", "naive"), (32, 64, 7)),
    **{f"multi({x})": (8, 32 * x, 5) for x in (1, 2, 4, 8)},
    **{f"shared({x})": (x, 2 * x, 2 * x) for x in (8, 16, 32)},
    **{f"granularity({x})": (32, 16 * x, 32) for x in (1, 2, 4)},
    **{f"ilp({x})": (64, 32, 64) for x in (1, 2, 4, 8, 16)},
    "volkov": (256, 64, 128),
    "register-tile": (128, 128, 32),
    **{f"conflict-free({x})": (x, 128, 32) for x in (128, 256)},
    "vectorized": (128, 256, 24),
    "async-copy": (128, 256, 24),
    "warp-tiles": (128, 512, 24),
    "tuned": (64, 64, 64),
    "tf32x3": (128, 128, 64),
    "promoted": (128, 128, 64),
    **dict.fromkeys(("pieces", "fp16x3"), (128, 128, 128)),
}
#: Rungs on wgmma whose blocks walk over the tiles, and so many blocks that each has several.
WALKERS = {"hgemm/persistent": 1, "hgemm/tma-store": 1, "hgemm/multicast": 2, "hgemm/pingpong": 1}
#: Rungs of the hgemm ladder by their instruction; of those on mma.sync, the document's and the last ones, of any size.
WGMMA = tuple(f"hgemm/{rung.label}" for rung in ON_WGMMA)
MMA = tuple(f"hgemm/{rung.label}" for rung in ON_MMA)
S2, PIPELINED = MMA[:6], MMA[7:]
TRANSPOSE_ADD_RUNGS = {rung.label: rung for rung in TRANSPOSE_ADD}


def of(ladder: str) -> tuple[str, ...]:
    """Return the names of a ladder's rungs."""
    return tuple(name for name in RUNGS if name.startswith(f"{ladder}/"))


def halves(m: int, n: int, k: int, dtype: str = "float16", beta: float = 0.0) -> Case:
    """Return a product of packed matrices on the tensor cores."""
    return Case(m, n, k, dtype, "row", 1.25, beta)


def kernel_of(name: str, case: Case, *, arch: Arch = H200) -> Kernel[Gemm]:
    """Return a rung's kernel for a product of packed matrices."""
    return RUNGS[name].kernel_for(problem_of(case), arch)


def trial_of(
    name: str, case: Case, *, blocks: int | None = None, wide: bool = False, arch: Arch = H200, **options: Any
) -> Trial:
    """Return a rung's trial, with ``blocks`` that walk over the tiles, or ``wide`` sums in float32."""
    subject: Any = PRODUCT if name == "memory/product" else in_float32(RUNGS[name]) if wide else RUNGS[name]
    if blocks is not None:
        kernel = kernel_of(name, case, arch=arch)
        subject = kernel.with_config(kernel.config.launched(BLOCKS=blocks))
    options.setdefault("in_place", name.startswith(("sgemm", "memory")))
    return Trial(subject, case, arch=arch, **options)


def whole_tiles(name: str, steps: int = 2, dtype: str = "", beta: float = 0.0, arch: Arch = H200) -> Case:
    """Return a case of whole tiles of a rung, for the ladders of products of any two matrices."""
    ladder, label = name.split("/")
    if ladder == "sgemm":
        return Case(*WHOLE[label], layout="row", beta=beta)
    config = kernel_of(name, halves(512, 512, 512, dtype or "float16"), arch=arch).config
    return halves(config["BM"], config["BN"], steps * config["BK"], dtype or "float16", beta)


def small_tile(case: Case, *, stages: int = 3, acc16: int = 0) -> Config:
    """Return the smallest tile of the pipeline on mma.sync."""
    return with_vector_widths(tile(64, 64, 64, 2, 2, stages=stages).replace(ACC16=acc16), problem_of(case))


def faults(reports: list[Report]) -> list[str]:
    """Return what is wrong, beyond the note that a box of a remainder was all outside its matrix."""
    return [str(hazard) for report in reports for hazard in report.hazards if hazard.kind != "box-outside"]


def options_of(constants: Mapping[str, Any]) -> str:
    """Return options in a row's name."""
    return ",".join(f"{key}={getattr(value, 'name', value)}" for key, value in constants.items())


def sum_of(label: str, m: int, n: int, dtype: str = "bfloat16", layouts: Any = (COLUMN, ROW, ROW)) -> StridedSum:
    """Return the sum of two matrices by a rung's kernel."""
    trial = StridedSum((1, m, n), ELEMENTWISE[dtype], layouts, (2.0, -1.0))
    trial.kernel = TRANSPOSE_ADD_RUNGS[label].kernel_for(trial.problem, H200)
    return trial
