"""An emulated GPU in the place of the real one, and tensors on it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from matmill import plan
from matmill.arrays import operand as operand_module
from matmill.dispatch import fast_path, plan_cache
from matmill.dtypes import PRODUCTS
from matmill.runtime import gpu, stream_scratch
from support.compiled import in_ptx_alone
from support.fake_gpu import FakeGPU, Parameter, Tensor, Tensors, unpack_dual, written


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeGPU:
    """Provide an emulated GPU in the place of the real one, and no plans from elsewhere."""
    fake = FakeGPU()
    monkeypatch.setattr(gpu, "unavailable", lambda: None)
    monkeypatch.setattr(gpu.GPU, "get", staticmethod(lambda _index=0: fake))
    monkeypatch.setattr(plan, "compile_source", in_ptx_alone)
    monkeypatch.setattr(plan_cache, "calls", {})
    monkeypatch.setattr(stream_scratch, "load", lambda: None)
    monkeypatch.setattr(stream_scratch, "is_capturing", lambda _library: fake.is_capturing)
    monkeypatch.setattr(stream_scratch, "stream_id", lambda _library: fake.stream_id)
    return fake


@pytest.fixture
def tensors(device: FakeGPU, monkeypatch: pytest.MonkeyPatch) -> Tensors:
    """Provide tensors of a stand-in for torch, whose current stream is 33."""
    names = {name: name for name in (*PRODUCTS, "int16", "strided")}
    inside = SimpleNamespace(
        _cuda_getCurrentRawStream=lambda _index: 33, _is_tracing=lambda: Tensor.tracing, _increment_version=written
    )
    graph = SimpleNamespace(increment_version=lambda x: written((x,)))
    autograd = SimpleNamespace(graph=graph, forward_ad=SimpleNamespace(_current_level=-1, unpack_dual=unpack_dual))
    classes = {"Tensor": Tensor, "nn": SimpleNamespace(Parameter=Parameter)}
    result = {
        "empty_like": lambda x: (x.conj() if x.conjugated else x).new_empty(x.shape),
        "is_grad_enabled": lambda: Tensor.recording,
    }
    result["is_inference_mode_enabled"] = lambda: Tensor.inferring
    fake = SimpleNamespace(**names, **classes, **result, _C=inside, autograd=autograd)
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setattr(operand_module, "_readers", {})
    monkeypatch.setattr(fast_path, "torch", fast_path._Torch())
    return Tensors(device)
