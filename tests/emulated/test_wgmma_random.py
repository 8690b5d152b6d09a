"""Random products by the warp-specialised kernel: any sizes, strides, batches, epilogues, slices and tiles."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from matmill.dtypes import BF16, F16, F32
from matmill.kernel import ceil_div
from matmill.kernels.wgmma.tiles import SPAN, Shape
from matmill.problem import ACTIVATIONS
from support.examples import examples
from support.strided import H200, Layout
from support.wgmma_cases import Case

#: In CI, and with ``--exhaustive``.
_FEW, _MANY = 6, 3000
#: Small ones of each kind: one consumer, several that share a tile or alternate, clusters.
_SHAPES = (
    Shape(64, 8, 1),
    Shape(64, 64, 1),
    Shape(64, 96, 1),
    Shape(128, 64, 2),
    Shape(128, 256, 2),
    Shape(192, 160, 3),
    Shape(64, 128, 2, pingpong=True),
    Shape(128, 64, 2, cluster=(2, 1)),
    Shape(128, 64, 2, cluster=(1, 2)),
    Shape(64, 24, 1, cluster=(2, 2)),
    Shape(64, 8, 1, cluster=(4, 1)),
)
_LAYOUTS = st.builds(
    Layout,
    transposed=st.booleans(),
    pad=st.sampled_from([0, 0, 1, 2, 7, 8]),
    step=st.sampled_from([1, 1, 1, 2]),
    start=st.sampled_from([0, 0, 1, 4, 8]),
)
_EXTENTS = st.one_of(st.integers(1, 20), st.integers(1, 150))


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    """Return mostly whole ranges; what the kernel refuses is drawn again."""
    shape = draw(st.sampled_from(_SHAPES))
    dtype = draw(st.sampled_from([F16, BF16, BF16, F32]))
    precision = "tf32" if dtype is F32 else draw(st.sampled_from(["default", "default", "high"]))
    batch = draw(st.sampled_from([1, 1, 1, 2, 3]))
    a, b, d = (draw(_LAYOUTS) for _ in "ABD")
    c = draw(st.none() | _LAYOUTS)
    shared = draw(st.sampled_from(["", "", "A", "B"])) if batch > 1 else ""
    given: dict[str, object] = {
        "a": Layout(a.transposed, a.pad, a.step, a.start, shared == "A"),
        "b": Layout(b.transposed, b.pad, b.step, b.start, shared == "B"),
        "d": d,
        "c": c,
        "dtype": dtype,
        "out_dtype": draw(st.sampled_from([None, None, F32])),
        "batch": batch,
        "bias": draw(st.sampled_from([None, "row", "column"])),
        "bias_step": draw(st.sampled_from([1, 2])),
        "activation": draw(st.sampled_from([None, *ACTIVATIONS])),
        "precision": precision,
        "alpha": draw(st.sampled_from([1.0, -1.5])),
        "seed": draw(st.integers(0, 99)),
    }
    k = draw(_EXTENTS)
    return Case(
        "random",
        shape,
        (draw(_EXTENTS), draw(_EXTENTS), k),
        swap=draw(st.booleans()),
        slices=min(draw(st.sampled_from([1, 1, 2, 3])), ceil_div(k * dtype.itemsize, SPAN)),
        sms=draw(st.sampled_from([2, 4, 8, 132])),
        stages=draw(st.sampled_from([0, 2, 3])),
        given=given,
    )


def _is_right(case: Case, late: bool, schedule: int) -> None:
    trial = case.product()
    kernel = case.kernel(trial.problem)
    reason = kernel.why_not(trial.problem, H200)
    if reason is not None:
        event("refused")
        return
    event(f"{kernel.entry}, {case.slices} slices")
    reports = trial.emulated(kernel, late_copies=late, schedule=schedule)
    assert [str(one) for report in reports for one in report.hazards if one.severity != "note"] == []
    assert trial.excess() <= 1


def test_random_products(request: pytest.FixtureRequest) -> None:
    many = request.config.getoption("--exhaustive")
    asked = settings(
        examples(_MANY if many else _FEW, ignore=list(HealthCheck)),
        derandomize=not many,
        phases=[Phase.explicit, Phase.generate],  # shrinking compiles again and again
    )
    asked(given(_cases(), st.booleans(), st.integers(0, 2))(_is_right))()
