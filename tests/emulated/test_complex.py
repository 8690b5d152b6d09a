"""Complex products on the way through a GPU: their launches, plans and workspaces, and races of the copies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from matmill import arch
from matmill.arrays import inspect
from matmill.dispatch import plan_cache
from matmill.dtypes import C64, C128, F32, F64, PRODUCTS, DType
from matmill.emulator import Memory, run
from matmill.jit.compile import compile_ptx
from matmill.jit.source import generate
from matmill.kernel import GemmOperands
from matmill.kernels.complex_copy import COMPLEX_COPY
from matmill.kernels.complex_gemm import COMPLEX_GEMM
from matmill.launch import Pointer
from matmill.lowering.complex import lower_complex
from matmill.problem import ComplexCopy, ComplexGemm, Gemm
from support.complex_product import excess, random
from support.fake_gpu import DeviceArray, FakeGPU, Tensors

Array = NDArray[Any]


def _names(device: FakeGPU) -> list[str]:
    return [launch.kernel.removeprefix("kernels.") for launch, _ in device.launches]


def test_numpy_arrays_travel_once(device: FakeGPU) -> None:
    a, b, c = random(0, 20, 30), random(1, 30, 40), random(2, 20, 40)
    for alpha, beta in ((1, 2), (1, 2j), (3j, 1), (3j, 2j)):
        assert excess(matmill.matmul(a, b, c=c, alpha=alpha, beta=beta), a, b, c, alpha=alpha, beta=beta) <= 1
    assert device.uploaded == [a.nbytes, b.nbytes, c.nbytes] * 4


def test_real_and_complex_scalars_have_plans_of_their_own(device: FakeGPU, tensors: Tensors) -> None:
    a, b, c = random(0, 20, 30), random(1, 30, 40), random(2, 20, 40)
    x, y, z, out = tensors(a), tensors(b), tensors(c), np.empty_like(c)
    launches = []
    for alpha, beta in ((1, 2), (1, 3), (1j, 3), (1, 2j), (0, 2j), (2j, 3j), (1, 3)):
        before = len(device.launches)
        matmill.matmul(x, y, c=z, alpha=alpha, beta=beta, out=tensors(out))
        assert excess(out, a, b, c, alpha=alpha, beta=beta) <= 1
        launches.append(_names(device)[before:].count("complex_copy"))
    assert launches == [1, 1, 1, 2, 1, 2, 1]
    assert len(plan_cache.calls) == 4 + 1  # the types of scalars, and alpha = 0


def test_lazy_conjugates_of_tensors(device: FakeGPU, tensors: Tensors) -> None:
    a, b, c = random(0, 12, 20), random(1, 20, 9), random(2, 12, 9)
    assert device.launches == []
    for flags in np.ndindex(2, 2, 2):
        views = [tensors(x) for x in (a, b, c)]
        for view, flag in zip(views, flags, strict=True):
            view.conjugated = bool(flag)
        meant = [x.conj() if flag else x for x, flag in zip((a, b, c), flags, strict=True)]
        out = np.empty_like(c)
        matmill.matmul(views[0], views[1], out=tensors(out))
        assert excess(out, *meant[:2]) <= 1
        matmill.matmul(views[0], views[1], c=views[2], beta=0.5, out=tensors(out))
        assert excess(out, *meant, beta=0.5) <= 1


def test_conjugate_transposes_of_tensors(device: FakeGPU, tensors: Tensors) -> None:
    a, b = random(0, 20, 9), random(1, 9, 20)
    numbers = []
    for alpha, beta in ((1, 1), (1, 1j), (2j, 3j), (0, 2j), (1j, 0), (1j, 1j)):
        for flags in np.ndindex(2, 2):
            views = [tensors(x) for x in (a, b)]
            for view, flag in zip(views, flags, strict=True):
                view.conjugated = bool(flag)
            x, y = (array.conj() if flag else array for array, flag in zip((a, b), flags, strict=True))
            out = np.empty_like(b)
            matmill.transpose_add(*views, alpha=alpha, beta=beta, out=tensors(out))
            np.testing.assert_allclose(out, alpha * x.T + beta * y, rtol=1e-5, atol=1e-5)
            matmill.transpose(views[0], out=tensors(out))
            np.testing.assert_array_equal(out, x.T)
        numbers.append(len(plan_cache.calls))
    assert numbers == [6, 10, 14, 18, 22, 22]  # by conjugates and by types of scalars, or zeros
    assert {launch.kernel for launch, _ in device.launches} == {"kernels.transpose.add"}
    assert (
        matmill.transpose_add(a, b, alpha=1j).tobytes()
        == matmill.transpose_add(a, b, alpha=1j, executor="cpu").tobytes()
    )


def test_arrays_of_dlpack(device: FakeGPU) -> None:
    a, b = random(0, 20, 30), random(1, 30, 40)
    before = len(device.memory.allocations)
    result: Any = matmill.matmul(DeviceArray(device, a), DeviceArray(device, b), stream=5)
    assert (result.shape, result.dtype) == ((20, 40), "complex64")
    words = device.memory.allocations[before + 2].words[4].view(np.complex64).reshape(20, 40)
    assert excess(words, a, b) <= 1


def _stages(a: Array, b: Array, d: Array) -> list[ComplexCopy | ComplexGemm | Gemm]:
    x, y, z = (inspect(each, "x", None, PRODUCTS) for each in (a, b, d))
    return [one.problem for one in lower_complex(x, y, None, z)]


def test_as_little_as_possible_is_copied() -> None:
    def sizes(*arrays: Array) -> list[tuple[int, int, str] | str]:
        stages = _stages(*arrays)
        return [
            (one.rows, one.columns, one.block) if isinstance(one, ComplexCopy) else f"{one.m}x{one.n}x{one.k}"
            for one in stages
        ]

    rows, columns = random(0, 6, 40), random(0, 40, 6).T
    tall, wide, d = random(1, 40, 7), random(1, 7, 40).T, random(2, 6, 7)
    assert sizes(rows, tall, d) == [(40, 7, "rows"), "6x14x80"]
    assert sizes(rows, wide, d) == [(7, 40, "columns"), "6x14x80"]
    # A is the smaller one, and D's columns are contiguous: the transposed product.
    assert sizes(rows, wide, random(2, 7, 6).T) == [(6, 40, "columns"), "7x12x80"]
    # A is copied too; of a vector and a large matrix the vector is expanded.
    assert sizes(columns, tall, d) == [(6, 40, ""), (40, 7, "rows"), "6x14x80"]
    few, many = random(1, 40, 60), random(1, 1200, 1000)
    assert sizes(rows[0], few, random(2, 60)) == [(40, 60, "rows"), "1x120x80"]
    assert sizes(many[:, 0], many, random(2, 1000)) == [(1000, 1200, ""), (1200, 1, "rows"), "1000x2x2400"]
    assert sizes(rows, tall, random(2, 14, 14)[:6, ::2]) == [(40, 7, "rows"), "6x14x80", (6, 7, "")]
    # Batches: a shared operand is copied once, and others as one tall matrix.
    assert sizes(random(0, 9, 3, 40), random(1, 40, 5), random(2, 9, 3, 5)) == [(40, 5, "rows"), "27x10x80"]
    batch = random(0, 9, 4, 40), random(1, 9, 40, 4), random(2, 9, 4, 4)
    assert sizes(*batch) == [(360, 4, "rows"), "4x8x80"]
    # Small products are computed without copies, of whatever layout.
    assert sizes(random(0, 9, 3, 16), random(1, 16, 16), random(2, 9, 3, 16)) == ["3x16x16"]
    assert sizes(random(0, 9, 3, 16).T, random(1, 9, 5)[::-1, ::2], random(2, 16, 3, 3)) == ["3x3x9"]
    assert sizes(rows[0, :16], random(1, 16, 5), random(2, 5)) == ["1x5x16"]
    assert sizes(random(0, 3, 17), random(1, 17, 5), random(2, 3, 5)) == [(17, 5, "rows"), "3x10x34"]


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("negate", [False, True])
@pytest.mark.parametrize("block", ["", "rows", "columns"])
@pytest.mark.parametrize(("rows", "columns"), [(300, 3), (5, 90), (2100, 1)])
def test_copies_have_no_races_and_stay_within(rows: int, columns: int, block: str, negate: bool, dtype: DType) -> None:
    kind, wide = ("complex64" if dtype is F32 else "complex128"), 2 if block else 1
    x = random(0, 2, columns, rows, dtype=kind).swapaxes(1, 2)
    d = np.full((2, wide * rows, columns), np.nan, kind)
    problem = ComplexCopy(
        rows, columns, dtype, (1, rows, rows * columns), (wide * columns, 1, wide * rows * columns), 2,
        block=block, second=columns if block else 0, conjugate=True, negate=negate, scale="alpha",
    )  # fmt: skip
    memory = Memory()
    source = memory.bind("A", x.swapaxes(1, 2), access="r").address
    target = memory.bind("D", d, access="w").address
    nowhere = Pointer("none", 0)
    operands = GemmOperands(Pointer("A", source), nowhere, nowhere, Pointer("D", target), 0.5, 2.0)
    ptx = compile_ptx(generate(COMPLEX_COPY, dtype), arch.get(arch.DEFAULT).target)
    (launch,) = COMPLEX_COPY.launches(problem, operands)
    report = run(ptx, launch, memory, races=True)
    assert list(report.hazards) == []
    y = x.conj() * (0.5 + 2j)
    wanted = y if not block else np.empty_like(d)
    if block:
        first = y if block == "rows" or negate else y.conj()
        wanted[:, 0::2], wanted[:, 1::2] = first, (-1j if negate else 1j) * first
    np.testing.assert_allclose(d, wanted, rtol=1e-5)


@pytest.mark.parametrize("dtype", [C64, C128], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("conjugates", ["", "a", "bc", "abc"])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (40, 3, 5, 7), (3, 16, 16, 16), (1000, 2, 2, 3)])
def test_small_products_have_no_races_and_stay_within(
    sizes: tuple[int, int, int, int], conjugates: str, dtype: DType
) -> None:
    batch, m, n, k = sizes
    shapes = {"A": (batch, m, k), "B": (batch, n, k), "C": (batch, m, n)}
    arrays = {name: random(i, *shape, dtype=dtype.name) for i, (name, shape) in enumerate(shapes.items())}
    d = np.full((batch, m, n + 1), np.nan, dtype.numpy)
    strides = (k, 1, m * k), (1, k, n * k), (n, 1, m * n), (n + 1, 1, m * (n + 1))
    problem = ComplexGemm(m, n, k, dtype, strides, batch, has_c=True, conjugates=conjugates)
    memory = Memory()
    a, b, c = (Pointer(name, memory.bind(name, array, access="r").address) for name, array in arrays.items())
    to = Pointer("D", memory.bind("D", d, access="w").address)
    operands = GemmOperands(a, b, c, to, 0.5, -1.0, imaginary=(2.0, 1.0))
    ptx = compile_ptx(generate(COMPLEX_GEMM, dtype), arch.get(arch.DEFAULT).target)
    (launch,) = COMPLEX_GEMM.launches(problem, operands)
    assert list(run(ptx, launch, memory, races=True).hazards) == []
    x, y, z = (array.conj() if name.lower() in conjugates else array for name, array in arrays.items())
    assert excess(d[..., :n], x, y.swapaxes(1, 2), z, alpha=0.5 + 2j, beta=-1 + 1j) <= 1
    assert np.isnan(d[..., n]).all()
    assert (
        COMPLEX_GEMM.why_not(replace(problem, m=300), arch.get(arch.DEFAULT)) == f"300 x {n} elements, and 256 threads"
    )


def test_small_products_of_tensors_take_one_launch(device: FakeGPU, tensors: Tensors) -> None:
    a, b, c = random(0, 30, 3, 4), random(1, 30, 4, 5), random(2, 30, 3, 5)
    out = np.empty_like(c)
    for alpha, beta in ((1, 2), (1, 2j), (3j, 1), (3j, 2j)):
        before = len(device.launches)
        matmill.matmul(tensors(a).conj(), tensors(b), c=tensors(c).conj(), alpha=alpha, beta=beta, out=tensors(out))
        assert excess(out, a.conj(), b, c.conj(), alpha=alpha, beta=beta) <= 1
        assert _names(device)[before:] == ["complex_gemm"]
    for options in ({"batch_invariant": True}, {"out_dtype": "complex128"}):
        before = len(device.launches)
        matmill.matmul(tensors(a), tensors(b), **options)
        assert "complex_copy" in _names(device)[before:]


def test_a_product_that_takes_no_launch_ahead() -> None:
    a, b = random(0, 3, 0), random(1, 0, 4)
    assert [type(one) for one in _stages(a, b, random(2, 3, 4))] == [Gemm]
    assert _stages(a[:0], b, random(2, 0, 4)) == []
