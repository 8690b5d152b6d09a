"""The states of a tensor that its memory does not show, and of torch that observe its operators."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

# The states of torch in which an operator does not reach its kernel directly; querying one takes 0.1 µs. torch has no
# public names for them.
_C = torch._C  # noqa: SLF001 — see above
_transforming = _C._are_functorch_transforms_active  # noqa: SLF001 — see above
_dispatch_modes = _C._len_torch_dispatch_stack  # noqa: SLF001 — see above
_function_modes = _C._len_torch_function_stack  # noqa: SLF001 — see above
_function_mode = _C._get_function_stack_at  # noqa: SLF001 — see above
_tracing = _C._is_tracing  # noqa: SLF001 — see above
_batched = _C._functorch.is_legacy_batchedtensor  # noqa: SLF001 — see above

#: Classes of tensors without behaviour of their own.
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def differentiated(*tensors: Any) -> bool:
    """Tell whether a derivative of these tensors is being recorded, in reverse or forward mode."""
    given = [x for x in tensors if x is not None]
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        return True
    # torch has no public name for this variable: -1 outside every `dual_level`.
    if forward_ad._current_level < 0:  # noqa: SLF001 — there is no public way to ask
        return False
    return any(forward_ad.unpack_dual(x).tangent is not None for x in given)


def direct(*tensors: Any) -> bool:
    """Tell whether an operator on these tensors may go straight to a kernel: no derivative, nothing that observes."""
    return not torch.is_grad_enabled() and PLAIN.issuperset(map(type, tensors)) and not observed()


def batched(*tensors: Any) -> bool:
    """Tell whether ``torch.autograd.grad(is_grads_batched=True)`` has batched any of these: such have no memory."""
    return any(map(_batched, tensors))


def tf32() -> bool:
    """Tell whether torch may round float32 operands of products on a GPU to tf32."""
    try:
        return bool(_C._get_cublas_allow_tf32())  # noqa: SLF001 — the public attribute takes eight times as long
    except RuntimeError:  # torch from 2.9 on, where `fp32_precision` was set: the older names raise from then on
        return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


def observed() -> bool:
    """Tell whether a transformation, mode, tracer or forward derivative of torch is to see each operator.

    The mode of ``torch.set_default_device`` does not count: it changes new tensors alone.
    """
    return bool(
        _transforming()
        or _dispatch_modes()
        or _tracing()
        or forward_ad._current_level >= 0  # noqa: SLF001 — see above
        or (
            _function_modes()
            and any(type(_function_mode(index)) is not DeviceContext for index in range(_function_modes()))
        )
    )
