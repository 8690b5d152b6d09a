"""The operators as functions, which call the kernels for GPU tensors directly, without torch's dispatcher, if possible.

The dispatcher, with autograd, is needed if a derivative is recorded, under a compiler or tracer, and for tensors that
are not plain. Only then do these functions call the operators ``torch.ops.matmill``. With a dummy in place of the
kernel (2026-11, torch 2.13, an AMD EPYC), the direct call added 0.5 µs, the operator 3.6 µs, and one by
``torch.library.custom_op`` 6.0 µs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.compiler import is_compiling
from torch.overrides import handle_torch_function, has_torch_function

from matmill import ops
from matmill.dispatch.transpose import factor
from matmill.dispatch.validate import complex_scalar, scalar
from matmill.dtypes import COMPLEX, F32, TRANSPOSES, result_type
from matmill.errors import DTypeError, ShapeError, by_copy
from matmill.torch import gradients, grouped, groups
from matmill.torch.autocast import autocast, cast
from matmill.torch.checks import SYMBOLS
from matmill.torch.host import sums_type
from matmill.torch.schemas import OUT
from matmill.torch.sites import Function, Site, own, remember
from matmill.torch.states import PLAIN, differentiated, observed, tf32

_grad_enabled = torch.is_grad_enabled
_autocast = torch.is_autocast_enabled  # of a GPU

_TRANSPOSE_ADD_OUT, _TRANSPOSE_OUT = OUT["transpose_add"], OUT["transpose"]
_INNER_OUT, _MATMUL_OUT = OUT["inner"], OUT["matmul"]

_DTYPES = {getattr(torch, name): dtype for name, dtype in TRANSPOSES.items()}
_COMPLEX = frozenset(getattr(torch, name) for name in COMPLEX)


def transpose_add(x: Any, y: Any, *, alpha: complex = 1.0, beta: complex = 1.0, out: Any = None) -> Any:
    """Return ``alpha * x.mT + beta * y`` in one pass, for tensors (..., n, m) and (..., m, n) whose batches broadcast.

    Elements are float64, float32, float16, bfloat16, complex64, complex128, int8 or int32. 16-bit elements are
    multiplied and summed in float32 and rounded once; with both factors 1 the result is ``x.mT + y`` to the bit. Lazy
    conjugates are read as they are. The result is packed, row after row, or ``out``, which may be ``y``.

    Differentiable in ``x`` and ``y``, any number of times, but not into ``out``. Raises the errors of
    :func:`matmill.transpose_add`.

    >>> x, y = torch.arange(6.0).reshape(2, 3), torch.ones(3, 2)
    >>> transpose_add(x, y, alpha=2)
    tensor([[ 1.,  7.],
            [ 3.,  9.],
            [ 5., 11.]])
    """
    direct = not is_compiling() and _plain(x, y) and (out is None or _plain(out, out))
    if not direct:
        _check_tensors(x=x, y=y, **({} if out is None else {"out": out}))
        alpha, beta = _factor(alpha, "alpha", x), _factor(beta, "beta", x)
    if out is None:
        return (ops if direct else _routed(x, y)).transpose_add(x, y, alpha=alpha, beta=beta)
    if direct:
        return ops.transpose_add(x, y, alpha=alpha, beta=beta, out=out)
    _TRANSPOSE_ADD_OUT(x, y, alpha=alpha, beta=beta, out=out)
    return out


def transpose(x: Any, *, out: Any = None) -> Any:
    """Return ``x.mT``, copied: a packed tensor, or ``out``.

    >>> transpose(torch.arange(6).int().reshape(2, 3))
    tensor([[0, 3],
            [1, 4],
            [2, 5]], dtype=torch.int32)
    """
    direct = not is_compiling() and _plain(x, x)
    if not direct:
        _check_tensors(x=x, **({} if out is None else {"out": out}))
    if out is None:
        return (ops if direct else _routed(x)).transpose(x)
    if direct and _plain(out, out):
        return ops.transpose(x, out=out)
    _TRANSPOSE_OUT(x, out=out)
    return out


def inner(
    e: Any,
    f: Any,
    *,
    c: Any = None,
    alpha: float = 1.0,
    beta: float | None = None,
    out_dtype: Any = None,
    precision: str | None = None,
    out: Any = None,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Return ``e @ f`` for few rows and columns and a long sum: (m, k) times (k, n) with m and n in 1..128.

    Element types are those of :func:`matmul`; 16-bit ones are summed in float32 and rounded once.
    ``out_dtype="float64"`` sums float32 elements in float64, where their products are exact; ``precision`` is as in
    :func:`matmul`. Differentiable as :func:`transpose_add` is. Raises the errors of :func:`matmill.inner`.

    With ``group``, a ``torch.distributed.ProcessGroup`` or a ``DeviceMesh`` of one dimension, ``e`` and ``f`` are this
    rank's columns and rows of k. There may be any number of them, also 0. m and n may have any size, the same on all
    ranks. Every rank gets ``alpha * (E @ F)``, or that ``+ beta * c``, of the whole k: sums are added over the ranks in
    their own type by the group's ``all_reduce``, then scaled and rounded once. ``c``, ``alpha`` and ``beta`` mean what
    they do in :func:`matmill.inner`, must be the same on every rank, and may be given without a group. A fixed number
    of ranks gives the same bits in every run, as far as the group's backend adds in a fixed order.

    ``async_op=True`` returns a :class:`~matmill.torch.groups.Pending`, whose ``wait()`` gives the result. These
    keywords are for tensors without derivatives: those that record one, and DTensors, raise
    :class:`~matmill.errors.ArgumentError`. If a rank ends, or does not take part within the group's timeout, the others
    raise :class:`~matmill.errors.CollectiveError`.

    >>> e = torch.ones(2, 1000)
    >>> inner(e, e.T)
    tensor([[1000., 1000.],
            [1000., 1000.]])
    """
    if group is not None or async_op or c is not None or beta is not None or alpha != 1:
        return groups.inner(e, f, groups.CollectiveOptions(c, alpha, beta, out, group, async_op, out_dtype, precision))
    if out_dtype is not None or precision is not None:
        return matmul(e, f, out_dtype=out_dtype, precision=precision, out=out)
    direct = not is_compiling() and _plain(e, f)
    if not direct:
        _check_tensors(e=e, f=f, **({} if out is None else {"out": out}))
    if out is None:
        return (ops if direct else _routed(e, f)).inner(e, f)
    if direct and _plain(out, out):
        return ops.inner(e, f, out=out)
    _INNER_OUT(e, f, out=out)
    return out


def gram(
    x: Any,
    *,
    c: Any = None,
    alpha: float = 1.0,
    beta: float | None = None,
    out_dtype: Any = None,
    out: Any = None,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Return ``alpha * (x.mT @ x)``, or ``+ beta * c``.

    This is the Gram matrix of the columns of ``x``, (k, n), which has many rows.

    With ``group``, ``x`` are this rank's rows, any number of them, 0 too, with the same n on every rank. The result (n,
    n) is the Gram matrix of all rows, on every rank, symmetric to the bit where ``c`` is; only its lower triangle is
    sent. Everything else is as in :func:`inner`. With no argument but ``x`` and ``out_dtype`` it is differentiable, and
    takes DTensors; complex elements, of which it is ``x.mH @ x``, too.

    >>> gram(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[10., 14.],
            [14., 20.]])
    """
    alone = group is None and not async_op and c is None and beta is None and alpha == 1 and out is None
    if alone and getattr(x, "dtype", None) in _COMPLEX:
        return matmul(x.mH, x, out_dtype=out_dtype)
    if alone and (autocast(x) or is_compiling() or type(x) not in PLAIN or differentiated(x)):
        return matmul(x.mT, x, out_dtype=out_dtype)
    return groups.gram(x, groups.CollectiveOptions(c, alpha, beta, out, group, async_op, out_dtype))


def matmul(  # noqa: PLR0911 — one for each way to a kernel
    a: Any,
    b: Any,
    *,
    bias: Any = None,
    activation: str | None = None,
    out_dtype: Any = None,
    precision: str | None = None,
    batch_invariant: bool = False,
    out: Any = None,
) -> Any:
    """Return ``activation(a @ b + bias)`` of float32, float64, float16, bfloat16, complex64 or complex128.

    ``bias`` is (n,), (1, n) or (m, 1), ``activation`` one of ``"relu"``, ``"gelu"``, ``"gelu_tanh"`` and ``"silu"``,
    ``out_dtype`` float32 for 16-bit operands and float64 for float32 ones, ``precision`` ``"high"``, ``"tf32"``,
    ``"fp16x3"``, ``"tf32x3"`` or ``"float32_tensor"``, all as in :func:`matmill.matmul`, and so is ``batch_invariant``:
    with it a row has the same bits whatever the others are, and so has a row of the gradient of ``a``.

    ``a`` and ``b`` may be lists of matrices, which gives the list of their products, as in :func:`matmill.matmul`; or
    ``a`` may be a jagged nested tensor (groups, rows, k) and ``b`` (groups, k, n) or (k, n), which gives a jagged one.
    Both are differentiable, and take no other arguments.

    Differentiable as :func:`transpose_add` is, in ``bias`` too. With one of the last three precisions, derivatives have
    it too; the gradients' products are torch's float32 where that is faster. Gradients of complex tensors are torch's,
    conjugates of Wirtinger derivatives. If a derivative of an activation is
    recorded, torch applies the activation to the product in the accumulator's type: the result is the same.

    >>> matmul(torch.eye(2), torch.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """
    direct = not is_compiling() and _plain(a, b)
    if not direct and grouped.of_groups(a):
        options = {"bias": bias, "activation": activation, "out_dtype": out_dtype, "precision": precision}
        return grouped.matmul(a, b, **options, batch_invariant=batch_invariant or None, out=out)
    if not direct:
        given = {"bias": bias, "out": out}
        _check_tensors(a=a, b=b, **{name: x for name, x in given.items() if x is not None})
    plain = bias is None and activation is None and out_dtype is None and precision is None
    if not plain or batch_invariant:
        out_dtype = out_dtype if out_dtype is None or type(out_dtype) is torch.dtype else _dtype(out_dtype, a)
        options = {"activation": activation, "out_dtype": out_dtype, "precision": precision}
        options |= {"batch_invariant": True} if batch_invariant else {}
        direct = direct and (bias is None or _plain(bias, bias)) and (out is None or _plain(out, out))
        if direct:
            return ops.matmul(a, b, bias=bias, **options, out=out)
        if out is None:
            return _routed(a, b, bias).matmul(a, b, bias, **options)
        _MATMUL_OUT(a, b, bias, **options, out=out)
        return out
    if out is None:
        return (ops if direct else _routed(a, b)).matmul(a, b)
    if direct and _plain(out, out):
        return ops.matmul(a, b, out=out)
    _MATMUL_OUT(a, b, out=out)
    return out


def linear(
    input: Any,  # noqa: A002 — torch's name
    weight: Any,
    bias: Any = None,
    activation: str | None = None,
    precision: str | None = None,
    *,
    batch_invariant: bool = False,
) -> Any:
    """Return ``activation(input @ weight.T + bias)``, as ``torch.nn.Linear``, with the activation in the same kernel.

    ``input`` is (..., in), ``weight`` (out, in) and ``bias`` (out,) or None; the result is (..., out). Everything else
    is as in :func:`matmul`.

    >>> linear(torch.ones(2, 3), torch.eye(3)[:2], torch.tensor([0.0, -2.0]), "relu")
    tensor([[1., 0.],
            [1., 0.]])
    """
    tensors = (input, weight) if bias is None else (input, weight, bias)
    if has_torch_function(tensors):  # true in a tracer such as torch.fx's, which records the call
        options = {"batch_invariant": True} if batch_invariant else {}
        return handle_torch_function(linear, tensors, input, weight, bias, activation, precision, **options)
    _check_tensors(input=input, weight=weight, **({} if bias is None else {"bias": bias}))
    if weight.dim() != 2:
        raise _not_linear("weight", weight, "two dimensions, (out, in)")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise _not_linear("bias", bias, "one element for each row of weight, (out,)")
    if input.dim() and input.shape[-1] != weight.shape[1]:
        raise ShapeError(
            argument="input, weight",
            got=f"shapes {tuple(input.shape)} and {tuple(weight.shape)}",
            wanted=f"input's last dimension ({input.shape[-1]}) to equal weight's ({weight.shape[1]})",
            fix="Transpose weight if it is stored as (in, out).",
        )
    for argument, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype != input.dtype and not autocast(input):
            raise DTypeError(
                argument=argument,
                got=f"dtype {str(tensor.dtype).removeprefix('torch.')}",
                wanted=f"input's {str(input.dtype).removeprefix('torch.')}",
                fix=f"Pass {argument}.to(input.dtype).",
            )
    plain = activation is None and input.dim() > 1 and not is_compiling() and not autocast(input)
    pieces = None if precision is None else gradients.in_pieces(precision)
    decided = precision is None or (pieces is not None and input.dtype is torch.float32 and not tf32())
    if plain and decided and not batch_invariant and _layer(input, weight, bias):
        return _direct(input, weight, bias, pieces)
    summed: dict[str, Any] = {"precision": precision, "batch_invariant": batch_invariant}
    return matmul(input, weight.mT, bias=bias, activation=activation, **summed)


#: The layers that were met, by all that their kernels depend on but the packed layout.
_LAYERS: dict[tuple[object, ...], Site] = {}
_MOST_LAYERS = 1024
_LINEAR = Function(torch.nn.functional, "linear", torch.nn.functional.linear, (0, 2), transposed=True)


def _layer(*tensors: Any) -> bool:
    """Tell whether tensors, but for None, are plain packed ones on a GPU, which nothing but autograd observes."""
    packed = all(x is None or (type(x) in PLAIN and x.is_cuda and x.is_contiguous()) for x in tensors)
    return packed and not observed()


def _direct(input: Any, weight: Any, bias: Any, pieces: str | None) -> Any:  # noqa: A002 — torch's name
    """Return a layer's result without torch's dispatcher, recorded where a gradient is wanted."""
    key = (
        *(input.shape, weight.shape, bias is None, weight.dtype),
        *(input.get_device(), input.requires_grad, _grad_enabled(), pieces),
    )
    site = _LAYERS.get(key)
    if site is None:
        site = own(gradients.decider(pieces), _LINEAR, (input, weight, bias))
        if site is not None:
            if len(_LAYERS) >= _MOST_LAYERS:
                _LAYERS.clear()
            remember(_LAYERS, key, site)
    if site is None or not site.fits(input, weight, bias):
        return matmul(input, weight.mT, bias=bias, precision=pieces)
    return site.answer(input, weight, bias)


def addmm(input: Any, mat1: Any, mat2: Any, *, beta: complex = 1.0, alpha: complex = 1.0, out: Any = None) -> Any:  # noqa: A002 — torch's name
    """Return ``beta * input + alpha * (mat1 @ mat2)``, as ``torch.addmm``, rounded once.

    ``mat1`` is (m, k), ``mat2`` (k, n), and ``input`` broadcasts to (m, n). With ``beta=0`` it is not read.
    Differentiable in all three, but not into ``out``. Element types and errors are those of :func:`matmul`.

    >>> addmm(torch.ones(2), torch.eye(2), torch.eye(2), beta=3, alpha=2)
    tensor([[5., 3.],
            [3., 5.]])
    """
    return _sum(input, mat1, mat2, beta, alpha, out, names=("mat1", "mat2"), rank=2)


def baddbmm(input: Any, batch1: Any, batch2: Any, *, beta: complex = 1.0, alpha: complex = 1.0, out: Any = None) -> Any:  # noqa: A002 — torch's name
    """Return ``beta * input + alpha * (batch1 @ batch2)``, as ``torch.baddbmm``: :func:`addmm` of a batch.

    >>> baddbmm(torch.ones(1), torch.ones(3, 1, 2), torch.ones(3, 2, 1)).flatten()
    tensor([3., 3., 3.])
    """
    return _sum(input, batch1, batch2, beta, alpha, out, names=("batch1", "batch2"), rank=3)


def _sum(  # noqa: PLR0917 — torch's two functions in one
    added: Any, a: Any, b: Any, beta: complex, alpha: complex, out: Any, *, names: tuple[str, str], rank: int
) -> Any:
    """Return ``beta * added + alpha * (a @ b)`` of tensors with that many dimensions."""
    _check_tensors(**{"input": added, names[0]: a, names[1]: b}, **({} if out is None else {"out": out}))
    for name, x in zip(names, (a, b), strict=True):
        if x.dim() != rank:
            raise ShapeError(
                argument=name, got=f"shape {tuple(x.shape)}", wanted=f"{rank} dimensions", fix="Use matmul for others."
            )
    dtype = _DTYPES.get(a.dtype, F32)
    alpha, beta = complex_scalar(alpha, "alpha", dtype), complex_scalar(beta, "beta", dtype)
    if not is_compiling() and _plain(a, b) and _plain(added, added if out is None else out):
        return ops.matmul(a, b, c=added, alpha=alpha, beta=beta, out=out)
    if out is not None:
        return out.copy_(_sum(added, a, b, beta, alpha, None, names=names, rank=rank))
    if autocast(a):
        a, b, added = cast(a, b, added)
    wide = sums_type(a.dtype, a.dtype)
    total = matmul(a, b, out_dtype=None if wide is a.dtype else wide)
    total = total if alpha == 1 else alpha * total
    if beta == 0:
        return total.to(a.dtype)
    return (total + (added if beta == 1 else beta * added)).to(a.dtype)


def _not_linear(argument: str, x: Any, wanted: str) -> ShapeError:
    return ShapeError(argument=argument, got=f"shape {tuple(x.shape)}", wanted=wanted, fix="Use matmul for others.")


def _dtype(given: Any, a: Any) -> Any:
    """Return torch's dtype for the requested element type of a product of ``a``."""
    dtype = _DTYPES.get(getattr(a, "dtype", None))
    # The operator refuses other objects and other element types.
    return None if dtype is None else getattr(torch, result_type(given, dtype).name)


def _factor(value: Any, argument: str, x: Any) -> Any:
    """Return the core's value of a factor for elements of ``x``, before torch's schema converts it."""
    # The operator checks traced factors on fake tensors, because the compiler quotes its errors and not these. Integers
    # are reduced to their lower bits first: torch's schema has only 64.
    if type(value) in SYMBOLS or (is_compiling() and type(value) is not int):
        return value
    dtype = _DTYPES.get(getattr(x, "dtype", None))
    # The operator refuses other objects and other element types.
    return scalar(value, argument) if dtype is None else factor(value, argument, dtype)


def _check_tensors(**named: Any) -> None:
    """Raise :class:`~matmill.errors.DTypeError` for arguments that are not tensors."""
    for argument, x in named.items():
        if not isinstance(x, torch.Tensor) and not hasattr(x, "__torch_function__"):
            raise DTypeError(
                argument=argument,
                got="None" if x is None else f"{type(x).__module__}.{type(x).__qualname__}",
                wanted="a torch.Tensor",
                fix=by_copy(
                    argument,
                    "Pass a tensor."
                    if x is None
                    else f"Pass torch.as_tensor({argument}), or call matmill's function of the same name.",
                ),
            )


def _routed(*tensors: Any) -> Any:
    """Return the module whose functions take these tensors.

    The one for DTensors is slow to import, and is loaded only for DTensors.
    """
    if any(type(x).__name__ == "DTensor" for x in tensors):
        from matmill.torch import dtensor  # noqa: PLC0415 — see above

        return dtensor
    return gradients


def _plain(x: Any, y: Any) -> bool:
    """Tell whether the tensors are on a GPU and have only values: no derivatives, tracers or transforms."""
    return (
        type(x) in PLAIN
        and x.is_cuda
        and type(y) in PLAIN
        and not (_grad_enabled() and (x.requires_grad or y.requires_grad))
        and not _autocast()
        and not observed()
    )
