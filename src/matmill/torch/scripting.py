"""matmill's functions in ``torch.jit.script``: TorchScript calls the operator of the same name and arguments.

TorchScript cannot compile the functions themselves, whose arguments are not annotated for it.
"""

from __future__ import annotations

from typing import Any

from torch.jit import _builtins

from matmill.torch import functions
from matmill.torch.schemas import LIBRARY, NAMES

#: Functions that are operators only in TorchScript: compositions of the others.
_COMPOSED = {
    "linear": "Tensor input, Tensor weight, Tensor? bias=None, str? activation=None, str? precision=None, *, "
    "bool batch_invariant=False",
    "gram": "Tensor x, *, ScalarType? out_dtype=None",
}


def register() -> None:
    """Register the operator for each function."""
    for name, arguments in _COMPOSED.items():
        LIBRARY.define(f"{name}({arguments}) -> Tensor")
        LIBRARY.impl(name, getattr(functions, name), "CompositeImplicitAutograd")
    # torch has no public name for TorchScript's table of functions.
    stands_for: Any = _builtins._register_builtin  # noqa: SLF001 — see above
    for name in (*NAMES, *_COMPOSED):
        stands_for(getattr(functions, name), f"matmill::{name}")
