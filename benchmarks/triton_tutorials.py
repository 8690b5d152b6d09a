"""Run Triton's tutorials in the emulator: ``python benchmarks/triton_tutorials.py FOLDER``.

FOLDER has the tutorials of a release of Triton (python/tutorials), 01-vector-add.py and so on. The script brings
nothing itself: it needs torch for the tutorials' host code, and Triton. Of each file the functions and constants are
taken as they are; their authors' tests and benchmarks, which are statements beside them, are replaced by the calls
below at small sizes. Variants with specialised warps are left out: Triton does not compile each of their
configurations for Hopper. Results are compared with float64. One line of JSON for each tutorial says which kernels
ran, the largest error as a part of the largest value, what was reported, and the seconds that it took.
"""

from __future__ import annotations

import ast
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton

from matmill.testing import redirected
from matmill.testing.languages.triton_kernels import Tensor

Pairs = Iterator[tuple[Any, Any]]
# Whether warps are specialised.
_NO = False
_KEPT = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef | ast.Try


def _module(path: Path) -> Any:
    """Return a tutorial's functions and constants, without the statements that use them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}

    def used(node: ast.AST) -> bool:
        return any(isinstance(each, ast.Call) and getattr(each.func, "id", "") in own for each in ast.walk(node))

    def kept(node: ast.stmt) -> bool:
        if isinstance(node, ast.If):
            return all(isinstance(each, ast.Assign | ast.If) and kept(each) for each in (*node.body, *node.orelse))
        return isinstance(node, _KEPT) or (isinstance(node, ast.Assign) and not used(node))

    tree.body = [node for node in tree.body if kept(node)]
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[path.stem] = module
    exec(compile(tree, str(path), "exec"), vars(module))  # noqa: S102 - the user names the file
    return module


def _random(*shape: int, dtype: torch.dtype = torch.float16, grad: bool = False) -> Any:
    return torch.randn(shape).to(dtype).requires_grad_(grad)


def _vector_add(m: Any) -> Pairs:
    x, y = _random(5000, dtype=torch.float32), _random(5000, dtype=torch.float32)
    yield m.add(x, y), x.double() + y.double()


def _softmax(m: Any) -> Pairs:
    x = _random(200, 781, dtype=torch.float32)
    yield m.softmax(x), x.double().softmax(1)


def _matmul(m: Any) -> Pairs:
    a, b = _random(256, 192), _random(192, 320)
    yield m.matmul(a, b), a.double() @ b.double()
    yield m.matmul(a, b, activation="leaky_relu"), torch.nn.functional.leaky_relu(a.double() @ b.double())
    if hasattr(torch, "float8_e5m2"):
        a, b = a.to(torch.float8_e5m2), b.T.contiguous().to(torch.float8_e5m2).T
        yield m.matmul(a, b), a.to(torch.float16).double() @ b.to(torch.float16).double()


def _dropout(m: Any) -> Pairs:
    x = _random(1000, dtype=torch.float32)
    keep = (torch.rand(1000) > 0.5).to(torch.int32)
    yield m.dropout(x, x_keep=keep, p=0.5), x.double() * keep * 2
    once, again, other = (m.seeded_dropout(x, p=0.5, seed=seed) for seed in (123, 123, 512))
    yield once, again.double()
    yield other, torch.where(other != 0, x.double() * 2, 0.0)


def _layer_norm(m: Any) -> Pairs:
    x, w, b, dy = (_random(*shape, grad=True) for shape in ((151, 1024), (1024,), (1024,), (151, 1024)))
    exact = [each.detach().double().requires_grad_() for each in (x, w, b)]
    yield (
        (y := m.layer_norm(x, (1024,), w, b, 1e-5)),
        (z := torch.nn.functional.layer_norm(exact[0], (1024,), exact[1], exact[2], 1e-5)),
    )
    y.backward(dy.detach())
    z.backward(dy.detach().double())
    yield from ((one.grad, two.grad) for one, two in zip((x, w, b), exact, strict=True))


def _attention(m: Any) -> Pairs:
    for causal in (False, True):
        q, k, v = (_random(1, 2, 256, 64, grad=True) for _ in range(3))
        exact = [each.detach().double().requires_grad_() for each in (q, k, v)]
        scores = exact[0] @ exact[1].transpose(2, 3) * 0.5
        if causal:
            scores = scores.masked_fill(~torch.tril(torch.ones(256, 256, dtype=torch.bool)), float("-inf"))
        yield (y := m.attention(q, k, v, causal, 0.5, _NO)), (z := scores.softmax(-1) @ exact[2])
        do = _random(1, 2, 256, 64)
        y.backward(do)
        z.backward(do.double())
        yield from ((one.grad, two.grad) for one, two in zip((q, k, v), exact, strict=True))


def _extern(m: Any) -> Pairs:
    x = torch.rand(5000)
    out = torch.zeros_like(x)
    m.asin_kernel[(5,)](x, out, x.numel(), BLOCK_SIZE=1024)
    yield out, x.double().asin()


def _grouped(m: Any) -> Pairs:
    a, b = ([_random(n, n) for n in (256, 128, 384)] for _ in range(2))
    exact = [x.double() @ y.double() for x, y in zip(a, b, strict=True)]
    yield from zip(m.group_gemm_fn(a, b), exact, strict=True)
    if hasattr(m, "group_gemm_tma_fn"):
        yield from zip(m.group_gemm_tma_fn(a, [y.T.contiguous() for y in b]), exact, strict=True)


def _persistent(m: Any) -> Pairs:
    a, b = _random(384, 256), _random(256, 256)
    exact = a.double() @ b.double()
    yield m.matmul(a, b), exact
    yield m.matmul_persistent(a, b), exact
    for function in (m.matmul_tma, m.matmul_tma_persistent, m.matmul_descriptor_persistent):
        yield function(a, b.T.contiguous(), _NO), exact


def _dependent(m: Any) -> Pairs:
    x, y = _random(5000, dtype=torch.float32), _random(5000, dtype=torch.float32)
    yield m.add(x, y, launch_pdl=True), x.double() + y.double()


TUTORIALS: dict[str, Callable[[Any], Pairs]] = {
    "01-vector-add": _vector_add,
    "02-fused-softmax": _softmax,
    "03-matrix-multiplication": _matmul,
    "04-low-memory-dropout": _dropout,
    "05-layer-norm": _layer_norm,
    "06-fused-attention": _attention,
    "07-extern-functions": _extern,
    "08-grouped-gemm": _grouped,
    "09-persistent-matmul": _persistent,
    "11-programmatic-dependent-launch": _dependent,
}


def _hopper() -> None:
    """Let torch say what its host code asks about a GPU; tables of addresses become arrays of arrays."""
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(multi_processor_count=132)
    known: dict[int, Any] = {}
    address, table = torch.Tensor.data_ptr, torch.tensor

    def data_ptr(tensor: Any) -> int:
        known[address(tensor)] = tensor
        return int(address(tensor))

    def tensor(data: Any, *args: Any, **keywords: Any) -> Any:
        if not data or not all(isinstance(each, int) and each in known for each in data):
            return table(data, *args, **keywords)
        arrays = np.empty(len(data), object)
        arrays[:] = [known[each].numpy() for each in data]
        return Tensor(arrays)

    torch.Tensor.data_ptr, torch.tensor = data_ptr, tensor


def main() -> int:
    """Run the tutorials of a folder, or those whose numbers follow it."""
    folder, *numbers = sys.argv[1:]
    _hopper()
    failed = 0
    for name, pairs in TUTORIALS.items():
        path = Path(folder) / f"{name}.py"
        if not path.is_file() or (numbers and name[:2] not in numbers):
            continue
        torch.manual_seed(0)
        began, error, problem = time.perf_counter(), 0.0, ""
        with redirected("triton", check=False) as reports:
            try:
                for result, exact in pairs(_module(path)):
                    apart = (result.detach().double() - exact.detach()).abs().max() / exact.detach().abs().max()
                    error = max(error, float(apart))
            except Exception as exception:  # noqa: BLE001 - whatever it was is the result
                problem = f"{type(exception).__name__}: {exception}"[:300]
        hazards = Counter(f"{h.severity} {h.kind}" for report in reports for h in report.hazards)
        row = {
            "tutorial": name,
            "triton": triton.__version__,
            "kernels": dict(Counter(report.launch.kernel for report in reports)),
            "error": error,
            "hazards": dict(hazards),
            "seconds": round(time.perf_counter() - began, 1),
        }
        print(json.dumps(row | ({"problem": problem} if problem else {})), flush=True)
        failed += bool(problem) or not error < 1e-2
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
