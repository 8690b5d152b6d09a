"""What a call costs the host: microseconds until it returns, with the work still to be done by the GPU.

With a GPU and torch the calls are real, beside torch's own. Without one, torch's tensors and the driver's launch are
stand-ins that do next to nothing, so that what is left is matmill's own part; the output says which it was.

    PYTHONPATH=src python benchmarks/host_cost.py [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import matmill
from lab import stand_in
from lab.calls import host_seconds
from matmill.runtime import gpu

#: Of short k there is one block; the last block reduces longer ones, and a second launch many outputs of them.
_SHAPES = {
    "inner, one block": (3, 3, 500),
    "inner, last block": (3, 3, 200_000),
    "inner, two launches": (40, 40, 200_000),
    "matmul": (200, 200, 64),
}


def _random_tensor(shape: tuple[int, ...]) -> Any:
    return sys.modules["torch"].rand(shape, device="cuda")


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
        stand_in.install()
        wait, rand = lambda: None, stand_in.Tensor
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
