"""The operators' schemas in torch's namespace ``matmill``: a functional form each, and one that writes into ``out``.

The ``out`` forms return nothing. torch.compile takes no operator that returns its argument unless it has ``Tag.out``,
and with that tag Inductor of torch 2.13 lowers the functional form to it and fails where sizes are symbols.
"""

from __future__ import annotations

from typing import Any

import torch

LIBRARY: Any = torch.library.Library("matmill", "DEF")

#: Arguments of each operator, without ``out``.
_ARGUMENTS = {
    "transpose_add": "Tensor x, Tensor y, *, Scalar alpha=1, Scalar beta=1",
    "transpose": "Tensor x",
    "inner": "Tensor e, Tensor f",
    # vmap wants tensors by position.
    "matmul": (
        "Tensor a, Tensor b, Tensor? bias=None, *, "
        "str? activation=None, ScalarType? out_dtype=None, str? precision=None"
    ),
}

for _name, _arguments in _ARGUMENTS.items():
    _comma = "," if "*" in _arguments else ", *,"
    LIBRARY.define(f"{_name}({_arguments}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.define(f"{_name}.out({_arguments}{_comma} Tensor(a!) out) -> ()", tags=(torch.Tag.pt2_compliant_tag,))

NAMES = tuple(_ARGUMENTS)
#: The two forms of each operator, past the look-up by arguments.
FUNCTIONAL: dict[str, Any] = {name: getattr(torch.ops.matmill, name).default for name in NAMES}
OUT: dict[str, Any] = {name: getattr(torch.ops.matmill, name).out for name in NAMES}
