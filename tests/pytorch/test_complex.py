"""Complex tensors on the host: lazily conjugated views as torch's operators make them, and derivatives."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from itertools import product
from typing import Any

import pytest

import matmill
from matmill.dtypes import COMPLEX
from matmill.errors import ArgumentError, DTypeError
from matmill.settings import Executor
from support.complex_product import excess

torch: Any = pytest.importorskip("torch")
mt: Any = import_module("matmill.torch")

VIEWS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda x: x,
    "conj": lambda x: x.conj(),
    "mH": lambda x: x.mT.contiguous().mH.conj().conj(),
    "mT": lambda x: x.mT.contiguous().mT,
    "slice": lambda x: x.repeat(1, 2)[:, 1::2].resolve_conj().conj(),
}


def random(seed: int, *shape: int, dtype: str) -> Any:
    """Draw a tensor of normal complex numbers."""
    return torch.randn(*shape, dtype=getattr(torch, dtype), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("executor", ["cpu", "emulator"])
@pytest.mark.parametrize("dtype", COMPLEX)
def test_views_are_not_materialised(dtype: str, executor: Executor) -> None:
    left, right, added = random(0, 9, 12, dtype=dtype), random(1, 12, 7, dtype=dtype), random(2, 9, 7, dtype=dtype)
    for p, q, r in product(VIEWS.values(), repeat=3):
        a, b, c = p(left), q(right), r(added)
        values = [x.resolve_conj().numpy() for x in (a, b, c)]
        plain = matmill.matmul(a, b, executor=executor)
        assert not plain.is_conj()
        assert excess(plain.numpy(), *values[:2]) <= 1
        if r is not VIEWS["slice"]:
            result = matmill.matmul(a, b, c=c, beta=1 - 2j, executor=executor)
            assert excess(result.numpy(), *values, beta=1 - 2j) <= 1


@pytest.mark.parametrize("executor", ["cpu", "emulator"])
def test_inner_of_a_matrix_and_its_conjugate(executor: Executor) -> None:
    e = random(0, 5, 400, dtype="complex64")
    for f in (e.mH, e.mT):
        assert excess(matmill.inner(e, f, executor=executor).numpy(), e.numpy(), f.resolve_conj().numpy()) <= 1
    conjugate = e.conj().resolve_conj().numpy()
    assert excess(matmill.inner(e.conj(), executor=executor).numpy(), conjugate, conjugate.T) <= 1


def test_nothing_is_written_to_conjugates() -> None:
    a = random(0, 3, 3, dtype="complex64")
    out = torch.zeros(3, 3, dtype=torch.complex64)
    with pytest.raises(ArgumentError, match=r"out: got a lazily conjugated view"):
        matmill.matmul(a, a, out=out.conj())
    assert not out.any()
    assert matmill.matmul(a, a, out=out) is out
    assert excess(out.numpy(), a.numpy(), a.numpy()) <= 1


FACTORS = [(1, 1), (2, -0.5), (1j, 1), (0.5 - 2j, 3j), (0, 1 - 1j), (1j, 0), (0, 0)]


@pytest.mark.parametrize("executor", ["cpu", "emulator", None])
@pytest.mark.parametrize("dtype", COMPLEX)
def test_conjugate_transposes(dtype: str, executor: Executor | None) -> None:
    left, right = random(0, 9, 12, dtype=dtype), random(1, 12, 9, dtype=dtype)
    how: dict[str, Any] = {} if executor is None else {"executor": executor}
    core: Any = mt if executor is None else matmill
    near = 16 * COMPLEX[dtype].roundoff
    for p, q in product(VIEWS.values(), repeat=2):
        x, y = p(left), q(right)
        result = core.transpose(x, **how)
        assert not result.is_conj()
        assert torch.equal(result, x.mT)
        assert torch.equal(core.transpose_add(x, y.mT.contiguous().mT, **how), x.mT + y)
        for alpha, beta in FACTORS if q is VIEWS["conj"] else FACTORS[-3:]:
            total = core.transpose_add(x, y, alpha=alpha, beta=beta, **how)
            size = abs(alpha) * x.mT.abs() + abs(beta) * y.abs()
            assert ((total - (alpha * x.mT + beta * y)).abs() <= near * size).all()


def test_what_transposes_neither_read_nor_write() -> None:
    x, y = random(0, 3, 5, dtype="complex64"), random(1, 5, 3, dtype="complex64")
    lost = torch.full_like(x, float("nan"))
    for executor in ("cpu", "emulator"):
        how: dict[str, Any] = {"executor": executor}
        for alpha, beta, one, other in ((0, 1j, lost, y.conj()), (2j, 0, x.conj(), lost.mT), (0, 0, lost, lost.mT)):
            wanted = beta * other if alpha == 0 != beta else alpha * one.mT if alpha else torch.zeros_like(y)
            result = matmill.transpose_add(one, other, alpha=alpha, beta=beta, **how)
            assert torch.allclose(result, wanted)
        # No part of an infinite number times a real factor is NaN.
        infinite, half = (torch.full((2, 2), complex(float("inf"), part)) for part in (1.0, 2.5))
        assert torch.equal(matmill.transpose_add(infinite, infinite, alpha=2.0, beta=0.5, **how), half)
        assert torch.equal(mt.transpose_add(infinite, infinite, alpha=2.0, beta=0.5), half)
        out = y.clone()
        for call in (matmill.transpose_add, mt.transpose_add):
            with pytest.raises(ArgumentError, match=r"out: got a lazily conjugated view"):
                call(x, y, out=out.conj(), **(how if call is matmill.transpose_add else {}))
        with pytest.raises(ArgumentError, match=r"out: got a lazily conjugated view"):
            matmill.transpose(x, out=out.conj(), **how)
        assert torch.equal(out, y)
        assert matmill.transpose_add(x.conj(), out, alpha=1j, beta=2.0, out=out, **how) is out
        assert torch.allclose(out, 1j * x.mH + 2 * y)


@pytest.mark.parametrize(("alpha", "beta"), FACTORS)
def test_gradients_of_transposes(alpha: complex, beta: complex) -> None:
    x, y = (random(i, *s, dtype="complex128").requires_grad_() for i, s in enumerate(((2, 3, 4), (4, 3))))

    def add(x: Any, y: Any) -> Any:
        return mt.transpose_add(x.conj(), y, alpha=alpha, beta=beta)

    assert torch.autograd.gradcheck(add, (x, y), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(add, (x, y))
    assert torch.autograd.gradcheck(lambda x: mt.transpose(x.conj()), (x,), check_forward_ad=True)
    assert torch.allclose(torch.vmap(add, (0, None))(x, y), alpha * x.mH + beta * y)
    compiled = torch.compile(add, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(x, y), alpha * x.mH + beta * y)


CASES = {
    "matrices": ((4, 3), (3, 5)),
    "a shared b": ((2, 4, 3), (3, 5)),
    "a shared a": ((4, 3), (2, 3, 2)),
    "vectors": ((3,), (3,)),
    "a row": ((3,), (3, 4)),
    "a column": ((2, 4, 3), (3,)),
}


@pytest.mark.parametrize("view", ["plain", "conj", "columns"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_torchs(name: str, view: str) -> None:
    def seen(x: Any) -> Any:
        if view == "columns" and x.dim() > 1:
            return x.mT.contiguous().mT
        return x.conj() if view == "conj" else x

    left, right = (random(i, *shape, dtype="complex128").requires_grad_() for i, shape in enumerate(CASES[name]))
    assert torch.autograd.gradcheck(lambda a, b: mt.matmul(seen(a), seen(b)), (left, right), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda a, b: mt.matmul(seen(a), seen(b)), (left, right))
    for way in (mt.matmul, torch.matmul):
        way(seen(left), seen(right)).abs().sum().backward()
    # Torch's came on top of the same.
    assert left.grad is not None
    own = [x.grad.clone() for x in (left, right)]
    left.grad = right.grad = None
    torch.matmul(seen(left), seen(right)).abs().sum().backward()
    assert all(torch.allclose(both, 2 * x.grad) for both, x in zip(own, (left, right), strict=True))


def test_gradients_of_the_other_functions() -> None:
    e, f, bias = (random(i, *shape, dtype="complex128") for i, shape in enumerate(((3, 40), (40, 2), (2,))))
    for x in (e, f, bias):
        x.requires_grad_()
    for function in (
        mt.inner,
        lambda e, f: mt.linear(e, f.mT.contiguous()),
        lambda e, f: mt.addmm(bias, e, f, alpha=1j, beta=2 - 1j),
        lambda e, _f: mt.gram(e.mT),
    ):
        assert torch.autograd.gradcheck(function, (e, f))
    wide = mt.gram(e.detach())
    assert torch.allclose(wide, e.detach().mH @ e.detach())


@pytest.mark.parametrize("precision", [None, "tf32x3"])
def test_vmap_and_compilers(precision: str | None) -> None:
    a, b = random(0, 3, 4, 5, dtype="complex64"), random(1, 3, 5, 2, dtype="complex64")

    def multiply(x: Any, y: Any) -> Any:
        return mt.matmul(x, y.conj(), precision=precision)

    expected = a @ b.conj()
    assert torch.allclose(torch.vmap(multiply)(a, b), expected)
    compiled = torch.compile(multiply, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(a, b), expected)


def test_operators_write_and_refuse() -> None:
    a, b = random(0, 3, 4, dtype="complex64"), random(1, 4, 2, dtype="complex64")
    out = torch.zeros(3, 2, dtype=torch.complex64)
    assert mt.matmul(a.conj(), b, out=out) is out
    assert torch.allclose(out, a.conj() @ b)
    with pytest.raises(ArgumentError, match=r"out: got a lazily conjugated view"):
        mt.matmul(a, b, out=out.conj())
    for options, error in (
        ({"bias": b[0]}, r"bias: got an array"),
        ({"activation": "relu"}, r"activation: got 'relu'"),
    ):
        with pytest.raises(ArgumentError, match=error):
            mt.matmul(a, b, **options)
    with pytest.raises(DTypeError, match=r"x: got dtype complex64"):
        mt.gram(a, alpha=2.0)
