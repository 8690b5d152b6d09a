"""Decide for each product of torch whether torch's own kernel answers it or matmill's.

A product is decided at its first meeting, by times measured on its own operands, or, where nothing may be measured, by
the cost models. Products of one layout share a :class:`Decision`. A tie is torch's, and so is everything that fails:
no decision raises in a user's program.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch

from matmill.analysis.floor import floor
from matmill.arch import Arch
from matmill.decisions import Decisions, Row, default_path
from matmill.dtypes import ALL, REAL_AND_COMPLEX
from matmill.jit.background import Arrival
from matmill.problem import Gemm
from matmill.torch.gpu import Prepared, Run
from matmill.torch.states import tf32
from matmill.torch.steps import Clock

#: Torch's own way to a product of the operands (a, b, addend).
ByTorch: TypeAlias = Callable[[Any, Any, Any], Any]
#: torch's own, bound before any function of torch is replaced.
_matmul = torch.matmul

#: The share of torch's time that matmill must save.
LEAST_GAIN = 0.03
#: The same without measurement, where two predictions stand against each other.
_LEAST_PREDICTED_GAIN = 0.25
#: Shares of the data sheet's rates that cuBLAS reaches with rows on 16 bytes, and with 16-bit rows elsewhere
#: (benchmarks/results/shapes_h200.json, wgmma_odd_operands_h200.json: 2 to 6 times as long), and seconds of a launch.
_ALIGNED, _UNALIGNED, _LAUNCH = 0.75, 0.25, 3e-6
_ROW_BYTES = 16
#: The most bytes of workspace, and of one for pieces of float32 elements.
_WORKSPACE, _WORKSPACE_OF_PIECES = 64 << 20, 1 << 30

_DTYPES = {getattr(torch, name): dtype for name, dtype in REAL_AND_COMPLEX.items()}


class Device(Clock, Protocol):
    """The machine that decisions are made on: :class:`matmill.torch.gpu.CudaGPU`, or a stand-in of it."""

    def serves(self, x: Any) -> bool:
        """Tell whether products of a tensor are decided."""

    def autocast(self) -> bool:
        """Tell whether torch converts operands of products automatically."""

    def identity(self, x: Any) -> tuple[str, dict[str, str]]:
        """Return the name of a tensor's GPU, and the versions that decide between kernels."""

    def arch(self, x: Any) -> Arch:
        """Return the arch of a tensor's GPU."""

    def capturing(self) -> bool:
        """Tell whether the current stream records a graph."""

    def prepare(self, a: Any, b: Any, addend: Any, precision: str | None, **others: Any) -> Prepared:
        """Return matmill's kernel; ``others`` are the activation, ``out``, and ``batch_invariant``, if any."""

    def request(self, a: Any, b: Any, addend: Any, precision: str | None, **others: Any) -> Arrival | None:
        """Let matmill's kernel be compiled in the background; return its arrival, or None if it is not to wait for."""

    def batch_invariant(self, a: Any, b: Any, addend: Any, precision: str | None, out: Any = None) -> Any:
        """Return ``a @ b + addend`` with batch-invariant sums, by whatever kernel takes these tensors."""

    def tune(self, a: Any, b: Any, addend: Any, precision: str | None, *, count: int) -> None:
        """Time some of matmill's configurations, so that the fastest is prepared."""

    def seconds(self, calls: list[Callable[[], Any]], x: Any, nbytes: int) -> list[float]:
        """Return the seconds of each call."""


class Product(NamedTuple):
    """A product that torch is to compute: of ``a`` and ``b``, each transposed or not, plus ``addend`` or None.

    The addend is a bias (n,) or (1, n), or has the result's shape. ``b`` has the batches of ``a``, or none.
    ``by_torch`` computes it from the three tensors in torch's own way, with the ``activation``; ``way`` names that way
    where it is not one call of torch. ``out`` is like the tensor that matmill writes to, or None for a packed one.
    """

    a: Any
    b: Any
    addend: Any
    transposed: tuple[bool, bool]
    by_torch: ByTorch
    activation: str | None = None
    way: str | None = None
    out: Any = None

    @property
    def left(self) -> Any:
        """The left operand, (..., m, k)."""
        return self.a.mT if self.transposed[0] else self.a

    @property
    def right(self) -> Any:
        """The right operand, (..., k, n)."""
        return self.b.mT if self.transposed[1] else self.b

    @property
    def operands(self) -> tuple[Any, Any, Any]:
        """Both operands and the addend, as a kernel takes them."""
        return self.left, self.right, self.addend

    @property
    def others(self) -> dict[str, Any]:
        """The activation and the tensor that is written to, where there are any."""
        return {name: x for name in ("activation", "out") if (x := getattr(self, name)) is not None}

    @property
    def layout(self) -> tuple[object, ...]:
        """All that a decision depends on, but for alignment, which its kernel checks."""
        a, b, addend, transposed = self[:4]
        dtype = a.dtype
        added = None if addend is None else (addend.shape, addend.stride())
        rounded = dtype is torch.float32 and tf32()
        operands = a.get_device(), dtype, a.shape, a.stride(), b.shape, b.stride(), transposed, added, rounded
        if self.activation is self.way is self.out is None:
            return operands
        return *operands, self.activation, self.way, None if self.out is None else self.out.stride()

    def compute(self) -> Any:
        """Return the result from torch."""
        return self.by_torch(self.a, self.b, self.addend)

    def nbytes(self) -> int:
        """Return the bytes of operands and result."""
        elements = sum(x.numel() for x in (self.a, self.b, self.addend) if x is not None)
        left, right = self.left, self.right
        return int(self.a.element_size() * (elements + left.numel() // left.shape[-1] * right.shape[-1]))

    def named(self, precision: str | None) -> str:
        """Return the product in words: its type and precision, and shape, order and alignment of its operands.

        >>> product = Product(torch.ones(2, 3), torch.ones(5, 3), None, (False, True), torch.nn.functional.linear)
        >>> print(product.named("fp16x3"))
        float32 fp16x3 2x3 row/4 @ 3x5 column/4
        """
        addend = self.addend
        dtype = str(self.a.dtype).removeprefix("torch.")
        rounded = "" if precision is None else f" {precision}"
        added = "" if addend is None else " + bias" if addend.dim() == 1 else " + " + "x".join(map(str, addend.shape))
        target = "" if self.out is None or self.out.is_contiguous() else f" to {_described(self.out)}"
        activated = "" if self.activation is None else f", {self.activation}"
        way = "" if self.way is None else f", {self.way}"
        return f"{dtype}{rounded} {_described(self.left)} @ {_described(self.right)}{added}{activated}{target}{way}"


@dataclass(slots=True, eq=False)
class Decision:
    """Who answers the products of one layout, by which times in seconds (None where nothing was measured), and why.

    ``run`` is matmill's kernel, or None where torch answers. ``calls`` counts the products, and ``missed`` those that
    the kernel did not take, such as operands off 16 bytes. ``problem``, without its epilogue, and ``arch`` are None
    where no kernel of matmill came into question. ``method`` is how the kernel multiplies float32 elements in pieces,
    or None. ``auxiliary`` decisions answer no product: others rest on them. ``arrival`` is that of matmill's kernel
    where it is being compiled: torch answers until then, and another decision follows.
    """

    key: str
    run: Run | None
    torch_seconds: float | None
    matmill_seconds: float | None
    reason: str
    problem: Gemm | None = None
    arch: Arch | None = None
    method: str | None = None
    calls: int = 0
    missed: int = 0
    auxiliary: bool = False
    arrival: Arrival | None = None

    @property
    def row(self) -> Row:
        """The decision as a row of a table."""
        times = {"torch_seconds": self.torch_seconds, "matmill_seconds": self.matmill_seconds}
        return {
            "winner": "torch" if self.run is None else "matmill",
            **{name: seconds for name, seconds in times.items() if seconds is not None},
            **({} if self.problem is None else {"problem": _fields(self.problem)}),
        }

    @property
    def ratio(self) -> float:
        """Torch's time over matmill's, 1 where nothing was measured."""
        return self.torch_seconds / self.matmill_seconds if self.torch_seconds and self.matmill_seconds else 1.0

    @property
    def gain(self) -> float:
        """Seconds that a product saves on the GPU."""
        if self.run is None or self.torch_seconds is None or self.matmill_seconds is None:
            return 0.0
        return self.torch_seconds - self.matmill_seconds


@dataclass(frozen=True)
class Options:
    """Rules of decisions.

    With ``benchmark`` products are timed at their first meeting, else predicted; from 2 ``candidates`` on that many of
    matmill's configurations are timed before. Kernels with more bytes of workspace than ``workspace_limit`` are not
    tried. ``table`` are fixed decisions in place of those kept on disk. ``float32`` is the precision of matmill's
    products of float32, one of :data:`~matmill.problem.SPLIT_METHODS`, or None. With ``batch_invariant`` matmill
    answers all that its kernels take, with sums that depend on no other row, and nothing is timed.
    """

    benchmark: bool = True
    candidates: int = 1
    workspace_limit: int | None = None
    exclude: tuple[str, ...] = ()
    table: Decisions | None = None
    float32: str | None = None
    batch_invariant: bool = False

    @property
    def most_workspace(self) -> int:
        """The limit in bytes: by default less than what pieces take, which are as large as their operands."""
        if self.workspace_limit is not None:
            return self.workspace_limit
        return _WORKSPACE if self.float32 is None else _WORKSPACE_OF_PIECES


class Decider:
    """Decisions by layout, for one set of options.

    Threads share it: while one of them times a product, the others have theirs from torch.
    """

    def __init__(self, device: Device, options: Options) -> None:
        self.device, self.options = device, options
        self.decisions: dict[tuple[object, ...], Decision] = {}
        #: True once Inductor has compiled a program, or loaded one, with these decisions.
        self.compiles = False
        #: Products whose kernels are being compiled.
        self.awaited: set[tuple[object, ...]] = set()
        self._tables: dict[str, Decisions] = {}
        self._timing = threading.Lock()

    def answer(self, product: Product) -> Any:
        """Return the result of a product, from torch or from matmill."""
        decision = self.decide(product)
        result = None if decision is None else self.launch(decision, product.a, product.b, product.addend)
        return self.otherwise(product) if result is None else result

    def otherwise(self, product: Product) -> Any:
        """Return a product that no prepared kernel takes: torch's, or if it is to be batch-invariant another one's."""
        if not self.options.batch_invariant or self.device.capturing() or why_torch(product) is not None:
            return product.compute()
        a, b, addend = product.operands
        return self.device.batch_invariant(a, b, addend, self.precision(a))

    @staticmethod
    def launch(decision: Decision, a: Any, b: Any, addend: Any, *out: Any) -> Any:
        """Return a decided product of these tensors from matmill, or None if it is torch's, and count it."""
        decision.calls += 1
        run = decision.run
        if run is None:
            return None
        try:
            result = run(a, b, addend, *out)
        except Exception as error:  # noqa: BLE001 — whatever it is, torch answers
            _give_up(decision, error)
            return None
        if result is None:
            decision.missed += 1
        return result

    def decide(self, product: Product, *, wait: bool = False) -> Decision | None:
        """Return the decision on a product, made now if need be, or None for torch without a decision.

        There is none while another thread is timing, and while a graph is captured, in which nothing may be loaded.
        A kernel that is not compiled is timed later, when it is, unless the call is to ``wait``.
        """
        key = product.layout
        decision = self.decisions.get(key)
        if decision is not None and (decision.arrival is None or not wait):
            return decision
        if self.device.capturing() or not self._timing.acquire(blocking=False):
            return None
        try:
            decision = self.decisions.get(key)
            if decision is None or decision.arrival is not None:  # another thread may have decided it since
                with torch.no_grad():
                    decision = self.decisions[key] = self._decide(product, wait=wait)
                    decision.auxiliary = product.way is not None and product.activation is None
        finally:
            self._timing.release()
        if decision.arrival is not None:
            self.awaited.add(key)
            decision.arrival.then(partial(self._arrived, key, decision))
        return decision

    def request(self, product: Product) -> Arrival | None:
        """Return the arrival of matmill's kernel, which begins to be compiled; None if it is not to wait for.

        With a table it is not: every run has the same bits. Raises the errors of :func:`matmill.matmul`.
        """
        if self.options.table is not None:
            return None
        with torch.no_grad():
            return self.device.request(*product.operands, self.precision(product.a), **product.others)

    def _arrived(self, key: tuple[object, ...], decision: Decision) -> None:
        """Forget a decision that was made without matmill's kernel."""
        self.awaited.discard(key)
        if self.decisions.get(key) is decision:
            self.decisions.pop(key, None)

    def ours(self, product: Product, precision: str | None) -> Decision:
        """Return the decision on a product that is matmill's whatever the times, torch's if its kernel fails."""
        name = product.named(precision)
        try:
            decision = self.by_kernel(product, precision, "as compiled")
        except Exception as error:  # noqa: BLE001 — a kernel that fails is torch's
            decision = Decision(name, None, None, None, "")
            _give_up(decision, error)
            return decision
        row = self.table(product.a).get(name) or {}
        decision.torch_seconds, decision.matmill_seconds = row.get("torch_seconds"), row.get("matmill_seconds")
        decided = precision == self.precision(product.a)
        self.decisions[product.layout if decided else (*product.layout, precision)] = decision
        return decision

    def by_kernel(self, product: Product, precision: str | None, reason: str) -> Decision:
        """Return a decision for matmill's kernel, without times. Raises the errors of :func:`matmill.matmul`."""
        with torch.no_grad():
            kernel = self._prepare(product, precision)
        name, arch = product.named(precision), self.device.arch(product.a)
        return Decision(name, kernel.run, None, None, reason, kernel.problem, arch, kernel.method)

    def precision(self, x: Any) -> str | None:
        """Return the precision of matmill's products of such elements: tf32 where torch rounds to it."""
        if x.dtype is not torch.float32:
            return None
        return "tf32" if tf32() else self.options.float32

    def table(self, x: Any) -> Decisions:
        """Return the decisions that are kept for the GPU of ``x``."""
        if self.options.table is not None:
            return self.options.table
        if torch.are_deterministic_algorithms_enabled():
            return Decisions(None)  # what an earlier run happened to measure must not decide
        name, versions = self.device.identity(x)
        if name not in self._tables:
            self._tables[name] = Decisions(default_path(name, versions))
        return self._tables[name]

    def _decide(self, product: Product, *, wait: bool) -> Decision:
        name = product.named(self.precision(product.a))
        reason = why_torch(product)
        if reason is not None:
            return Decision(name, None, None, None, reason)
        try:
            if self.options.batch_invariant:
                return self.by_kernel(product, self.precision(product.a), "batch-invariant")
            decision = self._between(name, product, wait=wait)
            decision.arch = self.device.arch(product.a)
        except Exception as error:  # noqa: BLE001 — a decision that fails is torch's
            decision = Decision(name, None, None, None, "")
            _give_up(decision, error)
        return decision

    def _between(self, name: str, product: Product, *, wait: bool) -> Decision:
        """Decide between two kernels that both take the product."""
        table = self.table(product.a)
        row = table.get(name)
        if row is not None and row.get("winner") == "torch":
            return _by_row(name, row, None)
        precision = self.precision(product.a)
        arrival = None if wait else self.request(product)
        if arrival is not None:
            return Decision(name, None, None, None, "matmill's kernel is being compiled", arrival=arrival)
        kernel = self._prepare(product, precision)
        if row is not None:
            return _by_row(name, row, kernel)
        limit = self.options.most_workspace
        if kernel.workspace > limit:
            reason = f"matmill's kernel needs {kernel.workspace >> 20} MiB of workspace, and the limit is {limit >> 20}"
            return Decision(name, None, None, None, reason, kernel.problem)
        a, b, addend = product.a, product.b, product.addend
        into = () if product.out is None else (product.out,)
        if not self.options.benchmark or self.options.table is not None or torch.are_deterministic_algorithms_enabled():
            return _predicted(name, kernel, self.device.arch(a))
        if self.options.candidates > 1:
            self.device.tune(product.left, product.right, addend, precision, count=self.options.candidates)
            kernel = self._prepare(product, precision)
        calls = [lambda: kernel.run(a, b, addend, *into), product.compute]
        ours, theirs = self.device.seconds(calls, a, product.nbytes())
        winner = "matmill" if ours <= (1 - LEAST_GAIN) * theirs else "torch"
        run = kernel.run if winner == "matmill" else None
        measured = Decision(name, run, theirs, ours, "", kernel.problem).row
        return _by_row(name, table.put(name, measured), kernel)

    def _prepare(self, product: Product, precision: str | None) -> Prepared:
        a, b, addend = product.operands
        invariant = {"batch_invariant": True} if self.options.batch_invariant else {}
        return self.device.prepare(a, b, addend, precision, **product.others, **invariant)


def by_torch(a: Any, b: Any, _addend: Any) -> Any:
    """Compute ``a @ b`` by torch."""
    return _matmul(a, b)


def lacks_memory(error: Exception) -> bool:
    """Tell whether an error is a lack of memory, the host's or a GPU's."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def _give_up(decision: Decision, error: Exception) -> None:
    """Leave a product to torch from now on, and warn of any error but a lack of memory."""
    decision.run, decision.reason = None, ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
    if lacks_memory(error):
        return
    warnings.warn(
        f"torch computes {decision.key}, because matmill failed with {decision.reason} "
        "Please report it with this line; `python -m matmill doctor` prints the versions.",
        RuntimeWarning,
        stacklevel=2,
    )


def _described(x: Any) -> str:
    shape, (row, column) = "x".join(map(str, x.shape)), x.stride()[-2:]
    order = "row" if column == 1 else "column" if row == 1 else f"strides {row},{column}"
    steps = [stride * x.element_size() for stride in x.stride() if stride != 1]
    aligned = next(nbytes for nbytes in (16, 8, 4, 2, 1) if all(step % nbytes == 0 for step in (*steps, x.data_ptr())))
    return f"{shape} {order}" + ("" if aligned == _ROW_BYTES else f"/{aligned}")


def why_torch(product: Product) -> str | None:
    """Return why a product is torch's whatever the times, or None."""
    a, b, addend = product.a, product.b, product.addend
    others = [x for x in (b, addend) if x is not None]
    left, right = product.left, product.right
    if a.dtype not in _DTYPES or (a.dtype.is_complex and addend is not None):
        added = "" if addend is None else " with an addend"
        return f"matmill decides on no {str(a.dtype).removeprefix('torch.')}{added}"
    if any(x.dtype is not a.dtype or x.device != a.device for x in others):
        return "the operands differ in type or device"
    if not a.numel() or not b.numel():
        return "the product is empty"
    if left.shape[-1] != right.shape[-2] or not (b.dim() == 2 or a.shape[:-2] == b.shape[:-2]):
        return "shapes do not fit, or broadcast"
    m, n = left.shape[-2], right.shape[-1]
    if addend is not None and addend.shape not in {(n,), (1, n), (*a.shape[:-2], m, n)}:
        return "the addend broadcasts"
    return None


def _predicted(name: str, kernel: Prepared, arch: Arch) -> Decision:
    """Decide by the cost model, against what torch is expected to take."""
    problem = kernel.problem
    if problem is None:
        return Decision(name, None, None, None, "not measured, and no model of several launches")
    odd = problem.dtype.itemsize == 2 and min(problem.a_align, problem.b_align, problem.d_align) < _ROW_BYTES
    theirs = replace(problem, precision="default") if problem.split_methods else problem
    expected = floor(theirs, arch).seconds / (_UNALIGNED if odd else _ALIGNED) + _LAUNCH
    faster = kernel.predicted_seconds <= (1 - _LEAST_PREDICTED_GAIN) * expected
    reason = f"predicted: {_us(kernel.predicted_seconds)}, torch about {_us(expected)}"
    return Decision(name, kernel.run if faster else None, None, None, reason, problem, method=kernel.method)


def _by_row(name: str, row: Row, kernel: Prepared | None) -> Decision:
    """Return the decision that a row of a table says."""
    ours, theirs = row.get("matmill_seconds"), row.get("torch_seconds")
    run = kernel.run if kernel is not None and row.get("winner") == "matmill" else None
    times = f"measured: {_us(ours)}, torch {_us(theirs)}" if ours and theirs else "by the table"
    method = None if kernel is None else kernel.method
    return Decision(name, run, theirs, ours, times, _problem(row.get("problem")), method=method)


#: Fields of a problem that a table keeps.
_KEPT: tuple[str, ...] = (
    *("m", "n", "k", "batch", "a_strides", "b_strides", "d_strides", "a_batch", "b_batch", "d_batch"),
    *("a_align", "b_align", "d_align", "precision"),
)


def _fields(problem: Gemm) -> Row:
    """Return a problem without its epilogue as JSON.

    >>> _problem(_fields(Gemm(2, 3, 4, ALL["float16"], a_strides=(5, 1)))).a_strides
    (5, 1)
    """
    return {"dtype": problem.dtype.name, **{name: getattr(problem, name) for name in _KEPT}}


def _problem(fields: Any) -> Gemm | None:
    """Return the problem that a table describes, or None if it describes none."""
    try:
        values: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in fields.items()}
        values["dtype"] = ALL[values["dtype"]]
        return Gemm(**values)
    except (AttributeError, KeyError, TypeError):
        return None


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"
