"""matmill's operators as torch's: differentiable, for ``torch.compile`` and CUDA graphs, on GPU and CPU tensors.

Importing this module imports torch and defines ``torch.ops.matmill.transpose_add``, ``transpose``, ``inner`` and
``matmul``, each with an ``out`` overload. The functions of the same names in this module take less host time;
:func:`linear` is ``matmul`` in the layout of ``torch.nn.Linear``. With ``group=``, :func:`inner` and :func:`gram` sum
over the ranks of a process group. DTensors work too: their rules are registered if ``torch.distributed.tensor`` was
imported before this module, else by the first call with a DTensor or by ``import matmill.torch.dtensor``.

>>> import torch
>>> import matmill.torch
>>> x = torch.ones(2, 3, requires_grad=True)
>>> matmill.torch.transpose_add(x, torch.zeros(3, 2), alpha=4).sum().backward()
>>> x.grad
tensor([[4., 4., 4.],
        [4., 4., 4.]])
"""

from __future__ import annotations

import sys

from matmill.errors import missing_package

try:
    import torch  # noqa: F401 — without it the modules below say less
except ModuleNotFoundError as error:
    raise missing_package(error, "matmill.torch", "torch>=2.11") from None

from matmill.torch import autocast, dispatch, grouped, scripting
from matmill.torch.functions import addmm, baddbmm, gram, inner, linear, matmul, transpose, transpose_add
from matmill.torch.grouped import grouped_mm
from matmill.torch.groups import Pending
from matmill.torch.modules import Linear, swap
from matmill.torch.results import Report, report
from matmill.torch.session import disable, enable, load_decisions, save_decisions

__all__ = [
    "Linear",
    "Pending",
    "Report",
    "addmm",
    "baddbmm",
    "disable",
    "enable",
    "gram",
    "grouped_mm",
    "inner",
    "linear",
    "load_decisions",
    "matmul",
    "report",
    "save_decisions",
    "swap",
    "transpose",
    "transpose_add",
]

dispatch.register()
autocast.register()
scripting.register()
grouped.register()
if "torch.distributed.tensor" in sys.modules:
    import matmill.torch.dtensor  # noqa: F401 — registers the rules
