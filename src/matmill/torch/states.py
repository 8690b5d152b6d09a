"""The states of a tensor that its memory does not show."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad


def differentiated(*tensors: Any) -> bool:
    """Tell whether a derivative of these tensors is being recorded, in reverse or forward mode."""
    given = [x for x in tensors if x is not None]
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        return True
    # torch has no public name for this variable: -1 outside every `dual_level`.
    if forward_ad._current_level < 0:  # noqa: SLF001 — there is no public way to ask
        return False
    return any(forward_ad.unpack_dual(x).tangent is not None for x in given)
