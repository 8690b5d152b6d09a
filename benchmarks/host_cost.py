"""What a call costs the host: microseconds until it returns, with the work still to be done by the GPU.

With a GPU and torch the calls are real, beside torch's own. Without one, torch's tensors and the driver's launch are
stand-ins that do next to nothing, so that what is left is matmill's own part; the output says which it was.

    PYTHONPATH=src python benchmarks/host_cost.py [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import ctypes
import pstats
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import matmill
from lab.calls import host_seconds
from matmill import arch
from matmill.dtypes import ELEMENTWISE
from matmill.runtime import gpu, stream_scratch

_ADDRESSES = count(1 << 40, 1 << 28)
#: Of short k there is one block; the last block reduces longer ones, and a second launch many outputs of them.
_SHAPES = {
    "inner, one block": (3, 3, 500),
    "inner, last block": (3, 3, 200_000),
    "inner, two launches": (40, 40, 200_000),
    "matmul": (200, 200, 64),
}


class StandInTensor:
    """As much of a CUDA tensor as a product looks at, at about the speed of torch's own attributes."""

    __module__ = "torch"
    layout = "strided"
    requires_grad = False
    is_cuda = True

    def __init__(self, shape: tuple[int, ...], dtype: str = "float32") -> None:
        self.shape, self.dtype = shape, dtype
        self._strides = (shape[1], 1) if len(shape) > 1 else (1,)
        self._address = next(_ADDRESSES)

    def is_contiguous(self) -> bool:
        """Tell that it always is."""
        return True

    def stride(self) -> tuple[int, ...]:
        """Give the strides in elements."""
        return self._strides

    def data_ptr(self) -> int:
        """Return some address."""
        return self._address

    def get_device(self) -> int:
        """Give the first device always."""
        return 0

    def is_neg(self) -> bool:
        """Tell that it never is lazily negated."""
        return False

    def is_inference(self) -> bool:
        """Tell that it never was made in inference mode."""
        return False

    def new_empty(self, shape: Any, dtype: str = "float32") -> StandInTensor:
        """Return a result; torch's takes about a microsecond."""
        return StandInTensor(shape if isinstance(shape, tuple) else (shape,), dtype)


def _random_tensor(shape: tuple[int, ...]) -> Any:
    return sys.modules["torch"].rand(shape, device="cuda")


def _stand_in_torch() -> ModuleType:
    torch: Any = ModuleType("torch")
    for name in (*ELEMENTWISE, "int16", "uint8", "strided"):
        setattr(torch, name, name)
    torch.is_grad_enabled = torch.is_inference_mode_enabled = lambda: False
    torch.Tensor, torch.nn = StandInTensor, SimpleNamespace(Parameter=StandInTensor)
    torch.empty_like = lambda x: x.new_empty(x.shape)
    torch._C = SimpleNamespace(  # noqa: SLF001 — what matmill asks
        _cuda_getCurrentRawStream=lambda _device: 0, _is_tracing=lambda: False, _increment_version=len
    )
    torch.autograd = SimpleNamespace(
        forward_ad=SimpleNamespace(_current_level=-1), graph=SimpleNamespace(increment_version=id)
    )
    result: ModuleType = torch
    return result


def _stand_in_gpu() -> gpu.GPU:
    """Return a GPU whose driver is a C function that returns its first argument's low half, which is made 0."""
    library = ctypes.CDLL(None)
    device = object.__new__(gpu.GPU)
    nothing = library["abs"]
    nothing.argtypes, nothing.restype = [ctypes.c_void_p] * 4, ctypes.c_int
    current = library["abs"]
    current.argtypes, current.restype = [ctypes.c_void_p], ctypes.c_int
    facts: dict[str, Any] = {
        "index": 0,
        "last": None,
        "arch": arch.get("h200"),
        "enqueue": lambda _config, handle, parameters, extra: nothing(0, handle, parameters, extra),
        "function": lambda _binary, _launch: 0,
        "_driver": SimpleNamespace(cuDriverGetVersion=lambda: (SimpleNamespace(value=0), 13000)),
        "_current": current,
        "_cell": gpu._Cell(),  # noqa: SLF001 — the stand-in is built around the constructor
        "_context_address": None,
        "_prepared": {},
        "_loading": threading.RLock(),
        "kept": {},
        "_keeping": threading.Lock(),
    }
    for name, value in facts.items():
        setattr(device, name, value)
    answers = library["abs"]
    answers.argtypes, answers.restype = [ctypes.c_void_p] * 2, ctypes.c_int
    mock.patch.object(stream_scratch, "load", return_value=library).start()
    for name in ("is_capturing", "stream_id"):
        mock.patch.object(stream_scratch, name, return_value=answers).start()
    mock.patch.object(gpu.GPU, "zeros", return_value=SimpleNamespace(address=next(_ADDRESSES))).start()
    return device


def _profile(call: Callable[[], object]) -> None:
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(5000):
        call()
    profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(14)


def main() -> None:
    """Print one line per product and way of calling."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="where the time of each call goes")
    profile = parser.parse_args().profile
    reason = gpu.unavailable()
    rand: Callable[[tuple[int, ...]], Any]
    if reason is None:
        import torch  # noqa: PLC0415 — only where there is a GPU for it

        torch.backends.cuda.matmul.allow_tf32 = False
        wait, rand = torch.cuda.synchronize, _random_tensor
        print(f"real: {torch.cuda.get_device_name()}, torch {torch.__version__}")
    else:
        sys.modules["torch"] = _stand_in_torch()
        device = _stand_in_gpu()
        mock.patch.object(gpu.GPU, "get", return_value=device).start()
        wait, rand = lambda: None, StandInTensor
        print(f"stand-ins for torch and the driver ({reason}): matmill's own part alone")
    for name, ways in _calls(rand, torch_too=reason is None).items():
        for way, seconds in host_seconds(ways, wait).items():
            print(f"{name:22} {way:10} {seconds * 1e6:6.2f} us")
            if profile:
                _profile(ways[way])


def _calls(rand: Callable[[tuple[int, ...]], Any], *, torch_too: bool) -> dict[str, dict[str, Callable[[], object]]]:
    """Return ways of calling each operation on arrays that ``rand`` makes."""
    result: dict[str, dict[str, Callable[[], object]]] = {}
    for name, (m, n, k) in _SHAPES.items():
        a, b, out = rand((m, k)), rand((k, n)), rand((m, n))
        product: Callable[..., Any] = matmill.inner
        if name == "matmul":
            product = matmill.matmul
        result[name] = {"plain": partial(product, a, b), "out=": partial(product, a, b, out=out)}
        if torch_too:
            result[name]["torch.mm"] = partial(sys.modules["torch"].mm, a, b)
    x, y, out = rand((200, 300)), rand((300, 200)), rand((300, 200))
    add = matmill.transpose_add
    result["transpose_add"] = {
        "plain": partial(add, x, y),
        "out=": partial(add, x, y, out=out),
        "out=y": partial(add, x, y, out=y),
    }
    result["transpose"] = {"plain": partial(matmill.transpose, x), "out=": partial(matmill.transpose, x, out=out)}
    if torch_too:
        result["transpose_add"]["torch"] = lambda: x.T + y
        result["transpose"]["torch"] = partial(lambda z: z.T.contiguous(), x)
    return result


if __name__ == "__main__":
    main()
