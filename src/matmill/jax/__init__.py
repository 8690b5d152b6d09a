"""matmill's products inside JAX's transformations: ``jit``, ``grad``, ``vmap``, ``scan`` and ``shard_map``.

Importing this module imports jax and registers one target of XLA's foreign function interface, for the CPU and for
CUDA. :func:`matmul`, :func:`inner` and :func:`transpose_add` call it with XLA's own buffers: nothing is copied. On a
GPU the kernels are enqueued on XLA's stream, and the call does not wait. On the CPU NumPy's BLAS answers, or what
``MATMILL_EXECUTOR`` names.

The target is a Python function: XLA's thread takes the interpreter's lock for each call, some tens of microseconds,
and waits while another thread keeps it. Threads that wait in JAX (``block_until_ready``) have released it.

Reverse derivatives of any order are there (``grad``, ``vjp``, ``jacrev``), forward ones are not (``jvp``, ``jacfwd``).

>>> import jax
>>> import jax.numpy as jnp
>>> import matmill.jax
>>> a = jnp.arange(6.0).reshape(2, 3)
>>> jax.jit(matmill.jax.matmul)(a, a.T)
Array([[ 5., 14.],
       [14., 50.]], dtype=float32)
>>> jax.grad(lambda a: matmill.jax.inner(a).sum())(a)
Array([[ 6., 10., 14.],
       [ 6., 10., 14.]], dtype=float32)
"""

from __future__ import annotations

from matmill.errors import missing_package

try:
    import jax  # noqa: F401 — without it the modules below say less
except ModuleNotFoundError as error:
    raise missing_package(error, "matmill.jax", "jax>=0.10") from None

from matmill.jax import target
from matmill.jax.functions import inner, matmul, transpose_add

__all__ = ["inner", "matmul", "transpose_add"]

target.register()
