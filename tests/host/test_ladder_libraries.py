"""Libraries beside ladders: cuBLAS and CuPy over stand-ins, their refusals, and how matrices reach them."""

from __future__ import annotations

import ctypes
import sys
from contextlib import nullcontext
from math import prod
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from matmill.bench.libraries import gemm
from matmill.bench.libraries import transpose_add as libraries
from matmill.bench.libraries.gemm import NARROW, WIDE, half_peers
from matmill.bench.libraries.transpose_add import CUPY, CupySum
from matmill.bench.problems.inputs import Inputs
from matmill.bench.problems.transpose_sums import TransposeAddInputs, exact_sum
from matmill.dtypes import BF16, F16, F32, I8, DType
from matmill.ladders.hgemm.subject import HalfInputs, half_product
from matmill.ladders.inner.subject import inner_product
from matmill.ladders.transpose_add.subject import transpose_add_problem
from support.fake_torch import Tensor, stand_in

Array = NDArray[Any]


def _array(memory: Any) -> Array:
    """Return the array that a library makes of memory on the GPU."""
    interface = memory.__cuda_array_interface__
    size = prod(interface["shape"]) * np.dtype(interface["typestr"]).itemsize
    flat = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(interface["data"][0]))
    return np.ndarray(interface["shape"], interface["typestr"], flat, strides=interface["strides"])


class FakeCupy(ModuleType):
    """The part of CuPy that products and sums use, over NumPy."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self.__version__ = "0"
        self.cuda = SimpleNamespace(
            ExternalStream=lambda _address: nullcontext(), Device=lambda: SimpleNamespace(synchronize=lambda: None)
        )
        self.made: list[str] = []
        self.add, self.empty_like, self.full = np.add, np.empty_like, np.full
        self.asnumpy, self.asarray = np.asarray, _array

    def matmul(self, a: Array, b: Array, out: Array) -> None:
        """Multiply in float32."""
        out[...] = a.astype(np.float32) @ b.astype(np.float32)

    def ElementwiseKernel(self, _inputs: str, _outputs: str, code: str, _name: str) -> Any:  # noqa: N802 — CuPy's name
        """Return a kernel that does in NumPy what the code says."""
        self.made.append(code)

        def kernel(x: Array, y: Array, z: Array) -> None:
            z[...] = exact_sum(x.copy().view(BF16.numpy), y.view(BF16.numpy)).view(np.uint16)

        return kernel


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(libraries, "find_spec", lambda name: object() if name == "cupy" else None)
    return fake


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    def resident(memory: Any, device: str) -> Tensor:
        assert device == "cuda"
        return Tensor(_array(memory))

    result: Any = stand_in()
    result.as_tensor = resident
    monkeypatch.setitem(sys.modules, "torch", result)
    monkeypatch.setattr(gemm, "installed", lambda: ("torch", "cupy"))
    return result


# Products


def _asked(dtype: DType) -> HalfInputs:
    return HalfInputs.random(half_product(40, 24, 56, dtype), 3)


def _peers(asked: HalfInputs) -> tuple[list[Any], list[str]]:
    result, absent = half_peers(asked, asked.a.ctypes.data, asked.b.ctypes.data)
    return list(result), absent


def test_cublas_sums_both_ways_through_torch(torch: Any) -> None:
    torch.backends.cuda.matmul.allow_fp16_accumulation = False
    seen = []
    plain = torch.mm

    def mm(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
        seen.append(torch.backends.cuda.matmul.allow_fp16_accumulation)
        result: Tensor = plain(a, b, out=out)
        return result

    torch.mm = mm
    asked = _asked(F16)
    result, absent = _peers(asked)
    assert absent == []
    assert [(peer.name, peer.version) for peer in result] == [(name, "torch 0 (stand-in)") for name in (WIDE, NARROW)]
    assert [getattr(peer, "acc16", None) for peer in result] == [False, True]
    assert seen == [False, True]
    assert torch.backends.cuda.matmul.allow_fp16_accumulation is False
    assert torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction is False
    assert all(asked.check(peer.result()).ok for peer in result)


def test_the_switch_goes_back_where_a_call_fails(torch: Any) -> None:
    torch.backends.cuda.matmul.allow_fp16_accumulation = False

    def broken(*_: object, out: object) -> None:
        raise RuntimeError(f"no kernel\nfor {out}")

    torch.mm = broken
    asked = _asked(F16)
    result, absent = _peers(asked)
    assert result == []
    assert absent == [f"not compared with {name}: no kernel" for name in (WIDE, NARROW)]
    assert torch.backends.cuda.matmul.allow_fp16_accumulation is False


def test_an_older_torch_has_float32_sums_alone(torch: Any) -> None:
    for dtype, notes in ((F16, 1), (BF16, 0)):
        asked = _asked(dtype)
        result, absent = _peers(asked)
        assert [peer.name for peer in result] == [WIDE]
        assert asked.check(result[0].result()).ok
        assert len(absent) == notes
        assert all("torch has them since 2.7, and this is 0 (stand-in)" in note for note in absent)
    assert not hasattr(torch.backends.cuda.matmul, "allow_fp16_accumulation")


@pytest.mark.usefixtures("cupy")
def test_cupy_is_what_is_left(torch: Any) -> None:
    torch.cuda.is_available = lambda: False
    result, absent = _peers(asked := _asked(F16))
    assert absent == []
    assert [(peer.name, peer.version) for peer in result] == [(WIDE, "cupy 0")]
    assert asked.check(result[0].result()).ok
    assert _peers(_asked(BF16)) == ([], [f"not compared with {WIDE}: bfloat16 is not handed to it"])


def test_libraries_that_refuse_are_told_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "installed", lambda: ("cupy",))
    result, absent = gemm.peers(Inputs.random(inner_product(2, 2, 8, BF16), 1), 256, 512)
    assert result == []
    assert absent == ["not compared with cupy (cupy_matmul): bfloat16 is not handed to it"]


def test_matrices_reach_a_library_as_they_lie() -> None:
    problem = inner_product(2, 3, 100, BF16, "column")
    e, f = (device.__cuda_array_interface__ for device in gemm._operands(problem, 1024, 4096))
    assert (e["data"], e["shape"], e["strides"], e["typestr"]) == ((1024, False), (2, 100), (200, 2), "<i2")
    assert (f["data"], f["shape"], f["strides"]) == ((4096, False), (100, 3), (2, 200))


# Sums


@pytest.mark.parametrize("dtype", [F32, BF16, F16, I8], ids=lambda dtype: dtype.name)
def test_cupy_gets_the_matrices_where_they_are(dtype: DType, cupy: FakeCupy) -> None:
    asked = TransposeAddInputs.random(transpose_add_problem(33, 20, dtype), 5)
    x = np.ascontiguousarray(asked.a.T)
    result, absent = libraries.transpose_add_peers(asked, x.ctypes.data, asked.b.ctypes.data)
    assert absent == ["not compared with torch, which is not installed"]
    (peer,) = result
    assert isinstance(peer, CupySum)
    assert (peer.name, peer.version) == (CUPY, "cupy 0")
    assert asked.check(peer.result()).ok
    assert len(cupy.made) == (dtype is BF16)


def test_what_refuses_is_told(cupy: FakeCupy) -> None:
    def broken(*_: object, out: object = None) -> None:
        raise RuntimeError(f"no kernel\nfor {out}")

    cupy.add = broken  # type: ignore[assignment]  # another callable
    asked = TransposeAddInputs.random(transpose_add_problem(8, 8, F32), 5)
    result, absent = libraries.transpose_add_peers(asked, asked.a.ctypes.data, asked.b.ctypes.data)
    assert result == []
    assert absent[-1] == "not compared with CuPy: no kernel"


def test_the_bits_of_a_sum_of_bfloat16_are_rounded_as_written() -> None:
    """The arithmetic of the kernel that CuPy compiles, step by step in NumPy's integers."""
    values = np.array([1.0, 2.0**-8, 1.5 * 2.0**-8, -3.0, 1e30, 3e38, np.inf, np.nan, 0.0, -0.0], np.float32)
    x, y = (grid.ravel().astype(BF16.numpy) for grid in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        total = (x.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        total = total + (y.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        bits = total.view(np.uint32)
        rounded = ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        rounded[np.isnan(total)] = 0x7FFF
        expected = exact_sum(x[None], y[None])[0]
    same = rounded == expected.view(np.uint16)
    assert np.all(same | np.isnan(expected.astype(np.float32)) & np.isnan(rounded.view(BF16.numpy).astype(np.float32)))
