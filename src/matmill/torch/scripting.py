"""matmill's functions inside of ``torch.jit.script``: TorchScript calls the operator of the same name and arguments.

TorchScript cannot compile the functions themselves, whose arguments have no types of its own.
"""

from __future__ import annotations

from typing import Any

from torch.jit import _builtins

from matmill.torch import functions
from matmill.torch.schemas import LIBRARY, NAMES

#: Functions that are operators for TorchScript alone: compositions of the others.
_COMPOSED = {
    "linear": "Tensor x, Tensor w, Tensor? b=None, str? activation=None",
    "gram": "Tensor x, *, ScalarType? out_dtype=None",
}


def register() -> None:
    """Name the operator that stands for each function."""
    for name, arguments in _COMPOSED.items():
        LIBRARY.define(f"{name}({arguments}) -> Tensor")
        LIBRARY.impl(name, getattr(functions, name), "CompositeImplicitAutograd")
    # torch has no public name for the table in which it looks its own functions up.
    stands_for: Any = _builtins._register_builtin  # noqa: SLF001 — see above
    for name in (*NAMES, *_COMPOSED):
        stands_for(getattr(functions, name), f"matmill::{name}")
