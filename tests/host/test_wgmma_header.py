"""Every instruction of ``ptx/wgmma.cuh`` assembles, with operands where its text says that they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import matmill
from matmill.jit.compile import assembler_report, compile_ptx
from matmill.jit.source import Source, included

HEADER = "matmill/ptx/wgmma.cuh"
TEXT = (Path(matmill.__file__).parent / "include" / HEADER).read_text(encoding="utf-8")
COLUMNS = [int(n) for n in re.findall(r"^MATMILL_WGMMA\((\d+),", TEXT, re.MULTILINE)]
ALL_TYPES = ("matmill::Half", "matmill::BFloat", "Tf32", "E4M3", "E5M2")


def kernel(scalar: str, n: int) -> str:
    """Return a kernel with two products, A from shared memory and from registers, whose sums it stores."""
    return f"""
extern "C" __global__ void __launch_bounds__(128, 1) k_{scalar.rsplit(":", 1)[-1]}_{n}(float* to, unsigned x) {{
  float sums[{n // 2}];
  const unsigned a[4] = {{x, x + 1, x + 2, x + 3}};
  wgmma_fence();
  wgmma<{scalar}>(sums, k_major_descriptor<128>(0), k_major_descriptor<128>(8192), false);
  wgmma<{scalar}>(sums, a, later(k_major_descriptor<128>(8192), 32), x > 0);
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_pin(sums);
  for (int i = 0; i < {n // 2}; ++i) to[i * 128 + threadIdx.x] = sums[i];
}}
"""


def source(*kernels: str) -> Source:
    text = f'#include "{HEADER}"\nusing namespace matmill::ptx;\n{"".join(kernels)}'
    return Source("wgmma", "", text, included(text))


def test_all_columns_and_types_assemble() -> None:
    pairs = [("matmill::BFloat", n) for n in COLUMNS] + [(scalar, 64) for scalar in ALL_TYPES if "BFloat" not in scalar]
    report = assembler_report(source(*(kernel(*pair) for pair in pairs)), "sm_90a")
    assert report.count("Compiling entry function") == len(pairs)
    assert not re.search(r"C75\d\d", report)
    assert set(re.findall(r"(\d+) bytes spill", report)) == {"0"}


@pytest.mark.parametrize("n", [8, 208, 256])
def test_registers_of_d_come_in_order(n: int) -> None:
    ptx = compile_ptx(source(kernel("matmill::Half", n)), "sm_90a")
    for shape in re.findall(r"wgmma\.mma_async\S*m64n(\d+)k16\S* \{([^}]*)\}", ptx):
        assert int(shape[0]) == n
        assert len(set(shape[1].split(", "))) == n // 2


def test_the_numbers_of_operands_follow_from_the_columns() -> None:
    for line in re.findall(r"^MATMILL_WGMMA\((.*)\)", TEXT, re.MULTILINE):
        n, registers, *rest = map(int, line.split(", "))
        assert registers == n // 2
        assert rest == [registers + i for i in range(7)]
