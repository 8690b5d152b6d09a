"""Products under ``torch.autocast``: operands are converted as those of torch's own linear and matmul."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from matmill.problem import SPLIT_METHODS
from matmill.torch.schemas import FUNCTIONAL, LIBRARY

#: Types that autocast converts.
CAST = frozenset({torch.float32, torch.float16, torch.bfloat16})
#: Devices whose products are matmill's, and their dispatch keys.
_KEYS = {"cuda": "AutocastCUDA", "cpu": "AutocastCPU"}


def autocast(x: Any) -> bool:
    """Tell whether torch converts operands of products on the device of ``x``."""
    return isinstance(x, torch.Tensor) and x.device.type in _KEYS and bool(torch.is_autocast_enabled(x.device.type))


def cast(*tensors: Any) -> tuple[Any, ...]:
    """Return the operands as autocast converts them, for the device of the first; float64 and None stay as they are.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     [x.dtype for x in cast(torch.ones(1), torch.ones(1).double())]
    [torch.bfloat16, torch.float64]
    """
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    return tuple(x.to(dtype) if x is not None and x.dtype in CAST else x for x in tensors)


def _converting(name: str, key: str) -> Callable[..., Any]:
    operator = FUNCTIONAL[name]
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))  # noqa: SLF001 — what torch's custom_fwd does

    def converted(*tensors: Any, **options: Any) -> Any:
        if tensors[0].dtype in CAST and options.get("precision") in SPLIT_METHODS:
            options["precision"] = None  # 16 bits have no pieces
        with torch._C._ExcludeDispatchKeyGuard(keys):  # noqa: SLF001 — see above
            return operator(*cast(*tensors), **options)

    return converted


def register() -> None:
    """Register the conversion of the operands of products; sums and copies are not converted, as torch's are not."""
    for name in ("inner", "matmul"):
        for key in _KEYS.values():
            LIBRARY.impl(name, _converting(name, key), key)
