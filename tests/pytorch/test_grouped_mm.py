"""grouped_mm, jagged tensors and lists of torch's tensors: values, derivatives, compilers and refusals."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

import matmill
from matmill.errors import ArgumentError, DTypeError, ShapeError

torch: Any = pytest.importorskip("torch")
mt: Any = import_module("matmill.torch")

ENDS = torch.tensor([2, 2, 7])
#: Shapes of both operands: groups of rows, of terms, of columns. Two places behind the last group are nobody's.
SHAPES = {"rows": ((9, 4), (3, 4, 5)), "terms": ((4, 9), (9, 5)), "columns": ((3, 4, 5), (5, 9))}


def pair(form: str, dtype: Any = torch.double) -> tuple[Any, Any]:
    """Draw operands that record derivatives."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(*shape, dtype=dtype, generator=generator) for shape in SHAPES[form])
    return a.requires_grad_(), b.requires_grad_()


def by_torch(form: str, a: Any, b: Any) -> Any:
    """Return the products by torch, group by group, and zeros behind them."""
    bounds = list(zip([0, *ENDS.tolist()], ENDS.tolist(), strict=False))
    if form == "terms":
        return torch.stack([a[:, i:j] @ b[i:j] for i, j in bounds])
    if form == "rows":
        return torch.cat([*(a[i:j] @ b[g] for g, (i, j) in enumerate(bounds)), a.new_zeros(2, b.shape[-1])])
    return torch.cat([*(a[g] @ b[:, i:j] for g, (i, j) in enumerate(bounds)), a.new_zeros(a.shape[1], 2)], 1)


@pytest.mark.parametrize("form", SHAPES)
def test_values_and_derivatives(form: str) -> None:
    a, b = pair(form)

    def product(x: Any, y: Any) -> Any:
        return mt.grouped_mm(x, y, ENDS)

    torch.testing.assert_close(product(a, b), by_torch(form, a, b))
    torch.testing.assert_close(mt.grouped_mm(a.detach(), b.detach(), ENDS.int()), product(a, b).detach())
    assert torch.autograd.gradcheck(product, (a, b))
    assert torch.autograd.gradgradcheck(product, (a, b))
    weight = torch.randn_like(product(a, b))
    ours = torch.autograd.grad(product(a, b), (a, b), weight)
    torch.testing.assert_close(ours, torch.autograd.grad(by_torch(form, a, b), (a, b), weight))


@pytest.mark.parametrize("form", SHAPES)
def test_compilers_see_one_operator(form: str) -> None:
    a, b = pair(form)
    torch.library.opcheck(torch.ops.matmill.grouped_mm.default, (a, b, ENDS))
    compiled = torch.compile(lambda x, y: mt.grouped_mm(x, y, ENDS).relu(), backend="aot_eager", fullgraph=True)
    result = compiled(a, b)
    torch.testing.assert_close(result, by_torch(form, a, b).relu())
    expected = torch.autograd.grad(by_torch(form, a, b).relu().sum(), (a, b))
    torch.testing.assert_close(torch.autograd.grad(result.sum(), (a, b)), expected)


def test_one_factor_alone_has_a_gradient() -> None:
    a, b = pair("rows")
    mt.grouped_mm(a.detach(), b, ENDS).sum().backward()
    assert a.grad is None
    assert b.grad is not None
    assert not b.grad[1].any()  # the empty group's


@pytest.mark.parametrize("shared", [False, True])
def test_jagged_tensors(shared: bool) -> None:
    rows = [torch.randn(count, 4) for count in (2, 0, 5)]
    a = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
    b = torch.randn(4, 5, requires_grad=True) if shared else torch.randn(3, 4, 5, requires_grad=True)
    product = mt.matmul(a, b)
    each = [row @ (b if shared else b[number]) for number, row in enumerate(rows)]
    for got, expected in zip(product.unbind(), each, strict=True):
        torch.testing.assert_close(got, expected)
    product.values().sum().backward()
    (to_b,) = torch.autograd.grad(torch.cat(each).sum(), (b,))
    torch.testing.assert_close(b.grad, to_b)
    assert [x.shape for x in a.grad.unbind()] == [x.shape for x in rows]


def test_lists() -> None:
    shapes = ((2, 3, 2), (4, 1, 5), (0, 2, 3), (3, 0, 2))
    a = [torch.randn(m, k, dtype=torch.double, requires_grad=True) for m, k, _ in shapes]
    b = [torch.randn(k, n, dtype=torch.double, requires_grad=True) for _, k, n in shapes]
    for got, x, y in zip(mt.matmul(a, b), a, b, strict=True):
        torch.testing.assert_close(got, x @ y)

    def products(*both: Any) -> tuple[Any, ...]:
        return tuple(mt.matmul(list(both[:2]), list(both[2:])))

    assert torch.autograd.gradcheck(products, (*a[:2], *b[:2]))
    assert torch.autograd.gradgradcheck(products, (*a[:2], *b[:2]))
    sum(x.sum() for x in mt.matmul([x.detach() for x in a], b)).backward()
    assert [x.grad for x in a] == [None] * 4
    torch.testing.assert_close(b[0].grad, a[0].detach().mT @ torch.ones(2, 2, dtype=torch.double))


def test_tensors_of_the_host_on_the_emulator() -> None:
    a, b = (x.detach() for x in pair("rows", torch.bfloat16))
    torch.testing.assert_close(matmill.grouped_mm(a, b, ENDS, executor="emulator"), mt.grouped_mm(a, b, ENDS))
    (product,) = matmill.matmul([a], [b[0]], executor="emulator")
    torch.testing.assert_close(product, a @ b[0])


def test_refusals() -> None:
    a, b = pair("rows")
    with pytest.raises(ShapeError, match="offsets"):
        mt.grouped_mm(a.detach(), b.detach(), ENDS[1:])
    with pytest.raises(DTypeError, match="offsets"):
        mt.grouped_mm(a.detach(), b.detach(), ENDS.float())
    with pytest.raises(ArgumentError, match="activation: got 'relu'; wanted no such argument"):
        mt.matmul([a], [b[0]], activation="relu")
    jagged = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged)
    holes = torch.nested.narrow(torch.randn(2, 3, 4), 1, *torch.tensor([[0, 1], [2, 1]]), layout=torch.jagged)
    others = (jagged.transpose(1, 2), torch.randn(2, 3, 5)), (holes, torch.randn(2, 4, 5))
    for left, right in ((jagged, jagged), *others):
        with pytest.raises(ArgumentError, match="Use lists of matrices"):
            mt.matmul(left, right)
    with pytest.raises(ShapeError, match="as many as a has"):
        mt.matmul([a, a], [b[0]])
