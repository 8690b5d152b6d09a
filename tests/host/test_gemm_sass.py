"""The float32 product's main loop in machine code: as lean as the ladder's, and without register-bank conflicts."""

from __future__ import annotations

import pytest

from lab.machine_code import bank_conflicts, compiled, disassembler, opcodes
from matmill.arch import get
from matmill.dtypes import F32
from matmill.errors import MatmillError
from matmill.kernel import Kernel
from matmill.kernels.gemm import GEMM
from matmill.kernels.gemm.tiles import TILES, with_vector_widths
from matmill.ladders.sgemm.rungs import TUNED
from matmill.problem import Gemm

H200 = get("h200")
N = 4096
SQUARE = Gemm(N, N, N)
B_TRANSPOSED = Gemm(N, N, N, b_strides=(1, N))
A_TRANSPOSED = Gemm(N, N, N, a_strides=(1, N))


def _main_loop(kernel: Kernel[Gemm]) -> tuple[str, ...]:
    """Return the loop with the most FFMA."""
    _, result = compiled(kernel, F32, H200.target, disassembler())
    loops = [result.lines[start : end + 1] for start, end in result.loops()]
    return max(loops, key=lambda loop: opcodes(loop)["FFMA"])


@pytest.fixture(autouse=True)
def _with_disassembler(machine_code: None) -> None:  # noqa: ARG001 — it has binaries come with machine code
    try:
        disassembler()
    except MatmillError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("problem", [SQUARE, B_TRANSPOSED, A_TRANSPOSED], ids=["nn", "nt", "tn"])
@pytest.mark.parametrize("tile", [0, 1, 2])
def test_fmas_of_the_main_loop_read_registers_of_both_banks(tile: int, problem: Gemm) -> None:
    config = with_vector_widths(TILES[4][tile], problem).launched(SPLIT_K=1)
    loop = _main_loop(GEMM.with_config(config))
    # Where the accumulators were tied to rows of four registers, it was up to half of them.
    assert bank_conflicts(loop) < 0.02 * opcodes(loop)["FFMA"]


def test_any_strides_cost_a_handful_of_instructions_per_k_tile() -> None:
    config = with_vector_widths(TILES[4][0], SQUARE)
    ours, packed = (
        opcodes(_main_loop(kernel))
        for kernel in (GEMM.with_config(config.launched(SPLIT_K=1)), TUNED.kernel.with_config(config))
    )
    assert ours["FFMA"] == packed["FFMA"] == 16 * 8 * 8
    assert ours.total() <= packed.total() + 8
    assert ours.total() < 1.11 * ours["FFMA"]
