"""Launches that start early wait for the one before them, and then let the one after them start."""

from __future__ import annotations

import re
from typing import Any

import pytest

from matmill.dtypes import F16, F32, DType
from matmill.jit.compile import compile_ptx
from matmill.jit.source import generate
from matmill.kernel import Kernel
from matmill.kernels.gemm import GEMM
from matmill.kernels.hgemm import HGEMM
from matmill.kernels.inner import INNER
from matmill.kernels.transpose_add import TRANSPOSE_ADD
from matmill.kernels.transpose_slim import TRANSPOSE_SLIM
from matmill.kernels.transpose_small import TRANSPOSE_SMALL

_WAIT, _LET = "griddepcontrol.wait", "griddepcontrol.launch_dependents"
KERNELS: dict[str, tuple[Kernel[Any], DType]] = {
    "inner": (INNER, F32),
    "gemm": (GEMM, F32),
    "hgemm": (HGEMM, F16),
    "transpose_add": (TRANSPOSE_ADD, F32),
    "transpose_slim": (TRANSPOSE_SLIM, F32),
    "transpose_small": (TRANSPOSE_SMALL, F32),
}


def _entries(kernel: Kernel[Any], dtype: DType, target: str) -> dict[str, str]:
    ptx = compile_ptx(generate(kernel, dtype), target)
    found = re.split(r"\.entry (\w+)\(", ptx)
    return dict(zip(found[1::2], found[2::2], strict=True))


@pytest.mark.parametrize("name", KERNELS)
def test_early_launches_wait_before_they_touch_memory_or_end(name: str) -> None:
    kernel, dtype = KERNELS[name]
    entries = _entries(kernel, dtype, "sm_90")
    assert kernel.early
    for entry in (kernel.entry, *(stage.entry for stage in (*kernel.before, *kernel.after) if stage.early)):
        before, wait, after = entries[entry].partition(_WAIT)
        assert wait
        assert not re.search(r"\b(ld\.global|st\.global|ret;|bra)", before)
        assert _LET in after
        assert ".nc" not in after  # for what nobody writes while the kernel runs


@pytest.mark.parametrize("name", KERNELS)
def test_older_gpus_are_told_nothing_of_it(name: str) -> None:
    kernel, dtype = KERNELS[name]
    assert not any("griddepcontrol" in text for text in _entries(kernel, dtype, "sm_80").values())
