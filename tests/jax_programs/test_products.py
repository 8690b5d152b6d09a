"""``matmill.jax`` inside JAX's transformations, on the CPU, beside ``jax.numpy``."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from matmill.errors import ArgumentError, DTypeError, MatmillError, ShapeError, UnknownNameError

jax: Any = pytest.importorskip("jax", reason="jax is not installed")
jnp: Any = import_module("jax.numpy")
mj: Any = import_module("matmill.jax")
frame: Any = import_module("matmill.jax.frame")
target: Any = import_module("matmill.jax.target")

#: The largest relative difference of products of few terms, by element type.
NEAR = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("MATMILL_EXECUTOR", raising=False)
    with jax.enable_x64(new_val=True), jax.default_device(jax.devices("cpu")[0]):
        yield


def random(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng([seed, *shape]).standard_normal(shape), dtype)


def check(got: Any, wanted: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        near = NEAR.get(x.dtype.name, 0)
        np.testing.assert_allclose(x.astype("float64"), y.astype("float64"), rtol=near, atol=4 * near)


def gradients(product: Callable[..., Any], count: int = 2) -> Any:
    """Return the gradients of a sum that depends on each element of a product in another way."""
    return jax.grad(lambda *x: jnp.sin(product(*x).astype("float32")).sum(), tuple(range(count)))


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((5, 7), (7, 3)),
        ((1, 1), (1, 1)),
        ((7,), (7, 3)),
        ((5, 7), (7,)),
        ((7,), (7,)),
        ((2, 5, 7), (7, 3)),
        ((2, 5, 7), (7,)),
        ((5, 7), (4, 7, 3)),
        ((4, 1, 5, 7), (3, 7, 2)),
        ((0, 7), (7, 3)),
        ((5, 0), (0, 3)),
        ((2, 0, 7), (7, 3)),
    ],
)
def test_a_product_and_its_gradients_are_those_of_jax(a: Any, b: Any, dtype: str) -> None:
    x, y = random(*a, dtype=dtype), random(*b, dtype=dtype, seed=1)
    check(jax.jit(mj.matmul)(x, y), jnp.matmul(x, y))
    check(gradients(mj.matmul)(x, y), gradients(jnp.matmul)(x, y))
    check(jax.jit(gradients(mj.matmul))(x, y), gradients(jnp.matmul)(x, y))


def test_arrays_of_numpy_are_converted_as_jax_does() -> None:
    x, y = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
    assert isinstance(mj.matmul(x, y), jax.Array)
    np.testing.assert_array_equal(mj.matmul(x, y), x @ y)


def test_gradients_of_gradients() -> None:
    x, y = random(4, 5, dtype="float64"), random(5, 3, dtype="float64")

    def norm(product: Any) -> Any:
        return jax.grad(lambda a, b: (jax.grad(lambda a: jnp.sin(product(a, b)).sum())(a) ** 2).sum(), (0, 1))

    check(norm(mj.matmul)(x, y), norm(jnp.matmul)(x, y))
    check(norm(lambda a, _b: mj.inner(a))(x, y), norm(lambda a, _b: a @ a.T)(x, y))
    check(jax.jacrev(jax.jacrev(mj.matmul))(x, y), jax.jacrev(jax.jacrev(jnp.matmul))(x, y))


def test_forward_derivatives_are_refused() -> None:
    x = random(3, 3)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(mj.matmul, (x, x), (x, x))


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0), (1, 2), (2, None)])
@pytest.mark.parametrize("order", ["grad of vmap", "vmap of grad"])
def test_a_batch_is_one_call(axes: Any, order: str) -> None:
    x, y = (
        random(*np.insert(s, axis or 0, 6)) if axis is not None else random(*s)
        for s, axis in zip(((4, 5), (5, 3)), axes, strict=True)
    )
    check(jax.vmap(mj.matmul, axes)(x, y), jax.vmap(jnp.matmul, axes)(x, y))
    assert str(jax.make_jaxpr(jax.vmap(mj.matmul, axes))(x, y)).count("ffi_call[") == 1
    if order == "grad of vmap":
        ours, theirs = (gradients(jax.vmap(f, axes)) for f in (mj.matmul, jnp.matmul))
    else:
        ours, theirs = (jax.vmap(gradients(f), axes) for f in (mj.matmul, jnp.matmul))
    check(ours(x, y), theirs(x, y))


def test_batches_of_batches_and_of_vectors() -> None:
    x, y, z = random(2, 3, 5), random(3, 5, 4), random(2, 3, 5)
    check(jax.vmap(jax.vmap(mj.matmul), (0, None))(x, y), jnp.einsum("abk,bkn->abn", x, y))
    check(jax.vmap(jax.vmap(mj.matmul))(x, z), (x * z).sum(-1))
    check(jax.vmap(mj.matmul, (0, None))(random(6, 4, 5), y), jnp.einsum("amk,bkn->abmn", random(6, 4, 5), y))


def test_one_product_of_all_rows_where_a_batch_shares_the_right_matrix() -> None:
    x, y = random(6, 4, 5), random(5, 3)
    for text in (jax.make_jaxpr(jax.vmap(mj.matmul, (0, None)))(x, y), jax.make_jaxpr(gradients(mj.matmul))(x, y)):
        assert '["float32", [24, 5]]' in str(text)
        assert '["float32", [6, 4, 5]]' not in str(text)


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bias", [(3,), (1, 3), (4, 1)])
def test_bias_and_activation(bias: Any, activation: str | None, dtype: str) -> None:
    x, y, z = random(4, 5, dtype=dtype), random(5, 3, dtype=dtype), random(*bias, dtype=dtype)
    function = {None: lambda v: v, "gelu": lambda v: jax.nn.gelu(v, approximate=False), "gelu_tanh": jax.nn.gelu}
    apply = function.get(activation) or getattr(jax.nn, activation or "")

    def theirs(a: Any, b: Any, c: Any) -> Any:
        return apply(jnp.matmul(a, b, preferred_element_type="float32") + c.astype("float32")).astype(dtype)

    def ours(a: Any, b: Any, c: Any) -> Any:
        return mj.matmul(a, b, bias=c, activation=activation)

    check(ours(x, y, z), theirs(x, y, z))
    check(jax.jit(gradients(ours, 3))(x, y, z), gradients(theirs, 3)(x, y, z))
    many = random(6, *bias, dtype=dtype)
    for axes, left in (((None, None, 0), x), ((0, None, 0), jnp.stack([x] * 6))):
        check(jax.vmap(ours, axes)(left, y, many), jax.vmap(theirs, axes)(left, y, many))


def test_a_bias_of_a_vector_is_a_column() -> None:
    x, y, z = random(4, 5), random(5), random(4)
    check(mj.matmul(x, y, bias=z), x @ y + z)
    check(
        gradients(lambda a, b, c: mj.matmul(a, b, bias=c), 3)(x, y, z), gradients(lambda a, b, c: a @ b + c, 3)(x, y, z)
    )


def test_wider_results() -> None:
    x, y = random(4, 5, dtype="bfloat16"), random(5, 3, dtype="bfloat16")
    wide = mj.matmul(x, y, out_dtype=jnp.float32)
    check(wide, x.astype("float32") @ y.astype("float32"))
    assert [g.dtype.name for g in gradients(lambda a, b: mj.matmul(a, b, out_dtype="float32"))(x, y)] == [
        "bfloat16"
    ] * 2
    e = random(2, 9)
    check(mj.inner(e, out_dtype="float64"), e.astype("float64") @ e.T.astype("float64"))


def test_inner_with_and_without_a_second_matrix() -> None:
    e, f = random(3, 1000), random(1000, 2)
    check(jax.jit(mj.inner)(e, f), e @ f)
    gram = jax.jit(mj.inner)(e)
    check(gram, e @ e.T)
    assert (gram == gram.T).all()
    many = random(4, 3, 50, dtype="float64")
    check(gradients(mj.inner, 1)(many[0]), gradients(lambda x: x @ x.T, 1)(many[0]))
    check(jax.vmap(mj.inner)(many), many @ many.mT)
    check(gradients(jax.vmap(mj.inner), 1)(many), gradients(lambda x: x @ x.mT, 1)(many))


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (2, -0.5), (1j, 2 - 1j), (0, 1j), (1j, 0)])
def test_complex_transposed_sums_and_their_gradients(alpha: complex, beta: complex, dtype: str) -> None:
    x, y = (random(*s) + 1j * random(*s, seed=1) for s in ((2, 3, 5), (5, 3)))
    x, y = x.astype(dtype), y.astype(dtype)

    def ours(x: Any, y: Any) -> Any:
        return mj.transpose_add(x, y, alpha=alpha, beta=beta)

    def theirs(x: Any, y: Any) -> Any:
        return alpha * x.mT + beta * y

    got, wanted = jax.vjp(jax.jit(ours), x, y), jax.vjp(theirs, x, y)
    assert got[0].dtype == dtype
    near = 1e-5 if dtype == "complex64" else 1e-12
    np.testing.assert_allclose(got[0], wanted[0], rtol=near, atol=near)
    for own, other in zip(got[1](got[0]), wanted[1](got[0]), strict=True):
        np.testing.assert_allclose(own, other, rtol=near, atol=near)
    with pytest.raises(ArgumentError, match="alpha: got"):
        mj.transpose_add(x.real, y.real, alpha=1j)


@pytest.mark.parametrize("dtype", [*NEAR, "int8", "int32"])
def test_transposed_sums(dtype: str) -> None:
    x, y = (10 * random(*s) for s in ((2, 3, 5), (5, 3)))
    x, y = x.astype(dtype), y.astype(dtype)
    check(jax.jit(lambda *z: mj.transpose_add(*z, alpha=2, beta=3))(x, y), 2 * x.mT + 3 * y)


def test_gradients_of_transposed_sums_and_batches_of_them() -> None:
    def ours(x: Any, y: Any) -> Any:
        return mj.transpose_add(x, y, alpha=0.1, beta=-2)

    def theirs(x: Any, y: Any) -> Any:
        return 0.1 * x.mT - 2 * y

    for x, y in ((random(3, 5), random(5, 3)), (random(2, 3, 5), random(5, 3)), (random(3, 5), random(1, 5, 3))):
        check(gradients(ours)(x, y), gradients(theirs)(x, y))
    check(jax.vmap(ours, (0, None))(random(4, 3, 5), random(5, 3)), theirs(random(4, 3, 5), random(5, 3)))
    check(jax.grad(lambda x: ours(x, jnp.ones((5, 3), x.dtype)).sum())(random(3, 5)), jnp.full((3, 5), 0.1, "float32"))


def test_integers_have_no_gradient() -> None:
    whole = jnp.ones((3, 3), "int32")
    got = jax.grad(lambda weight: (weight * mj.transpose_add(whole, whole)).sum())(random(3))
    check(got, jnp.full(3, 6, "float32"))


def test_scalars_of_zero_read_nothing() -> None:
    nan, x = jnp.full((3, 5), jnp.nan, "float32"), random(5, 3)
    check(mj.transpose_add(nan, x, alpha=0), x)
    check(mj.transpose_add(x, nan, beta=0), x.T)


def test_scan_and_loops() -> None:
    x, weights = random(4, 6), random(5, 6, 6, seed=3)

    def last(product: Any) -> Any:
        return lambda x, weights: jax.lax.scan(lambda c, w: (jnp.tanh(product(c, w)), c.sum()), x, weights)

    check(jax.jit(last(mj.matmul))(x, weights), last(jnp.matmul)(x, weights))
    ours, theirs = (gradients(lambda *z, f=f: last(f)(*z)[0]) for f in (mj.matmul, jnp.matmul))
    check(jax.jit(ours)(x, weights), theirs(x, weights))
    check(jax.checkpoint(ours)(x, weights), theirs(x, weights))


_SHARDED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
import matmill.jax as mj
assert len(jax.devices()) == 2
x, w = jnp.arange(24.0).reshape(6, 4) / 24, jnp.cos(jnp.arange(12.0)).reshape(4, 3)
mesh = Mesh(np.array(jax.devices()), ("i",))
rows = lambda f: jax.shard_map(f, mesh=mesh, in_specs=(P("i", None), P()), out_specs=P("i", None))
terms = lambda f: jax.shard_map(
    lambda a, b: jax.lax.psum(f(a, b), "i"), mesh=mesh, in_specs=(P(None, "i"), P("i", None)), out_specs=P()
)
loss = lambda f: jax.jit(jax.value_and_grad(lambda a, b: jnp.sin(f(a, b)).sum(), (0, 1)))
wanted = loss(jnp.matmul)(x, w)
for split in (rows, terms):
    for p, q in zip(jax.tree.leaves(loss(split(mj.matmul))(x, w)), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(p, q, rtol=1e-5, atol=1e-5)
columns = P(None, "i")
sums = jax.shard_map(mj.transpose_add, mesh=mesh, in_specs=(P("i"), columns), out_specs=columns)
np.testing.assert_allclose(sums(x, x.T), 2 * x.T)
print("sharded")
"""


def test_shards_on_two_devices() -> None:
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", _SHARDED]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.stdout == "sharded\n", done.stderr


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: mj.matmul(x, x), ShapeError, r"a, b: got shapes \(2, 3\)"),
        (lambda x: mj.matmul(x, x.T.astype("bfloat16")), DTypeError, "b: got dtype bfloat16"),
        (lambda x: mj.matmul(x.astype("int32"), x.T.astype("int32")), DTypeError, "a: got dtype int32"),
        (lambda _: mj.matmul([1.0], [1.0]), DTypeError, "a: got builtins.list"),
        (lambda x: mj.matmul(x, x.T, bias=x), ShapeError, "bias: got shape"),
        (lambda x: mj.matmul(x, x.T, activation="rely"), UnknownNameError, "Did you mean 'relu'"),
        (lambda x: mj.matmul(x, x.T, out_dtype="float16"), DTypeError, "out_dtype: got"),
        (lambda x: mj.inner(x[None], x.T), ShapeError, "e: got shape"),
        (lambda x: mj.inner(jnp.broadcast_to(x[:1], (129, 3))), ShapeError, "m = 129"),
        (lambda x: mj.transpose_add(x, x), ShapeError, "y: got shape|x, y: got shape"),
        (lambda x: mj.transpose_add(x, x.T, alpha=x[0, 0]), ArgumentError, "alpha: got"),
    ],
)
def test_errors_come_when_a_call_is_traced(call: Any, error: type[MatmillError], words: str) -> None:
    with pytest.raises(error, match=words):
        jax.jit(call).lower(random(2, 3))


def test_the_core_functions_refuse_tracers_and_name_these() -> None:
    core = import_module("matmill")
    with pytest.raises(ArgumentError, match=r"function of the same name in matmill\.jax"):
        jax.jit(core.matmul)(random(2, 2), random(2, 2))


def test_the_emulator_runs_the_gpu_s_kernel_inside_jit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATMILL_EXECUTOR", "emulator")
    x, y = random(9, 7), random(7, 5)
    check(jax.jit(mj.matmul)(x, y), x @ y)
    check(jax.jit(mj.inner)(x), x @ x.T)


def test_an_error_while_the_program_runs_is_an_error_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATMILL_EXECUTOR", "nonsense")
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"matmill: .*'nonsense'"):
        jax.block_until_ready(jax.jit(mj.matmul)(random(3, 11), random(11, 3)))


def test_another_interface_of_xla_is_refused_with_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(major == 0 for major, _ in frame._versions)
    assert frame._versions
    monkeypatch.setattr(frame, "_versions", {(1, 0)})
    with pytest.raises(ArgumentError, match=r"got version 1\.0; .*jax\.pure_callback"):
        jax.jit(mj.matmul).lower(random(3, 12), random(12, 3))


def test_a_smaller_frame_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    more = type("CallFrame", (frame._Frame,), {"_fields_": [("another", frame.c_int64)]})
    monkeypatch.setattr(frame, "_Frame", more)
    with pytest.raises(jax.errors.JaxRuntimeError, match="a CallFrame of 168 bytes; wanted 176 or more"):
        jax.block_until_ready(jax.jit(mj.matmul)(random(3, 13), random(13, 3)))


def test_a_call_with_other_buffers_than_its_text_is_refused() -> None:
    text = target._text(target.Problem("matmul"), (random(3, 14), random(14, 3)))
    result = jax.ShapeDtypeStruct((3, 3), np.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"got types and shapes .*\(2, 2\).*Call the functions"):
        jax.block_until_ready(jax.ffi.ffi_call("matmill", result)(random(2, 2), random(14, 3), problem=text))


def test_a_gram_matrix_has_one_buffer_and_a_text_is_read_again_by_another_process() -> None:
    text = target._text(target.Problem("matmul", swapped=(False, True)), (random(3, 15),) * 2)
    target._template.cache_clear()
    result = jax.ffi.ffi_call("matmill", jax.ShapeDtypeStruct((3, 3), np.float32))(*(random(3, 15),) * 2, problem=text)
    check(result, mj.inner(random(3, 15)))


def test_threads_that_wait_let_others_compute() -> None:
    program = jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda _, c: 0.1 * mj.matmul(c, x), x))
    x, results = random(16, 16), []
    threads = [threading.Thread(target=lambda: results.append(program(x).block_until_ready())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 4
    assert all((result == results[0]).all() for result in results)


class _Plan:
    """A plan that multiplies on the host and records what it is given."""

    def __init__(self, workspace: int, own: int) -> None:
        self.workspace, self.calls = workspace, []  # type: ignore[var-annotated]
        self.stream_buffers = lambda stream: (own, stream + 1)

    def run(self, addresses: Any, alpha: float, beta: float, stream: int) -> None:
        self.calls.append((addresses, alpha, beta, stream))
        x, y, d = (
            np.ctypeslib.as_array((frame.ctypes.c_float * 9).from_address(addresses[i])).reshape(3, 3)
            for i in (0, 1, 3)
        )
        d[:] = x @ y.T


@pytest.mark.parametrize(("workspace", "own"), [(0, 0), (64, 0), (64, 4096)])
def test_a_gpu_s_plan_gets_xla_s_stream_buffers_and_memory(
    monkeypatch: pytest.MonkeyPatch, workspace: int, own: int
) -> None:
    plan, lent = _Plan(workspace, own), []
    requests = []

    def invoke(call: Any, function: int, arguments: Any) -> int:
        if function in {frame.STREAM, frame.ORDINAL}:
            arguments.value = {frame.STREAM: 77, frame.ORDINAL: 1}[function]
        elif function == frame._ALLOCATE:
            arguments.data = 8192
            lent.append((arguments.nbytes, arguments.alignment))
        else:
            assert function == frame._FREE, call
            lent.append((arguments.nbytes, arguments.data))
        return 0

    def prepared(_call: Any, request: Any, _address: int, _stream: int) -> Any:
        requests.append(request)
        return type("Known", (), {"plan": plan})()

    monkeypatch.setattr(frame.Call, "_invoke", invoke)
    monkeypatch.setattr(target, "prepared", prepared)
    function = frame.handler(target._on_cuda)
    name = f"matmill-{workspace}-{own}"
    jax.ffi.register_ffi_target(
        name, jax.ffi.pycapsule(frame.ctypes.cast(function, frame.c_void_p).value), platform="cpu"
    )
    x, y = random(3, 3), random(3, 3, seed=1)
    text = target._text(target.Problem("matmul", swapped=(False, True)), (x, y))
    result = jax.ffi.ffi_call(name, jax.ShapeDtypeStruct((3, 3), np.float32))(x, y, problem=text)
    check(result, x @ y.T)
    (request,) = requests
    assert request.a.device == request.out.device == ("cuda", 1)
    assert request.b.strides == (1, 3)
    ((addresses, alpha, beta, stream),) = plan.calls
    assert (alpha, beta, stream) == (1.0, 0.0, 77)
    assert addresses == (
        request.a.address,
        request.b.address,
        0,
        request.out.address,
        own or (8192 if workspace else 0),
        78,
        0,
    )
    assert lent == ([(64, 16), (64, 8192)] if workspace and not own else [])
