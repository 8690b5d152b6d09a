"""A stand-in of the GPU for decisions between torch and matmill: tensors on the CPU, and times by shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from matmill import arch
from matmill.jit.background import Arrival
from matmill.problem import Gemm
from matmill.torch.gpu import Prepared
from matmill.torch.host import ACTIVATIONS

_matmul = torch.matmul


class DecidedGPU:
    """A GPU of CPU tensors on which matmill wins the products whose operands' shapes ``wins`` accepts.

    ``ours`` counts the products that matmill answered by the shapes of their operands, ``timed`` lists the trials.
    ``precisions`` and ``activations`` are those of the kernels that were prepared. ``broken`` is raised by kernels
    while they are prepared, or launched. With ``aligned`` they take addresses on 16 bytes only, as on a GPU.
    ``arrival`` is that of all kernels while they are being compiled. ``invariant`` says of each prepared kernel whether
    it is batch-invariant, ``others`` are the batch-invariant products of no prepared kernel.
    """

    def __init__(self, wins: Callable[[tuple[int, ...], tuple[int, ...]], bool] = lambda _a, _b: True) -> None:
        self.wins = wins
        self.ours: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.timed: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.precisions: list[str | None] = []
        self.activations: list[str | None] = []
        self.invariant: list[bool] = []
        self.others: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.aligned = False
        self.captures = False
        self.tuned: list[tuple[tuple[int, ...], tuple[int, ...], int]] = []
        self.workspace = 0
        self.now = 0.0
        self.seconds_each = 1e-3
        self.broken_preparation: Exception | None = None
        self.broken_launch: Exception | None = None
        self.arrival: Arrival | None = None
        self._latest: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    @staticmethod
    def autocast() -> bool:
        """Tell whether torch casts on the CPU."""
        return bool(torch.is_autocast_enabled("cpu"))

    def serves(self, x: Any) -> bool:
        """Tell that tensors on the CPU are on this GPU."""
        return bool(x.device.type == "cpu")

    def identity(self, _x: Any) -> tuple[str, dict[str, str]]:
        """Return a name and versions of nothing."""
        return "stand-in", {"torch": "0"}

    @staticmethod
    def arch(_x: Any) -> Any:
        """Return some arch."""
        return arch.get("h100")

    def capturing(self) -> bool:
        """Tell whether a graph is being captured."""
        return self.captures

    def mark(self) -> float:
        """Return this GPU's time, which tests advance."""
        return self.now

    @staticmethod
    def between(first: float, last: float) -> float:
        """Return the seconds between two times."""
        return last - first

    def prepare(
        self,
        a: Any,
        b: Any,
        addend: Any,
        precision: str | None,
        *,
        activation: str | None = None,
        batch_invariant: bool = False,
        out: Any = None,
    ) -> Prepared:
        """Return a kernel that multiplies by torch and counts."""
        self.invariant.append(batch_invariant)
        if self.broken_preparation is not None:
            raise self.broken_preparation
        shapes = tuple(a.shape), tuple(b.shape)
        strides = [(x.stride(), x.shape) for x in (a, b)]
        self._latest = shapes
        self.precisions.append(precision)
        self.activations.append(activation)
        layout = None if out is None else out.stride()

        def run(x: Any, y: Any, z: Any, into: Any = None) -> Any:
            if self.broken_launch is not None:
                raise self.broken_launch
            if self.aligned and any(t.data_ptr() % 16 for t in (x, y, z, into) if t is not None):
                return None
            assert not torch.is_grad_enabled() or not (x.requires_grad or y.requires_grad)
            self.ours.append(shapes)
            # As a kernel does, by the layouts that it was prepared for, whatever views of them it is handed.
            left, right = (
                torch.as_strided(t, shape, stride) for t, (stride, shape) in zip((x, y), strides, strict=True)
            )
            sums = torch.promote_types(x.dtype, torch.float32)  # what a kernel's epilogue is computed in
            product = _matmul(left.to(sums), right.to(sums))
            assert (z is None) is (addend is None), "a kernel reads the addend that it was prepared for"
            if z is not None:
                product += torch._neg_view(z) if z.is_neg() else z  # its memory
            result = (product if activation is None else ACTIVATIONS[activation](product)).to(x.dtype)
            if into is None:
                return result
            assert into.stride() == layout or (layout is None and into.is_contiguous())
            return into.copy_(result)

        problem = Gemm(a.shape[-2], b.shape[-1], a.shape[-1], precision=precision or "default")
        return Prepared(run, self.workspace, self.seconds_each, problem, next(iter(problem.split_methods), None))

    def batch_invariant(self, a: Any, b: Any, addend: Any, _precision: str | None, out: Any = None) -> Any:
        """Multiply by torch and count."""
        self.others.append((tuple(a.shape), tuple(b.shape)))
        product = _matmul(a, b) if addend is None else _matmul(a, b) + addend
        return product if out is None else out.copy_(product)

    def request(self, *_operands: Any, **_others: Any) -> Arrival | None:
        """Return what is being compiled."""
        return self.arrival

    def tune(self, a: Any, b: Any, _addend: Any, _precision: str | None, *, count: int) -> None:
        """Remember what is tuned."""
        self.tuned.append((tuple(a.shape), tuple(b.shape), count))

    def seconds(self, calls: list[Callable[[], Any]], _x: Any, nbytes: int) -> list[float]:
        """Return times by which matmill wins or loses, after one run of each."""
        assert nbytes > 0
        count = len(self.ours)
        for call in calls:
            call()
        del self.ours[count:]  # trials do not count
        self.timed.append(self._latest)
        return [self.seconds_each, (2 if self.wins(*self._latest) else 1.02) * self.seconds_each]
