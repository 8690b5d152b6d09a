"""One transpose+add by ``matmill.transpose_add`` and by what users have instead, timed in turns on torch's tensors.

Every result is compared with eager torch's bit by bit. torch is imported when a sum is made.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from typing import Any

from matmill.arch import Arch
from matmill.arrays import inspect
from matmill.bench.calls import graph_timer, host_seconds, in_turns, loop_timer
from matmill.bench.clock import Clock, Competitor, StreamHandle, Timing
from matmill.bench.copying import COPY_NAME, Copying
from matmill.bench.peers import BFLOAT, tried
from matmill.bench.sum_peers import (
    COMPILED,
    COMPILED_AS_Y,
    CUPY,
    EAGER,
    TUNED,
    CupySum,
    TorchSum,
    compiled_as_y,
    torch_peers,
)
from matmill.bench.sum_report import OURS, OURS_AS_X, WAYS
from matmill.bench.sum_shapes import SHORT, Shape
from matmill.choose import choose_transpose_add
from matmill.dtypes import DType
from matmill.errors import ArgumentError
from matmill.layout import lower_sum
from matmill.ops import transpose_add

#: Where tensors are made.
DEVICE = "cuda"
TORCH_COPY = "torch copy_"
_TIMERS = dict(zip(WAYS, (graph_timer, loop_timer), strict=True))
_SMALL = 64


class Matrices:
    """x, y and out of one shape as torch's tensors: floats uniform in [-1, 1), integers of all values.

    The same for the same seed. Pitches are those of views of longer rows.
    """

    def __init__(self, shape: Shape, seed: int) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._generator = self._torch.Generator(device=DEVICE)
        self._generator.manual_seed(seed)
        self._dtype = shape.dtype
        self.x = self._random(shape.batch, shape.m, shape.n, shape.x_pad)
        self.y = self._random(shape.batch, shape.n, shape.m, shape.y_pad)
        self.out = self._torch.empty_like(self.y, memory_format=self._torch.contiguous_format)

    def _random(self, batch: int, rows: int, columns: int, pad: int) -> Any:
        torch, dtype = self._torch, getattr(self._torch, self._dtype.name)
        room = torch.empty((batch, rows, columns + pad), dtype=dtype, device=DEVICE)
        if dtype.is_floating_point:
            room.uniform_(-1, 1, generator=self._generator)
        else:
            limits = torch.iinfo(dtype)
            room.random_(limits.min, limits.max, generator=self._generator)
        view = room[..., :columns]
        return view[0] if batch == 1 else view

    def poison(self) -> None:
        """Sets all bits of ``out``: NaN, or -1, which one in 256 sums of int8 is and one in 2**32 of int32."""
        self.out.view(self._torch.uint8).fill_(0xFF)

    def synchronize(self) -> None:
        """Waits until torch's work on the device is done: a clock's stream waits for no other."""
        if self.out.is_cuda:
            self._torch.cuda.synchronize()

    def tensor(self, found: Any) -> Any:
        """A result as torch's tensor, whichever library it is of."""
        torch = self._torch
        return found if isinstance(found, torch.Tensor) else torch.from_dlpack(found).view(self.y.dtype)

    def same(self, found: Any, wanted: Any) -> bool:
        """Whether two results are equal to the bit."""
        bits = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}[self._dtype.itemsize]
        kind = getattr(self._torch, bits)
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            return False
        return bool(self._torch.equal(found.contiguous().view(kind), wanted.contiguous().view(kind)))


class Copies:
    """Copies that sums are timed in turns with: our kernel's, and torch's, which is the driver's."""

    def __init__(self, copying: Copying) -> None:
        torch: Any = importlib.import_module("torch")
        self._torch, self._copying = torch, copying
        self._source = torch.full((copying.nbytes // 2,), 0x5A, dtype=torch.uint8, device=DEVICE)
        self._target = torch.empty_like(self._source)
        torch.cuda.synchronize()
        self.competitors = (Competitor(COPY_NAME, copying.run), Competitor(TORCH_COPY, self._run))

    def _run(self, stream: StreamHandle) -> None:
        with self._torch.cuda.stream(self._torch.cuda.ExternalStream(stream.address)):
            self._target.copy_(self._source)

    def rates(self, timings: Sequence[Timing]) -> dict[str, float]:
        """Bytes per second, read and written, of each."""
        named = zip(self.competitors, timings, strict=True)
        return {competitor.name: self._copying.rate(timing.median) for competitor, timing in named}


def own(matrices: Matrices, dtype: DType) -> list[TorchSum]:
    """``matmill.transpose_add`` into tensors that are there already: one that lies as y does, and one as x does."""
    torch: Any = importlib.import_module("torch")
    as_x = torch.empty_like(matrices.x, memory_format=torch.contiguous_format).transpose(-2, -1)
    found = []
    for name, out in ((OURS, matrices.out), (OURS_AS_X, as_x)):
        made = TorchSum(name, partial(transpose_add, out=out), matrices.x, matrices.y, dtype)
        made.version = "matmill"
        found.append(made)
    return found


def compare(
    arch: Arch, clock: Clock, copies: Copies, shape: Shape, seed: int, *, everything: bool, compile_until: float
) -> dict[str, Any]:
    """One entry of a record: times of single calls with a cold L2, in turns with a copy, and what else is to know.

    ``everything`` takes all libraries and gives each more rounds, else torch alone, eager and compiled, with a result
    that lies as x does and one that lies as y does. torch.compile is left out after ``compile_until``, by
    ``time.monotonic``, and the entry says so.
    """
    torch: Any = importlib.import_module("torch")
    matrices, dtype = Matrices(shape, seed), shape.dtype
    ours = own(matrices, dtype)
    matrices.poison()
    matrices.synchronize()
    for one in ours:
        one.run(clock.stream)
    matrices.synchronize()
    makers: dict[str, Callable[[], Any]] = dict(torch_peers(matrices.x, matrices.y, dtype, tuned=everything))
    absent = []
    if not everything:
        makers = {name: makers[name] for name in (EAGER, COMPILED)}
    elif find_spec("cupy") is None:
        absent.append(f"not compared with {CUPY}, which is not installed")
    else:
        makers[CUPY] = lambda: _cupy(matrices, dtype)
    makers[COMPILED_AS_Y] = lambda: compiled_as_y(matrices.x, matrices.y, dtype)
    if time.monotonic() > compile_until:
        absent += [
            f"{name}: left out, no time to compile"
            for name in (COMPILED, COMPILED_AS_Y, TUNED)
            if makers.pop(name, None)
        ]
    importlib.import_module("torch._dynamo").reset()  # or a shape after the eighth would not be compiled
    begin = time.monotonic()
    peers, refused = tried(makers, clock.stream, lambda _peer: matrices.synchronize())
    spent = time.monotonic() - begin
    eager = next((peer for peer in peers if peer.name == EAGER), None)
    if eager is None:
        raise ArgumentError(argument=EAGER, got="; ".join(refused), wanted="the sum by eager torch", fix="See above.")
    wanted = eager.sum
    everyone = [*ours, *peers]
    checks = {one.name: matrices.same(matrices.tensor(one.sum), wanted) for one in everyone}
    timings = clock.compare(
        [*(Competitor(one.name, one.run) for one in everyone), *copies.competitors],
        seconds_each=0.1 if everything else 0.03,
        most_rounds=60 if everything else 20,
        settle=0.5 if everything else 0.05,
        seed=seed,
    )
    rows = [
        {
            "name": one.name,
            "version": one.version,
            "strides": list(matrices.tensor(one.sum).stride()),
            "same": checks[one.name],
            **asdict(timing),
        }
        for one, timing in zip(everyone, timings, strict=False)
    ]
    if shape.nbytes <= SHORT:
        for way, timer in _TIMERS.items():
            found = in_turns({one.name: timer(torch, one.call) for one in everyone})
            for row in rows:
                row[way] = found[row["name"]]
    return {
        "shape": shape.record(),
        "bytes": shape.nbytes,
        "copy_bytes_per_s": copies.rates(timings[len(everyone) :]),
        **_choice(matrices, arch),
        "rows": rows,
        "absent": [*absent, *refused],
        "compile_seconds": spent,
    }


def _cupy(matrices: Matrices, dtype: DType) -> CupySum:
    """CuPy on the same memory; bfloat16, which it does not have, goes as integers."""
    cupy: Any = importlib.import_module("cupy")
    torch: Any = importlib.import_module("torch")
    x, y = (t.view(torch.int16) if dtype.name == BFLOAT else t for t in (matrices.x, matrices.y))
    return CupySum(cupy.from_dlpack(x), cupy.from_dlpack(y), dtype)


def _choice(matrices: Matrices, arch: Arch) -> dict[str, Any]:
    """What matmill runs for these tensors, and what its cost model expects of that."""
    operands = (inspect(x, name) for x, name in ((matrices.x, "x"), (matrices.y, "y"), (matrices.out, "out")))
    choices = [choose_transpose_add(stage.problem, arch) for stage in lower_sum(*operands)]
    return {
        "configs": [str(choice.kernel.config) for choice in choices],
        "predicted_seconds": sum(choice.predicted_seconds for choice in choices),
    }


def host_costs(seed: int) -> list[dict[str, Any]]:
    """Seconds that the host spends on one call on small matrices: ours in every way, and torch's own."""
    torch: Any = importlib.import_module("torch")
    from_torch: Any = importlib.import_module("matmill.torch").transpose_add
    found = []
    for name in ("float32", "bfloat16"):
        x, y = (
            torch.rand((_SMALL, _SMALL), device=DEVICE, generator=_seeded(torch, seed)).to(getattr(torch, name))
            for _ in range(2)
        )
        out = torch.empty_like(y)
        ways: dict[str, Callable[[], object]] = {
            OURS: partial(transpose_add, x, y),
            f"{OURS}, out=": partial(transpose_add, x, y, out=out),
            "matmill.torch.transpose_add": partial(from_torch, x, y),
            "torch.ops.matmill.transpose_add": partial(torch.ops.matmill.transpose_add, x, y),
            "x.t() + y": partial(_eager, x, y),
        }
        found.append({"dtype": name, "size": _SMALL, "seconds": host_seconds(ways, torch.cuda.synchronize)})
    return found


def _eager(x: Any, y: Any) -> Any:
    return x.t() + y


def _seeded(torch: Any, seed: int) -> Any:
    generator = torch.Generator(device=DEVICE)
    generator.manual_seed(seed)
    return generator
