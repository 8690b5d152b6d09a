"""Complex products on the way through a GPU: their launches, plans and workspaces, and races of their kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from matmill import arch
from matmill.arrays import inspect
from matmill.choose import choose_general
from matmill.config import Config
from matmill.dispatch import plan_cache
from matmill.dtypes import C64, C128, F32, F64, PRODUCTS, DType
from matmill.emulator import Memory, run
from matmill.jit.compile import compile_ptx
from matmill.jit.source import generate
from matmill.kernel import GemmOperands, Kernel
from matmill.kernels.complex_copy import COMPLEX_COPY
from matmill.kernels.complex_gemm import COMPLEX_GEMM
from matmill.kernels.complex_gemm.tiled import COMPLEX_GEMM_TILED
from matmill.kernels.complex_gemm.tiled import PRODUCTION as TILED
from matmill.launch import Pointer
from matmill.lowering.complex import lower_complex
from matmill.plan import prepare
from matmill.problem import ComplexCopy, Gemm
from support.complex_product import excess, random
from support.fake_gpu import DeviceArray, FakeGPU, Tensors

Array = NDArray[Any]
H200 = arch.get(arch.DEFAULT)


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
        launches.append(_names(device)[before:])
    once = ["complex_gemm.tiled"]
    assert [*launches[:4], *launches[5:]] == [once] * 6
    assert launches[4].count("complex_copy") == 1  # of C alone
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


def _stages(a: Array, b: Array, d: Array) -> list[ComplexCopy | Gemm]:
    """Return the problems of a product, of the real one where there are two ways."""
    x, y, z = (inspect(each, "x", None, PRODUCTS) for each in (a, b, d))
    stages = lower_complex(x, y, None, z)
    return [one.problem for stage in stages for one in stage.instead or (stage,)]


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
    problem = Gemm(
        m, n, k, dtype, batch, b_strides=(1, k), d_strides=(n + 1, 1), d_batch=m * (n + 1), has_c=True,
        conjugates=conjugates,
    )  # fmt: skip
    _run(COMPLEX_GEMM, problem, arrays, d)
    _check(arrays, d, n, conjugates)
    assert COMPLEX_GEMM.why_not(replace(problem, m=300), H200) == "300 rows, columns or terms > 16"


def _run(kernel: Kernel[Gemm], problem: Gemm, arrays: dict[str, Array], d: Array) -> None:
    """Emulate a product with races on, where neither operands nor results may be left."""
    memory, size = Memory(), kernel.workspace(problem)
    a, b, c = (Pointer(name, memory.bind(name, array, access="r").address) for name, array in arrays.items())
    to = Pointer("D", memory.bind("D", d, access="w").address)
    partial = Pointer("workspace", memory.bind("workspace", np.full(size // 8 + 1, np.nan), access="rw").address)
    operands = GemmOperands(a, b, c, to, 0.5, -1.0, workspace=partial, imaginary=(2.0, 1.0))
    for program, launch in kernel.steps(problem, operands):
        ptx = compile_ptx(generate(program, problem.dtype), H200.target)
        assert list(run(ptx, launch, memory, races=True).hazards) == []


def _check(arrays: dict[str, Array], d: Array, n: int, conjugates: str) -> None:
    x, y, z = (array.conj() if name.lower() in conjugates else array for name, array in arrays.items())
    assert excess(d[..., :n], x, y.swapaxes(1, 2), z, alpha=0.5 + 2j, beta=-1 + 1j) <= 1
    assert np.isnan(d[..., n:]).all()


def _tiles(problem: Gemm, split: int = 1) -> list[Config]:
    """Return each tile, with as many slices of k in blocks of their own."""
    configs = TILED.space(problem, H200)
    return [one.launched(SPLIT_K=split) for one in configs if one["SPLIT_K"] == 1]


@pytest.mark.parametrize("dtype", [C64, C128], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    ("conjugates", "aligned", "split"), [("", False, 1), ("a", True, 1), ("bc", False, 3), ("abc", True, 2)]
)
def test_tiled_products_have_no_races_and_stay_within(conjugates: str, aligned: bool, split: int, dtype: DType) -> None:
    batch, m, n, k = (2, 66, 70, 82) if aligned else (2, 35, 67, 75)
    shapes = {"A": (batch, k, m) if aligned else (batch, m, k), "B": (batch, n, k), "C": (batch, m, n)}
    stored = {name: random(i, *shape, dtype=dtype.name) for i, (name, shape) in enumerate(shapes.items())}
    arrays = stored | ({"A": stored["A"].swapaxes(1, 2)} if aligned else {})
    pitch, align = n + 2, 16 if aligned else 8
    problem = Gemm(
        m, n, k, dtype, batch, a_strides=(1, m) if aligned else None, b_strides=(1, k), d_strides=(pitch, 1),
        d_batch=m * pitch, has_c=True, conjugates=conjugates, a_align=align, d_align=align,
    )  # fmt: skip
    for config in _tiles(problem, split):
        vector = 16 // dtype.itemsize
        assert (config["A_VEC"], config["D_VEC"]) == ((vector, vector) if aligned else (1, 1))
        d = np.full((batch, m, pitch), np.nan, dtype.numpy)
        _run(COMPLEX_GEMM_TILED.with_config(config), problem, stored, d)
        _check(arrays, d, n, conjugates)


@pytest.mark.parametrize("dtype", [C64, C128], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(("m", "n", "side", "split", "ways"), [(19, 9, 16, 40, 16), (130, 66, 64, 18, 4)])
def test_several_threads_add_many_partial_sums(  # noqa: PLR0917 — a row of the table
    m: int, n: int, side: int, split: int, ways: int, dtype: DType
) -> None:
    k = 32 * split - 1
    shapes = {"A": (1, m, k), "B": (1, n, k), "C": (1, m, n)}
    arrays = {name: random(i, *shape, dtype=dtype.name) for i, (name, shape) in enumerate(shapes.items())}
    problem = Gemm(m, n, k, dtype, b_strides=(1, k), has_c=True, conjugates="bc", a_align=8, b_align=8, d_align=8)
    kernel = COMPLEX_GEMM_TILED.with_config(
        next(one for one in _tiles(problem, split) if one["BM"] == one["BN"] == side)
    )
    assert kernel.programs(problem)[1].config["WAYS"] == ways
    d = np.full((1, m, n), np.nan, dtype.numpy)
    _run(kernel, problem, arrays, d)
    _check(arrays, d, n, "bc")


@pytest.mark.parametrize("dtype", [C64, C128], ids=lambda dtype: dtype.name)
def test_the_general_tile_takes_other_layouts_with_the_same_constants(dtype: DType) -> None:
    m, n, k = 34, 66, 30
    arrays = {name: random(i, *each, dtype=dtype.name) for i, (name, each) in enumerate(
        {"A": (1, k, m), "B": (1, n, k), "C": (1, m, n)}.items()
    )}  # fmt: skip
    problem = Gemm(m, n, k, dtype, a_strides=(1, m), b_strides=(1, k), has_c=True, conjugates="b")
    choice = choose_general(problem, H200)
    other = choose_general(replace(problem, a_strides=None, b_strides=None, d_align=8), H200)
    assert choice is not None
    assert other is not None
    assert choice.kernel.config == other.kernel.config
    d = np.full((1, m, n), np.nan, dtype.numpy)
    _run(choice.kernel, problem, arrays, d)
    _check(arrays | {"A": arrays["A"].swapaxes(1, 2)}, d, n, "b")


@pytest.mark.parametrize("dtype", [C64, C128], ids=lambda dtype: dtype.name)
def test_a_tile_takes_the_conjugates_that_it_is_made_for(dtype: DType) -> None:
    problem = Gemm(64, 64, 64, dtype)
    kernel = COMPLEX_GEMM_TILED.with_config(_tiles(problem)[0])
    for conjugates, other in (("", False), ("a", True), ("bc", True), ("abc", False), ("c", False)):
        reason = kernel.why_not(replace(problem, conjugates=conjugates), H200)
        assert reason == ("the constants are those of other conjugates" if other else None)


def test_the_models_choose_between_one_launch_and_a_real_product() -> None:
    def kernels(n: int, dtype: str, **how: Any) -> list[str]:
        a, b, d = random(0, n, n, dtype=dtype), random(1, n, n, dtype=dtype), random(2, n, n, dtype=dtype)
        x, y, z = (inspect(each, "x", None, PRODUCTS) for each in (a, b, d))
        return [one.choice.kernel.entry for one in prepare(lower_complex(x, y, None, z, **how), H200)]

    assert [kernels(n, "complex64") for n in (17, 128, 1024)] == [["complex_gemm_tiled"]] * 3
    assert kernels(128, "complex128") == ["complex_gemm_tiled"]
    assert kernels(1024, "complex128") == ["complex_copy", "hgemm"]  # tensor cores are twice as fast
    assert kernels(16, "complex64", precision="tf32") == ["complex_gemm"]
    assert "complex_copy" in kernels(128, "complex64", precision="tf32")
    assert "complex_copy" in kernels(128, "complex64", batch_invariant=True)


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
