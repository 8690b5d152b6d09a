"""The warp-specialised kernel compiles well: no remark of the assembler, no spill, no stack, registers within budget.

Covered here are the registers of each tile in its most demanding epilogue, the remarks of every third tile, and each
layout, way that D leaves and precision of the two largest tiles. ``--exhaustive`` takes every variant.
"""

from __future__ import annotations

import re

import pytest

from matmill.config import Config
from matmill.dtypes import BF16, F16, F32
from matmill.jit.compile import Resources, assembler_report, parse_resources
from matmill.jit.source import Source, generate
from matmill.kernel import Kernel
from matmill.kernels.wgmma import WGMMA
from matmill.kernels.wgmma.tiles import EXAMPLES, Shape, configured, threads
from matmill.problem import Gemm
from support.compiled import resources
from support.strided import H200
from support.wgmma_cases import REGISTERS as IN_REGISTERS
from support.wgmma_cases import Case
from support.wgmma_variants import EPILOGUES, LAYOUTS, WAYS, Variant, everything

#: Registers of an SM, and what a thread can have at most.
_REGISTERS, _MOST = 65536, 255
_REMARK = re.compile(r"C75\d\d|serializ|setmaxnreg ignored", re.IGNORECASE)
#: Accumulators of the largest tiles whose sums are promoted: as many again are the separate sums.
_HALF = 96
_LARGEST, _DEMANDING = EXAMPLES[:2], "row bias, gelu, C"
#: Compiled whole, for their remarks: products and waits, which epilogues do not change. Odd tiles have another layout.
REMARKS = [
    *(Variant(shape, ("tn", "nt")[index % 2]) for index, shape in enumerate(EXAMPLES[::3])),
    *(Variant(_LARGEST[0], layout) for layout in LAYOUTS if layout != "tn"),
    *(Variant(_LARGEST[1], layout) for layout in LAYOUTS if layout != "nt"),
    *(Variant(shape, precision="high") for shape in EXAMPLES if shape.sums == _HALF),
    Variant(_LARGEST[0], dtype=F16),
    Variant(_LARGEST[1], "tn", "float32", precision="tf32", dtype=F32),
]
#: Known by their sources, where these are old.
REGISTERS = [
    *(Variant(shape, "tn", "TMA", _DEMANDING) for shape in EXAMPLES),
    *(Variant(shape, "tn", way, _DEMANDING) for shape in _LARGEST for way in WAYS if not way.startswith("partial")),
    *(Variant(shape, "tn", way) for shape in _LARGEST for way in WAYS if way.startswith("partial")),
    *(Variant(_LARGEST[1], "tn", "TMA", epilogue) for epilogue in EPILOGUES),
]


def _known(variants: list[Variant]) -> list[Variant]:
    """Return those that the kernel does not refuse, each once."""
    return [variant for variant in dict.fromkeys(variants) if variant.kernel is not None]


def _is_within_budget(kernel: Kernel[Gemm], needs: Resources) -> None:
    config, count = kernel.config, threads(kernel.config)
    spilled = (needs.spill_stores, needs.spill_loads, needs.stack)
    assert spilled == (0, 0, 0) or (spilled == (4, 4, 8) and _may_spill(config))
    if config["CONSUMER_REGISTERS"]:
        # What setmaxnreg moves: the launch bounds give all threads the same, in steps of eight.
        assert needs.registers == _REGISTERS // count // 8 * 8
        assert _moved(config) <= needs.registers * count <= _REGISTERS
    else:
        assert needs.registers <= min(_MOST, _REGISTERS // count)


def _may_spill(config: Config) -> bool:
    """Return one register of the 128x192 tile of consumers that alternate, with an MN-major B.

    It was the fastest on an H200 for 8192 x 8192 x 8192 in float16 all the same: 1.05 of torch.mm's rate (2026-11-23).
    """
    return bool(config["PINGPONG"] and config["BM"] * config["BN"] == 128 * 192 and not config["B_K_INNER"])


def _moved(config: Config) -> int:
    """Count the registers of a block after setmaxnreg."""
    return 128 * (config["PRODUCER_REGISTERS"] + config["CONSUMERS"] * config["CONSUMER_REGISTERS"])


def _source(variant: Variant) -> tuple[Kernel[Gemm], Source]:
    kernel = variant.kernel
    assert kernel is not None
    return kernel, generate(kernel, variant.dtype)


def _compiles_well(variant: Variant) -> None:
    kernel, source = _source(variant)
    report = assembler_report(source, H200.target)
    assert _REMARK.search(report) is None, report
    _is_within_budget(kernel, parse_resources(report, source.entry))


@pytest.mark.parametrize("variant", _known(REMARKS), ids=str)
def test_no_product_is_serialized(variant: Variant) -> None:
    _compiles_well(variant)


@pytest.mark.parametrize("variant", _known(REGISTERS), ids=str)
def test_nothing_spills(variant: Variant) -> None:
    kernel, source = _source(variant)
    _is_within_budget(kernel, resources(source, H200.target))


@pytest.mark.parametrize("case", IN_REGISTERS[:8], ids=str)
def test_no_product_with_a_in_registers_is_serialized_or_spills(case: Case) -> None:
    kernel = case.kernel(case.product().problem)
    report = assembler_report(generate(kernel, BF16), H200.target)
    assert _REMARK.search(report) is None, report
    _is_within_budget(kernel, parse_resources(report, kernel.entry))


@pytest.mark.parametrize(
    ("problem", "shape", "words"),
    [
        (Gemm(128, 128, 77, F32, precision="tf32", a_align=4), EXAMPLES[0], "no unaligned fragments"),
        (Gemm(128, 128, 77, BF16, a_strides=(154, 2), a_align=4), EXAMPLES[0], "apart along both dimensions"),
        (Gemm(128, 128, 2**30 + 1, BF16, a_align=2), EXAMPLES[0], "more than its copies count"),
        (Gemm(128, 128, 77, BF16, a_align=2, precision="high"), EXAMPLES[7], "promoted sums"),
        (Gemm(128, 128, 77, BF16, a_align=2), Shape(256, 128, 2), "not 256"),
        (Gemm(128, 128, 77, BF16, a_align=2), Shape(128, 128, 2, cluster=(1, 2)), "another block loads"),
        (Gemm(128, 128, 77, BF16, a_align=2), Shape(64, 128, 2, pingpong=True), "same warp group"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_does_not_go_through_registers(problem: Gemm, shape: Shape, words: str) -> None:
    config = configured(shape, problem, H200, repack="B", in_registers=True)
    assert words in (WGMMA.with_config(config).why_not(problem, H200) or "")


def test_an_a_is_repacked_or_goes_through_registers() -> None:
    problem = Gemm(128, 128, 77, BF16, a_align=2)
    both = configured(EXAMPLES[0], problem, H200, repack="A", in_registers=True)
    neither = configured(EXAMPLES[0], problem, H200)
    assert "or is repacked" in (WGMMA.with_config(both).why_not(problem, H200) or "")
    assert "TMA needs rows of A" in (WGMMA.with_config(neither).why_not(problem, H200) or "")


def test_a_float32_d_is_staged_where_its_rows_start_off_16_bytes() -> None:
    aligned, odd = (Gemm(128, n, 64, BF16, d_align=align, out_dtype=F32) for n, align in ((128, 16), (127, 4)))
    staged, direct = configured(EXAMPLES[0], odd, H200), configured(EXAMPLES[0], aligned, H200)
    assert (staged["STAGED"], direct["STAGED"]) == (64, 0)
    # The largest tile has as many stages either way, and the narrowest ones are never staged.
    assert staged["STAGES"] == direct["STAGES"]
    assert configured(Shape(64, 16, 1), odd, H200)["STAGED"] == 0
    for config, problem, words in ((direct, odd, "passes through shared"), (staged, aligned, "stored from registers")):
        assert words in (WGMMA.with_config(config).why_not(problem, H200) or "")


def test_every_variant_compiles_well(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--exhaustive"):
        pytest.skip("compiles for 20 minutes: --exhaustive")
    seen = set()
    for variant in _known(list(everything())):
        digest = _source(variant)[1].digest
        if digest not in seen:
            seen.add(digest)
            _compiles_well(variant)
    assert len(seen) > 2000
