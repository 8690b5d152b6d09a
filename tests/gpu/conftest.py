"""What the tests on a GPU share: they are skipped where there is none, and each library's where it is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any

import pytest

from matmill.runtime import gpu


@pytest.fixture(autouse=True)
def device() -> gpu.GPU:
    """Provide GPU 0; without one, the test is skipped with the reason."""
    reason = gpu.unavailable()
    if reason is not None:
        pytest.skip(reason)
    return gpu.GPU.get(0)


@pytest.fixture
def torch() -> Any:
    """Provide the library, where it sees the GPU."""
    library = pytest.importorskip("torch")
    if not library.cuda.is_available():
        pytest.skip("this torch sees no GPU")
    return library


@pytest.fixture
def cupy() -> Any:
    """Provide the library, where it is installed."""
    return pytest.importorskip("cupy")


@pytest.fixture
def jax(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Provide the library, where it sees the GPU; it must not take the GPU's whole memory for itself."""
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    library = pytest.importorskip("jax")
    if library.default_backend() != "gpu":
        pytest.skip("this JAX sees no GPU")
    return library


@pytest.fixture
def mt(torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Provide the package, with decisions of its own on disk."""
    assert torch.cuda.is_available()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    module = import_module("matmill.torch")
    yield module
    module.disable()


@pytest.fixture
def always(mt: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let matmill answer whatever it can, however long it takes."""
    monkeypatch.setattr(import_module("matmill.torch.decide"), "LEAST_GAIN", -inf)
    monkeypatch.setattr(import_module("matmill.torch.session"), "LEAST_SECONDS", -inf)
    monkeypatch.setattr(import_module("matmill.torch.session"), "ARMS", (-inf,))
    monkeypatch.setattr(import_module("matmill.torch.steps"), "ARMS", (-inf,))
    return mt
