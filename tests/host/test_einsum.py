"""einsum and tensordot: NumPy's results, products of views without copies, and every refusal."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from matmill import contraction, errors
from matmill.ops import compute

Array = NDArray[Any]


def _random(*shape: int, dtype: str = "float64") -> Array:
    return np.random.default_rng(shape).standard_normal(shape).astype(dtype)


def _view(random: np.random.Generator, shape: list[int]) -> Array:
    """Return a view with axes in any order in memory, steps of either sign, and perhaps a stride of 0."""
    steps = random.choice([1, 1, 1, -1, 2, -3], len(shape))
    order = random.permutation(len(shape))
    root = np.asarray(random.standard_normal([shape[axis] * abs(steps[axis]) for axis in order]))
    x = root.transpose(np.argsort(order))[tuple(slice(None, None, step) for step in steps)]
    axis = int(random.integers(0, 8))
    return np.broadcast_to(x.take([0], axis), shape) if axis < x.ndim and x.size else np.asarray(x)


def _expression(seed: int, count: int) -> tuple[str, list[Array]]:
    """Draw subscripts and arrays: letters once or twice, axes of 1 that broadcast, ellipses, implicit results."""
    random = np.random.default_rng(seed)
    sizes = {letter: int(random.choice([0, 1, 2, 3, 7], p=[0.06, 0.19, 0.25, 0.3, 0.2])) for letter in "abcdef"}
    hidden, dotted = [int(extent) for extent in random.choice([1, 2, 3], 2)], random.random() < 0.3
    terms, arrays = [], []
    for _ in range(count):
        letters = "".join(random.choice(list(sizes), int(random.integers(0, 5))))
        single = {letter for letter in letters if random.random() < 0.15}
        shape = [1 if letter in single else sizes[letter] for letter in letters]
        if dotted:
            at = int(random.integers(0, len(letters) + 1))
            shape[at:at] = [1 if random.random() < 0.3 else extent for extent in hidden[int(random.integers(0, 3)) :]]
            letters = letters[:at] + "..." + letters[at:]
        terms.append(letters)
        arrays.append(_view(random, shape))
    text = ",".join(terms)
    if random.random() < 0.7:
        output = [letter for letter in sizes if letter in text and random.random() < 0.5] + ["..."] * dotted
        text += "->" + "".join(random.permutation(output))
    return text, arrays


def _check(text: str, arrays: list[Array], **options: Any) -> None:
    result, expected = matmill.einsum(text, *arrays, **options), np.einsum(text, *arrays)
    assert result.shape == expected.shape, (text, [x.shape for x in arrays])
    tolerance = 1e-12 if result.dtype == np.float64 else 1e-4
    assert np.allclose(result, expected, rtol=tolerance, atol=tolerance), (text, [x.shape for x in arrays])


@pytest.mark.parametrize("count", [1, 2])
def test_any_expression_is_numpys(count: int) -> None:
    for seed in range(300):
        _check(*_expression(seed, count), executor="cpu")


def test_more_arrays_go_pair_by_pair() -> None:
    pytest.importorskip("opt_einsum")
    for seed in range(100):
        _check(*_expression(seed, 3 + seed % 2), executor="cpu", optimize=("auto", "greedy", "optimal")[seed % 3])
    with pytest.raises(errors.ArgumentError, match="optimize: got False, by which 3 arrays meet at once"):
        matmill.einsum("ij,jk,kl", *[np.ones((2, 2))] * 3, optimize=False)


def test_the_emulator_runs_kernels_on_the_views() -> None:
    for seed in range(24):
        text, arrays = _expression(seed, 1 + seed % 2)
        arrays = [x.astype(np.float32, order="A") for x in arrays]
        _check(text, arrays, executor="emulator")
        out = np.zeros(np.einsum(text, *arrays).shape[::-1], np.float32).T
        assert matmill.einsum(text, *arrays, out=out, executor="emulator") is out
        assert np.allclose(out, np.einsum(text, *arrays), rtol=1e-4, atol=1e-4), text


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Array | None, ...]]:
    """Provide the memory that each computation has read."""
    seen: list[tuple[Array | None, ...]] = []

    def spied(request: Any, call: Any, stream: int | None) -> Any:
        seen.append(tuple(None if x is None else x.owner for x in (request.a, request.b)))
        return compute(request, call, stream)

    monkeypatch.setattr(contraction, "compute", spied)
    return seen


_VIEWS = {
    "matrices": ("ij,jk->ik", (3, 4), (4, 5)),
    "transposed": ("ji,kj->ki", (4, 3), (5, 4)),
    "attention": ("bqhd,bkhd->bhqk", (2, 3, 4, 5), (2, 6, 4, 5)),
    "two axes of terms": ("bshd,hde->bse", (2, 3, 4, 5), (4, 5, 6)),
    "axes of terms apart": ("abcd,cdef->aebf", (2, 3, 4, 5), (4, 5, 2, 3)),
    "diagonals": ("iij,jkk->ik", (3, 3, 4), (4, 5, 5)),
    "broadcast": ("...ij,jk->...ik", (2, 1, 3, 4), (4, 5)),
    "elements": ("ij,ij->ij", (3, 4), (3, 4)),
    "outer": ("i,jk->kij", (3,), (4, 5)),
    "all terms": ("ij,ij->", (3, 4), (3, 4)),
}


@pytest.mark.parametrize("case", _VIEWS)
def test_one_product_reads_both_arrays_in_place(case: str, reads: list[tuple[Array, Array]]) -> None:
    text, *shapes = _VIEWS[case]
    arrays = [_random(*shape) for shape in shapes]
    _check(text, arrays, executor="cpu")
    ((x, y),) = reads
    assert {np.shares_memory(x, own) or np.shares_memory(y, own) for own in arrays} == {True}


def test_only_terms_that_no_stride_joins_are_copied(reads: list[tuple[Array | None, ...]]) -> None:
    small, large = _random(4, 3, 5), _random(3, 4, 6)
    _check("abi,baj->ij", [small, large], executor="cpu")
    (copied, nothing), (x, y) = reads
    assert nothing is None
    assert copied is not None
    assert x is not None
    assert y is not None
    assert np.shares_memory(copied, small)
    assert not np.shares_memory(x, small)
    assert np.shares_memory(y, large)


def test_sums_come_before_products(reads: list[tuple[Array | None, ...]]) -> None:
    _check("ij,jk->k", [_random(3, 4), _random(4, 5)], executor="cpu")
    assert [[None if x is None else x.shape for x in pair] for pair in reads] == [[(3, 4), ()], [(4,), (4, 5)]]


def test_one_array_without_a_sum_is_a_view(reads: list[tuple[Array, Array]]) -> None:
    a = _random(3, 3, 4)
    view = matmill.einsum("iij->ji", a)
    view[...] = 7
    assert np.einsum("iij->ji", a).tolist() == [[7.0] * 3] * 4
    assert reads == []
    out = np.empty((4, 3))
    assert matmill.einsum("iij->ji", a, out=out, executor="cpu") is out
    assert not np.shares_memory(out, a)
    assert np.all(out == 7)


def test_numbers_for_letters() -> None:
    a, b = _random(2, 3), _random(3, 4)
    for rest in ([[2, 0]], []):
        expected = np.einsum(a, [0, 1], b, [1, 2], *rest)
        assert np.allclose(matmill.einsum(a, [0, 1], b, [1, 2], *rest, executor="cpu"), expected)
    assert np.allclose(matmill.einsum(a, [..., 51], executor="cpu"), a)


_AXES = [0, 1, 2, (2, 0), ([1], [-2]), ([2, 1], [0, 1]), ([0, -1], [2, 0]), ([], [])]


@pytest.mark.parametrize("axes", _AXES)
def test_tensordot_is_numpys(axes: Any) -> None:
    a, b = _random(3, 4, 4), _random(4, 4, 3)
    result = matmill.tensordot(a, b, axes, executor="cpu")
    assert np.allclose(result, np.tensordot(a, b, axes), rtol=1e-12, atol=1e-12)


def test_short_types_are_summed_wide_and_rounded_once() -> None:
    a = np.full((3, 5000), 1.001, np.float16)
    for options, dtype in (({}, np.float16), ({"out_dtype": "float32"}, np.float32)):
        result = matmill.einsum("ij->i", a, executor="cpu", **options)
        assert result.dtype == dtype
        assert np.all(result == a.astype(np.float64).sum(1).astype(dtype))


def test_torch_tensors_stay_torchs() -> None:
    torch: Any = pytest.importorskip("torch")
    a, b = (torch.from_numpy(_random(*shape, dtype="float32")) for shape in ((2, 3, 4), (4, 3, 5)))
    result = matmill.einsum("aij,jik->ak", a, b, executor="cpu")
    assert torch.allclose(result, torch.einsum("aij,jik->ak", a, b), atol=1e-5)
    view = matmill.einsum("aij->jia", a)
    assert (view.data_ptr(), view.stride()) == (a.data_ptr(), a.permute(2, 1, 0).stride())
    out = torch.zeros(3)
    assert matmill.einsum("aij->i", a.bfloat16(), out_dtype="float32", out=out, executor="cpu") is out
    assert torch.allclose(out, a.bfloat16().float().sum((0, 2)), atol=1e-5)


A, B, C = np.ones((2, 3)), np.ones((3, 4)), np.ones((2, 2), np.float32)
_Call = Callable[[], Any]
_REFUSED: dict[str, tuple[_Call, type[errors.MatmillError], str]] = {
    "character": (
        lambda: matmill.einsum("i1,jk", A, B),
        errors.ArgumentError,
        "subscripts: got '1' in 'i1,jk'; wanted letters, commas, '...' and one '->'. Remove it, or take a letter.",
    ),
    "two arrows": (lambda: matmill.einsum("ij->i->j", A), errors.ArgumentError, "got '-' in"),
    "arrays": (
        lambda: matmill.einsum("ij", A, B),
        errors.ArgumentError,
        "subscripts: got terms for 1 arrays in 'ij'; wanted 2, as arrays are passed. Put commas between.",
    ),
    "no array": (lambda: matmill.einsum("ij"), errors.ArgumentError, "wanted 0, as arrays are passed"),
    "ellipses": (lambda: matmill.einsum("...i...", A), errors.ArgumentError, "got '...' twice in a term in '...i...'"),
    "no ellipsis": (lambda: matmill.einsum("...i->i", A), errors.ArgumentError, "a result without '...' in '...i->i'"),
    "unknown letter": (
        lambda: matmill.einsum("ij,jk->iz", A, B),
        errors.ArgumentError,
        "subscripts: got 'z' of no array in 'ij,jk->iz'; wanted letters of arrays in the result. Omit it after '->'.",
    ),
    "twice": (
        lambda: matmill.einsum("ij->ii", A),
        errors.ArgumentError,
        "got 'i' twice after '->' in 'ij->ii'; wanted it once. Omit one of the two: diagonals are only read.",
    ),
    "few letters": (
        lambda: matmill.einsum("ij,j", A, B),
        errors.ShapeError,
        (
            "operands[1]: got 2 dimensions; wanted 1, one for each letter of 'j'. Give each axis a letter, or write"
            " '...' for axes without one."
        ),
    ),
    "many letters": (lambda: matmill.einsum("...ijk", A), errors.ShapeError, "got 2 dimensions; wanted at least 3, "),
    "sizes": (
        lambda: matmill.einsum("ij,ik", A, B),
        errors.ShapeError,
        (
            "operands[1]: got 3 elements along axis 0; wanted 2, as along axis 0 of operands[0]. Only an axis of 1 is"
            " broadcast, to another array's."
        ),
    ),
    "diagonal": (lambda: matmill.einsum("ii", A), errors.ShapeError, "got 3 elements along axis 1; wanted 2, as"),
    "diagonal of 1": (lambda: matmill.einsum("ii", A[:1]), errors.ShapeError, "got 3 elements along axis 1; wanted 1"),
    "no subscripts": (
        lambda: matmill.einsum(A, B),
        errors.ArgumentError,
        (
            "subscripts: got ndarray; wanted a string, or arrays that alternate with lists of numbers up to 51. Pass"
            " for example 'ij,jk->ik' before the arrays."
        ),
    ),
    "number": (lambda: matmill.einsum(A, [0, 52]), errors.ArgumentError, "lists of numbers up to 51"),
    "types": (
        lambda: matmill.einsum("ij,jk", A, C),
        errors.DTypeError,
        (
            "operands[1]: got dtype float32; wanted operands[0]'s float64. Convert one of them: matmill does not mix"
            " element types."
        ),
    ),
    "list": (lambda: matmill.einsum("ij,jk", A, [[1.0]]), errors.DTypeError, "operands[1]: got builtins.list"),
    "out": (
        lambda: matmill.einsum("ij->ji", A, out=A.copy()),
        errors.ShapeError,
        "out: got shape (2, 3); wanted exact",
    ),
    "overlap": (
        lambda: matmill.einsum("ij,jk", A, B[:, :3], out=A),
        errors.AliasError,
        "memory that overlaps operands",
    ),
    "executor": (
        lambda: matmill.einsum("ij", A, executor=cast("Any", "tpu")),
        errors.UnknownNameError,
        "executor: got 'tpu'",
    ),
    "tensordot's axes": (
        lambda: matmill.tensordot(A, B, ([1], [0, 1])),
        errors.ArgumentError,
        (
            "axes: got ([1], [0, 1]) for arrays of 2 and 2 dimensions; wanted a number of dimensions that both have, or"
            " two sequences of as many different axes. Pass for example axes=1, or axes=([0, 1], [1, 0])."
        ),
    ),
    "number of axes": (lambda: matmill.tensordot(A, B, 3), errors.ArgumentError, "axes: got 3 for arrays of 2 and 2"),
    "negative": (lambda: matmill.tensordot(A, B, -1), errors.ArgumentError, "axes: got -1 for"),
    "no such axis": (lambda: matmill.tensordot(A, B, (2, 0)), errors.ArgumentError, "axes: got (2, 0) for"),
    "same axis": (lambda: matmill.tensordot(C, C, ([0, 0], [0, 1])), errors.ArgumentError, "axes: got ([0, 0], "),
    "tensordot's sizes": (
        lambda: matmill.tensordot(A, B, (0, 0)),
        errors.ShapeError,
        "b: got 3 elements along axis 0; wanted 2, as along axis 0 of a.",
    ),
}


@pytest.mark.parametrize("case", _REFUSED)
def test_refusals_say_what_to_do(case: str) -> None:
    call, kind, words = _REFUSED[case]
    with pytest.raises(kind, match=re.escape(words)):
        call()


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(contraction, "import_module", missing)
    with pytest.raises(errors.MissingPackageError, match=re.escape("Install it: pip install 'opt_einsum>=3.4'")):
        matmill.einsum("ij,jk,kl", *[np.ones((2, 2))] * 3)


def test_paths_are_opt_einsums(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def contract_path(text: str, *shapes: Any, **options: Any) -> Any:
        asked.append((text, shapes, options))
        steps = [((2, 1), (), "lk,jk->jl"), ((1, 0), (), "jl,ij->il")]
        return None, SimpleNamespace(contraction_list=steps)

    monkeypatch.setattr(contraction, "import_module", lambda _name: SimpleNamespace(contract_path=contract_path))
    a, b, c = _random(2, 3), _random(3, 4), _random(4, 5)
    assert np.allclose(matmill.einsum("ij,jk,kl->il", a, b, c, optimize="dp", executor="cpu"), a @ b @ c)
    assert asked == [("ij,jk,kl->il", ((2, 3), (3, 4), (4, 5)), {"shapes": True, "optimize": "dp"})]
