"""What tests of decisions between torch and matmill share: CPU tensors in place of a GPU's."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Provide a GPU of CPU tensors, for all that is enabled in the test; nothing is kept on disk."""
    pytest.importorskip("torch")
    monkeypatch.setenv("MATMILL_CACHE", "off")
    gpu = import_module("support.decided_gpu").DecidedGPU()
    monkeypatch.setattr(import_module("matmill.torch.session"), "_DEVICE", gpu)
    yield gpu
    package = import_module("matmill.torch")
    package.disable()
    package.load_decisions(None)
