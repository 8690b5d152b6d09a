"""What errors advise is done here, and cures the call."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import matmill
from matmill.arrays.cures import cure
from matmill.cli import USAGE, main
from matmill.errors import ArgumentError, DTypeError, ShapeError

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


#: Types that no product takes.
FOREIGN = ("bool", "int16", "uint16", "longdouble")


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_other_element_types_become_ones_that_hold_them(kind: str, library: str) -> None:
    largest = {"int16": -(2**15), "uint16": 2**16 - 1}.get(kind, 1)
    values = np.array([[largest, 0], [0, 1]], kind)
    a: Any = values
    if library == "torch":
        if find_spec("torch") is None or kind == "longdouble":
            pytest.skip("torch has no such type here")
        a = import_module("torch").from_numpy(a)
    with pytest.raises(DTypeError) as raised:
        matmill.matmul(a, a, executor="cpu")
    (advised,) = re.findall(r"a\.\w+(?:\([^)]*\))?", raised.value.fix)
    wider = eval(advised, {"a": a, "torch": sys.modules.get("torch")})  # noqa: S307 — our own message
    result = matmill.matmul(wider, np.eye(2, dtype=np.asarray(wider).dtype), executor="cpu")
    assert np.array_equal(np.asarray(result), values)


@pytest.mark.parametrize("name", ["c", "out"])
@pytest.mark.parametrize(("narrow", "wide"), [("float16", "float32"), ("float32", "float64")])
def test_a_wider_result(name: str, narrow: str, wide: str) -> None:
    a, wider = np.ones((2, 3), narrow), np.ones((2, 2), wide)
    given: dict[str, Any] = {"out": wider} if name == "out" else {"c": wider, "beta": 1.0}
    with pytest.raises(DTypeError, match=f"Pass out_dtype='{wide}'"):
        matmill.matmul(a, a.T, **given)
    assert matmill.matmul(a, a.T, out_dtype=wide, executor="cpu", **given).dtype == wide
    with pytest.raises(DTypeError, match="Convert one of them") as raised:  # of a sum there is no wider one
        matmill.transpose_add(a, np.ones((3, 2), wide), executor="cpu")
    assert "out_dtype" not in str(raised.value)


def test_a_file_of_bfloat16_without_a_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "a.npy", tmp_path / "d.npy"
    np.save(path, np.ones((3, 4), ml_dtypes.bfloat16))
    assert main(["inner", str(path), "--out", str(out), "--executor", "cpu"]) == USAGE
    assert "Name the type: --dtype bfloat16" in capsys.readouterr().err
    assert main(["inner", str(path), "--out", str(out), "--executor", "cpu", "--dtype", "bfloat16"]) == 0
    assert (np.load(out).view(ml_dtypes.bfloat16) == 4).all()


def test_a_frame_of_dask_becomes_an_array_at_once() -> None:
    frame = type("DataFrame", (), {"__module__": "dask.dataframe.dask_expr._collection"})
    array = type("Array", (), {"__module__": "dask.array.core"})
    assert cure(frame(), "a") == "Pass a.compute().to_numpy()."
    assert cure(array(), "a") == "Pass a.compute()."


@needs_torch
def test_linear_speaks_of_its_own_arguments() -> None:
    torch, mt = import_module("torch"), import_module("matmill.torch")
    x = torch.ones(4, 5)
    with pytest.raises(ShapeError, match=r"input, weight: got shapes \(4, 5\) and \(5, 3\).*Transpose weight"):
        mt.linear(x, torch.ones(5, 3))
    assert mt.linear(x, torch.ones(5, 3).T).shape == (4, 3)
    w, b = torch.ones(3, 5).half(), torch.ones(3).half()
    with pytest.raises(DTypeError, match=r"weight: got dtype float16; .*float32. Pass weight.to\(input.dtype\)"):
        mt.linear(x, w)
    with pytest.raises(DTypeError, match=r"bias: got dtype float16; .*float32. Pass bias.to\(input.dtype\)"):
        mt.linear(x, w.to(x.dtype), b)
    assert (mt.linear(x, w.to(x.dtype), b.to(x.dtype)) == 6).all()


@needs_torch
def test_placements_are_shown_as_they_are_and_partial_is_not_advised() -> None:
    kinds, dtensor = import_module("torch.distributed.tensor"), import_module("matmill.torch.dtensor")
    average, replicate, shard = kinds.Partial("avg"), kinds.Replicate(), kinds.Shard(0)
    shown = [dtensor._text(x) for x in (kinds.Partial(), average, replicate, kinds.Shard(1))]
    assert shown == ["Partial()", 'Partial("avg")', "Replicate()", "Shard(1)"]
    strided = SimpleNamespace(dim=0)
    assert dtensor._text(strided) == repr(strided)
    rules = [wanted for _, wanted in dtensor._rules("matmul", ((4, 4), (4, 4)), epilogue=False)]
    for given in ((average, replicate), (replicate, average), (average, shard)):
        error = str(dtensor._refused("matmul", given, rules))
        assert 'Partial("avg")' in error
        assert "redistribute(placements=[Partial" not in error


def test_arrays_of_jax_are_refused_before_their_export_is() -> None:
    array = type("Array", (), {"__module__": "jaxlib", "dtype": np.dtype("int16"), "__dlpack__": None})()
    array.__dlpack_device__ = None
    with pytest.raises(DTypeError, match=r"a\.astype\('int32'\)"):
        matmill.matmul(array, array)


def test_a_deleted_array_of_jax_says_so() -> None:
    deleted = np.ones((2, 2), np.float32)
    members = {"__module__": "jaxlib", "dtype": deleted.dtype, "is_deleted": lambda _self: True}
    exports = {"__dlpack__": lambda _self, **_wishes: len(None), "__dlpack_device__": lambda _self: len(None)}  # type: ignore[arg-type] # as JAX fails
    array = type("Array", (), {**members, **exports})()
    with pytest.raises(ArgumentError, match=r"a: got a deleted JAX array.* pass a copy to it: a\.copy\(\)"):
        matmill.matmul(array, deleted)
