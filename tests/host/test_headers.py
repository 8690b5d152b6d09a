"""Every header compiles by itself, so that no order of includes matters."""

from __future__ import annotations

from pathlib import Path

import pytest

import matmill
from matmill.config import Config
from matmill.dtypes import F16
from matmill.jit.compile import compile_ptx
from matmill.jit.source import Source, included

INCLUDE = Path(matmill.__file__).parent / "include"
HEADERS = [path.relative_to(INCLUDE).as_posix() for path in sorted(INCLUDE.rglob("*.cuh"))]


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_includes_what_it_uses(header: str) -> None:
    types = f'#include "{F16.header}"\nusing Scalar = {F16.cxx};\nstruct Args;\n'
    text = f'{Config().cxx()}\n{types}#include "{header}"\nextern "C" __global__ void alone() {{}}\n'
    assert ".entry alone(" in compile_ptx(Source("header", "alone", text, included(text)), "sm_90a")
