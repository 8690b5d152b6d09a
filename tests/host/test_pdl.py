"""Kernels with programmatic dependent launch wait for the launch before them, then let the one after them start."""

from __future__ import annotations

import re
from typing import Any

import pytest

from matmill.dtypes import F16, F32, DType
from matmill.jit.compile import compile_ptx
from matmill.jit.source import generate
from matmill.kernel import AuxLaunch, Kernel, Program
from matmill.kernels.gemm import GEMM
from matmill.kernels.hgemm import HGEMM
from matmill.kernels.inner import INNER
from matmill.kernels.thin import THIN
from matmill.kernels.transpose.add import TRANSPOSE_ADD
from matmill.kernels.transpose.slim import TRANSPOSE_SLIM
from matmill.kernels.transpose.small import TRANSPOSE_SMALL

_WAIT, _LET = "griddepcontrol.wait", "griddepcontrol.launch_dependents"
KERNELS: dict[str, tuple[Kernel[Any], DType]] = {
    "inner": (INNER, F32),
    "gemm": (GEMM, F32),
    "hgemm": (HGEMM, F16),
    "thin": (THIN, F32),
    "transpose_add": (TRANSPOSE_ADD, F32),
    "transpose_slim": (TRANSPOSE_SLIM, F32),
    "transpose_small": (TRANSPOSE_SMALL, F32),
}


def _programs(kernel: Kernel[Any]) -> tuple[Kernel[Any] | AuxLaunch[Any], ...]:
    """Return those of its launches that may start before the launch ahead of them has ended."""
    launches: tuple[Kernel[Any] | AuxLaunch[Any], ...] = (*kernel.before, kernel, *kernel.after)
    return tuple(one for one in launches if one.pdl)


def _body(program: Program, dtype: DType, target: str) -> str:
    """Return the PTX of its entry point."""
    _, name, body = re.split(r"\.entry (\w+)\(", compile_ptx(generate(program, dtype), target))
    assert name == program.entry
    return body


@pytest.mark.parametrize("name", KERNELS)
def test_dependent_launches_wait_before_they_touch_memory_or_end(name: str) -> None:
    kernel, dtype = KERNELS[name]
    assert kernel in _programs(kernel)
    for program in _programs(kernel):
        before, wait, after = _body(program, dtype, "sm_90").partition(_WAIT)
        assert wait
        assert not re.search(r"\b(ld\.global|st\.global|ret;|bra)", before)
        assert _LET in after
        assert ".nc" not in after  # for what nobody writes while the kernel runs


@pytest.mark.parametrize("name", KERNELS)
def test_older_gpus_are_told_nothing_of_it(name: str) -> None:
    kernel, dtype = KERNELS[name]
    assert not any("griddepcontrol" in _body(program, dtype, "sm_80") for program in _programs(kernel))
