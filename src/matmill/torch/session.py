"""``enable()``: torch's own matrix products on a GPU are answered by matmill's kernel where that is faster.

torch's functions are replaced by ones that know the products they have met. A product that stays torch's costs a lookup
of its shapes, a few µs, and goes on as before: autograd, autocast and everything else are torch's. Only where matmill
answers a product, or one of its gradients, a derivative of ours is recorded (:mod:`matmill.torch.sites`). What torch
computes without these functions stays torch's: attention kernels, gradients of other operators. Compiled programs are
decided while they are compiled (:mod:`matmill.torch.inductor`).
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch
from torch.compiler import is_compiling
from torch.jit import _builtins  # torch has no public name for TorchScript's table of functions
from torch.optim.optimizer import register_optimizer_step_post_hook

from matmill.decisions import Decisions
from matmill.errors import ArgumentError, unknown_name
from matmill.problem import SPLIT_METHODS
from matmill.torch.autocast import cast
from matmill.torch.compiling import Compiler
from matmill.torch.decide import Decider, Decision, Device, Options, Product
from matmill.torch.gpu import CudaGPU
from matmill.torch.sites import LEAST_SECONDS, Function, Operands, Site, meet, remember
from matmill.torch.states import PLAIN, observed
from matmill.torch.steps import ARMS, StepTrial

_LOG = logging.getLogger("matmill.torch")

#: Steps without a new product after which a session rests, the steps from one look to the next, and those of a look.
_REST, _LOOK, _LOOKED = 20, 256, 3
#: The most products that a function remembers. A program with more, of lengths that vary, meets them again.
_MOST_SITES = 4096


#: The functions of torch and of its tensors, with the dimensions of their operands: products, and those with an addend.
_PRODUCTS = {"mm": (2, 2), "bmm": (3, 3), "matmul": (0, 0)}
_SUMS = {"addmm": (2, 2), "baddbmm": (3, 3)}


def _functions() -> tuple[Function, ...]:
    """Return the functions that are replaced, as torch has them now."""
    functional, tensor = torch.nn.functional, torch.Tensor
    return (
        Function(functional, "linear", functional.linear, (0, 2), transposed=True),
        Function(tensor, "__matmul__", tensor.__matmul__),
        *(
            Function(own, name, getattr(own, name), ranks)
            for own in (torch, tensor)
            for name, ranks in _PRODUCTS.items()
        ),
        *(
            Function(own, name, getattr(own, name), ranks, added=True)
            for own in (torch, tensor)
            for name, ranks in _SUMS.items()
        ),
    )


@dataclass(eq=False)
class Session:
    """The state of one ``enable``: decisions, and the products that each function has met.

    A session rests once a training program has no new products: then it replaces only functions of which matmill
    answers a part, and looks again for a few steps now and then. Where programs are compiled it replaces all of them.
    """

    decider: Decider
    sites: dict[str, dict[tuple[object, ...], Site]] = field(default_factory=dict)
    trial: StepTrial | None = None
    on: bool = True
    steps: int = 0
    resting: bool = False
    capturing: bool = False
    _settled: int = 0
    _known: int = -1

    @property
    def least_gain(self) -> float:
        """The seconds that a product with gradients must save: less in a graph, where it costs the host nothing."""
        if self.capturing:
            return LEAST_SECONDS
        return ARMS[0] if self.trial is None else self.trial.least_gain

    def apply(self) -> None:
        """Leave products with gradients that save too little to torch."""
        least = self.least_gain
        for site in self._all():
            if site.recorded:
                site.left = site.gain < least

    def step(self) -> bool:
        """Count a step of an optimizer, which ends a program's step; tell whether the session went to rest or woke."""
        self.steps += 1
        known = len(self.decider.decisions)
        self._settled = self._settled + 1 if known == self._known and not self.decider.awaited else 0
        self._known = known
        if self.resting:
            self.resting = self.steps % _LOOK != 0
            self._settled = _REST - _LOOKED
            return not self.resting
        trial = self.trial
        if trial is not None and not trial.over and any(site.recorded and site.gain >= ARMS[0] for site in self._all()):
            before = trial.least_gain
            trial.step(known)
            if trial.least_gain != before:
                self.apply()
            return False
        self.resting = self._settled >= _REST
        return self.resting

    def wants(self, name: str) -> bool:
        """Tell whether the function of that name is to be replaced."""
        # A compiled program is compiled anew where it finds another function than the one that it has traced.
        looking = self.capturing or not self.resting or self.decider.compiles
        return looking or any(not site.left for site in list(self.sites[name].values()))

    def _all(self) -> Iterator[Site]:
        """Yield all sites; other threads may add some meanwhile."""
        return (site for sites in list(self.sites.values()) for site in list(sites.values()))

    def decide_by(self, table: Decisions | None) -> None:
        """Forget all decisions, and take those of a table from now on, or none."""
        self.decider, self.trial = Decider(self.decider.device, replace(self.decider.options, table=table)), None
        self.resting, self._settled = False, 0
        for sites in self.sites.values():
            sites.clear()

    def decisions(self) -> Iterator[tuple[Decision, int, int]]:
        """Yield each decision with the numbers of its products that matmill and torch answered."""
        left: Counter[int] = Counter()
        for site in self._all():
            for decision in filter(None, site.decisions):
                left[id(decision)] += site.calls
        for decision in list(self.decider.decisions.values()):
            ours = decision.calls - decision.missed if decision.run is not None else 0
            yield decision, ours, left[id(decision)] + decision.calls - ours

    def meet(self, function: Function, key: tuple[object, ...], operands: Operands) -> Site | None:
        """Return the site of a product that is met for the first time, or None if it cannot be decided now."""
        try:
            site = meet(self.decider, function, operands)
        except Exception:  # noqa: BLE001 — torch has its own words for what is wrong with the call
            site = Site.of_torch(self.decider, function, operands)
        if site is not None:
            site.left = site.gain < (self.least_gain if site.recorded else LEAST_SECONDS)
            sites = self.sites[function.name]
            if len(sites) >= _MOST_SITES:
                sites.clear()
            remember(sites, key, site)
        return site

    def answer(self, function: Function, key: tuple[object, ...], site: Site | None, operands: Operands) -> Any:
        """Return a product that is new, or of which matmill may answer a part."""
        a, b, addend = operands
        if not self._takes(a, b, addend):
            return function.by_torch(a, b, addend)
        if self.decider.device.autocast():
            a, b, addend = cast(*operands)
        site = site or self.meet(function, key, (a, b, addend))
        if site is None:
            return self.decider.otherwise(Product(a, b, addend, (False, function.transposed), function.by_torch))
        if site.left or not site.fits(a, b, addend):
            site.calls += 1
            return function.by_torch(*operands)
        return site.answer(a, b, addend)

    def _takes(self, a: Any, b: Any, addend: Any) -> bool:
        """Tell whether a product of these tensors may be matmill's."""
        plain = type(b) in PLAIN and (addend is None or type(addend) in PLAIN)
        if not plain or not self.on or not self.decider.device.serves(a) or observed():
            return False
        return not (self.decider.options.exclude and self._excludes())

    def _excludes(self) -> bool:
        """Tell whether a function of an excluded module is among the callers."""
        frame: FrameType | None = sys._getframe(4)  # noqa: SLF001 — inspect's public way reads source files
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            if any(module == name or module.startswith(f"{name}.") for name in self.decider.options.exclude):
                return True
            frame = frame.f_back
        return False


# The two functions below look a product up alike. A call shared by both would cost every product a tenth of the lookup.
def _linear(session: Session, function: Function) -> Callable[..., Any]:
    """Return the function that replaces torch's linear."""
    sites = session.sites.setdefault(function.name, {})
    original, autocast, recording = function.original, session.decider.device.autocast, torch.is_grad_enabled

    def linear(input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002 — torch's name
        if is_compiling() or type(input) not in PLAIN or type(weight) not in PLAIN:
            return original(input, weight, bias)
        key = (
            input.shape,
            weight.shape,
            None if bias is None else bias.shape,
            weight.dtype,
            input.requires_grad,
            recording(),
            autocast(),
        )
        site = sites.get(key)
        if site is not None and site.left:
            site.calls += 1
            return original(input, weight, bias)
        return session.answer(function, key, site, (input, weight, bias))

    return linear


def _product(session: Session, function: Function) -> Callable[..., Any]:
    """Return the function that replaces one of torch's others; calls with keywords stay torch's."""
    sites = session.sites.setdefault(function.name, {})
    original, autocast, recording = function.original, session.decider.device.autocast, torch.is_grad_enabled
    added = function.added
    count = 3 if added else 2

    def product(*tensors: Any, **options: Any) -> Any:
        if is_compiling() or options or len(tensors) != count or not PLAIN.issuperset(map(type, tensors)):
            return original(*tensors, **options)
        a, b = tensors[-2:]
        addend = tensors[0] if added else None
        key = (
            a.shape,
            b.shape,
            None if addend is None else addend.shape,
            a.dtype,
            a.requires_grad,
            recording(),
            autocast(),
        )
        site = sites.get(key)
        if site is not None and site.left:
            site.calls += 1
            return original(*tensors)
        return session.answer(function, key, site, (a, b, addend))

    return product


class _Replacements:
    """torch's functions, replaced while at least one session is on. The innermost session answers."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._sessions: list[Session] = []
        self._functions: tuple[tuple[Function, bool], ...] = ()
        self._ours: dict[tuple[Any, str], Any] = {}
        self._steps: Any = None
        self._graphs: Any = None
        self._compiler = Compiler(self._originally)
        #: Decisions of a file, for sessions to come.
        self.table: Decisions | None = None
        #: The session that was switched on last, on or off.
        self.latest: Session | None = None

    def enter(self, session: Session) -> None:
        """Switch a session on."""
        with self._lock:
            if session in self._sessions:
                return
            if not self._sessions:
                self._functions = tuple((function, function.inherited) for function in _functions())
                self._steps = register_optimizer_step_post_hook(self._step)
                self._graphs = _watch_captures(self.capture)
            self._sessions.append(session)
            self.latest, session.on = session, True
            self._install()

    def leave(self, session: Session | None) -> None:
        """Switch a session off, or all of them."""
        with self._lock:
            ended = [one for one in self._sessions if session is None or one is session]
            for one in ended:
                one.on = False
                self._sessions.remove(one)
            if not ended:
                return
            self._install()
            if not self._sessions:
                self._compiler.read_tables()
                self._steps.remove()
                self._graphs()

    def capture(self, *, begins: bool) -> None:
        """Answer in a graph whatever matmill wins: what a product costs the host does not count there."""
        with self._lock:
            for session in self._sessions:
                session.capturing = begins
                session.apply()
            self._install()

    def use(self, table: Decisions | None) -> None:
        """Decide by a table from now on, or by measurement again, in sessions that are on too."""
        with self._lock:
            self.table = table
            for session in self._sessions:
                session.decide_by(table)
            self._install()

    def _install(self) -> None:
        """Put the innermost session's functions into torch, or torch's own back."""
        session = self._sessions[-1] if self._sessions else None
        self._compiler.use(None if session is None else session.decider)
        self._put(session)

    def _originally(self, call: Callable[[], None]) -> None:
        """Call while torch has its own functions."""
        with self._lock:
            self._put(None)
            try:
                call()
            finally:
                self._put(self._sessions[-1] if self._sessions else None)

    def _put(self, session: Session | None) -> None:
        """Put a session's functions into torch, or torch's own back.

        A function that somebody else has replaced since is left: it calls ours, which then calls torch's.
        """
        for function, inherited in self._functions:
            target = function.owner, function.name
            if target in self._ours and getattr(*target) is not self._ours[target]:
                continue
            _forget_builtin(self._ours.pop(target, None))
            if session is not None and session.wants(function.name):
                self._ours[target] = ours = (_linear if function.transposed else _product)(session, function)
                _disguise(ours, function)
                setattr(*target, ours)
            elif inherited and function.name in vars(function.owner):
                delattr(*target)
            elif not inherited:
                setattr(*target, function.original)

    def _step(self, *_hooked: Any) -> None:
        if self._sessions[-1].step():
            with self._lock:
                self._install()


def _watch_captures(capture: Callable[..., None]) -> Callable[[], None]:
    """Let ``capture`` know when torch begins to capture a CUDA graph, and when it ends; return what ends the watch."""
    graph = torch.cuda.CUDAGraph
    begin, end = graph.capture_begin, graph.capture_end

    def capture_begin(self: Any, *arguments: Any, **options: Any) -> Any:
        capture(begins=True)
        try:
            return begin(self, *arguments, **options)
        except BaseException:
            capture(begins=False)
            raise

    def capture_end(self: Any) -> Any:
        try:
            return end(self)
        finally:
            capture(begins=False)

    def restore() -> None:
        if graph.capture_begin is capture_begin:
            graph.capture_begin, graph.capture_end = begin, end

    graph.capture_begin, graph.capture_end = capture_begin, capture_end
    return restore


def _disguise(ours: Any, function: Function) -> None:
    """Give a function the name under which pickle and TorchScript know torch's."""
    ours.__name__, ours.__doc__ = function.name, function.original.__doc__
    if function.owner is torch.Tensor:
        ours.__module__, ours.__qualname__ = "torch", f"Tensor.{function.name}"
    else:
        ours.__module__, ours.__qualname__ = function.owner.__name__, function.name
        _builtins._register_builtin(ours, f"aten::{function.name}")  # noqa: SLF001 — see the import


def _forget_builtin(ours: Any) -> None:
    """Remove a function from TorchScript's table, which goes by identities that other objects may have later."""
    _builtins._get_builtin_table().pop(id(ours), None)  # noqa: SLF001 — as above


_REPLACEMENTS = _Replacements()
_DEVICE: Device = CudaGPU()


class Enabled:
    """The handle that :func:`enable` returns: a context manager, any number of times one after the other.

    matmill is switched off at its end, and on again, with what it has decided, at its next beginning.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> Self:
        """Switch it on again with all that it has decided, if it is off."""
        _REPLACEMENTS.enter(self._session)
        return self

    def __exit__(self, *_exception: object) -> None:
        _REPLACEMENTS.leave(self._session)


def enable(
    *,
    benchmark: bool = True,
    candidates: int = 1,
    workspace_limit: int | None = None,
    exclude: Iterable[str] = (),
    float32: str | None = None,
    batch_invariant: bool = False,
) -> Enabled:
    """Let matmill answer torch's matrix products on GPUs where its kernel is faster; everything else stays torch's.

    ``torch.mm``, ``bmm``, ``matmul``, ``addmm``, ``baddbmm``, the tensors' methods of these names, ``@`` and
    ``torch.nn.functional.linear`` (so ``torch.nn.Linear`` too) are replaced until :func:`disable`, or until the block
    ends where this is used as a context manager. With gradients, a product and both products of its gradients are
    decided.

    Each product of float32, float64, float16 or bfloat16 is timed once, at its first meeting, on its own operands,
    beside torch's kernel. The faster one answers from then on, torch if the difference is under 3%. What was decided
    is kept on disk for the GPU and the versions of its driver, of torch and of matmill. While matmill's kernel is being
    compiled, torch answers. With ``benchmark=False``, and under ``torch.use_deterministic_algorithms``, nothing is
    timed: the cost models decide.

    From 2 ``candidates`` on, that many of matmill's own configurations are timed too, as :func:`matmill.tune` does: the
    first step then takes longer. Kernels that need more bytes of workspace than ``workspace_limit`` are not tried: by
    default 64 MiB, with ``float32`` 1 GiB. ``exclude`` are names of Python modules, such as ``"bitsandbytes"``:
    products that are called from within them, or from their submodules, stay torch's.

    With ``float32="float32_tensor"``, ``"fp16x3"`` or ``"tf32x3"``, matmill's products of float32, forward and
    backward, have that precision of :func:`matmill.matmul`: tensor cores may multiply elements in pieces, with an error
    bound not above that of torch's FMA. They are timed against torch's own, which stay where they are faster. Where
    torch may round to tf32 (``torch.backends.cuda.matmul``) the option changes nothing, nor under autocast. Raises
    :class:`~matmill.errors.UnknownNameError` for another name.

    With ``batch_invariant=True`` matmill answers every product above whose operands are matrices, or batches of as many
    matrices, of its element types, whatever the times, with the sums of ``batch_invariant=True`` in
    :func:`matmill.matmul`. The first product of a layout waits for its kernel. What else torch computes (vectors, other
    types, attention) is not batch-invariant by that.

    >>> import torch
    >>> layer = torch.nn.Linear(3, 2)
    >>> with enable():
    ...     layer(torch.ones(1, 3)).shape  # on the CPU: torch's own
    torch.Size([1, 2])
    """
    if float32 is not None and float32 not in tuple(SPLIT_METHODS):
        raise unknown_name("float32", str(float32), SPLIT_METHODS)
    _check("candidates", candidates, least=1)
    if workspace_limit is not None:
        _check("workspace_limit", workspace_limit, least=0)
    if isinstance(exclude, str):
        raise ArgumentError(
            argument="exclude", got=repr(exclude), wanted="a list of module names", fix=f"Write exclude=[{exclude!r}]."
        )
    table = _REPLACEMENTS.table
    options = Options(benchmark, candidates, workspace_limit, tuple(exclude), table, float32, batch_invariant)
    measured = benchmark and table is None and not batch_invariant and not torch.are_deterministic_algorithms_enabled()
    session = Session(Decider(_DEVICE, options), trial=StepTrial(_DEVICE) if measured else None)
    _REPLACEMENTS.enter(session)
    _LOG.info("matmill answers torch's matrix products where it is faster, until matmill.torch.disable()")
    return Enabled(session)


def _check(argument: str, value: object, *, least: int) -> None:
    """Raise :class:`~matmill.errors.ArgumentError` unless a value is a whole number from ``least`` on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ArgumentError(
            argument=argument, got=repr(value), wanted=f"a whole number, {least} or more", fix="Or omit it."
        )


def disable() -> None:
    """Give torch all of its products back, however often :func:`enable` was called."""
    _REPLACEMENTS.leave(None)


def latest() -> Session | None:
    """Return the session that was switched on last, if any; it may be off again."""
    return _REPLACEMENTS.latest


def load_decisions(path: str | Path | None) -> None:
    """Decide by the file at ``path``, which :func:`save_decisions` wrote, now and whenever matmill is enabled later.

    Nothing is timed then, so that every run has the same kernels and the same bits: the cost models decide what the
    file does not have. With None products are timed again. Raises :class:`OSError` if the file cannot be read, and
    :class:`~matmill.errors.ArgumentError` if it is of another kind.
    """
    _REPLACEMENTS.use(None if path is None else Decisions.load(Path(path)))


def save_decisions(path: str | Path) -> None:
    """Write to ``path`` what was decided since matmill was enabled, as JSON. Raises :class:`OSError`."""
    rows = Decisions(None)
    session = latest()
    for decision, *_calls in () if session is None else session.decisions():
        if decision.arrival is None:
            rows.put(decision.key, decision.row)
    rows.save(Path(path))
