"""Launches that start early wait for the one before them, and the kernels before them let them start."""

from __future__ import annotations

import re

import pytest

from matmill.compile import compile_ptx
from matmill.dtypes import F16, F32
from matmill.kernel import Kernel
from matmill.kernels.gemm import GEMM
from matmill.kernels.hgemm import HGEMM
from matmill.kernels.inner import INNER
from matmill.problem import Gemm
from matmill.source import generate

_WAIT, _LET = "griddepcontrol.wait", "griddepcontrol.launch_dependents"
KERNELS = {"inner": (INNER, F32), "gemm": (GEMM, F32), "hgemm": (HGEMM, F16)}


def _entries(kernel: Kernel[Gemm], dtype: object, target: str) -> dict[str, str]:
    ptx = compile_ptx(generate(kernel, dtype), target)  # type: ignore[arg-type] # one of ours
    found = re.split(r"\.entry (\w+)\(", ptx)
    return dict(zip(found[1::2], found[2::2], strict=True))


@pytest.mark.parametrize("name", KERNELS)
def test_early_launches_wait_before_they_touch_memory_or_end(name: str) -> None:
    kernel, dtype = KERNELS[name]
    entries = _entries(kernel, dtype, "sm_90")
    early = {stage.entry for stage in kernel.after if stage.early}
    assert early
    for entry in early:
        before, wait, _ = entries[entry].partition(_WAIT)
        assert wait
        assert not re.search(r"\b(ld\.global|st\.global|ret;|bra)", before)
        assert ".nc" not in entries[entry]  # for what nobody writes while the kernel runs
    assert _LET in entries[kernel.entry]
    assert all(_LET not in text for entry, text in entries.items() if entry != kernel.entry)


@pytest.mark.parametrize("name", KERNELS)
def test_older_gpus_are_told_nothing_of_it(name: str) -> None:
    kernel, dtype = KERNELS[name]
    assert not any("griddepcontrol" in text for text in _entries(kernel, dtype, "sm_80").values())
