"""matmul, inner, transpose_add and transpose of arrays of any library, from arguments to result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Never, TypeAlias, TypeVar, overload

from matmill.arrays import Operand, inspect, makes_results, resolve_stream, will_write
from matmill.arrays.operand import is_conjugated, refuse_conjugated
from matmill.dispatch import fast_path
from matmill.dispatch.backends import emulated, on_cpu, on_gpu, through_gpu
from matmill.dispatch.gemm import INNER, MATMUL, checked_options
from matmill.dispatch.groups import ELEMENTS, ENDS, GROUPED_MM
from matmill.dispatch.lists import matmul_lists
from matmill.dispatch.plan_cache import Call, resolve
from matmill.dispatch.transpose import TRANSPOSE, TRANSPOSE_ADD, factor, without_x
from matmill.dispatch.validate import (
    NO_OPTIONS,
    Operation,
    Request,
    check_apart,
    check_callable,
    complex_scalar,
    out_of_memory,
)
from matmill.dtypes import PRODUCTS, REAL_AND_COMPLEX, TRANSPOSES
from matmill.errors import ArgumentError
from matmill.settings import Executor

#: An array of any library. The result is one of the same library, and of the same element type unless another is
#: requested.
A = TypeVar("A")
#: ``bias``, ``activation``, ``out_dtype``, ``precision`` and ``batch_invariant`` as a call names them.
_EpilogueOptions: TypeAlias = tuple[Any, str | None, object, str | None, bool]
#: Bypasses the generated constructor, which takes twice as long.
_new: Callable[[type[Request], tuple[Any, ...]], Request] = tuple.__new__


@overload
def matmul(
    a: A,
    b: Any,
    /,
    *,
    c: Any = None,
    alpha: complex = 1.0,
    beta: complex | None = None,
    bias: Any = None,
    activation: str | None = None,
    out_dtype: None = None,
    precision: str | None = None,
    batch_invariant: bool = False,
    out: Any = None,
    stream: object = None,
    executor: Executor | None = None,
) -> A: ...


@overload
def matmul(
    a: Any,
    b: Any,
    /,
    *,
    c: Any = None,
    alpha: complex = 1.0,
    beta: complex | None = None,
    bias: Any = None,
    activation: str | None = None,
    out_dtype: object,
    precision: str | None = None,
    batch_invariant: bool = False,
    out: Any = None,
    stream: object = None,
    executor: Executor | None = None,
) -> Any: ...


def matmul(
    a: Any,
    b: Any,
    /,
    *misplaced: Never,
    c: Any = None,
    alpha: complex = 1.0,
    beta: complex | None = None,
    bias: Any = None,
    activation: str | None = None,
    out_dtype: object = None,
    precision: str | None = None,
    batch_invariant: bool = False,
    out: Any = None,
    stream: object = None,
    executor: str | None = None,
) -> Any:
    """Return ``activation(alpha * (a @ b) + beta * c + bias)`` of real or complex elements, or of integers.

    They are float32, float64, float16, bfloat16, complex64, complex128, or integers of 8, 32 and 64 bits.

    Shapes follow the array API's ``matmul``: ``a`` (..., m, k), ``b`` (..., k, n), result (..., m, n) with batch
    dimensions broadcast; a one-dimensional ``a`` is a row and ``b`` a column whose dimension of 1 is dropped from the
    result. ``c`` broadcasts to the result's shape. It needs a ``beta``, and both are keywords: a third positional
    array, which NumPy would write to, is refused. Strides may be anything, zero and negative ones included, and every
    extent may be 0 (a product over k = 0 is zero).

    ``bias`` has the dtype of ``a`` and is the same for every product of a batch: a row (n,) or (1, n) with one element
    for each column of the result, or a column (m, 1) with one for each row. Where ``b`` is a vector, (m,) is a column
    too. ``activation`` is None, ``"relu"``, ``"gelu"`` (with the error function), ``"gelu_tanh"`` or ``"silu"``, as
    torch defines them.

    In float16 and bfloat16, terms and scalars are multiplied and summed in float32, bias and activation are applied in
    float32, and the result is rounded once to the dtype of ``a``. It stays float32 with ``out_dtype="float32"`` (a
    name, or a dtype object of NumPy, torch, CuPy or JAX). float32 elements with ``out_dtype="float64"`` are multiplied
    exactly and summed in float64. ``c`` and ``out`` have the result's dtype. GPUs before Ampere have no tensor cores
    for bfloat16, and take only products of at most 128 rows and columns in it.

    Complex products are computed by the kernels of their parts, with the same ``precision``, ``batch_invariant`` and
    ``out_dtype``; ``alpha`` and ``beta`` may be complex. torch's lazy conjugates (``x.conj()``, ``x.mH``) are read as
    they are, ``c`` too, but are no ``out``. There is neither bias nor activation; a row as ``c`` broadcasts. A Gram
    matrix is symmetric, or with the conjugate Hermitian, up to its rounding.

    int32, int64, uint32 and uint64 are multiplied and summed in their own type, int8 and uint8 in int32, which is the
    type of the result: exactly, and wrapping around as NumPy's integers do. Scalars are then whole numbers, and there
    is neither bias nor activation. On a GPU 8-bit products need one since Ampere.

    ``precision="high"`` sums 16-bit terms more exactly than the tensor cores of Hopper do by themselves: each 128 terms
    of k are promoted to a separate float32 sum. For other types it changes nothing. ``precision="tf32"`` rounds
    float32 elements to tf32, which tensor cores multiply faster; float32 is never rounded to tf32 without it. None is
    ``"default"``. On the host NumPy's BLAS computes the product, at least as exactly.

    ``precision="float32_tensor"`` multiplies float32 elements by tensor cores too, each as the sum of two pieces: up to
    five times as fast as FMA on Hopper, with a bound of the error that is not above FMA's. ``"fp16x3"`` and
    ``"tf32x3"`` allow pieces of one kind alone. The faster of them and FMA is chosen; small products, k < 86 and GPUs
    without such tensor cores have FMA. In pieces a Gram matrix is symmetric up to its rounding, not to the bit.
    ``docs/precision.md`` derives the errors of each.

    With ``batch_invariant=True`` a row of the result has the same bits whatever m is, whichever other rows there are,
    and for a matrix in a batch: the order of the terms of k depends on n, k and the types alone. ``docs/precision.md``
    says what holds where, and ``matmill why --batch-invariant`` what it costs.

    Arrays may be NumPy's, torch's, CuPy's, JAX's or any with DLPack, ``__cuda_array_interface__`` or Python's buffer
    protocol (memoryviews), all of one dtype on one device. The result is ``out``, if there is one. ``out`` must have
    the result's shape and dtype and share no memory with the inputs; it may be exactly ``c``. Otherwise the result is a
    new array on that device, of the library of ``a``, else of ``b``'s. A library without an array API namespace cannot
    allocate results: if neither can, the result of host arrays is NumPy's.

    torch tensors must be plain: those that record derivatives, have tangents or are transformed (``vmap``,
    ``torch.func``) are refused; :mod:`matmill.torch` takes them. Writing to a tensor increments its version, as in
    torch.

    As in BLAS, ``beta = 0`` means that ``c`` is not read, and ``alpha = 0`` that ``a`` and ``b`` are not: NaN there
    does not reach the result. ``bias`` and ``activation`` apply all the same.

    ``executor`` is ``"auto"``, ``"gpu"``, ``"cpu"`` (NumPy's BLAS) or ``"emulator"`` (the GPU kernel's own PTX, run on
    the CPU). Arrays on a GPU are multiplied on that GPU. For host arrays, None means the environment's
    ``MATMILL_EXECUTOR``, else ``"auto"``: a GPU for NumPy arrays where there is one, else the CPU.

    ``stream`` is the CUDA stream to work on, as a handle or a stream object, by default the array library's current
    one. Arrays on a GPU are not copied, and the call does not wait. With host arrays the GPU works on copies.

    Raises :class:`~matmill.errors.ShapeError`, :class:`~matmill.errors.DTypeError`,
    :class:`~matmill.errors.DeviceError`, :class:`~matmill.errors.AliasError`, :class:`~matmill.errors.ReadOnlyError`,
    :class:`~matmill.errors.ArgumentError`, :class:`~matmill.errors.UnknownNameError`,
    :class:`~matmill.errors.NoGPUError`, :class:`~matmill.errors.OutOfMemoryError` or, where no kernel takes the product
    on this GPU, :class:`~matmill.errors.IllegalConfigError` before anything is written.

    ``a`` and ``b`` may be lists (or tuples) of matrices, with ``c`` a list too: the result is the list of the products
    of each pair, of any sizes. Those of one real or integer type of at least 16 bits are computed by one launch for
    each 256 products, if neither a bias nor an activation, ``out_dtype``, ``precision`` or ``batch_invariant`` is
    named, and others one after the other. There is no ``out``.

    >>> import numpy as np
    >>> a = np.arange(6, dtype=np.float32).reshape(2, 3)
    >>> matmul(a, a.T, executor="cpu")
    array([[ 5., 14.],
           [14., 50.]], dtype=float32)
    >>> matmul(np.int8([[100, 100]]), np.int8([[100], [100]]), executor="cpu")
    array([[20000]], dtype=int32)
    >>> matmul(a, a.T, bias=np.float32([-10, -20]), activation="relu", executor="cpu")
    array([[ 0.,  0.],
           [ 4., 30.]], dtype=float32)
    >>> [product.shape for product in matmul([a, a[:1]], [a.T, a.T], executor="cpu")]
    [(2, 2), (1, 2)]
    """
    if misplaced:
        raise _third_array()
    if type(a) in {list, tuple} and type(b) in {list, tuple}:
        others = {"bias": bias, "activation": activation, "out_dtype": out_dtype, "precision": precision}
        others |= {"batch_invariant": batch_invariant or None, "out": out}
        chosen = {name: value for name, value in others.items() if value is not None}
        named = {"alpha": alpha, "beta": beta, "stream": stream, "executor": executor}
        return matmul_lists(matmul, a, b, c, options=chosen, **named)
    if bias is None and activation is None and out_dtype is None and precision is None and batch_invariant is False:
        return _product(MATMUL, a, b, c, alpha, beta, out, stream, executor)
    options = bias, activation, out_dtype, precision, batch_invariant
    return _product(MATMUL, a, b, c, alpha, beta, out, stream, executor, None, options)


def grouped_mm(
    a: A,
    b: Any,
    offsets: Any,
    *,
    alpha: float = 1.0,
    out: Any = None,
    stream: object = None,
    executor: Executor | None = None,
) -> A:
    """Return the products of groups that follow each other in one matrix, in one launch.

    ``offsets`` are int32 or int64, one for each group: where it ends, as ``torch.nn.functional.grouped_mm`` takes them.
    Group g is ``offsets[g - 1]:offsets[g]`` of one dimension, and may be empty:

    - rows of ``a`` (rows, k), each group with its own matrix of ``b`` (groups, k, n): the result is (rows, n), as in a
      layer of experts. Rows behind the last group are 0.
    - columns of ``b`` (k, columns), with ``a`` (groups, m, k): the result is (m, columns).
    - terms of both ``a`` (m, terms) and ``b`` (terms, n): the result is (groups, m, n), as of gradients of experts.

    Offsets of arrays on a GPU are read there: the call neither waits nor copies. They should not decrease; whatever
    they are, nothing outside of the arrays is read or written. Elements are float16, bfloat16, float32, float64 or
    integers of 32 and 64 bits. Strides may be anything. Everything else is as in :func:`matmul`, and so are the errors.

    >>> import numpy as np
    >>> a, b = np.ones((5, 3), np.float32), np.ones((2, 3, 4), np.float32) * np.float32([[[1]], [[2]]])
    >>> grouped_mm(a, b, np.int32([2, 4]), executor="cpu")[:, 0]
    array([3., 3., 6., 6., 0.], dtype=float32)
    """
    named = None if stream is None else resolve_stream(stream)
    x, y = inspect(a, "a", named, ELEMENTS), inspect(b, "b", named, ELEMENTS)
    ends = inspect(offsets, "offsets", named, ENDS)
    target = None if out is None else inspect(out, "out", named, ELEMENTS)
    like, home = result_owner(a, x, b, y)
    by = factor(alpha, "alpha", x.dtype)
    request = _new(Request, (GROUPED_MM, x, y, None, target, by, 0.0, like, home, out, ends, NO_OPTIONS))
    call = resolve(request, executor)
    if target is not None:
        check_apart(request)
    result: A = compute(request, call, named)
    return result


@overload
def inner(
    e: A,
    f: Any = None,
    *,
    c: Any = None,
    alpha: complex = 1.0,
    beta: complex | None = None,
    out_dtype: None = None,
    out: Any = None,
    stream: object = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> A: ...


@overload
def inner(
    e: Any,
    f: Any = None,
    *,
    c: Any = None,
    alpha: complex = 1.0,
    beta: complex | None = None,
    out_dtype: object,
    out: Any = None,
    stream: object = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Any: ...


def inner(
    e: Any,
    f: Any = None,
    *misplaced: Never,
    c: Any = None,
    alpha: complex = 1.0,
    beta: complex | None = None,
    out_dtype: object = None,
    out: Any = None,
    stream: object = None,
    executor: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Any:
    """Return ``alpha * (e @ f)``, or ``alpha * (e @ f) + beta * c``, for few rows and columns and a long k.

    ``e`` is (m, k), ``f`` (k, n) and the result (m, n), with m and n in 1..128 and any k; ``c`` broadcasts to the
    result's shape. Element types are those of :func:`matmul`. 16-bit terms and the scalars are multiplied and summed in
    float32, and the result is rounded once. ``out_dtype`` is as in :func:`matmul`: ``"float64"`` sums float32
    elements in float64, where their products are exact, as covariances of numbers far from zero need.

    Where ``f`` is ``e``'s transpose in the same memory (``f = e.T``, or no ``f`` at all, also of complex elements), the
    result of real ones is symmetric to the bit, and where k is long each element is read from memory once. The same
    arguments on the same GPU give the same bits in every run; NaN and infinities come out as from NumPy's ``@``.

    Arrays, ``out``, ``stream`` and ``executor``, and what ``alpha = 0`` and ``beta = 0`` mean, are as in
    :func:`matmul`, which computes products of any shape, and those of these shapes by the same kernels.

    Host arrays of more than 64 MiB together, ``np.memmap`` among them, need not fit the GPU: chunks of k are copied
    through page-locked buffers while earlier chunks are summed, and ``progress(bytes_done, bytes_all)`` is called for
    each. ``out`` is written once, at the end. With ``out_dtype``, and complex, arrays are copied whole and must fit.

    Raises :class:`~matmill.errors.ShapeError` for other numbers of dimensions and for m or n beyond 128, and whatever
    else :func:`matmul` raises, before anything is written.

    >>> import numpy as np
    >>> e = np.ones((2, 5000), np.float16)
    >>> inner(e, alpha=0.125, executor="cpu")  # a Gram matrix
    array([[625., 625.],
           [625., 625.]], dtype=float16)
    """
    check_callable(progress, "progress")
    if misplaced:
        raise _third_array()
    options = None if out_dtype is None else (None, None, out_dtype, None, False)
    return _product(INNER, e, f, c, alpha, beta, out, stream, executor, progress, options)


def transpose_add(
    x: A,
    y: Any,
    *,
    alpha: complex = 1.0,
    beta: complex = 1.0,
    out: Any = None,
    stream: object = None,
    executor: Executor | None = None,
) -> A:
    """Return ``alpha * x.swapaxes(-2, -1) + beta * y`` in one pass over memory.

    ``x`` is (..., c, r), ``y`` (..., r, c) and the result (..., r, c), with batch dimensions broadcast. Elements are
    float64, float32, float16, bfloat16, complex64, complex128, int8 or int32. Strides may be anything, zero and
    negative ones included (with a transposed view as ``x``, both arrays have one order in memory), and every extent may
    be 0.

    16-bit numbers are scaled and added in float32 and rounded once. With ``alpha = beta = 1`` the result is torch's
    ``x.transpose(-2, -1) + y`` to the bit; other scalars round ``beta * y``, and then the sum with the exact
    ``alpha * x``. Integers wrap around, and are scaled by whole numbers. Real scalars multiply the parts of complex
    elements, complex ones round each product of parts. torch's lazy conjugates are read as they are, so that
    ``x.conj()`` adds the conjugate transpose in the same pass.

    ``out`` may be exactly ``y`` (the same memory, shape and strides) and shares no memory with ``x``. ``beta = 0``
    means that ``y`` is not read, and ``alpha = 0`` that ``x`` is not: NaN there does not reach the result.

    Arrays, ``stream`` and ``executor`` are as in :func:`matmul`, and so are the errors: all are raised before anything
    is written.

    >>> import numpy as np
    >>> x = np.arange(6, dtype=np.int8).reshape(2, 3)
    >>> transpose_add(x, np.ones((3, 2), np.int8), alpha=10, executor="cpu")
    array([[ 1, 31],
           [11, 41],
           [21, 51]], dtype=int8)
    """
    # `factor` checks numbers that are not floats.
    if stream is executor is None and type(alpha) is type(beta) is float and alpha == beta == 1:
        known: A | None = fast_path.repeat(TRANSPOSE_ADD, x, y, out)
        if known is not None:
            return known
    named = None if stream is None else resolve_stream(stream)
    a = inspect(x, "x", named, TRANSPOSES)
    b = inspect(y, "y", named, TRANSPOSES)
    target = None if out is None else inspect(out, "out", named, TRANSPOSES)
    if type(alpha) is not float or alpha != 1:
        alpha = factor(alpha, "alpha", a.dtype)
    if type(beta) is not float or beta != 1:
        beta = factor(beta, "beta", a.dtype)
    like, home = result_owner(x, a, y, b)
    request = _new(Request, (TRANSPOSE_ADD, a, b, None, target, alpha, beta, like, home, out, None, NO_OPTIONS))
    if a.dtype.part is not None:
        request = _with_conjugates(request, ("a", x, a), ("b", y, b))
    call = resolve(request, executor)
    if beta == 0:
        request = request._replace(b=None)
    if target is not None:
        refuse_conjugated(out, target, "out")
        check_apart(request)
    if alpha == 0:
        request = without_x(request)
    result: A = compute(request, call, named)
    return result


def transpose(x: A, *, out: Any = None, stream: object = None, executor: Executor | None = None) -> A:
    """Return ``x.swapaxes(-2, -1)`` as a copy: packed row-major, or with the strides of ``out``.

    ``x`` is (..., c, r) and the result (..., r, c), with the same bits: even signalling NaNs are kept. Of a lazy
    conjugate it is the conjugate transpose. Everything else is as in :func:`transpose_add`.

    >>> import numpy as np
    >>> transpose(np.arange(6.0).reshape(2, 3), executor="cpu").flags.c_contiguous
    True
    """
    if stream is None and executor is None:
        known: A | None = fast_path.repeat(TRANSPOSE, x, None, out)
        if known is not None:
            return known
    named = None if stream is None else resolve_stream(stream)
    a = inspect(x, "x", named, TRANSPOSES)
    target = None if out is None else inspect(out, "out", named, TRANSPOSES)
    request = _new(Request, (TRANSPOSE, a, None, None, target, 1.0, 0.0, x, a, out, None, NO_OPTIONS))
    if a.dtype.part is not None:
        request = _with_conjugates(request, ("a", x, a))
    call = resolve(request, executor)
    if target is not None:
        refuse_conjugated(out, target, "out")
        check_apart(request)
    result: A = compute(request, call, named)
    return result


_CURES = "To add the array, pass c=array, beta=1.0; to write the result into it, pass out=array."


def _third_array() -> ArgumentError:
    return ArgumentError(
        argument="c", got="an array by position", wanted="two arrays by position and all others by name", fix=_CURES
    )


def _product(  # noqa: PLR0917 — one call per product, and keywords would cost it 0.2 µs
    operation: Operation,
    first: Any,
    second: Any,
    c: Any,
    alpha: complex,
    beta: complex | None,
    out: Any,
    stream: object,
    executor: str | None,
    progress: Callable[[int, int], None] | None = None,
    epilogue: _EpilogueOptions | None = None,
) -> Any:
    if beta is None:
        if c is not None:
            raise ArgumentError(argument="c", got="an array without beta", wanted="c together with beta", fix=_CURES)
        beta = 0.0
    # `scalar` checks numbers that are not floats.
    named_none = c is None and epilogue is None and stream is None and executor is None
    if named_none and type(alpha) is type(beta) is float and alpha == 1 and beta == 0:
        known = fast_path.repeat(operation, first, second, out)
        if known is not None:
            return known
    named = None if stream is None else resolve_stream(stream)
    request = product_request(operation, first, second, c, alpha, beta, out, named, epilogue)
    call = resolve(request, executor)
    if c is not None and request.beta == 0:
        request = request._replace(c=None)
    if request.out is not None:
        refuse_conjugated(out, request.out, "out")
        check_apart(request)
    return compute(request, call, named, progress)


def product_request(  # noqa: PLR0917 — see _product
    operation: Operation,
    first: Any,
    second: Any,
    c: Any,
    alpha: complex,
    beta: complex,
    out: Any,
    named: int | None,
    epilogue: _EpilogueOptions | None,
) -> Request:
    """Return the request of a product; ``named`` is the handle of the stream that the call names, if any."""
    types = REAL_AND_COMPLEX if operation is INNER else PRODUCTS
    a = inspect(first, operation.first, named, types)
    b = a.transposed if second is None and operation is INNER else inspect(second, operation.second, named, types)
    z = None if c is None else inspect(c, "c", named, types)
    target = None if out is None else inspect(out, "out", named, types)
    vector, options = None, NO_OPTIONS
    if a.dtype.is_integer:
        alpha, beta = factor(alpha, "alpha", a.dtype), factor(beta, "beta", a.dtype)
        epilogue = epilogue or (None, None, None, None, False)  # 8-bit elements have wider results
    elif type(alpha) is not float or type(beta) is not float:
        alpha, beta = complex_scalar(alpha, "alpha", a.dtype), complex_scalar(beta, "beta", a.dtype)
    if epilogue is not None:
        bias, activation, out_dtype, precision, batch_invariant = epilogue
        vector = None if bias is None else inspect(bias, "bias", named, types)
        options = checked_options(activation, out_dtype, precision, a.dtype, batch_invariant=batch_invariant)
    like, home = result_owner(first, a, second, b)
    request = _new(Request, (operation, a, b, z, target, alpha, beta, like, home, out, vector, options))
    if a.dtype.part is None:
        return request
    return _with_conjugates(request, ("a", first, a), ("b", first if second is None else second, b), ("c", c, z))


def _with_conjugates(request: Request, *arrays: tuple[str, Any, Operand | None]) -> Request:
    """Return a request of complex elements that names the arrays whose conjugates are meant."""
    lazy = "".join(name for name, x, operand in arrays if operand is not None and is_conjugated(x, operand))
    return request._replace(options=request.options._replace(conjugates=lazy)) if lazy else request


def matmul_call(
    a: Any,
    b: Any,
    *,
    c: Any = None,
    bias: Any = None,
    activation: str | None = None,
    precision: str | None = None,
    batch_invariant: bool = False,
    out: Any = None,
) -> tuple[Call, Request]:
    """Return the call of ``a @ b + c + bias`` for arrays on a GPU, with its plan if there is one, and its request.

    The result has the type of ``out``. Everything is as in :func:`matmul`, errors too.
    """
    epilogue = (bias, activation, None if out is None else out.dtype, precision, batch_invariant)
    same_type = out is None or out.dtype == a.dtype
    given = None if bias is activation is precision is None and same_type and not batch_invariant else epilogue
    request = product_request(MATMUL, a, b, c, 1.0, 0.0 if c is None else 1.0, out, None, given)
    return resolve(request, None), request


def result_owner(first: Any, a: Operand, second: Any, b: Operand) -> tuple[Any, Operand]:
    """Pick the operand whose library allocates the result: the first one, if its library makes arrays."""
    return (first, a) if makes_results(first, a) or not makes_results(second, b) else (second, b)


def compute(
    request: Request, call: Call, stream: int | None, progress: Callable[[int, int], None] | None = None
) -> Any:
    """Return the result from the backend that was chosen."""
    if request.out is not None:
        will_write(request.array, request.out.library)
    if call.signature or request.home.device[0] == "cuda":
        result = on_gpu(request, call, stream)
        if not fast_path.torch.classes and request.home.library == "torch":
            fast_path.torch.enable()
        return result
    try:
        if call.backend == "gpu":
            return through_gpu(request, call.shape, stream, progress)
        return on_cpu(request, call.shape) if call.backend == "cpu" else emulated(request, call.shape)
    except MemoryError as error:
        raise out_of_memory(request, call.shape, f"one that fits in memory with its operands ({error})") from error
