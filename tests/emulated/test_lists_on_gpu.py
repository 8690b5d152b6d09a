"""Lists of tensors on a GPU: one launch, on the stream of the call; unusual tensors take the path of all arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from matmill.dispatch import fast_path, lists
from matmill.errors import MatmillError
from support.fake_gpu import FakeGPU, Parameter, Tensor, Tensors

Array = NDArray[Any]
SIZES = ((3, 5, 4), (0, 2, 3), (70, 33, 130), (7, 0, 2), (1, 9, 1))


@pytest.fixture(params=["tensors", "operands"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide both ways to read tensors."""
    if request.param == "operands":
        monkeypatch.setattr(lists, "_of_torch", lambda *_: None)


def _matrices(dtype: str) -> tuple[list[Array], list[Array], list[Array]]:
    rng = np.random.default_rng(0)
    shapes = [((m, k), (k, n), (m, n)) for m, k, n in SIZES]
    a, b, c = zip(*([rng.integers(-9, 9, x).astype(dtype) for x in three] for three in shapes), strict=True)
    return list(a), list(b), list(c)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
@pytest.mark.parametrize("added", [False, True])
def test_one_launch(added: bool, dtype: str, tensors: Tensors, device: FakeGPU) -> None:
    a, b, c = _matrices(dtype)
    x, y, z = ([tensors(one) for one in many] for many in (a, b, c))
    matmill.matmul(tensors(a[0]), tensors(b[0]))  # torch's functions are bound by the first call
    device.launches.clear()
    named: dict[str, Any] = {"c": z, "beta": -3, "alpha": 2} if added else {}
    results = matmill.matmul(x, y, **named)
    for got, left, right, addend in zip(results, a, b, c, strict=True):
        assert np.array_equal(got.base, 2 * (left @ right) - 3 * addend if added else left @ right)
    assert [stream for _, stream in device.launches] == [33]


@pytest.mark.usefixtures("path")
def test_integers_have_whole_and_exact_factors(tensors: Tensors) -> None:
    a, b, c = _matrices("int64")
    x, y, z = ([tensors(one) for one in many] for many in (a, b, c))
    matmill.matmul(x[0], y[0])  # torch's functions are bound by the first call
    for wrong in ({"alpha": 0.5}, {"c": z, "beta": 0.5}):
        with pytest.raises(MatmillError, match="whole number"):
            matmill.matmul(x, y, **wrong)
    large = 2**53 + 1  # float64 has no such number
    for got, left, right, addend in zip(matmill.matmul(x, y, c=z, alpha=large, beta=large), a, b, c, strict=True):
        assert np.array_equal(got.base, large * (left @ right + addend))


def test_the_functions_of_torch_are_bound(tensors: Tensors, device: FakeGPU) -> None:
    a, b, _ = _matrices("float32")
    assert not fast_path.torch.classes
    matmill.matmul([tensors(a[0])], [tensors(b[0])])
    assert fast_path.torch.classes
    assert len(device.launches) == 1


def test_unusual_tensors_are_looked_at_again(tensors: Tensors, device: FakeGPU) -> None:
    a, b, _ = _matrices("float32")
    matmill.matmul(tensors(a[0]), tensors(b[0]))
    x, y = [tensors(one) for one in a], [tensors(one) for one in b]
    parameter = Parameter(device, a[2], tensors.made)
    assert np.array_equal(matmill.matmul([x[0], parameter], [y[0], y[2]])[1].base, a[2] @ b[2])
    transposed = tensors(np.asfortranarray(a[2]))
    assert np.array_equal(matmill.matmul([x[0], transposed], [y[0], y[2]])[1].base, a[2] @ b[2])
    parameter.requires_grad = True
    with pytest.raises(MatmillError, match="a: got a tensor"):
        matmill.matmul([x[0], parameter], [y[0], y[2]])
    for wrong in ([y[0], y[0]], [y[0], tensors(b[2].astype(np.float64))]):
        with pytest.raises(MatmillError) as raised:
            matmill.matmul([x[0], x[2]], wrong)
        assert raised.value.__notes__ == ["This is product 1 of the lists."]


def test_tensors_with_tangents_are_refused(tensors: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, _ = _matrices("float32")
    x, y = tensors(a[0]), tensors(b[0])
    matmill.matmul(x, y)
    monkeypatch.setattr(Tensor, "tracing", True)
    with pytest.raises(MatmillError, match="a: got a tensor"):
        matmill.matmul([x], [y])
