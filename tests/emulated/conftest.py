"""An emulated GPU in the place of the real one, and tensors on it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from emulated.stand_ins import EmulatedGPU, Tensor, Tensors
from matmill import gpu, plan, requests, shortcuts
from matmill.arrays import operand as operand_module
from matmill.dtypes import ELEMENTWISE


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> EmulatedGPU:
    """An emulated GPU in the place of the real one, and no plans from elsewhere."""
    fake = EmulatedGPU()
    monkeypatch.setattr(gpu, "unavailable", lambda: None)
    monkeypatch.setattr(gpu.GPU, "get", staticmethod(lambda _index=0: fake))
    monkeypatch.setattr(plan, "_plans", {})
    monkeypatch.setattr(requests, "_verdicts", {})
    return fake


@pytest.fixture
def tensors(device: EmulatedGPU, monkeypatch: pytest.MonkeyPatch) -> Tensors:
    """Tensors of a stand-in for torch, whose current stream is 33."""
    names = {name: name for name in (*ELEMENTWISE, "int16", "uint8", "strided")}
    capturing: list[bool] = [False]
    stream = SimpleNamespace(
        _cuda_getCurrentRawStream=lambda _index: 33, _cuda_isCurrentStreamCapturing=lambda: capturing[0]
    )
    classes = {"Tensor": Tensor, "nn": SimpleNamespace(Parameter=Tensor), "empty_like": lambda x: x.new_empty(x.shape)}
    fake = SimpleNamespace(**names, **classes, _C=stream, is_grad_enabled=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setattr(operand_module, "_readers", {})
    monkeypatch.setattr(shortcuts, "_ways", {})
    monkeypatch.setattr(shortcuts, "_classes", set())
    monkeypatch.setattr(shortcuts, "_rooms", {})
    return Tensors(device, capturing)
