"""matmill.torch.enable(): values and gradients are torch's, whoever answers; what is not ours stays torch's own."""

from __future__ import annotations

import copy
import pickle
import re
import shutil
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matmill.errors import ArgumentError
from support.examples import examples

torch: Any = pytest.importorskip("torch")
mt: Any = import_module("matmill.torch")
session: Any = import_module("matmill.torch.session")
F: Any = torch.nn.functional
Shapes = tuple[tuple[int, ...], ...]


class Memory(torch.Tensor):  # type: ignore[misc] # torch may be absent, and is Any then
    """A subclass that is no more than its memory."""


def _now(owner: Any, name: str) -> Callable[..., Any]:
    """Return a call of what the owner has under a name when it is called."""
    return lambda *tensors: getattr(owner, name)(*tensors)  # noqa: PLW0108 — bound when it is called


#: Functions of torch, with the shapes of their operands.
CALLS: dict[str, tuple[Callable[..., Any], Shapes]] = {
    "linear": (_now(F, "linear"), ((4, 6, 7), (5, 7), (5,))),
    "linear of a matrix": (_now(F, "linear"), ((6, 7), (5, 7))),
    "mm": (_now(torch, "mm"), ((6, 7), (7, 5))),
    "Tensor.mm": (lambda a, b: a.mm(b), ((6, 7), (7, 5))),
    "bmm": (_now(torch, "bmm"), ((3, 6, 7), (3, 7, 5))),
    "matmul": (_now(torch, "matmul"), ((2, 3, 6, 7), (2, 3, 7, 5))),
    "matmul, shared": (lambda a, b: a.matmul(b), ((3, 6, 7), (7, 5))),
    "@": (lambda a, b: a @ b, ((6, 7), (7, 5))),
    "addmm": (lambda a, b, c: torch.addmm(c, a, b), ((6, 7), (7, 5), (5,))),
    "Tensor.addmm": (lambda a, b, c: c.addmm(a, b), ((6, 7), (7, 5), (6, 5))),
    "baddbmm": (lambda a, b, c: torch.baddbmm(c, a, b), ((3, 6, 7), (3, 7, 5), (3, 6, 5))),
}


def _operands(shapes: Shapes, dtype: Any = None, seed: int = 0) -> list[Any]:
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=source, dtype=dtype or torch.float64).requires_grad_() for shape in shapes]


def _with_gradients(call: Callable[..., Any], operands: list[Any], seed: int = 1) -> list[Any]:
    result = call(*operands)
    weight = torch.randn(result.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    known = [x for x in operands if x.requires_grad]
    return [result, *torch.autograd.grad(result, known, weight.to(result.dtype))]


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_are_torch_s(decided: Any, name: str, dtype: str) -> None:
    call, shapes = CALLS[name]
    operands = _operands(shapes, getattr(torch, dtype))
    expected = _with_gradients(call, operands)
    with mt.enable():
        results = [_with_gradients(call, operands) for _ in range(2)]
    assert len(decided.ours) == 6  # the product and its gradients, twice
    tolerance = {"float64": 1e-12, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}[dtype]
    for result in results:
        for got, wanted in zip(result, expected, strict=True):
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
            assert torch.allclose(got, wanted, rtol=tolerance, atol=tolerance)
    assert not decided.ours[6:]


@pytest.mark.parametrize("wins", range(8))
def test_each_product_has_its_own_answer(decided: Any, wins: int) -> None:
    """Matmill wins any of: the product, the gradient of the left operand, that of the right one."""
    products = [((6, 7), (7, 5)), ((6, 5), (5, 7)), ((5, 6), (6, 7))]
    ours = [product for bit, product in enumerate(products) if wins >> bit & 1]
    decided.wins = lambda a, b: (a, b) in ours
    call, shapes = CALLS["linear of a matrix"]
    operands = _operands(shapes)
    expected = _with_gradients(call, operands)
    with mt.enable():
        result = _with_gradients(call, operands)
        function = type(call(*operands).grad_fn).__name__
    assert decided.ours == [*ours, *ours[: wins & 1]]
    assert (function == "RecordedBackward") is bool(wins)  # torch's own where it answers all three
    assert all(torch.allclose(*pair) for pair in zip(result, expected, strict=True))


@given(data=st.data())
@examples(30)
def test_any_layout(data: st.DataObject) -> None:
    m, n, k = (data.draw(st.integers(1, 9), label) for label in "mnk")
    batches = data.draw(st.sampled_from([(), (1,), (3,), (2, 2)]), "batches")
    shared = data.draw(st.booleans(), "b has no batches") or not batches
    a = torch.randn(*batches, m, k, dtype=torch.float64)
    b = torch.randn(*(() if shared else batches), k, n, dtype=torch.float64)
    for index, x in enumerate((a, b)):
        changed = data.draw(st.sampled_from(["packed", "transposed", "strided", "offset"]), f"layout of {'ab'[index]}")
        if changed == "transposed":
            x = x.mT.contiguous().mT  # noqa: PLW2901 — the same values in another layout
        elif changed == "strided":
            x = x.repeat_interleave(2, -1)[..., ::2]  # noqa: PLW2901 — see above
        elif changed == "offset":
            x = torch.cat([x[..., :1], x], -1)[..., 1:]  # noqa: PLW2901 — see above
        x = x.detach().requires_grad_(data.draw(st.booleans(), f"gradient of {'ab'[index]}"))  # noqa: PLW2901
        a, b = (x, b) if index == 0 else (a, x)
    gpu = import_module("support.decided_gpu").DecidedGPU()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_DEVICE", gpu)
        patch.setenv("MATMILL_CACHE", "off")
        known = [x for x in (a, b) if x.requires_grad]
        expected = torch.matmul(a, b)
        gradients = torch.autograd.grad(expected.square().sum(), known) if known else ()
        with mt.enable():
            for _ in range(2):
                result = torch.matmul(a, b)
                ours = torch.autograd.grad(result.square().sum(), known) if known else ()
                for got, wanted in zip((result, *ours), (expected, *gradients), strict=True):
                    assert torch.allclose(got, wanted)
    assert len(gpu.ours) == 2 * (1 + len(known))


def test_a_product_in_another_layout_is_another_product(decided: Any) -> None:
    a, b = (x.detach() for x in _operands(((6, 7), (7, 5))))
    expected = torch.mm(a, b)
    with mt.enable():
        for x, y in ((a, b), (a.mT.contiguous().mT, b), (a, b.repeat_interleave(2, 0)[::2])):
            for _ in range(2):
                assert torch.allclose(torch.mm(x, y), expected)
    assert len(decided.timed) == 3


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("recorded", [True, False])
def test_layers_of_one_shape_with_and_without_bias(decided: Any, *, first: bool, recorded: bool) -> None:
    layers = [torch.nn.Linear(7, 5, bias=bias).requires_grad_(recorded) for bias in (first, not first)]
    x = torch.randn(6, 7)
    expected = [layer(x) for layer in layers]
    with mt.enable():
        for _ in range(2):
            assert all(torch.allclose(layer(x), want) for layer, want in zip(layers, expected, strict=True))
    assert len(decided.ours) == 4


def test_a_negated_addend_after_a_plain_one(decided: Any) -> None:
    a, b, c = (x.detach() for x in _operands(((6, 7), (7, 5), (6, 5))))
    negated = torch._neg_view(c)
    expected = torch.addmm(c, a, b), torch.addmm(negated, a, b)
    with mt.enable():
        result = torch.addmm(c, a, b), torch.addmm(negated, a, b)
    assert all(torch.allclose(*pair) for pair in zip(result, expected, strict=True))
    assert len(decided.ours) == 1


def test_a_frozen_weight_s_gradient_is_not_timed(decided: Any) -> None:
    layer, x = torch.nn.Linear(7, 5).requires_grad_(requires_grad=False), torch.randn(6, 7, requires_grad=True)
    with mt.enable():
        layer(x).sum().backward()
    assert not any(a == (5, 6) for a, _ in decided.timed)


def test_torchscript_forgets_the_functions_that_were_replaced(decided: Any) -> None:
    builtins = import_module("torch.jit._builtins")
    before = dict(builtins._get_builtin_table())
    with mt.enable():
        assert builtins._get_builtin_table()[id(torch.mm)] == "aten::mm"
    assert builtins._get_builtin_table() == before
    assert decided.timed == []


def test_a_weight_s_gradient_is_one_product_and_only_what_it_needs_is_kept(decided: Any) -> None:
    x, w = torch.randn(4, 6, 7), torch.randn(5, 7)
    kept: list[tuple[int, ...]] = []

    def pack(tensor: Any) -> Any:
        kept.append(tuple(tensor.shape))
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with mt.enable(), hooks:
        F.linear(x, w.clone().requires_grad_()).sum().backward()
        assert kept == [(4, 6, 7)]  # no gradient of x: no weight
        assert decided.ours == [((4, 6, 7), (7, 5)), ((5, 24), (24, 7))]
        kept.clear()
        F.linear(x.clone().requires_grad_(), w).sum().backward()
        assert kept == [(5, 7)]  # a frozen weight: no input


# -- torch's own ------------------------------------------------------------------------------------------------------


def test_torch_is_exactly_as_before(decided: Any) -> None:
    owners = [(torch.nn.functional, "linear"), *((torch, n) for n in ("mm", "bmm", "matmul", "addmm", "baddbmm"))]
    before = [getattr(*owner) for owner in owners]
    handle = mt.enable()
    assert all(getattr(*owner) is not one for owner, one in zip(owners, before, strict=True))
    with mt.enable(benchmark=False):
        pass
    torch.mm(torch.ones(2, 3), torch.ones(3, 4))
    assert len(decided.ours) == 1  # the outer one is still on
    mt.disable()
    mt.disable()
    with handle:
        pass
    assert [getattr(*owner) for owner in owners] == before
    assert not {"mm", "bmm", "matmul", "addmm", "baddbmm", "__matmul__"} & set(vars(torch.Tensor))
    with pytest.raises(KeyError), mt.enable():
        raise KeyError
    assert torch.mm is before[1]


def test_a_function_that_somebody_else_replaces_is_left(decided: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with mt.enable():
        ours = torch.mm
        monkeypatch.setattr(torch, "mm", lambda a, b: -ours(a, b))
        assert torch.equal(torch.mm(torch.ones(2, 3), torch.ones(3, 1)), torch.full((2, 1), -3.0))
    assert torch.equal(torch.mm(torch.ones(2, 3), torch.ones(3, 1)), torch.full((2, 1), -3.0))
    assert len(decided.ours) == 1


def _refused() -> dict[str, Callable[[], Any]]:
    a, b = torch.ones(2, 3), torch.ones(3, 4)
    whole = torch.ones(2, 3, dtype=torch.int64), torch.ones(3, 4, dtype=torch.int64)
    return {
        "integers": lambda: torch.mm(*whole),
        "a complex addend": lambda: torch.addmm(torch.ones(4) + 1j, a + 1j, b + 0j),
        "conjugates": lambda: torch.mm((a + 1j).conj(), b + 2j),
        "conjugates on the right": lambda: torch.mm(a + 1j, (b + 2j).conj()),
        "sparse": lambda: torch.mm(a.to_sparse(), b),
        "vectors": lambda: torch.matmul(a, b[:, 0]),
        "empty": lambda: torch.mm(a[:0], b),
        "no k": lambda: torch.mm(a[:, :0], b[:0]),
        "broadcast batches": lambda: torch.matmul(torch.ones(5, 1, 2, 3), torch.ones(4, 3, 2)),
        "out": lambda: torch.mm(a, b, out=torch.empty(2, 4)),
        "beta": lambda: torch.addmm(torch.ones(4), a, b, beta=2),
        "broadcast addend": lambda: torch.addmm(torch.ones(2, 1), a, b),
        "meta": lambda: torch.mm(a.to("meta"), b.to("meta")).shape,
        "negated": lambda: torch.mm((a + 1j).conj().imag, b),
        "a subclass": lambda: torch.mm(a.as_subclass(Memory), b),
        "shapes": lambda: torch.mm(a, a),
        "types": lambda: torch.mm(a, b.double()),
        "no tensor": lambda: F.linear(a, 3),
        "bmm of matrices": lambda: torch.bmm(a, b),
        "mm of batches": lambda: torch.mm(a[None], b[None]),
        "addmm of batches": lambda: torch.addmm(torch.ones(4), a[None], b[None]),
        "weights in batches": lambda: F.linear(a[None], torch.ones(1, 4, 3)),
    }


@pytest.mark.parametrize("name", _refused())
def test_what_matmill_does_not_take_is_torch_s_with_its_words(decided: Any, name: str) -> None:
    call = _refused()[name]

    def outcome() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return call()
            except Exception as error:  # noqa: BLE001 — any, to be compared
                return type(error), str(error)

    expected = outcome()
    with mt.enable():
        results = [outcome(), outcome()]
    for result in results:
        if isinstance(expected, torch.Tensor):
            assert type(result) is type(expected)
            assert torch.equal(result, expected)
        else:
            assert result == expected
    assert decided.ours == []


def test_complex_products_are_decided_where_no_gradient_is_wanted(decided: Any) -> None:
    a, b = torch.randn(2, 3, dtype=torch.complex64), torch.randn(3, 4, dtype=torch.complex64)
    expected = a @ b, a.conj() @ b, a.conj() @ b.conj()
    with mt.enable():
        for _ in range(2):  # conjugates share the shapes of what was decided, and are torch's
            results = a @ b, a.conj() @ b, torch.mm(a.conj(), b.conj())
            for result, right in zip(results, expected, strict=True):
                torch.testing.assert_close(result, right)
    assert decided.ours == [((2, 3), (3, 4))] * 2


@pytest.mark.parametrize("which", ["a", "b"])
def test_complex_gradients_are_torch_s(decided: Any, which: str) -> None:
    a, b = torch.randn(2, 3, dtype=torch.complex128), torch.randn(3, 4, dtype=torch.complex128)
    left, right = a.clone().requires_grad_(which == "a"), b.clone().requires_grad_(which == "b")
    (left @ right).abs().sum().backward()
    x, y = a.clone().requires_grad_(which == "a"), b.clone().requires_grad_(which == "b")
    with mt.enable():
        assert torch.equal(a @ b, (left @ right).detach())
        (x @ y).abs().sum().backward()
    for ours, theirs in ((x, left), (y, right)):
        assert (ours.grad is None) is (theirs.grad is None)
        assert ours.grad is None or torch.equal(ours.grad, theirs.grad)
    assert len(decided.ours) == 1


@pytest.mark.parametrize("where", ["vmap", "grad", "jvp", "fake", "fx", "trace", "export", "mode"])
def test_what_observes_torch_sees_torch_s_operators(decided: Any, where: str) -> None:
    layer = torch.nn.Linear(3, 4).double()
    x = torch.randn(2, 3, dtype=torch.float64)
    fake = import_module("torch._subclasses.fake_tensor").FakeTensorMode(allow_non_fake_inputs=True)

    def counted() -> Any:
        counter = import_module("torch.utils.flop_counter").FlopCounterMode(display=False)
        with counter:
            layer(x)
        return counter.get_total_flops()

    def faked() -> Any:
        with fake:
            return layer(fake.from_tensor(x)).shape

    ways: dict[str, Callable[[], Any]] = {
        "vmap": lambda: torch.vmap(layer)(x),
        "grad": lambda: torch.func.grad(lambda y: layer(y).sum())(x),
        "jvp": lambda: torch.func.jvp(layer, (x,), (x,))[1],
        "fake": faked,
        "fx": lambda: [node.target for node in torch.fx.symbolic_trace(lambda y: F.linear(y, y)).graph.nodes],
        "trace": lambda: torch.jit.trace(layer, x, check_trace=False)(x),
        "export": lambda: [node.target for node in torch.export.export(layer, (x,)).graph.nodes],
        "mode": counted,
    }
    expected = ways[where]()
    with mt.enable():
        layer(x)  # decided for matmill
        decided.ours.clear()
        result = ways[where]()
    assert decided.ours == []
    assert torch.equal(result, expected) if isinstance(result, torch.Tensor) else str(result) == str(expected)


def test_programs_are_compiled_and_scripted_as_ever(decided: Any) -> None:
    layer, x = torch.nn.Linear(3, 4), torch.randn(2, 3)
    expected = layer(x)
    with mt.enable():
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        assert torch.allclose(compiled(x), expected)
        assert torch.allclose(torch.jit.script(copy.deepcopy(layer))(x), expected)
        assert pickle.loads(pickle.dumps(F.linear)) is F.linear  # noqa: S301 — our own bytes
    assert decided.ours == []


def test_double_backward_hooks_checkpoints_and_tied_weights(decided: Any) -> None:
    operands = _operands(((3, 4), (5, 4), (5,)))
    checkpoint = import_module("torch.utils.checkpoint").checkpoint
    grads: list[Any] = []
    with mt.enable():
        call = F.linear
        assert torch.autograd.gradgradcheck(lambda *xs: call(*xs).square(), operands)

        def tied(x: Any, w: Any, b: Any) -> Any:
            return call(call(x, w, b), w.mT)

        expected = _with_gradients(tied, operands)
        result = _with_gradients(lambda *xs: checkpoint(tied, *xs, use_reentrant=False), operands)
        assert all(torch.allclose(*pair) for pair in zip(result, expected, strict=True))
        tensor = operands[0].detach().requires_grad_()
        tensor.register_hook(grads.append)
        call(tensor, operands[1]).sum().backward()
    assert torch.allclose(grads[0], operands[1].sum(0).expand(3, 4))
    assert decided.ours


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", ["DDP", "FSDP2"])
def test_data_parallel_training(decided: Any, tmp_path: Any, kind: str, compiled: bool) -> None:
    """A group of one rank has all hooks, buckets and shards that larger ones have."""
    distributed = import_module("torch.distributed")
    if compiled and shutil.which("g++") is None:
        pytest.skip("Inductor needs a C++ compiler for the CPU")

    def trained() -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        if kind == "DDP":
            model = torch.nn.parallel.DistributedDataParallel(model)
        else:
            mesh = import_module("torch.distributed.device_mesh").init_device_mesh("cpu", (1,))
            import_module("torch.distributed.fsdp").fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = torch.compile(model) if compiled else model
        for _ in range(3):
            optimizer.zero_grad()
            run(torch.arange(6.0).reshape(2, 3)).square().sum().backward()
            optimizer.step()
        full = [x.full_tensor() if hasattr(x, "full_tensor") else x for x in model.parameters()]
        return [x.detach().clone() for x in full]

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        expected = trained()
        with mt.enable():
            result = trained()
    finally:
        distributed.destroy_process_group()
    assert all(torch.allclose(*pair) for pair in zip(result, expected, strict=True))
    assert len(decided.ours) >= 15  # five products in each of three steps


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("name", CALLS)
def test_autocast(decided: Any, name: str, dtype: str) -> None:
    call, shapes = CALLS[name]
    operands = _operands(shapes, getattr(torch, dtype))

    def run() -> list[Any]:
        with torch.autocast("cpu", torch.bfloat16):
            result = call(*operands)
            with torch.autocast("cpu", enabled=False):
                plain = call(*operands)
        return [result, plain, *torch.autograd.grad(result.sum() + plain.sum(), operands)]

    def outcome() -> list[Any]:
        try:
            return run()
        except RuntimeError as error:
            return [str(error)]

    expected = outcome()
    with mt.enable():
        result = outcome()
    for got, wanted in zip(result, expected, strict=True):
        if isinstance(wanted, str):
            assert got == wanted
        else:
            assert got.dtype is wanted.dtype
            assert torch.allclose(got, wanted, rtol=0.05, atol=0.2)
    assert bool(decided.ours) or isinstance(expected[0], str)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"candidates": 0}, "candidates: got 0; wanted a whole number, 1 or more"),
        ({"candidates": "four"}, "candidates: got 'four'"),
        ({"workspace_limit": -1}, "workspace_limit: got -1; wanted a whole number, 0 or more"),
        ({"workspace_limit": "1GiB"}, "workspace_limit: got '1GiB'"),
        ({"exclude": "bitsandbytes"}, "exclude: got 'bitsandbytes'; wanted a list of module names"),
    ],
)
def test_options_that_say_nothing_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(words)):
        mt.enable(**options)
