"""The operators' schemas in torch's namespace ``matmill``: for each a functional form and one that writes to ``out``.

The ``out`` forms return nothing. torch.compile refuses operators that return an argument, unless they have ``Tag.out``.
With that tag, Inductor of torch 2.13 lowers the functional form to them, and fails for symbolic sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from matmill.dispatch.gemm import INNER, MATMUL
from matmill.dispatch.transpose import TRANSPOSE, TRANSPOSE_ADD
from matmill.dispatch.validate import Operation
from matmill.dtypes import REAL_AND_COMPLEX, TRANSPOSES, DType

LIBRARY: Any = torch.library.Library("matmill", "DEF")


@dataclass(frozen=True)
class Operator:
    """The description of an operator that all modules share: its core function and its element types.

    ``tensors`` are the names of its operands, ``factors`` those of its other arguments in the form of torch's schemas.
    ``decisive`` are keywords that decide the type of a result, or its placement among DTensors.
    """

    operation: Operation
    dtypes: dict[str, DType]
    tensors: tuple[str, ...]
    factors: str = ""
    decisive: tuple[str, ...] = ()

    @property
    def arguments(self) -> str:
        """The arguments without ``out`` as a schema lists them. vmap needs positional tensors."""
        tensors = ", ".join(f"Tensor? {name}=None" if name == "bias" else f"Tensor {name}" for name in self.tensors)
        return f"{tensors}, *, {self.factors}" if self.factors else tensors


_SCALARS = "Scalar alpha=1, Scalar beta=1"
_OPTIONS = "str? activation=None, ScalarType? out_dtype=None, str? precision=None, bool batch_invariant=False"
OPERATORS: dict[str, Operator] = {
    "transpose_add": Operator(TRANSPOSE_ADD, TRANSPOSES, ("x", "y"), _SCALARS),
    "transpose": Operator(TRANSPOSE, TRANSPOSES, ("x",)),
    "inner": Operator(INNER, REAL_AND_COMPLEX, ("e", "f")),
    "matmul": Operator(
        MATMUL, REAL_AND_COMPLEX, ("a", "b", "bias"), _OPTIONS, ("activation", "out_dtype", "precision")
    ),
}

for _name, _operator in OPERATORS.items():
    _arguments, _comma = _operator.arguments, "," if _operator.factors else ", *,"
    LIBRARY.define(f"{_name}({_arguments}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.define(f"{_name}.out({_arguments}{_comma} Tensor(a!) out) -> ()", tags=(torch.Tag.pt2_compliant_tag,))

NAMES = tuple(OPERATORS)
#: The two forms of each operator, looked up once.
FUNCTIONAL: dict[str, Any] = {name: getattr(torch.ops.matmill, name).default for name in NAMES}
OUT: dict[str, Any] = {name: getattr(torch.ops.matmill, name).out for name in NAMES}
