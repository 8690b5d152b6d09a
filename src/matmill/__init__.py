"""Matrix kernels in CUDA C++ that run on a GPU, run as their own PTX without one, and explain their speed.

>>> import numpy as np
>>> import matmill
>>> matmill.matmul(np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0]]), executor="cpu")
array([[1., 2.],
       [3., 4.]])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matmill.choose import Choice, choose
    from matmill.contraction import einsum, tensordot
    from matmill.errors import MatmillError
    from matmill.ops import grouped_mm, inner, matmul, transpose, transpose_add
    from matmill.problem import Gemm
    from matmill.testing.call import at, emulate
    from matmill.textures import Surface, Texture
    from matmill.tuning import Tuned, tune

__version__ = "0.1.0"

__all__ = [
    "Choice",
    "Gemm",
    "MatmillError",
    "Surface",
    "Texture",
    "Tuned",
    "__version__",
    "at",
    "choose",
    "einsum",
    "emulate",
    "errors",
    "grouped_mm",
    "inner",
    "matmul",
    "tensordot",
    "transpose",
    "transpose_add",
    "tune",
]

#: Public names and the modules that define them. They are imported on first use (PEP 562), so that `import matmill`
#: costs nothing.
_HOMES = {
    "Choice": "matmill.choose",
    "Gemm": "matmill.problem",
    "MatmillError": "matmill.errors",
    "Surface": "matmill.textures",
    "Texture": "matmill.textures",
    "Tuned": "matmill.tuning",
    "at": "matmill.testing.call",
    "choose": "matmill.choose",
    "einsum": "matmill.contraction",
    "emulate": "matmill.testing.call",
    "grouped_mm": "matmill.ops",
    "inner": "matmill.ops",
    "matmul": "matmill.ops",
    "tensordot": "matmill.contraction",
    "transpose": "matmill.ops",
    "transpose_add": "matmill.ops",
    "tune": "matmill.tuning",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    if name == "errors":
        return import_module("matmill.errors")
    raise AttributeError(f"module 'matmill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
