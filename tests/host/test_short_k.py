"""The kernel for a short k on the host: which problems it takes, how its work tiles stand in memory, what it costs."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from math import log
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.gemm.shapes import packed, read
from lab.model_fit import Verdict, judge
from lab.models import MODELS
from matmill.arch import get
from matmill.choose import choose
from matmill.config import Columns
from matmill.dtypes import ALL, BF16, F32, DType
from matmill.jit.source import generate
from matmill.kernels.short_k import LONGEST_K, SHORT_K, space
from matmill.kernels.short_k.tiles import WorkTile, configured, keeps_b, shape_of, staging
from matmill.kernels.short_k.tiles import sizes as sizes_of
from matmill.problem import Gemm
from support.examples import examples

H200 = get("h200")
#: What the host of the record added to a launch, by ``benchmarks/fit_prices.py``.
HOST = 1.4e-6
RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "shapes_h200.json"


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (packed(64, 64, LONGEST_K + 1, F32), f"k = {LONGEST_K + 1} > {LONGEST_K}"),
        (packed(64, 64, 8, BF16), "bfloat16"),
        (replace(packed(64, 64, 8, F32), precision="tf32"), "tf32"),
        (packed(64, 64, 9, F32), "strides or alignments"),
        (replace(packed(64, 64, 8, F32), a_strides=(1, 64)), "strides or alignments"),
    ],
)
def test_what_it_does_not_take(problem: Gemm, said: str) -> None:
    arch = get("t4") if problem.dtype is BF16 else H200
    config = configured(WorkTile(1, 64, 64, 8, 8), packed(64, 64, 8, F32))
    reason = SHORT_K.with_config(config.launched(BLOCKS=264)).why_not(problem, arch)
    assert reason is not None
    assert said in reason


def test_long_sums_and_few_outputs_are_left_to_others() -> None:
    assert space(packed(64, 64, LONGEST_K + 1, F32), H200) == ()
    assert space(packed(3, 3, 200, F32), H200) == ()
    assert space(packed(3, 3, 200, F32, batch=1000), H200)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("batch", [20000, 1])
def test_small_products_get_it(dtype: str, batch: int) -> None:
    sizes = [(8, 8, 8), (17, 17, 17)] if batch > 1 else [(10**6, 4, 64)]
    if dtype != "float64":  # tensor cores take small products of float64 less long
        sizes += [(32, 32, 32)] if batch > 1 else [(8, 8, 8), (30, 40, 20)]
    for size in sizes:
        problem = packed(*size, ALL[dtype], batch=batch)
        assert choose(problem, H200, exhaustive=True).kernel.entry == "short_k", size


def test_packed_batches_are_one_run_whatever_their_size() -> None:
    """Groups of 8 products of 17 x 17 start on 16 bytes, groups of 7 do not: these stand as far behind a vector."""
    problem = packed(17, 17, 17, BF16, batch=100)
    config = configured(WorkTile(8, 17, 17, 32, 32), problem)
    assert (config["A_ONE_RUN"], config["B_ONE_RUN"], config["D_STAGED"]) == (1, 1, 1)
    own = staging(problem, config)
    assert (own.a.width, own.a.pitch, own.a.product) == (8, 17, 289)
    assert (config["A_SHIFTED"], config["B_SHIFTED"], config["D_SHIFTED"]) == (0, 0, 0)
    odd = configured(WorkTile(7, 17, 17, 32, 32), problem)
    assert (odd["A_ONE_RUN"], staging(problem, odd).a.width, odd["D_STAGED"]) == (1, 8, 1)
    assert (odd["A_SHIFTED"], odd["B_SHIFTED"], odd["D_SHIFTED"]) == (1, 1, 1)
    assert staging(problem, odd).a.elements == 7 * 289 + 7 + 2  # seven more, rounded up to vectors
    unknown = configured(WorkTile(8, 17, 17, 32, 32), replace(problem, base_align=None))
    assert (unknown["A_ONE_RUN"], unknown["D_STAGED"]) == (0, 0)


@pytest.mark.parametrize(("dtype", "aligns"), [(F32, (4, 8, 16)), (BF16, (2, 4, 8, 16))])
def test_one_kernel_copies_in_every_width(dtype: DType, aligns: tuple[int, ...]) -> None:
    """Rows that start on few bytes are copied by few, and a B that stays is copied once, by the same kernel."""
    shape, sources, widths = WorkTile(1, 64, 64, *((32, 32) if dtype is BF16 else (8, 8))), set(), set()
    for n, align in product((64, 128), aligns):
        k = 8 + align // dtype.itemsize  # and rows twice as long
        problem = replace(packed(1000, n, k, dtype), a_strides=(2 * k + 8, 1), a_align=align, d_strides=(256, 1))
        kernel = SHORT_K.with_config(configured(shape, problem).launched(BLOCKS=264))
        assert kernel.why_not(problem, H200) is None
        if 2 < align < 16 or dtype is F32:  # single halves go through registers, vectors of them are read by ldmatrix
            sources.add(generate(kernel, dtype).text)
        widths.add((staging(problem, kernel.config).a.width, bool(keeps_b(problem, 64))))
    assert len(sources) == 1
    assert widths == {(align // dtype.itemsize, keeps) for align in aligns for keeps in (True, False)}


@given(
    sizes=st.tuples(*[st.integers(1, 300)] * 3, st.sampled_from([1, 1, 9, 500])),
    dtype=st.sampled_from(list(ALL.values())), layouts=st.sampled_from(["nn", "nt", "tn", "tt"]),
    base=st.sampled_from([None, 16]), has_c=st.booleans(),
)  # fmt: skip
@examples(30)
def test_many_work_tiles_have_the_constants_of_each(
    *, sizes: tuple[int, ...], dtype: DType, layouts: str, base: int | None, has_c: bool
) -> None:
    m, n, k, batch = sizes
    problem = replace(packed(m, n, k, dtype, batch=batch, layouts=layouts), base_align=base, has_c=has_c)
    configs = space(problem, H200)
    assert len(set(configs)) == len(configs)
    for config in configs:
        one = configured(shape_of(config), problem)
        assert one.constants == config.constants
        own, many = (sizes_of(problem, each) for each in (config, Columns([config])))
        assert all(float(number) == column[0] for number, column in zip(own, map(np.atleast_1d, many), strict=True))


def test_runs_start_in_other_banks() -> None:
    """Rows of 64 floats are 17 vectors apart, an odd number."""
    problem = packed(1000, 64, 64, F32)
    own = staging(problem, configured(WorkTile(1, 64, 64, 8, 8), problem))
    assert own.a.pitch == 68
    assert own.b_first == 2 * own.sizes.stage_elements  # a B that stays is stored behind both stages


def test_the_model_chooses_well_among_what_was_timed() -> None:
    model = MODELS["short_k"].model
    of_that_run = replace(model.constants, start=model.constants.start + HOST)
    judged = judge(model, [one for one in read([RECORD]) if one.part == "judge"], H200, of_that_run)
    verdict = Verdict.of(judged)
    assert verdict.regret is not None
    assert verdict.regret < 1.07
    assert verdict.error < 0.1


def _constant(word: str) -> bool:
    """Tell whether a word of a record is no constant that became a parameter since, or that came in its stead."""
    return not word.startswith(("A_WIDTH=", "B_WIDTH=", "KEEP_B=", "A_BY_REGISTERS=", "B_BY_REGISTERS="))


def test_choices_are_at_most_a_few_percent_from_the_best_of_all_kernels() -> None:
    """Of what was timed, the kernel chosen today against the fastest, library excluded."""
    records = json.loads(RECORD.read_text(encoding="utf-8"))["records"]
    ratios = []
    for record in records:
        sizes = (record["m"], record["n"], record["k"], ALL[record["dtype"]])
        problem = packed(*sizes, batch=record["batch"], layouts=record["layouts"])
        kernel = choose(problem, H200, exhaustive=True).kernel
        seconds = {" ".join(filter(_constant, name.split(" "))): each for name, each in record["seconds"].items()}
        timed = {name: s for name, s in seconds.items() if name.split()[0] in {"short_k", "gemm", "hgemm"}}
        own = timed.get(" ".join(filter(_constant, f"{kernel.entry} {kernel.config}".split(" "))))
        if own is not None:
            ratios.append(own / min(timed.values()))
    assert len(ratios) > 0.5 * len(records)
    assert sum(map(log, ratios)) / len(ratios) < log(1.08)
