"""``enable()``: torch's own matrix products on a GPU are answered by matmill's kernel where that is faster.

torch's functions are replaced by ones that know the products they have met. A product that stays torch's costs a lookup
of its shapes, 1 µs, and goes on as before: autograd, autocast and everything else are torch's. Only where matmill
answers a product, or one of its gradients, a derivative of ours is recorded (:mod:`matmill.torch.recorded`). What torch
computes without these functions stays torch's: attention kernels, compiled programs, gradients of other operators.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeAlias

import torch
from torch.compiler import is_compiling
from torch.jit._builtins import _register_builtin  # torch has no public name for TorchScript's table of functions
from torch.optim.optimizer import register_optimizer_step_post_hook

from matmill.decisions import Decisions
from matmill.torch.decide import Decider, Decision, Device, Options, Product
from matmill.torch.gpu import CudaGPU
from matmill.torch.recorded import Recorded, to_left, to_right
from matmill.torch.states import PLAIN, observed

_LOG = logging.getLogger("matmill.torch")

#: The seconds that a recorded product and its gradients must save together: what recording them in Python costs the
#: host more than torch's own takes.
_HOST_SECONDS = 15e-6
#: Types that autocast converts.
_CAST = frozenset({torch.float32, torch.float16, torch.bfloat16})
#: The most products that a function remembers. A program with more, of lengths that vary, meets them again.
_MOST_SITES = 4096

#: The tensors (a, b, addend) of a product.
Operands: TypeAlias = tuple[Any, Any, Any]


@dataclass(frozen=True)
class _Function:
    """A function of torch that computes products: where it is, and the order of its tensors.

    ``turned`` says that its second operand enters transposed. ``original`` is torch's own.
    """

    owner: Any
    name: str
    original: Callable[..., Any]
    turned: bool = False
    added: bool = False

    @property
    def inherited(self) -> bool:
        """Whether the owner has it from a base class."""
        return isinstance(self.owner, type) and self.name not in vars(self.owner)

    def by_torch(self, a: Any, b: Any, addend: Any) -> Any:
        """Compute the product in torch's own way."""
        if self.turned:
            return self.original(a, b, addend)
        return self.original(addend, a, b) if self.added else self.original(a, b)


def _functions() -> tuple[_Function, ...]:
    pairs = [(owner, name) for owner in (torch, torch.Tensor) for name in ("mm", "bmm", "matmul")]
    added = [(owner, name) for owner in (torch, torch.Tensor) for name in ("addmm", "baddbmm")]
    functional = torch.nn.functional
    return (
        _Function(functional, "linear", functional.linear, turned=True),
        *(_Function(owner, name, getattr(owner, name)) for owner, name in [*pairs, (torch.Tensor, "__matmul__")]),
        *(_Function(owner, name, getattr(owner, name), added=True) for owner, name in added),
    )


@dataclass(slots=True, eq=False)
class Site:
    """The products that a function of torch computes for one set of shapes: its own and those of its gradients.

    ``left`` says that all of them are torch's; ``calls`` counts the function's calls then.
    """

    decisions: tuple[Decision, ...]
    left: bool
    calls: int = 0


@dataclass(eq=False)
class Session:
    """What ``enable`` switches on: decisions, and the products that each function has met."""

    decider: Decider
    sites: dict[str, dict[tuple[object, ...], Site]] = field(default_factory=dict)
    on: bool = True
    steps: int = 0

    def decide_by(self, table: Decisions) -> None:
        """Forget all decisions, and take those of a table from now on."""
        self.decider = Decider(self.decider.device, replace(self.decider.options, table=table))
        for sites in self.sites.values():
            sites.clear()

    def decisions(self) -> Iterator[tuple[Decision, int]]:
        """Yield each decision with the number of its products, whoever answered them."""
        calls = {id(decision): decision.calls for decision in self.decider.decisions.values()}
        for sites in self.sites.values():
            for site in sites.values():
                for decision in site.decisions:
                    calls[id(decision)] += site.calls
        for decision in self.decider.decisions.values():
            yield decision, calls[id(decision)]

    def meet(self, function: _Function, key: tuple[object, ...], operands: Operands) -> Site | None:
        """Return the site of a product that is met for the first time, or None if it cannot be decided now."""
        if min(x.dim() for x in operands[:2]) < 2:
            site = Site((), left=True)
        else:
            decisions = self._decided(function, operands)
            if None in decisions:
                return None
            known = tuple(decision for decision in decisions if decision is not None)
            site = Site(known, left=not _worth(known, recorded=_recorded(*operands)))
        sites = self.sites[function.name]
        if len(sites) >= _MOST_SITES:
            sites.clear()
        sites[key] = site
        return site

    def _decided(self, function: _Function, operands: Operands) -> list[Decision | None]:
        """Return the decisions on a product, and on those of its gradients where they are recorded."""
        a, b, addend = operands
        product = Product(a, b, addend, (False, function.turned), function.by_torch)
        decisions = [self.decider.decide(product)]
        if _recorded(*operands):
            with torch.no_grad():
                result = product.compute()  # in place of the gradient, which has its layout
                gradients = [to_left(result, b, turned=function.turned)] if a.requires_grad else []
                gradients.append(to_right(result, a, matrix=b.dim() == 2, turned=function.turned))
                decisions += [self.decider.decide(gradient) for gradient in gradients]
        return decisions


def _recorded(*tensors: Any) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def _worth(decisions: tuple[Decision, ...], *, recorded: bool) -> bool:
    """Tell whether matmill is to answer a product, with its gradients if they are recorded."""
    if not any(decision.run for decision in decisions):
        return False
    if not recorded or all(decision.torch_seconds is None for decision in decisions):
        return True
    return sum(decision.gain for decision in decisions) >= _HOST_SECONDS


def _answer(
    session: Session, function: _Function, key: tuple[object, ...], site: Site | None, operands: Operands
) -> Any:
    """Return a product that is new, or of which matmill may answer a part."""
    a, b, addend = operands
    given = (a, b) if addend is None else operands
    if not session.on or observed() or not all(_served(session, x) for x in given) or _excluded(session):
        return function.by_torch(*operands)
    if session.decider.device.autocast():
        if not all(x.dtype in _CAST for x in given):
            return function.by_torch(*operands)
        dtype = torch.get_autocast_dtype(a.device.type)
        a, b, addend = (None if x is None else x.to(dtype) for x in operands)
    if site is None:
        try:
            site = session.meet(function, key, (a, b, addend))
        except Exception:  # noqa: BLE001 — torch has its own words for what is wrong with the call
            site = None
    if site is None or site.left:
        return function.by_torch(*operands)
    if _recorded(a, b, addend):
        return Recorded.apply(a, b, addend, function.turned, function.by_torch, session.decider)
    return session.decider.answer(Product(a, b, addend, (False, function.turned), function.by_torch))


def _served(session: Session, x: Any) -> bool:
    """Tell whether a tensor is a plain one on a GPU."""
    return type(x) in PLAIN and session.decider.device.serves(x) and x.layout is torch.strided and not x.is_neg()


def _excluded(session: Session) -> bool:
    """Tell whether a function of an excluded module is among the callers."""
    exclude = session.decider.options.exclude
    frame = sys._getframe(3) if exclude else None  # noqa: SLF001 — inspect's public way reads source files
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if any(module == name or module.startswith(f"{name}.") for name in exclude):
            return True
        frame = frame.f_back
    return False


def _linear(session: Session, function: _Function) -> Callable[..., Any]:
    """Return the function that takes the place of torch's linear."""
    sites = session.sites.setdefault(function.name, {})
    original, autocast, recording = function.original, session.decider.device.autocast, torch.is_grad_enabled

    def linear(input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002 — torch's name
        if is_compiling() or type(input) not in PLAIN or type(weight) not in PLAIN:
            return original(input, weight, bias)
        key = (input.shape, weight.shape, weight.dtype, input.requires_grad, recording(), autocast())
        site = sites.get(key)
        if site is not None and site.left:
            site.calls += 1
            return original(input, weight, bias)
        return _answer(session, function, key, site, (input, weight, bias))

    return linear


def _product(session: Session, function: _Function) -> Callable[..., Any]:
    """Return the function that takes the place of one of torch's others; keywords are torch's business."""
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
        return _answer(session, function, key, site, (a, b, addend))

    return product


class _Replacements:
    """torch's functions, replaced while at least one session is on. The innermost session answers."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._sessions: list[Session] = []
        self._functions: tuple[tuple[_Function, bool], ...] = ()
        self._ours: dict[tuple[Any, str], Any] = {}
        self._steps: Any = None
        #: Decisions of a file, for sessions to come.
        self.table: Decisions | None = None
        #: The session that was switched on last, on or off.
        self.latest: Session | None = None

    def enter(self, session: Session) -> None:
        """Switch a session on."""
        with self._lock:
            if not self._sessions:
                self._functions = tuple((function, function.inherited) for function in _functions())
                self._steps = register_optimizer_step_post_hook(self._step)
            self._sessions.append(session)
            self.latest = session
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
                self._steps.remove()

    def use(self, table: Decisions) -> None:
        """Decide by a table from now on, in sessions that are on too."""
        with self._lock:
            self.table = table
            for session in self._sessions:
                session.decide_by(table)

    def _install(self) -> None:
        """Put the innermost session's functions into torch, or torch's own back.

        A function that somebody else has replaced since is left: it calls ours, which then calls torch's.
        """
        session = self._sessions[-1] if self._sessions else None
        for function, inherited in self._functions:
            place = function.owner, function.name
            if place in self._ours and getattr(*place) is not self._ours[place]:
                continue
            self._ours.pop(place, None)
            if session is not None:
                self._ours[place] = ours = (_linear if function.turned else _product)(session, function)
                _disguise(ours, function)
                setattr(*place, ours)
            elif inherited:
                delattr(*place)
            else:
                setattr(*place, function.original)

    def _step(self, *_hooked: Any) -> None:
        self._sessions[-1].steps += 1


def _disguise(ours: Any, function: _Function) -> None:
    """Give a function the name under which pickle and TorchScript know torch's."""
    ours.__name__, ours.__doc__ = function.name, function.original.__doc__
    if function.owner is torch.Tensor:
        ours.__module__, ours.__qualname__ = "torch", f"Tensor.{function.name}"
    else:
        ours.__module__, ours.__qualname__ = function.owner.__name__, function.name
        _register_builtin(ours, f"aten::{function.name}")


_REPLACEMENTS = _Replacements()
_DEVICE: Device = CudaGPU()


class Enabled:
    """The handle that :func:`enable` returns: a context manager, which switches matmill off again at its end."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        _REPLACEMENTS.leave(self._session)


def enable(*, benchmark: bool = True, workspace_limit: int = 64 << 20, exclude: Iterable[str] = ()) -> Enabled:
    """Let matmill answer torch's matrix products on GPUs where its kernel is faster; everything else stays torch's.

    ``torch.mm``, ``bmm``, ``matmul``, ``addmm``, ``baddbmm``, the tensors' methods of these names, ``@`` and
    ``torch.nn.functional.linear`` (so ``torch.nn.Linear`` too) are replaced until :func:`disable`, or until the block
    ends where this is used as a context manager. With gradients, a product and both products of its gradients are
    decided.

    Each product of float32, float64, float16 or bfloat16 is timed once, at its first meeting, on its own operands,
    beside torch's kernel. The faster one answers from then on, torch if the difference is under 3%. What was decided
    is kept on disk for the GPU and the versions of its driver, of torch and of matmill. With ``benchmark=False``, and
    under ``torch.use_deterministic_algorithms``, nothing is timed: the cost models decide.

    Kernels that need more than ``workspace_limit`` bytes of workspace are not tried. ``exclude`` are names of Python
    modules, such as ``"bitsandbytes"``: products that are called from within them, or from their submodules, stay
    torch's.

    >>> import torch
    >>> layer = torch.nn.Linear(3, 2)
    >>> with enable():
    ...     layer(torch.ones(1, 3)).shape  # on the CPU: torch's own
    torch.Size([1, 2])
    """
    options = Options(benchmark, workspace_limit, tuple(exclude), _REPLACEMENTS.table)
    session = Session(Decider(_DEVICE, options))
    _REPLACEMENTS.enter(session)
    _LOG.info("matmill answers torch's matrix products where it is faster, until matmill.torch.disable()")
    return Enabled(session)


def disable() -> None:
    """Give torch all of its products back, however often :func:`enable` was called."""
    _REPLACEMENTS.leave(None)


def latest() -> Session | None:
    """Return the session that was switched on last, if any; it may be off again."""
    return _REPLACEMENTS.latest


def load_decisions(path: str | Path) -> None:
    """Decide by the file at ``path``, which :func:`save_decisions` wrote, now and whenever matmill is enabled later.

    Nothing is timed then, so that every run has the same kernels and the same bits: the cost models decide what the
    file does not have. Raises :class:`OSError` if it cannot be read, and :class:`~matmill.errors.ArgumentError` if it
    is a file of another kind.
    """
    _REPLACEMENTS.use(Decisions.load(Path(path)))


def save_decisions(path: str | Path) -> None:
    """Write to ``path`` what was decided since matmill was enabled, as JSON. Raises :class:`OSError`."""
    rows = Decisions(None)
    session = latest()
    for decision, _calls in () if session is None else session.decisions():
        rows.put(decision.key, decision.row)
    rows.save(Path(path))
