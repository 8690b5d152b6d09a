"""matmul on the host: the contract, through NumPy's BLAS, and every refusal."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import matmill
from matmill import errors
from matmill.dtypes import ALL, F32
from matmill.reference import check
from matmill.runtime import gpu
from support.examples import examples

Array = NDArray[Any]


def _random(seed: int, *shape: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.fixture(params=["float32", "float64", "float16", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    """Provide every element type by name."""
    name: str = request.param
    return name


def _cast(seed: int, *shape: int, dtype: str) -> Array:
    return _random(seed, *shape, dtype="float64").astype(ALL[dtype].numpy)


def _cpu(*args: Any, **options: Any) -> Any:
    return matmill.matmul(*args, executor="cpu", **options)


def _vast(*shape: int, dtype: str = "float32") -> Array:
    """Return zeros without memory of their own: all strides are 0."""
    return np.broadcast_to(np.zeros((), ALL[dtype].numpy), shape)


_SIDE, _PIB = 2**40, 2**24
_HUGE: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...] | None, str, str]] = {
    "product beyond addresses": (matmill.matmul, (_SIDE, 1), (1, _SIDE), "4.00 YiB", "a, b"),
    "product beyond memory": (matmill.matmul, (_PIB, 1), (1, _PIB), "1.00 PiB", "a, b"),
    "batch": (matmill.matmul, (2**49, 1, 1), (1, 1), "2.00 PiB", "a, b"),
    "batch and no terms": (matmill.matmul, (2**49, 1, 0), (0, 1), "2.00 PiB", "a, b"),
    "vector": (matmill.matmul, (2**50, 1), (1,), "4.00 PiB", "a, b"),
    "broadcast sum": (matmill.transpose_add, (_SIDE, 1, 1, 1), (_SIDE, 1, 1), "4.00 YiB", "x, y"),
    "sum": (matmill.transpose_add, (_PIB, _PIB), (_PIB, _PIB), "1.00 PiB", "x, y"),
    "transpose": (matmill.transpose, (_PIB, _PIB), None, "1.00 PiB", "x"),
}


@pytest.mark.parametrize("executor", ["cpu", "emulator"])
@pytest.mark.parametrize("case", _HUGE)
def test_results_that_fit_no_memory_are_refused_with_their_size(case: str, executor: str) -> None:
    call, first, second, words, argument = _HUGE[case]
    arrays = [_vast(*shape) for shape in (first, second) if shape is not None]
    with pytest.raises(errors.OutOfMemoryError, match=f"{words}; wanted.*in parts") as refused:
        call(*arrays, executor=executor)
    assert refused.value.argument == argument
    assert isinstance(refused.value, MemoryError)


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"alpha": 0.5}, {"beta": 1.0, "c": np.zeros((), np.float16)}])
def test_huge_products_are_refused_whatever_is_added(options: dict[str, Any]) -> None:
    with pytest.raises(errors.OutOfMemoryError, match=r"float16 result of shape \(16777216, 16777216\), 512\.00 TiB"):
        _cpu(_vast(_PIB, 1, dtype="float16"), _vast(1, _PIB, dtype="float16"), **options)


@st.composite
def _operands(draw: st.DrawFn) -> tuple[Array, Array]:
    m, n, k = (draw(st.integers(0, 9)) for _ in range(3))
    batch = draw(st.lists(st.integers(0, 3), max_size=2))
    shapes: list[tuple[int, ...]] = [(m, k), (k, n)]
    for i in range(2):
        own = tuple(1 if draw(st.booleans()) else extent for extent in batch)
        shapes[i] = (*own[draw(st.integers(0, len(own))) :], *shapes[i])
        if len(shapes[i]) == 2 and draw(st.booleans()):
            shapes[i] = (k,)
    dtype = draw(st.sampled_from(["float32", "float64"]))
    views = []
    for i, shape in enumerate(shapes):
        steps = [draw(st.sampled_from([1, -1, 2, -3])) for _ in shape]
        root = _random(i, *(extent * abs(step) for extent, step in zip(shape, steps, strict=True)), dtype=dtype)
        views.append(root[tuple(slice(None, None, step) for step in steps)])
    return views[0], views[1]


@examples(100)
@given(_operands(), st.sampled_from([1.0, 0.0, -0.5, 2.0]), st.sampled_from([0.0, 1.0, 0.25]))
def test_any_shape_and_stride(drawn: tuple[Array, Array], alpha: float, beta: float) -> None:
    a, b = drawn
    c = _random(7, *np.matmul(a, b).shape, dtype=a.dtype.name)
    result = _cpu(a, b, c=c, alpha=alpha, beta=beta)
    assert type(result) is np.ndarray
    verdict = check(result, a, b, c, alpha=alpha, beta=beta)
    assert verdict.ok, verdict


def test_two_vectors_give_an_array_without_dimensions() -> None:
    result = _cpu(np.ones(3, np.float32), np.ones(3, np.float32))
    assert isinstance(result, np.ndarray)
    assert result.shape == ()
    assert result == 3


def test_beta_zero_does_not_read_c_and_alpha_zero_not_a_and_b() -> None:
    a, b = _random(0, 3, 4), _random(1, 4, 5)
    nan = np.full((3, 5), np.nan, np.float32)
    assert check(_cpu(a, b, c=nan, beta=0), a, b).ok
    c = _random(2, 3, 5)
    np.testing.assert_array_equal(_cpu(np.full_like(a, np.nan), b, c=c, alpha=0, beta=2), 2 * c)


def test_no_terms_leave_beta_times_c() -> None:
    c = _random(0, 3, 5)
    a, b = np.zeros((3, 0), np.float32), np.zeros((0, 5), np.float32)
    np.testing.assert_array_equal(_cpu(a, b, c=c, beta=-1), -c)
    np.testing.assert_array_equal(_cpu(a, b), np.zeros((3, 5)))


def test_c_broadcasts() -> None:
    a, b, bias = _random(0, 2, 3, 4), _random(1, 4, 5), _random(2, 5)
    assert check(_cpu(a, b, c=bias, beta=1), a, b, np.broadcast_to(bias, (2, 3, 5)), beta=1).ok


def test_out_is_written_and_returned() -> None:
    a, b = _random(0, 3, 4), _random(1, 4, 5)
    out = np.full((5, 3), np.nan, np.float32).T
    assert _cpu(a, b, out=out) is out
    assert check(out, a, b).ok


def test_out_may_be_exactly_c() -> None:
    a, b, c = _random(0, 3, 4), _random(1, 4, 5), _random(2, 3, 5)
    before = c.copy()
    _cpu(a, b, c=c, beta=0.5, out=c)
    assert check(c, a, b, before, beta=0.5).ok


def test_numpy_scalars_and_whole_numbers_are_factors() -> None:
    a = np.ones((2, 2), np.float32)
    np.testing.assert_array_equal(_cpu(a, a, alpha=np.float64(2)), 4 * a)
    np.testing.assert_array_equal(_cpu(a, a, alpha=np.int32(3)), 6 * a)
    assert _cpu(a, a, alpha=1e39)[0, 0] == np.inf


A, B, C = _random(0, 3, 4), _random(1, 4, 5), _random(2, 3, 5)


class _Unreadable:
    """An output whose interface lacks its address."""

    __cuda_array_interface__: ClassVar = {"shape": (3, 5), "typestr": "<f4", "version": 3}


def _misaligned() -> Array:
    """Return float32 elements from an odd address."""
    return np.zeros(61, np.uint8)[1:].view(np.float32).reshape(3, 5)


#: Outputs that cannot be written, of which a copy could: the result would be in the copy, and lost with it.
_UNWRITABLE: dict[str, Callable[[], Any]] = {
    "masked": lambda: np.ma.masked_array(np.zeros((3, 5), np.float32), mask=False),
    "field of a record": lambda: np.zeros((3, 5), [("flag", "u1"), ("value", "f4")])["value"],
    "misaligned": _misaligned,
    "other byte order": lambda: np.zeros((3, 5), ">f4"),
    "element type that is none of ours": lambda: np.zeros((3, 5), np.int16),
    "another element type": lambda: np.zeros((3, 5), np.float16),
    "list": lambda: [[0.0] * 5] * 3,
    "read-only": lambda: np.broadcast_to(np.float32(0), (3, 5)),
    "malformed": _Unreadable,
}


@pytest.mark.parametrize("case", _UNWRITABLE)
def test_no_advice_for_an_output_loses_the_result(case: str) -> None:
    out = _UNWRITABLE[case]()
    with pytest.raises(errors.MatmillError, match=r"^out: got") as refused:
        _cpu(A, B, out=out)
    assert refused.value.fix == "Omit out= and use the array that is returned."
    result = _cpu(A, B)
    assert check(result, A, B).ok
    if isinstance(out, np.ndarray) and out.flags.writeable:
        out[...] = result
        np.testing.assert_array_equal(np.asarray(out), result.astype(out.dtype))


@pytest.mark.parametrize("case", ["layout", "negated", "gradient", "another type"])
def test_no_advice_for_an_output_of_torch_loses_the_result(case: str) -> None:
    torch = pytest.importorskip("torch")
    a, b = torch.from_numpy(A), torch.from_numpy(B)
    plain = torch.zeros(3, 5)
    out = {
        "layout": plain.to_sparse(),
        "negated": torch.zeros(3, 5, dtype=torch.complex64).conj().imag,
        "gradient": plain.requires_grad_(),
        "another type": torch.zeros(3, 5, dtype=torch.float16),
    }[case]
    with pytest.raises(errors.MatmillError, match=r"^out: got") as refused:
        _cpu(a, b, out=out)
    if case == "gradient":
        assert refused.value.fix.startswith("Pass out.detach()")
        _cpu(a, b, out=out.detach())
        assert check(plain.detach().numpy(), A, B).ok
    else:
        assert refused.value.fix == "Omit out= and use the array that is returned."


#: Inputs that are refused with a piece of Python that cures them.
_CURABLE: dict[str, Callable[[], Any]] = {
    "masked": lambda: np.ma.masked_array(A, mask=False),
    "field of a record": lambda: np.zeros((3, 4), [("flag", "u1"), ("value", "f4")])["value"],
    "other byte order": lambda: A.astype(">f4"),
    "list": A.tolist,
    "torch, layout": lambda: _torch().from_numpy(A).to_sparse(),
    "torch, negated": lambda: _torch().from_numpy(A * 1j).conj().imag,
    "torch, gradient": lambda: _torch().from_numpy(A.copy()).requires_grad_(),
    "torch, misaligned": lambda: _torch().from_numpy(np.zeros(49, np.uint8)[1:].view(np.float32).reshape(3, 4)),
}


def _torch() -> Any:
    return pytest.importorskip("torch")


@pytest.mark.parametrize("case", _CURABLE)
def test_the_advice_for_an_input_cures_it(case: str) -> None:
    a: Any = _CURABLE[case]()
    other: Any = _torch().from_numpy(B) if case.startswith("torch") else B
    with pytest.raises(errors.MatmillError, match=r"^a: got") as refused:
        _cpu(a, other)
    (advised,) = re.findall(r"(?:numpy\.|a\.)\S*\(.*\)", refused.value.fix)
    cured = eval(advised, {"numpy": np, "a": a})  # noqa: S307 — what a reader would type
    assert _cpu(cured, other).shape == (3, 5)


@pytest.mark.parametrize(
    "alpha", ["2", True, np.ones(()), Decimal(2), Fraction(2), 10**400, None, 1j, "two", np.ones(2)]
)
def test_the_advice_for_a_factor_cures_it(alpha: Any) -> None:
    with pytest.raises(errors.ArgumentError, match=r"^alpha: got") as refused:
        _cpu(A, B, alpha=alpha)
    (advised,) = re.findall(r"float\(alpha\)|1\.0", refused.value.fix)
    assert _cpu(A, B, alpha=eval(advised, {"alpha": alpha})).shape == (3, 5)  # noqa: S307 — as above


_BASE = np.zeros(400, np.float32)
_FROZEN = np.zeros((3, 5), np.float32)
_FROZEN.flags.writeable = False


@pytest.mark.parametrize(
    ("arguments", "options", "error", "argument", "words"),
    [
        ((A, A), {}, errors.ShapeError, "a, b", "(3, 4) and (3, 4)"),
        ((A, np.float32(2)), {}, errors.DTypeError, "b", "numpy.float32"),
        ((A, np.zeros((), np.float32)), {}, errors.ShapeError, "b", "one dimension"),
        ((A, B.astype(np.float64)), {}, errors.DTypeError, "b", "float64"),
        ((A, B.astype(">f4")), {}, errors.DTypeError, "b", "byte order"),
        ((A.astype(np.int16), B), {}, errors.DTypeError, "a", "int16"),
        ((A, [[1.0]]), {}, errors.DTypeError, "b", "list"),
        ((A, B), {"beta": 1.0}, errors.ArgumentError, "c", "beta = 1.0"),
        ((A, B), {"c": np.zeros((2, 5), np.float32), "beta": 1.0}, errors.ShapeError, "c", "(2, 5)"),
        ((A, B), {"c": np.zeros((2, 3, 5), np.float32), "beta": 0}, errors.ShapeError, "c", "(2, 3, 5)"),
        ((A, B, C), {}, errors.ArgumentError, "c", "by position"),
        ((A, B, C), {"beta": 1.0}, errors.ArgumentError, "c", "pass out=array"),
        ((A, B), {"c": C}, errors.ArgumentError, "c", "without beta"),
        ((A, B), {"c": C, "out": C}, errors.ArgumentError, "c", "pass c=array, beta=1.0"),
        ((A, B), {"alpha": "2"}, errors.ArgumentError, "alpha", "str '2'"),
        ((A, B), {"alpha": 1j}, errors.ArgumentError, "alpha", "complex"),
        ((A, B), {"alpha": True}, errors.ArgumentError, "alpha", "bool"),
        ((A, B), {"out": np.zeros((5, 3), np.float32)}, errors.ShapeError, "out", "(5, 3)"),
        ((A, B), {"out": np.zeros((3, 5))}, errors.DTypeError, "out", "float64"),
        ((A, B), {"out": _FROZEN}, errors.ReadOnlyError, "out", "read-only"),
        ((A, B), {"out": np.broadcast_to(_BASE[:5], (3, 5))}, errors.ReadOnlyError, "out", "read-only"),
        ((A, B), {"stream": "0"}, errors.ArgumentError, "stream", "'0'"),
        ((A, B), {"executor": "gpus"}, errors.UnknownNameError, "executor", "Did you mean 'gpu'"),
    ],
)
def test_bad_input(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[errors.MatmillError], argument: str, words: str
) -> None:
    with pytest.raises(error) as raised:
        matmill.matmul(*arguments, **{"executor": "cpu", **options})
    assert raised.value.argument == argument
    assert words in str(raised.value)
    assert raised.value.wanted
    assert raised.value.fix


@pytest.mark.parametrize("where", ["a", "b", "c", "itself", "interleaved"])
def test_outputs_that_share_memory_are_refused_before_anything_is_written(where: str) -> None:
    pool = _random(3, 200)
    before = pool.copy()
    a, b, c = pool[:12].reshape(3, 4), pool[20:40].reshape(4, 5), pool[40:55].reshape(3, 5)
    out = {
        "a": pool[11:26].reshape(3, 5),
        "b": pool[34:49].reshape(3, 5),
        "c": pool[41:56].reshape(3, 5),
        "itself": np.lib.stride_tricks.as_strided(pool[100:], (3, 5), (4, 4)),
        "interleaved": pool[1:31:2].reshape(3, 5),
    }[where]
    with pytest.raises(errors.AliasError) as raised:
        _cpu(a, b, c=c, beta=1, out=out)
    assert raised.value.argument == "out"
    np.testing.assert_array_equal(pool, before)


def test_neighbours_that_interleave_without_touching_are_fine() -> None:
    pool = _random(3, 60)
    a = pool[:24:2].reshape(3, 4)
    out = pool[1:31:2].reshape(3, 5)
    kept = a.copy()
    _cpu(a, B, out=out)
    assert check(out, kept, B).ok


def test_out_may_overlap_a_c_that_is_not_read() -> None:
    pool = np.zeros(20, np.float32)
    out = _cpu(A, B, c=pool[:15].reshape(3, 5), beta=0, out=pool[1:16].reshape(3, 5))
    assert check(out, A, B).ok


class OnlyDLPack:
    """Host memory that says where it is, and nothing of how arrays of its kind are made."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the host."""
        return 1, 0

    def __dlpack__(self, **wishes: Any) -> object:
        """Give NumPy's capsule."""
        return self._values.__dlpack__(**wishes)


def test_results_beside_a_library_that_makes_no_arrays_are_the_others_or_numpys() -> None:
    bare = OnlyDLPack(A)
    for result in (_cpu(bare, B), _cpu(bare, OnlyDLPack(B))):
        assert type(result) is np.ndarray
        assert check(result, A, B).ok
    summed: Any = matmill.transpose_add(bare, OnlyDLPack(A.T.copy()), executor="cpu")
    np.testing.assert_array_equal(summed, 2 * A.T)
    out = np.empty((3, 5), np.float32)
    assert _cpu(bare, B, out=out) is out
    assert check(out, A, B).ok


def test_memory_of_pythons_buffer_protocol_is_an_array() -> None:
    assert check(_cpu(A.data, B.data), A, B).ok
    vector = array("f", [1.0, 2.0, 3.0])
    assert _cpu(vector, vector) == 14


def test_a_gram_matrix_takes_one_array() -> None:
    gram = matmill.inner(A, executor="cpu")
    assert gram.tobytes() == matmill.inner(A, A.T, executor="cpu").tobytes()
    assert check(matmill.inner(A.T, executor="cpu"), A.T, A).ok
    with pytest.raises(errors.ShapeError, match=r"^e: got shape"):
        matmill.inner(A[0])


@pytest.mark.parametrize(
    ("module", "cure"),
    [
        ("scipy.sparse._csr", "Pass b.toarray()."),
        ("dask.array.core", "Pass b.compute()."),
        ("pandas.core.frame", "Pass b.to_numpy()."),
        ("polars.dataframe.frame", "Pass b.to_numpy()."),
        ("xarray.core.dataarray", "Pass b.to_numpy()."),
        ("h5py._hl.dataset", "Pass b[...]."),
        ("elsewhere", "numpy.asarray(b, dtype='float32')"),
    ],
)
def test_what_is_no_array_is_told_what_to_do(module: str, cure: str) -> None:
    stranger = type("Stranger", (), {"__module__": module})()
    with pytest.raises(errors.DTypeError, match=rf"^b: got {module}\.Stranger; wanted an array.*{re.escape(cure)}"):
        _cpu(A, stranger)
    with pytest.raises(errors.DTypeError, match=r"^out: .*Omit out="):
        _cpu(A, B, out=stranger)


def test_a_gpu_that_is_demanded_and_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "unavailable", lambda: "no NVIDIA driver is installed")
    with pytest.raises(errors.NoGPUError, match=r"no NVIDIA driver.*doctor"):
        matmill.matmul(A, B, executor="gpu")
    with pytest.raises(errors.NoGPUError):
        gpu.GPU.get(0)
    assert check(matmill.matmul(A, B), A, B).ok


def test_the_environment_names_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "unavailable", lambda: "none here")
    monkeypatch.setenv("MATMILL_EXECUTOR", "gpu")
    with pytest.raises(errors.NoGPUError):
        matmill.matmul(A, B)
    monkeypatch.setenv("MATMILL_EXECUTOR", "cup")
    with pytest.raises(errors.UnknownNameError, match="'cpu'"):
        matmill.matmul(A, B)


def test_unavailable_gives_a_reason_or_none() -> None:
    reason = gpu.unavailable()
    assert reason is None or reason.startswith(("no NVIDIA driver", "the NVIDIA driver", "GPU 0", "the package"))


@pytest.fixture
def torch() -> Any:
    """Provide the library, on the host; what needs it is skipped where it is not installed."""
    return pytest.importorskip("torch")


def test_torch_results_are_tensors(torch: Any) -> None:
    a, b = torch.from_numpy(A), torch.from_numpy(B)
    result = matmill.matmul(a, b)
    assert isinstance(result, torch.Tensor)
    assert check(result.numpy(), A, B).ok


def test_torch_out_is_a_tensor(torch: Any) -> None:
    out = torch.zeros(5, 3).T
    assert matmill.matmul(torch.from_numpy(A), torch.from_numpy(B), out=out) is out
    assert check(out.numpy(), A, B).ok


def test_torch_overlap_is_seen(torch: Any) -> None:
    pool = torch.zeros(40)
    with pytest.raises(errors.AliasError):
        matmill.matmul(pool[:12].view(3, 4), torch.from_numpy(B), out=pool[10:25].view(3, 5))


def test_torch_mixed_with_numpy(torch: Any) -> None:
    assert isinstance(matmill.matmul(torch.from_numpy(A), B), torch.Tensor)
    assert isinstance(matmill.matmul(A, torch.from_numpy(B)), np.ndarray)


def test_an_empty_batch_is_not_visited_element_by_element() -> None:
    a = np.broadcast_to(np.float32(1), (2**40, 1, 1))
    assert _cpu(a, np.zeros((1, 0), np.float32)).shape == (2**40, 1, 0)


@pytest.mark.parametrize("digits", [400, 5000])  # Python itself refuses to print more than 4300
def test_an_alpha_beyond_all_floats_is_refused(digits: int) -> None:
    with pytest.raises(errors.ArgumentError, match="alpha: got an int beyond the range"):
        _cpu(_random(0, 2, 2), _random(1, 2, 2), alpha=10**digits)


def test_a_class_is_no_array() -> None:
    with pytest.raises(errors.DTypeError, match=r"a: got builtins\.type"):
        matmill.matmul(np.ndarray, _random(0, 2, 2))


def test_the_environment_is_named_where_it_demands_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    a = _random(0, 2, 2)
    monkeypatch.setattr("matmill.runtime.gpu.unavailable", lambda: "no driver here")
    monkeypatch.setenv("MATMILL_EXECUTOR", "gpu")
    with pytest.raises(errors.NoGPUError, match="MATMILL_EXECUTOR: got 'gpu'"):
        matmill.matmul(a, a)
    monkeypatch.setenv("MATMILL_EXECUTOR", "")
    assert check(matmill.matmul(a, a), a, a).ok


def test_a_kernel_argument_too_large_for_float32_is_infinite_without_a_warning() -> None:
    with np.errstate(over="raise"):
        assert np.isinf(F32.scalar(1e300))
        assert F32.scalar(1e300).dtype == np.float32
        assert F32.scalar(-2.5) == -2.5


# -- inner ------------------------------------------------------------------------------------------------------------


def test_inner_of_every_type(dtype: str) -> None:
    e, f, c = _cast(0, 5, 1001, dtype=dtype), _cast(1, 1001, 7, dtype=dtype), _cast(2, 5, 7, dtype=dtype)
    result = matmill.inner(e, f, c=c, alpha=0.5, beta=-2, executor="cpu")
    assert result.dtype == e.dtype
    verdict = check(result, e, f, c, alpha=0.5, beta=-2)
    assert verdict.ok, verdict
    assert check(matmill.inner(e, e.T, executor="cpu"), e, e.T).ok
    out = np.empty_like(c)
    assert matmill.inner(e=e, f=f, out=out, executor="cpu") is out
    assert check(out, e, f).ok
    assert check(matmill.inner(e[:, :0], f[:0], c=c, beta=1, executor="cpu"), e[:, :0], f[:0], c, beta=1).ok


def test_inner_passes_on_what_is_not_finite(dtype: str) -> None:
    e, f = _cast(0, 3, 400, dtype=dtype), _cast(1, 400, 4, dtype=dtype)
    e[0, 7], e[1, 9], f[30, 3] = np.nan, np.inf, -np.inf
    result = matmill.inner(e, f, executor="cpu")
    assert check(result, e, f).ok
    assert np.isnan(result[0]).all()
    assert np.isinf(result[2, 3])


E, F = _random(0, 3, 40), _random(1, 40, 5)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "argument", "words"),
    [
        ((E, F[:39]), {}, errors.ShapeError, "e, f", "the last dimension of e (40) to equal f's second-last (39)"),
        ((E[0], F), {}, errors.ShapeError, "e", "two dimensions (m, k)"),
        ((E, F[:, 0]), {}, errors.ShapeError, "f", "two dimensions (k, n)"),
        ((E[None], F), {}, errors.ShapeError, "e", "Use matmul"),
        ((np.zeros((129, 2), np.float32), F[:2]), {}, errors.ShapeError, "e", "m = 129; wanted m in 1..128"),
        ((E, np.zeros((40, 200), np.float32)), {}, errors.ShapeError, "f", "n = 200; wanted n in 1..128"),
        ((E[:0], F), {}, errors.ShapeError, "e", "m = 0"),
        ((E, F.astype(np.float16)), {}, errors.DTypeError, "f", "wanted e's float32"),
        ((E.astype(np.int8), F), {}, errors.DTypeError, "e", "float16, bfloat16, complex64 or"),
        ((E, F), {"beta": 1.0}, errors.ArgumentError, "c", "beta = 1.0"),
        ((E, F, C), {}, errors.ArgumentError, "c", "pass out=array"),
        ((E, F), {"c": C}, errors.ArgumentError, "c", "pass c=array, beta=1.0"),
        ((E, F), {"out": np.zeros((5, 3), np.float32)}, errors.ShapeError, "out", "(5, 3)"),
        ((E, F), {"out": E[:, :5]}, errors.AliasError, "out", "overlaps e"),
        ((E, F), {"executor": "cup"}, errors.UnknownNameError, "executor", "Did you mean 'cpu'"),
    ],
)
def test_inner_refuses(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[errors.MatmillError], argument: str, words: str
) -> None:
    with pytest.raises(error) as raised:
        matmill.inner(*arguments, **{"executor": "cpu", **options})
    assert raised.value.argument == argument
    assert words in str(raised.value)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_products_may_be_of_any_size(dtype: str) -> None:
    for left, right in (((129, 4), (4, 300)), ((2, 200, 3), (3, 1)), ((500,), (500, 129))):
        a, b = _cast(0, *left, dtype=dtype), _cast(1, *right, dtype=dtype)
        c = _cast(2, right[-1], dtype=dtype)
        result = matmill.matmul(a, b, c=c, alpha=0.5, beta=-1, executor="cpu")
        rows = np.ascontiguousarray(np.broadcast_to(c, result.shape))
        assert check(result, a, b, rows, alpha=0.5, beta=-1).ok


def test_16_bit_sums_are_rounded_once() -> None:
    for dtype, one in (("float16", 2048), ("bfloat16", 256)):
        e = np.ones((1, 3 * one), ALL[dtype].numpy)
        # One by one in 16 bits, the sum would stop at `one`.
        assert _cpu(e, e.T, alpha=1 / 3) == one
        c = np.full((1, 1), one, e.dtype)
        assert _cpu(e[:, :1], e[:, :1].T, c=c, beta=1.0).astype(np.float64) == one
        assert _cpu(e[:, :2], e[:, :2].T, c=c, beta=1.0).astype(np.float64) == one + 2


def test_16_bit_products_convert_a_bounded_stretch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = np.matmul

    def noted(a: Array, b: Array) -> Array:
        seen.append(a.nbytes + b.nbytes)
        result: Array = real(a, b)
        return result

    monkeypatch.setattr("matmill.dispatch.gemm._WIDENED_BYTES", 4096)
    for shapes in (((3, 5000), (5000, 4)), ((2, 3, 700), (2, 700, 4)), ((900,), (900, 3)), ((3, 900), (900,))):
        a, b = (_cast(i, *shape, dtype="bfloat16") for i, shape in enumerate(shapes))
        seen.clear()
        with monkeypatch.context() as patch:
            patch.setattr(np, "matmul", noted)
            result = _cpu(a, b)
        assert check(result, a, b).ok
        assert len(seen) > 2
        assert max(seen) <= 4096


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_long_sums_of_any_strides_keep_their_digits_on_the_cpu(dtype: str) -> None:
    """NumPy multiplies strided, reversed and broadcast operands by a loop that adds one product after the other."""
    k, unit = 2**22, np.finfo(dtype).eps / 2
    u = np.random.default_rng(4).random((2, 2 * k)).astype(dtype)
    row = np.broadcast_to(u[0, :1], k)
    for a, b in ((u[:, ::2], u[0, :k]), (u[:, :k], u[0, k - 1 :: -1]), (u[:, ::-2], u[1, ::2]), (u[:, ::2], row)):
        wanted = a.astype(np.longdouble) @ b.astype(np.longdouble)
        for got in (matmill.matmul(a, b, executor="cpu"), matmill.matmul(b, a.T, executor="cpu")):
            # Values are positive: the sum of their magnitudes is the sum. BLAS adds 16 and more sums of blocks.
            assert (np.abs(got - wanted) <= 400 * unit * wanted).all()
