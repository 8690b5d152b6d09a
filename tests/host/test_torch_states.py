"""Calls of every function with torch tensors in every state that torch knows: what must work does, as torch's own.

Each state says what the core functions and those of :mod:`matmill.torch` make of it, as an operand and as ``out``:
None where the call works, else the error. What works is compared with torch's own result, gradient and tangent; what is
refused has written nothing. Whatever is written has a new version, whatever is not has its old one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

import matmill
from matmill.errors import ArgumentError, DeviceError, DTypeError, ReadOnlyError, ShapeError
from support.examples import examples

torch: Any = pytest.importorskip("torch")
mt: Any = import_module("matmill.torch")
forward_ad: Any = torch.autograd.forward_ad
fake_tensor: Any = import_module("torch._subclasses.fake_tensor")

#: torch warns of tensors that it calls prototypes, or will give up.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

Outcome: TypeAlias = type[Exception] | None
Outcomes: TypeAlias = tuple[Outcome, Outcome]


class Memory(torch.Tensor):  # type: ignore[misc] # torch may be absent, and is Any then
    """A subclass that is no more than its memory."""


class Wrapper(torch.Tensor):  # type: ignore[misc] # see above
    """A subclass with operators of its own: twice the tensor inside."""

    inside: Any

    @staticmethod
    def __new__(cls: Any, inside: Any) -> Any:
        """Make one without memory, as torch wants wrappers."""
        result = torch.Tensor._make_wrapper_subclass(cls, inside.shape, dtype=inside.dtype)
        result.inside = inside
        return result

    @classmethod
    def __torch_dispatch__(cls, operator: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return operators of the doubled tensors."""
        doubled = [2 * x.inside if isinstance(x, cls) else x for x in args]
        return operator(*doubled, **{name: getattr(x, "inside", x) for name, x in (kwargs or {}).items()})


#: The errors of a tensor as an operand and as ``out``.
WORKS: Outcomes = (None, None)
REFUSED: Outcomes = (ArgumentError, ArgumentError)
OTHER_TYPE: Outcomes = (DTypeError, DTypeError)
NOWHERE: Outcomes = (DeviceError, DeviceError)
NO_OUT: Outcomes = (None, ArgumentError)


@dataclass(frozen=True)
class State:
    """How to bring a plain matrix into a state, within ``context``, and what the functions then make of it.

    ``recorded`` says that torch records derivatives of it.
    """

    make: Callable[[Any], Any]
    core: Outcomes = WORKS
    torch: Outcomes = WORKS
    context: Callable[[], Any] = ExitStack
    recorded: bool = False


def _in_inference_mode(x: Any) -> Any:
    with torch.inference_mode():
        return x.clone()


def _without_memory(x: Any) -> Any:
    x = x.clone()
    x.untyped_storage().resize_(0)
    return x


STATES: dict[str, State] = {
    "plain": State(lambda x: x),
    "transposed": State(lambda x: x.mT.contiguous().mT),
    "requires grad": State(lambda x: x.requires_grad_(), REFUSED, NO_OUT, recorded=True),
    "no leaf": State(lambda x: x.requires_grad_() * 1, REFUSED, NO_OUT, recorded=True),
    "parameter": State(torch.nn.Parameter, REFUSED, NO_OUT, recorded=True),
    "parameter, unrecorded": State(torch.nn.Parameter, context=torch.no_grad),
    "frozen parameter": State(lambda x: torch.nn.Parameter(x, requires_grad=False)),
    "detached": State(lambda x: x.requires_grad_().detach()),
    "dual": State(
        lambda x: forward_ad.make_dual(x, torch.ones_like(x)), REFUSED, NO_OUT, forward_ad.dual_level, recorded=True
    ),
    "plain beside duals": State(lambda x: x, context=forward_ad.dual_level),
    "inference": State(_in_inference_mode, (None, ReadOnlyError), (None, ReadOnlyError)),
    "inference, inside": State(_in_inference_mode, context=torch.inference_mode),
    "plain in inference mode": State(lambda x: x, context=torch.inference_mode),
    "subclass": State(lambda x: x.as_subclass(Memory)),
    "negated": State(lambda x: torch._neg_view(-x), REFUSED, NO_OUT),
    "imaginary part": State(lambda x: torch.complex(x, -x).conj().imag, REFUSED, NO_OUT),
    "conjugate": State(lambda x: torch.complex(x, x).conj(), OTHER_TYPE, OTHER_TYPE),
    "meta": State(lambda x: x.to("meta"), NOWHERE, NOWHERE),
    "sparse": State(lambda x: x.to_sparse(), REFUSED, REFUSED),
    "compressed": State(lambda x: x.to_sparse_csr(), REFUSED, REFUSED),
    "oneDNN": State(lambda x: x.to_mkldnn(), REFUSED, REFUSED),
    "quantized": State(lambda x: torch.quantize_per_tensor(x, 1.0, 0, torch.qint8), OTHER_TYPE, OTHER_TYPE),
    "nested": State(lambda x: torch.nested.nested_tensor(list(x)), REFUSED, REFUSED),
    "without memory": State(_without_memory, REFUSED, REFUSED),
    # What follows torch itself refuses, or hands to the class, in words of its own.
    "jagged": State(
        lambda x: torch.nested.nested_tensor(list(x), layout=torch.jagged),
        REFUSED,
        (NotImplementedError, NotImplementedError),
    ),
    "zeros without memory": State(
        lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype), REFUSED, (None, RuntimeError)
    ),
    "fake": State(lambda x: fake_tensor.FakeTensorMode().from_tensor(x), REFUSED, (AssertionError, AssertionError)),
    "functional": State(torch._to_functional_tensor, REFUSED, (None, RuntimeError)),
    "wrapper": State(Wrapper, REFUSED),
}

#: Of these, an operator of torch's takes several together.
TOGETHER = ("meta", "fake")

SHAPES = {
    "matmul": (((3, 4), (4, 5)), (3, 5)),
    "inner": (((3, 4), (4, 5)), (3, 5)),
    "transpose_add": (((3, 4), (4, 3)), (4, 3)),
    "transpose": (((3, 4),), (4, 3)),
}
HOMES = {"core": matmill, "torch": mt}
REFERENCES: dict[str, Callable[..., Any]] = {
    "matmul": torch.matmul,
    "inner": torch.matmul,
    "transpose_add": lambda x, y: x.mT + y,
    "transpose": lambda x: x.mT.clone(),
}


def _data(name: str) -> list[Any]:
    """Return operands of small whole numbers, whose sums are exact."""
    generator = torch.Generator().manual_seed(len(name))
    return [torch.randint(-9, 9, shape, generator=generator).float() for shape in SHAPES[name][0]]


def _version(x: Any) -> int:
    return 0 if x.is_inference() else int(x._version)


def _expected(home: str, kinds: list[State], out: State | None) -> tuple[type[Exception], ...]:
    """Return errors of which a call raises one, the first where the order is told; none where it works."""
    lazy = STATES["conjugate"]
    if all(state is lazy for state in kinds):  # all are complex
        refused = None if out is None else getattr(out, home)[1]
        return () if out is None else (ArgumentError,) if out is lazy else (refused or DTypeError, DTypeError)
    result = [getattr(state, home)[0] for state in kinds] + ([] if out is None else [getattr(out, home)[1]])
    if home == "torch" and out is not None and (out is lazy or any(state.recorded for state in kinds)):
        result.append(ArgumentError)
    errors = tuple(error for error in result if error is not None)
    return errors[:1] if home == "core" and lazy not in kinds else errors


def _derivatives(result: Any, operands: list[Any]) -> list[Any]:
    """Return gradients and tangent of what has some."""
    leaves = [x for x in operands if x.requires_grad]
    weight = torch.arange(float(result.numel())).reshape(result.shape)
    gradients = torch.autograd.grad(result, leaves, weight) if result.requires_grad else ()
    return [*gradients, forward_ad.unpack_dual(result).tangent]


def _same(left: Any, right: Any) -> bool:
    return left is right is None or torch.equal(left, right)


def _check(home: str, name: str, kinds: list[str], out: str | None) -> None:
    call, reference = getattr(HOMES[home], name), REFERENCES[name]
    states, target = [STATES[kind] for kind in kinds], None if out is None else STATES[out]
    with ExitStack() as stack:
        for state in {*states, *([] if target is None else [target])}:
            stack.enter_context(state.context())
        ours, theirs = ([state.make(x) for state, x in zip(states, _data(name), strict=True)] for _ in range(2))
        memory = torch.zeros(SHAPES[name][1])
        given = {} if target is None else {"out": target.make(memory)}
        before = _version(memory)
        errors: tuple[type[Exception], ...] = _expected(home, states, target)
        try:
            expected = None if errors else reference(*theirs)
        except RuntimeError as error:  # torch's own operator does not take these together
            errors = (type(error),)
        if errors:
            with pytest.raises(errors):
                call(*ours, **given)
            assert not memory.any()
            assert _version(memory) == before
            return
        result = call(*ours, **given)
        if target is None:
            assert _same(result, expected)
            assert all(map(_same, _derivatives(result, ours), _derivatives(expected, theirs)))
        else:
            assert result is given["out"]
            written = getattr(result, "inside", result)
            assert torch.equal(written, expected)
            assert written.is_inference() or _version(written) > before


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("name", SHAPES)
def test_one_tensor_in_a_state(name: str, home: str, state: str) -> None:
    count = len(SHAPES[name][0])
    for place in range(count):
        if not (count == 1 and home == "torch" and state in TOGETHER):
            _check(home, name, ["plain"] * place + [state] + ["plain"] * (count - place - 1), None)
    _check(home, name, ["plain"] * count, state)


#: States that change nothing for other tensors.
_APART = [
    kind
    for kind, state in STATES.items()
    if state.context is ExitStack and kind not in {*TOGETHER, "wrapper", "functional"}
]


@examples(300)
@given(
    st.sampled_from(list(HOMES)),
    st.sampled_from(["matmul", "inner", "transpose_add"]),
    st.lists(st.sampled_from(_APART), min_size=2, max_size=2),
    st.none() | st.sampled_from(_APART),
)
def test_tensors_in_several_states(home: str, name: str, kinds: list[str], out: str | None) -> None:
    _check(home, name, kinds, out)


@pytest.mark.parametrize("name", SHAPES)
def test_several_tensors_without_memory(name: str) -> None:
    with fake_tensor.FakeTensorMode() as mode:
        for state in (mode.from_tensor, STATES["meta"].make):
            tensors = [state(x) for x in _data(name)]
            out = state(torch.zeros(SHAPES[name][1]))
            result = getattr(mt, name)(*tensors)
            assert (result.shape, result.device) == (SHAPES[name][1], out.device)
            assert getattr(mt, name)(*tensors, out=out) is out
            with pytest.raises(ArgumentError if type(out) is fake_tensor.FakeTensor else DeviceError):
                getattr(matmill, name)(*tensors)


@pytest.mark.parametrize("name", ["matmul", "inner", "transpose_add"])
@pytest.mark.parametrize("other", ["meta", "cuda:0", "cuda:1"])
def test_fake_tensors_of_two_devices(name: str, other: str) -> None:
    with fake_tensor.FakeTensorMode() as mode:
        x, y = (mode.from_tensor(x) for x in _data(name))
        far = fake_tensor.FakeTensor(mode, y.to("meta"), torch.device(other))
        out = fake_tensor.FakeTensor(mode, torch.empty(SHAPES[name][1], device="meta"), torch.device(other))
        with pytest.raises(DeviceError, match="wanted one on the host"):
            getattr(mt, name)(x, far)
        with pytest.raises(DeviceError, match="out: got"):
            getattr(mt, name)(x, y, out=out)


# -- versions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["itself", "detached", "part", "transposed"])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("home", HOMES)
def test_a_backward_pass_misses_the_values_that_were_overwritten(home: str, name: str, view: str) -> None:
    rows, columns = SHAPES[name][1]
    saved = torch.ones(2 * rows, columns) if view != "transposed" else torch.ones(columns, 2 * rows).mT
    weight = torch.ones_like(saved, requires_grad=True)
    total = (weight * saved).sum()
    out = (saved.detach() if view == "detached" else saved)[:rows]
    getattr(HOMES[home], name)(*_data(name), out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


@pytest.mark.parametrize("executor", ["cpu", "emulator"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_executor_counts_versions(executor: str, dtype: str) -> None:
    kind = getattr(torch, dtype)
    for name in ("matmul", "transpose_add", "transpose"):
        tensors, out = [x.to(kind) for x in _data(name)], torch.zeros(SHAPES[name][1], dtype=kind)
        with pytest.raises(ShapeError):
            getattr(matmill, name)(*tensors, out=out[1:], executor=executor)
        assert out._version == 0
        assert getattr(matmill, name)(*tensors, out=out, executor=executor) is out
        assert torch.equal(out, REFERENCES[name](*tensors))
        assert out._version == 1


def test_arrays_of_other_libraries_are_written_into_tensors_too() -> None:
    a, b = (x.numpy() for x in _data("matmul"))
    out = torch.zeros(3, 5)
    matmill.matmul(a, b, out=out, executor="cpu")
    assert out._version == 1


# -- transformations --------------------------------------------------------------------------------------------------

#: What calls a function of one tensor with something that is none.
TRANSFORMATIONS: dict[str, Callable[[Callable[..., Any], Any], Any]] = {
    "vmap": lambda function, x: torch.vmap(function)(torch.stack([x, 2 * x])),
    "grad": lambda function, x: torch.func.grad(lambda y: function(y).pow(2).sum())(x),
    "jvp": lambda function, x: torch.func.jvp(function, (x,), (x + 1,))[1],
    "jacfwd": lambda function, x: torch.func.jacfwd(function)(x),
    "jacrev": lambda function, x: torch.func.jacrev(function)(x),
    "hessian": lambda function, x: torch.func.hessian(lambda y: function(y).pow(3).sum())(x),
    "jvp of vmap": lambda function, x: torch.func.jvp(
        torch.vmap(function), (torch.stack([x, 2 * x]),), (torch.stack([x, x + 1]),)
    )[1],
    "vmap of jvp": lambda function, x: torch.vmap(lambda y: torch.func.jvp(function, (y,), (y + 1,))[1])(
        torch.stack([x, 2 * x])
    ),
    "jacfwd of jacrev": lambda function, x: torch.func.jacfwd(torch.func.jacrev(function))(x),
    "jvp of grad": lambda function, x: torch.func.jvp(
        torch.func.grad(lambda y: function(y).pow(3).sum()), (x,), (x + 1,)
    )[1],
    "trace": lambda function, x: torch.jit.trace(function, x, check_trace=False)(3 * x),
}


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("name", SHAPES)
def test_transformed_functions(name: str, transformation: str) -> None:
    transformed, data = TRANSFORMATIONS[transformation], _data(name)

    def of_one(call: Callable[..., Any], place: int) -> Callable[..., Any]:
        return lambda x: call(*data[:place], x, *data[place + 1 :])

    for place, x in enumerate(data):
        expected = transformed(of_one(REFERENCES[name], place), x)
        assert torch.allclose(transformed(of_one(getattr(mt, name), place), x), expected)
        with pytest.raises(ArgumentError, match=r"matmill\.torch"):
            transformed(of_one(getattr(matmill, name), place), x)

    def into(x: Any) -> Any:
        getattr(matmill, name)(*data, out=x[:])
        return x

    before = torch.zeros(SHAPES[name][1])
    with pytest.raises(ArgumentError):
        transformed(into, before)
    assert not before.any()


@pytest.mark.parametrize("name", SHAPES)
def test_functionalized_functions(name: str) -> None:
    """They have tensors without memory; torch takes none of its own differentiable functions there."""
    with pytest.raises(ArgumentError, match=r"matmill\.torch"):
        torch.func.functionalize(getattr(matmill, name))(*_data(name))
    result = torch.func.functionalize(getattr(torch.ops.matmill, name))(*_data(name))
    assert torch.equal(result, REFERENCES[name](*_data(name)))


def test_graphs_of_torch_fx_are_refused() -> None:
    with pytest.raises(ArgumentError, match="Proxy"):
        torch.fx.symbolic_trace(lambda x: matmill.matmul(x, x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_storages_stay_resizable(dtype: Any) -> None:
    """FSDP frees and refills storages of parameters: none may belong to NumPy, nor a result's."""
    x = torch.ones(4, 4, dtype=dtype)
    out = torch.empty(4, 4, dtype=dtype)
    results = [matmill.matmul(x, x.t()), mt.matmul(x, x), matmill.matmul(x, x, out=out), matmill.inner(x, x)]
    for tensor in (x, *results):
        tensor.untyped_storage().resize_(0)
        assert tensor.untyped_storage().nbytes() == 0
