"""Audits of products of torch's tensors, in bfloat16 too, which NumPy does not know."""

from __future__ import annotations

from typing import Any

import pytest

from matmill import cli
from matmill.cli import main
from matmill.testing import audit

torch = pytest.importorskip("torch")


def _around(a: Any, b: Any, *, out: Any = None) -> Any:
    """Write one element behind the result."""
    if out is None:
        return a @ b
    out.copy_(a @ b)
    out.as_strided((out.numel() + 1,), (1,))[-1] = 1
    return out


def _before(a: Any, b: Any) -> Any:
    """Read one element in front of A."""
    return a @ b + 0 * a.as_strided((1,), (1,), a.storage_offset() - 1)


def test_torch_on_the_host_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "torch", "--device", "cpu", "--dtype", "f32", "f64"]) == cli.OK
    text = capsys.readouterr().out
    assert text.count("yes       writes all of D, and nothing around it") == 2


@pytest.mark.parametrize(
    ("function", "name", "detail"),
    [
        (lambda a, b: a[:, :-1] @ b[:-1], "terms", "lost: 64 (of 0…64)"),
        (_around, "written", "1 elements around D are written"),
        (_before, "bounds", "is NaN: what surrounds the operands was read"),
    ],
    ids=["terms", "written", "bounds"],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_defects_are_named(function: Any, name: str, detail: str, dtype: str) -> None:
    report = audit(function, dtype=dtype, device="cpu")
    assert report.wrong[0].name == name
    assert report.wrong[0].detail.endswith(detail)
