"""Modules: a linear layer by matmill's kernels, with its activation in the same kernel, and models made of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import torch

from matmill.errors import unknown_name
from matmill.problem import ACTIVATIONS
from matmill.torch.functions import linear

M = TypeVar("M")


class Linear(torch.nn.Linear):  # type: ignore[misc] # torch may be absent, and is Any then
    """``torch.nn.Linear`` by :func:`matmill.torch.linear`, followed by ``activation`` if there is one.

    ``activation`` is None, ``"relu"``, ``"gelu"``, ``"gelu_tanh"`` or ``"silu"``. Everything else is as in torch, the
    state dict too. Tracers of ``torch.fx`` record it as one module.

    >>> layer = Linear(3, 2, activation="relu")
    >>> bool((layer(torch.ones(4, 3)) >= 0).all()), list(layer.state_dict())
    (True, ['weight', 'bias'])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,  # noqa: FBT001, FBT002 — torch's signature
        *,
        activation: str | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        if activation is not None and activation not in ACTIVATIONS:
            raise unknown_name("activation", activation, ACTIVATIONS)
        self.activation, self.__module__ = activation, _LEAF

    def forward(self, input: Any) -> Any:  # noqa: A002 — torch's name
        """Return ``activation(input @ weight.T + bias)``, (..., out_features)."""
        return linear(input, self.weight, self.bias, self.activation)

    def extra_repr(self) -> str:
        """Return what the module's line shows."""
        shown = str(super().extra_repr())
        return shown if self.activation is None else f"{shown}, activation={self.activation!r}"


#: Tracers of torch.fx ask an object for its module, and record those of this one as they are.
_LEAF = "torch.nn"


def swap(model: M, *, exclude: Iterable[str] = ()) -> M:
    """Replace the ``torch.nn.Linear`` modules in a model by :class:`Linear` with the same parameters; return the model.

    Parameters, hooks, names and the training state stay; so do other classes, subclasses of ``torch.nn.Linear`` too.
    ``exclude`` are names of modules, as ``named_modules`` gives them, that stay with all that is inside.

    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    >>> type(swap(model)[0]) is Linear
    True
    """
    if type(model) is torch.nn.Linear:
        _become(model)
    excluded = tuple(exclude)
    for name, module in model.named_modules():  # type: ignore[attr-defined] # a module of torch
        inside = any(name == other or name.startswith(f"{other}.") for other in excluded)
        if type(module) is torch.nn.Linear and not inside:
            _become(module)
    return model


def _become(module: Any) -> None:
    """Change the class of a module, which keeps all that it has and whoever refers to it."""
    module.__class__ = Linear
    module.activation, module.__module__ = None, _LEAF
