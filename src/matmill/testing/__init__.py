"""Tests of any CUDA kernel without a GPU: :func:`~matmill.testing.call.emulate` and the plugin for pytest.

:func:`~matmill.testing.products.audit` looks at any function that multiplies matrices, and within
:func:`~matmill.testing.redirect.redirected` programs of numba and Triton launch on the emulator.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matmill.testing.products import audit
    from matmill.testing.redirect import redirected

__all__ = ["audit", "redirected"]
_HOMES = {"audit": "matmill.testing.products", "redirected": "matmill.testing.redirect"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:  # imported on first use (PEP 562): pytest imports this package with its plugin
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'matmill.testing' has no attribute {name!r}")
