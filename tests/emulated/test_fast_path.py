"""Calls like earlier ones skip the checks, and only those: results, refusals and memory are as on the checked path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from matmill import arrays, errors, ops
from matmill.dispatch import fast_path, plan_cache
from matmill.errors import AliasError, ArgumentError, DTypeError, ReadOnlyError, ShapeError
from matmill.plan import prepare
from support.fake_gpu import FakeGPU, Parameter, Subclass, Tensor, Tensors

Array = NDArray[Any]


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Provide names of the arrays that the checked path has read."""
    seen: list[str] = []

    def inspect(x: object, argument: str, *others: Any) -> Any:
        seen.append(argument)
        return arrays.inspect(x, argument, *others)

    monkeypatch.setattr(ops, "inspect", inspect)
    return seen


def _matrix(seed: int, m: int, n: int) -> Array:
    return np.random.default_rng(seed).integers(-9, 9, (m, n)).astype(np.float32)


CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[int, int], tuple[int, int]]] = {
    "matmul": (matmill.matmul, np.matmul, (20, 12), (12, 24)),
    "inner": (matmill.inner, np.matmul, (3, 900), (900, 5)),
    "transpose_add": (matmill.transpose_add, lambda x, y: x.T + y, (20, 12), (12, 20)),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_second_call_of_a_kind_is_not_checked_again(name: str, tensors: Tensors, checked: list[str]) -> None:
    call, numpy_call, x_shape, y_shape = CALLS[name]
    for turn in range(3):
        x, y = _matrix(turn, *x_shape), _matrix(turn + 10, *y_shape)
        assert (call(tensors(x), tensors(y)).base == numpy_call(x, y)).all()
        assert len(checked) == 2
    for turn in range(3):
        x, y, out = _matrix(turn, *x_shape), _matrix(turn + 10, *y_shape), numpy_call(x, y) * np.nan
        target = tensors(out)
        assert call(tensors(x), tensors(y), out=target) is target
        assert (out == numpy_call(x, y)).all()
        assert len(checked) == 5


def _half(seed: int, m: int, n: int) -> Array:
    return np.random.default_rng(seed).integers(-9, 9, (m, n)).astype(np.float16)


@pytest.mark.parametrize(("m", "k", "n"), [(40, 64, 48), (200, 801, 200)], ids=["by TMA", "A in registers"])
def test_tensor_maps_and_pointers_follow_the_arrays(
    m: int, k: int, n: int, tensors: Tensors, checked: list[str]
) -> None:
    for turn in range(3):
        x, y = _half(turn, m, k), _half(turn + 10, k, n)
        assert (matmill.matmul(tensors(x), tensors(y)).base == x @ y).all()
        assert len(checked) == 2


def test_too_little_memory_for_a_workspace_is_said_with_what_would_do(
    tensors: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = tensors(_half(0, 200, 1601)), tensors(_half(1, 1601, 201))
    matmill.matmul(x, y)  # on odd rows, of which those of one operand are copied
    new_empty = Tensor.new_empty

    class OutOfMemoryError(RuntimeError):
        pass

    def full(self: Tensor, shape: Any, dtype: str | None = None) -> Tensor:
        if dtype in {"uint8", "int8"}:
            raise OutOfMemoryError
        return new_empty(self, shape, dtype)

    monkeypatch.setattr(Tensor, "new_empty", full)
    with pytest.raises(errors.OutOfMemoryError, match=r"workspace: .* wanted [\d.]+ .*B beside the result"):
        matmill.matmul(x, y)


def test_transposes_too(tensors: Tensors, checked: list[str]) -> None:
    for turn in range(3):
        x = _matrix(turn, 30, 20)
        assert (matmill.transpose(tensors(x)).base == x.T).all()
        assert checked == ["x"]


@pytest.mark.parametrize("flags", list(np.ndindex(2, 2)), ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_lazy_conjugates_are_kinds_of_their_own(
    name: str, flags: tuple[int, int], tensors: Tensors, checked: list[str]
) -> None:
    call, numpy_call, x_shape, y_shape = CALLS[name]

    def views(turn: int, flags: tuple[int, ...]) -> tuple[Array, list[Tensor]]:
        arrays = [_matrix(turn, *s) + 1j * _matrix(turn + 1, *s) for s in (x_shape, y_shape)]
        arrays = [array.astype(np.complex64) for array in arrays]
        meant = [array.conj() if flag else array for array, flag in zip(arrays, flags, strict=True)]
        lazy = [tensors(array).conj() if flag else tensors(array) for array, flag in zip(arrays, flags, strict=True)]
        return numpy_call(*meant), lazy

    for turn, mixed in enumerate(((0, 0), (1, 1), (0, 1), (1, 0))):
        expected, lazy = views(turn, mixed)
        assert (call(*lazy).base == expected).all()
        assert (call(*lazy, out=tensors(np.empty_like(expected))).base == expected).all()
    assert len(checked) == 4 * (2 + 3)
    expected, lazy = views(9, flags)
    assert (call(*lazy).base == expected).all()
    target = tensors(np.empty_like(expected))
    assert (call(*lazy, out=target).base == expected).all()
    assert len(checked) == 4 * (2 + 3)
    before = target.base.copy()
    with pytest.raises(ArgumentError, match=r"out: got a lazily conjugated view"):
        call(*lazy, out=target.conj())
    assert (target.base == before).all()


def test_lazy_conjugates_are_transposed(tensors: Tensors, checked: list[str]) -> None:
    for turn in range(3):
        x = (_matrix(turn, 30, 20) + 1j * _matrix(turn + 1, 30, 20)).astype(np.complex128)
        assert (matmill.transpose(tensors(x)).base == x.T).all()
        assert (matmill.transpose(tensors(x).conj()).base == x.conj().T).all()
        assert checked == ["x", "x"]


def test_whatever_differs_in_more_than_addresses_is_another_kind(tensors: Tensors, checked: list[str]) -> None:
    pool = np.random.default_rng(0).integers(-9, 9, 9000).astype(np.float32)
    square, other = pool[:900].reshape(30, 30), pool[904:1804].reshape(30, 30)
    kinds: list[tuple[Array, Array]] = [
        (square, other),
        (square.T, other),
        (square, other.T),
        (square, pool[905:1805].reshape(30, 30)),  # starts on 4 bytes
        (square, square),
        (square, square.T),
        (square.astype(np.float64), other.astype(np.float64)),
        (square[:, :29], other[:29]),
        (square[::2], other),
    ]
    for turn in range(2):
        for a, b in kinds:
            assert (matmill.matmul(tensors(a), tensors(b)).base == a @ b).all()
        assert len(checked) == 2 * len(kinds), turn
    assert len(plan_cache.calls) == len(kinds)


def test_one_row_may_have_any_stride(tensors: Tensors, checked: list[str]) -> None:
    pool, b = _matrix(0, 4, 40), _matrix(1, 40, 8)
    for row in (pool[:1], pool[1:2], np.ascontiguousarray(pool[2:3])):
        assert (matmill.matmul(tensors(row), tensors(b)).base == row @ b).all()
    assert len(checked) == 2


def test_scalars_and_other_arguments_are_for_the_checked_path(tensors: Tensors, checked: list[str]) -> None:
    x, y = _matrix(0, 20, 12), _matrix(1, 12, 20)
    for _ in range(2):
        assert (matmill.transpose_add(tensors(x), tensors(y), alpha=2.0).base == 2 * x.T + y).all()
        assert (matmill.transpose_add(tensors(x), tensors(y), beta=1).base == x.T + y).all()
        c = _matrix(2, 20, 20)
        assert (matmill.matmul(tensors(x), tensors(y), c=tensors(c), beta=1.0).base == x @ y + c).all()
    assert len(checked) == 2 * (2 + 2 + 3)
    with pytest.raises(ArgumentError, match="beta"):
        matmill.matmul(tensors(x), tensors(y), beta=1.0)


def test_epilogues_have_plans_in_the_cache(tensors: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def counted(*asked: Any) -> Any:
        made.append(asked)
        return prepare(*asked)

    monkeypatch.setattr(plan_cache, "prepare", counted)
    kinds: list[dict[str, Any]] = [
        {"bias": lambda turn: _matrix(turn, 1, 24)},
        {"bias": lambda turn: _matrix(turn, 20, 1)},
        {"bias": lambda turn: _matrix(turn, 1, 48)[0, ::-2], "activation": "relu"},
        {"activation": "relu"},
        {"bias": lambda turn: _matrix(turn, 1, 24).astype(np.float16), "out_dtype": "float32"},
    ]
    for turn in range(3):
        for kind in kinds:
            dtype = np.dtype(np.float16 if "out_dtype" in kind else np.float32)
            x, y = _matrix(turn, 20, 12).astype(dtype), _matrix(turn + 10, 12, 24).astype(dtype)
            bias = kind["bias"](turn) if "bias" in kind else np.zeros(1, dtype)
            options = {**kind, "bias": tensors(bias)} if "bias" in kind else kind
            result = matmill.matmul(tensors(x), tensors(y), **options)
            expected = np.matmul(x, y, dtype=np.float32) + bias
            assert (result.base == (np.maximum(expected, 0) if "activation" in kind else expected)).all()
            assert result.dtype == "float32"
        assert len(made) == len(kinds)


def test_results_may_be_written_where_y_is_and_nowhere_else(tensors: Tensors, checked: list[str]) -> None:
    pool = _matrix(0, 60, 30)
    x = _matrix(1, 30, 30)
    for _ in range(3):
        y = _matrix(2, 30, 30)
        expected = x.T + y
        assert matmill.transpose_add(tensors(x), tensors(y), out=tensors(y)).base is y
        assert (y == expected).all()
    assert len(checked) == 3
    apart = tensors(pool[:30]), tensors(pool[30:])
    matmill.transpose_add(tensors(x), apart[0], out=apart[1])  # of the same kind
    for out in (pool[4:34], pool[28:58]):
        with pytest.raises(AliasError, match="overlaps y"):
            matmill.transpose_add(tensors(x), tensors(pool[16:46]), out=tensors(out))
    with pytest.raises(AliasError, match="overlaps x"):
        matmill.transpose_add(tensors(x), apart[0], out=tensors(x))
    for _ in range(2):
        with pytest.raises(AliasError, match="overlaps a"):
            matmill.matmul(tensors(x), tensors(pool[:30]), out=tensors(x))


def test_what_needs_a_word_gets_it(device: FakeGPU, tensors: Tensors) -> None:
    x, y = _matrix(0, 20, 12), _matrix(1, 12, 20)
    for _ in range(2):
        matmill.transpose_add(tensors(x), tensors(y))
    launched = len(device.launches)
    graded, negated = tensors(x), tensors(y)
    graded.requires_grad = True
    negated.is_neg = lambda: True  # type: ignore[method-assign]  # of this one alone
    for first, second, error, words in (
        (graded, tensors(y), ArgumentError, "requires grad"),
        (tensors(x), negated, ArgumentError, "negated"),
        (tensors(x), y, Exception, "one on GPU 0"),
        (tensors(x), tensors(y.astype(np.float64)), DTypeError, "float64"),
        (tensors(x), tensors(x), ShapeError, "shape"),
        (tensors(x), None, DTypeError, "NoneType"),
    ):
        with pytest.raises(error, match=words):
            matmill.transpose_add(first, second)
    assert len(device.launches) == launched


def test_a_tensor_without_memory_is_for_the_checked_path(tensors: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = _matrix(0, 20, 12), _matrix(1, 12, 20)
    matmill.transpose_add(tensors(x), tensors(y))
    sparse = tensors(y)
    sparse.layout = "sparse_coo"

    def none() -> int:
        raise NotImplementedError("no storage")

    monkeypatch.setattr(sparse, "data_ptr", none)
    with pytest.raises(ArgumentError, match="sparse_coo"):
        matmill.transpose_add(tensors(x), sparse)


def test_only_so_many_kinds_are_remembered(tensors: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "_MOST_CALLS", 2)
    for n in range(1, 6):
        matmill.transpose(tensors(_matrix(0, 3, n)))
        assert len(plan_cache.calls) <= 2


@pytest.mark.parametrize("change", ["x", "y", "out"])
def test_an_alignment_is_part_of_a_kind(change: str, tensors: Tensors, checked: list[str]) -> None:
    pool = np.zeros(4000, np.float32)
    places = {"x": pool[:240], "y": pool[400:640], "out": pool[800:1040]}

    def call() -> None:
        places["x"][:], places["y"][:] = np.arange(240), np.arange(240)[::-1]
        x, y, out = places["x"].reshape(20, 12), places["y"].reshape(12, 20), places["out"].reshape(12, 20)
        matmill.transpose_add(tensors(x), tensors(y), out=tensors(out))
        assert (out == x.T + y).all()

    call()
    call()
    assert len(checked) == 3
    start = {"x": 1, "y": 401, "out": 801}[change]
    places[change] = pool[start : start + 240]
    call()
    assert len(checked) == 6
    call()
    assert len(checked) == 6


def test_strides_of_the_result_are_part_of_a_kind(tensors: Tensors, checked: list[str]) -> None:
    x, y = _matrix(0, 20, 12), _matrix(1, 12, 20)
    wide = np.zeros((12, 40), np.float32)
    for out in (np.zeros((12, 20), np.float32), wide[:, :20], np.zeros((20, 12), np.float32).T):
        for _ in range(2):
            matmill.transpose_add(tensors(x), tensors(y), out=tensors(out))
            assert (out == x.T + y).all()
    assert len(checked) == 9


def test_a_fresh_result_that_starts_elsewhere_takes_the_checked_path(
    tensors: Tensors, checked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    e, f = _matrix(0, 20, 12), _matrix(1, 12, 24)
    for behind in (0, 4, 0, 4):
        monkeypatch.setattr(Tensor, "behind", behind)
        result = matmill.matmul(tensors(e), tensors(f))
        assert result.data_ptr() % 16 == behind
        view = result.base if not behind else result.base[behind : behind + 1920].view(np.float32).reshape(20, 24)
        assert (view == e @ f).all()
    assert len(checked) == 6


@pytest.mark.parametrize("place", ["x", "y", "out"])
def test_other_classes_take_the_checked_path(place: str, tensors: Tensors, checked: list[str]) -> None:
    arrays = {"x": _matrix(0, 20, 12), "y": _matrix(1, 12, 20), "out": np.zeros((12, 20), np.float32)}
    for turn in range(4):
        given = {name: tensors(array) for name, array in arrays.items()}
        if turn:
            given[place].__class__ = Subclass if turn < 3 else Parameter
        matmill.transpose_add(given["x"], given["y"], out=given["out"])
        assert (arrays["out"] == arrays["x"].T + arrays["y"]).all()
    assert len(checked) == 9  # both classes of torch's own are known from the first call on
    assert all(type_ is not Subclass for type_ in fast_path.torch.classes)


@pytest.mark.parametrize("place", ["x", "y", "out"])
def test_gradients_matter_where_they_are_recorded(
    place: str, tensors: Tensors, checked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = {"x": _matrix(0, 20, 12), "y": _matrix(1, 12, 20), "out": np.zeros((12, 20), np.float32)}

    def call() -> None:
        given = {name: tensors(array) for name, array in arrays.items()}
        given[place].requires_grad = True
        matmill.transpose_add(given["x"], given["y"], out=given["out"])

    monkeypatch.setattr(Tensor, "recording", False)
    call()
    call()
    assert len(checked) == 3
    monkeypatch.setattr(Tensor, "recording", True)
    with pytest.raises(ArgumentError, match="requires grad"):
        call()


@pytest.mark.parametrize("place", ["x", "y", "out"])
def test_lazily_negated_tensors_and_other_types_are_refused_as_ever(place: str, tensors: Tensors) -> None:
    arrays = {"x": _matrix(0, 20, 12), "y": _matrix(1, 12, 20), "out": np.zeros((12, 20), np.float32)}
    for _ in range(2):
        matmill.transpose_add(tensors(arrays["x"]), tensors(arrays["y"]), out=tensors(arrays["out"]))
    given = {name: tensors(array) for name, array in arrays.items()}
    given[place].is_neg = lambda: True  # type: ignore[method-assign]  # of this one alone
    with pytest.raises(ArgumentError, match="negated"):
        matmill.transpose_add(given["x"], given["y"], out=given["out"])
    given = {name: tensors(array.astype(np.float64 if name == place else np.float32)) for name, array in arrays.items()}
    with pytest.raises(DTypeError):
        matmill.transpose_add(given["x"], given["y"], out=given["out"])


@pytest.mark.parametrize("name", CALLS)
def test_every_write_counts_up_the_version(name: str, tensors: Tensors, checked: list[str]) -> None:
    call, numpy_call, x_shape, y_shape = CALLS[name]
    x, y = _matrix(0, *x_shape), _matrix(1, *y_shape)
    out = tensors(np.zeros_like(numpy_call(x, y)))
    for turn in range(3):  # checked, then fast
        call(tensors(x), tensors(y), out=out)
        assert out.version == turn + 1
    assert len(checked) == 3
    with pytest.raises(ArgumentError, match="alpha"):
        call(tensors(x), tensors(y), alpha="2", out=out)
    with pytest.raises(ShapeError):
        call(tensors(x), tensors(y), out=tensors(out.base[:1]))
    assert out.version == 3


def test_inference_tensors_are_written_in_inference_mode_alone(
    tensors: Tensors, checked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, out = _matrix(0, 20, 12), _matrix(1, 12, 20), tensors(np.zeros((12, 20), np.float32))
    out.inference = True
    monkeypatch.setattr(Tensor, "inferring", True)
    for _ in range(3):
        matmill.transpose_add(tensors(x), tensors(y), out=out)
    assert (out.base == x.T + y).all()
    assert (out.version, len(checked)) == (0, 3)
    monkeypatch.setattr(Tensor, "inferring", False)
    out.base[...] = 0
    with pytest.raises(ReadOnlyError, match="inference"):
        matmill.transpose_add(tensors(x), tensors(y), out=out)
    assert not out.base.any()


@pytest.mark.parametrize("place", ["x", "y", "out"])
@pytest.mark.parametrize("state", ["tangent", "tracing", "address"])
def test_what_torch_knows_beside_the_memory_is_refused_as_ever(
    state: str, place: str, tensors: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = {"x": _matrix(0, 20, 12), "y": _matrix(1, 12, 20), "out": np.zeros((12, 20), np.float32)}
    for _ in range(2):
        matmill.transpose_add(tensors(arrays["x"]), tensors(arrays["y"]), out=tensors(arrays["out"]))
    given = {name: tensors(array) for name, array in arrays.items()}
    if state == "tracing":
        monkeypatch.setattr(Tensor, "tracing", True)
    else:
        setattr(given[place], state, 0)
    monkeypatch.setattr(fast_path.torch.forward_ad, "_current_level", 0)
    launched = len(tensors.device.launches)
    with pytest.raises(ArgumentError, match="no more than its values"):
        matmill.transpose_add(given["x"], given["y"], out=given["out"])
    assert len(tensors.device.launches) == launched


def test_what_the_fast_path_declines_is_not_remembered_again(tensors: Tensors, checked: list[str]) -> None:
    pool = _matrix(0, 40, 64)
    for turn in range(3):
        # Their bytes interleave, so that addresses alone do not tell them apart.
        out = tensors(pool[:20, 24:64])
        matmill.transpose(tensors(pool[:, :20]), out=out)
        if turn == 0:
            known = dict(plan_cache.calls)
    assert len(known) == 1
    assert plan_cache.calls == known
    assert len(checked) == 6


def test_calls_of_other_libraries_leave_their_plans_to_tensors(tensors: Tensors, checked: list[str]) -> None:
    a, b = _matrix(0, 20, 12), _matrix(1, 12, 24)
    assert (matmill.matmul(a, b, executor="gpu") == a @ b).all()
    (known,) = plan_cache.calls.values()
    for _ in range(2):
        assert (matmill.matmul(tensors(a), tensors(b)).base == a @ b).all()
    assert list(plan_cache.calls.values()) == [known]
    assert checked == ["a", "b"] * 2
