"""Tests of any CUDA kernel without a GPU: :func:`~matmill.testing.call.emulate` and the plugin for pytest.

:func:`~matmill.testing.products.audit` looks at any function that multiplies matrices.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matmill.testing.products import audit

__all__ = ["audit"]


def __getattr__(name: str) -> Any:
    if name == "audit":  # imported on first use (PEP 562): pytest imports this package with its plugin
        return import_module("matmill.testing.products").audit
    raise AttributeError(f"module 'matmill.testing' has no attribute {name!r}")
