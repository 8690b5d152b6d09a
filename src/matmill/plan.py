"""A reusable pipeline for one operation: chosen, compiled and loaded once, then only launched.

:mod:`matmill.dispatch.plan_cache` caches plans by all that they depend on. Addresses are not part of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeAlias

from matmill.arch import Arch
from matmill.choose import Choice, choose_general, choose_stage, choose_usable, fit_batches
from matmill.jit import background
from matmill.jit.background import Arrival
from matmill.jit.cache import DiskCache
from matmill.jit.compile import Binary, compile_ptx, compile_source, entry_name
from matmill.jit.source import Source, generate
from matmill.kernel import GemmOperands, Kernel, P, Program
from matmill.kernels.splitk import MOST_ADDED_BY_ONE
from matmill.launch import Launch, Pointer
from matmill.lowering import Offsets, SubProblem
from matmill.problem import ComplexCopy, Geam
from matmill.runtime.gpu import GPU, Prepared
from matmill.runtime.stream_scratch import StreamBuffers, scratch

#: Names of the pointers that a kernel's launches have, in the order of a plan's addresses.
NAMES = ("A", "B", "C", "D", "workspace", "counter", "bias")
#: Addresses of the four matrices, a workspace, a counter and a bias; 0 for any that is absent.
Addresses: TypeAlias = tuple[int, int, int, int, int, int, int]
_ORIGIN: tuple[Offsets, ...] = ((0, 0, 0, 0),)
_NOWHERE: Addresses = (0, 0, 0, 0, 0, 0, 0)
#: The imaginary parts of real scalars.
_REAL = (0.0, 0.0)
#: A kernel that takes so many seconds longer than the best one does not stand in for it: a compiler takes no longer.
_WORTH_COMPILING = 0.5
#: The slowdown of a kernel, until a better one arrives, from which on the general kernel is considered too.
_SOON = 2.0
#: Seconds that a call waits for the general kernel after its own, at the most.
_MOST_AWAITED = 5.0


@dataclass(frozen=True)
class Ready(Generic[P]):
    """One stage, the kernel chosen for it, and the source of each of its launches, compiled on first use."""

    stage: SubProblem[P]
    choice: Choice[P]
    sources: tuple[Source, ...]
    target: str

    @property
    def binaries(self) -> tuple[Binary, ...]:
        """Binaries for a GPU. Raises :class:`~matmill.errors.CompileError`."""
        return tuple(compile_source(source, self.target) for source in self.sources)

    def compile(self) -> None:
        """Compile all sources that are not compiled. Raises :class:`~matmill.errors.CompileError`."""
        for source in self.sources:
            compile_source(source, self.target)

    @property
    def ptx(self) -> tuple[str, ...]:
        """PTX for the emulator. Raises :class:`~matmill.errors.CompileError`."""
        return tuple(compile_ptx(source, self.target) for source in self.sources)

    @property
    def problem(self) -> P:
        """The stage's problem."""
        return self.stage.problem

    @property
    def workspace(self) -> int:
        """Bytes of workspace that the stage needs at each of its offsets, those of other stages included."""
        return self.stage.reserved + self.choice.kernel.workspace(self.problem)

    @property
    def counts(self) -> bool:
        """True if the stage's launches count their blocks."""
        return self.choice.kernel.counts(self.problem)

    @cached_property
    def unbound(self) -> tuple[Launch, ...]:
        """The launches with alpha 1 and beta 0, whose addresses a frame binds later."""
        return self.launches(_NOWHERE)

    def launches(
        self, addresses: Addresses, offsets: Offsets = (0, 0, 0, 0), alpha: complex = 1.0, beta: complex = 0.0
    ) -> tuple[Launch, ...]:
        """Return the launches for the stage at ``offsets`` bytes from the matrices' addresses, in execution order.

        A complex scalar is a factor of copies, transposes and products of complex elements, and of no real product.
        """
        a, b, c, d, workspace, counter, bias = self.stage.own_addresses(addresses)
        scalars = _scalars(self.problem, alpha, beta)
        bound = _operands((a, b, c, d, workspace, counter, bias), offsets, *scalars)
        return self.choice.kernel.launches(self.problem, bound)


def _scalars(problem: Any, alpha: complex, beta: complex) -> tuple[float, float, tuple[float, float]]:
    """Return a stage's own scalars: those of the call, or the parts of the one that a copy multiplies by."""
    if isinstance(problem, Geam) or problem.dtype.part is not None:
        return alpha.real, beta.real, (alpha.imag, beta.imag)
    if isinstance(problem, ComplexCopy):
        factor = {"alpha": alpha, "beta": beta}.get(problem.scale, 1.0)
        return factor.real, factor.imag, _REAL
    return (1.0 if isinstance(alpha, complex) else alpha), (1.0 if isinstance(beta, complex) else beta), _REAL


def _operands(
    addresses: Addresses, offsets: Offsets, alpha: float, beta: float, imaginary: tuple[float, float]
) -> GemmOperands:
    moved = zip(NAMES, addresses, (*offsets, 0, 0, 0), strict=True)
    a, b, c, d, workspace, counter, bias = (Pointer(name, base + step) for name, base, step in moved)
    return GemmOperands(a, b, c, d, alpha, beta, workspace, counter, bias=bias, imaginary=imaginary)


def prepare(stages: Sequence[SubProblem[Any]], arch: Arch) -> tuple[Ready[Any], ...]:
    """Choose kernel and source for each stage. This part needs no GPU."""
    return tuple(ready(stage, choose_stage(stage, arch), arch) for stage in fit_batches(stages, arch))


def ready(stage: SubProblem[Any], choice: Choice[Any], arch: Arch) -> Ready[Any]:
    """Return a stage with the source of a kernel that was chosen for it."""
    problem = stage.problem
    sources = tuple(generate(program, problem.dtype) for program in choice.kernel.programs(problem))
    return Ready(stage, choice, sources, arch.target)


def prepare_compiled(
    stages: Sequence[SubProblem[Any]], arch: Arch, store: DiskCache
) -> tuple[tuple[Ready[Any], ...], Arrival | None]:
    """Do as :func:`prepare`, with kernels in ``store`` in the stead of those that are not, where there are such.

    Those that are not are compiled in the background; their arrival is returned too, None where nothing is to come.
    """
    best = prepare(stages, arch)
    result, awaited = [], []
    for one in best:
        missing = _missing(one, store)
        other = _substitute(one, arch, store.listed()) if missing else None
        if other is not None:
            awaited += missing
        elif missing:
            _compile_with_general(one, arch, store)
        result.append(other or one)
    return tuple(result), background.compiler().request(awaited)


def await_kernels(stages: Sequence[SubProblem[Any]], arch: Arch, store: DiskCache) -> Arrival | None:
    """Compile what ``store`` lacks of :func:`prepare` in the background; return its arrival, None if it lacks nothing.

    Raises :class:`~matmill.errors.CompileError` for a kernel that has failed there.
    """
    requests = [request for one in prepare(stages, arch) for request in _missing(one, store)]
    return background.compiler().request(requests, strict=True)


def _missing(ready: Ready[Any], store: DiskCache) -> list[background.Request]:
    """Return requests for what of a stage is not compiled."""
    requests = (background.Request(store.folder, source, ready.target) for source in ready.sources)
    return [request for request in requests if request.name not in store.listed()]


def _substitute(best: Ready[P], arch: Arch, names: Container[str]) -> Ready[P] | None:
    """Return the stage with the best kernel whose programs are among the cache's entries, or None without one."""

    def usable(kernel: Kernel[Any], problem: Any) -> bool:
        def compiled(program: Program) -> bool:
            return entry_name(generate(program, problem.dtype), arch.target) in names

        return compiled(kernel) and all(map(compiled, kernel.programs(problem)))

    choice = choose_usable(best.problem, arch, usable, enough=_SOON * best.choice.predicted_seconds)
    if choice is None:
        return None
    longer = (choice.predicted_seconds - best.choice.predicted_seconds) * len(best.stage.offsets)
    return ready(best.stage, choice, arch) if longer <= _WORTH_COMPILING else None


def _compile_with_general(best: Ready[Any], arch: Arch, store: DiskCache) -> None:
    """Compile a stage's kernel, and at the same time the general one, so that no later product of its type must wait.

    Raises :class:`~matmill.errors.CompileError` for the stage's own.
    """
    choice = choose_general(best.problem, arch)
    requests = [] if choice is None else _missing(ready(best.stage, choice, arch), store)
    arrival = background.compiler().request(requests, urgent=True)
    best.compile()
    if arrival is not None:
        arrival.wait(_MOST_AWAITED)


#: A function that enqueues a plan's launches at some addresses on a stream.
Enqueue: TypeAlias = Callable[[Addresses, int], None]


class _LoadedStage:
    """One stage of a plan: its kernels, loaded, and its offsets."""

    def __init__(self, gpu: GPU, ready: Ready[Any]) -> None:
        self._gpu, self._ready = gpu, ready
        self._kernels = tuple(gpu.prepare(*pair) for pair in zip(ready.binaries, ready.unbound, strict=True))
        self._only_origin = ready.stage.offsets.only_origin
        self._at_once = self._only_origin and not ready.stage.slots

    @property
    def once(self) -> bool:
        """True if the stage is one launch, with all offsets 0 and every operand in its own slot."""
        return len(self._kernels) == 1 and self._at_once

    def bound(self, alpha: complex, beta: complex) -> _Bound:
        """Return a frame with these scalars."""
        ready = self._ready
        launches = ready.unbound if (alpha, beta) == (1, 0) else ready.launches(_NOWHERE, alpha=alpha, beta=beta)
        frame = self._gpu.frame(launches, NAMES)
        calls = tuple((kernel, *call) for kernel, call in zip(self._kernels, frame.calls, strict=True))
        return frame.bind, None if self._at_once else self._at_offsets, calls

    def _at_offsets(self, addresses: Addresses) -> Iterator[Addresses]:
        stage = self._ready.stage
        a, b, c, d, workspace, counter, bias = stage.own_addresses(addresses)
        for to_a, to_b, to_c, to_d in _ORIGIN if self._only_origin else stage.offsets:
            yield a + to_a, b + to_b, c + to_c, d + to_d, workspace, counter, bias


#: A stage's function that binds its frame to addresses, its offsets (None if all are 0), and its launches.
_Bound: TypeAlias = tuple[
    Callable[[Addresses, int], None],
    Callable[[Addresses], Iterable[Addresses]] | None,
    tuple[tuple[Prepared, int, int], ...],
]


class Plan:
    """A prepared operation: everything that does not depend on addresses is done.

    ``workspace`` is the number of bytes that :meth:`run` needs; the stages run one after the other and share them.
    ``stream_buffers`` maps a stream's handle to the addresses of that stream's workspace and counter: the workspace is
    0 if the caller must pass another one to :meth:`run`, and both are 0 if nothing is counted. A plan without workspace
    and counter need not call it.
    """

    def __init__(self, gpu: GPU, ready: tuple[Ready[Any], ...]) -> None:
        self.ready = ready
        self.workspace = max((one.workspace for one in ready), default=0)
        self.stream_buffers = _buffers_by_stream(gpu, self.workspace) if any(one.counts for one in ready) else _nothing
        self._gpu = gpu
        self._steps = tuple(_LoadedStage(gpu, one) for one in ready)
        self._latest: tuple[complex, complex, Enqueue] = (1.0, 0.0, self.bound(1.0, 0.0))

    def run(self, addresses: Addresses, alpha: complex, beta: complex, stream: int) -> None:
        """Enqueue the launches on a stream and return without waiting; several threads may do so at a time.

        Later work on the same stream may reuse the workspace.
        """
        known_alpha, known_beta, enqueue = self._latest
        if alpha != known_alpha or beta != known_beta:
            enqueue = self.bound(alpha, beta)
            self._latest = (alpha, beta, enqueue)  # one assignment, so that two threads cannot mix theirs
        enqueue(addresses, stream)

    def bound(self, alpha: complex, beta: complex) -> Enqueue:
        """Return :meth:`run` for these scalars, which it then need not compare."""
        tidy, steps = self._gpu.tidy, self._steps
        if len(steps) == 1 and steps[0].once:
            return _launching(self._gpu, lambda: steps[0].bound(alpha, beta))
        free: deque[tuple[_Bound, ...]] = deque()  # frames that no thread is using

        def enqueue(addresses: Addresses, stream: int) -> None:
            tidy()
            try:
                frames = free.pop()
            except IndexError:
                frames = tuple(step.bound(alpha, beta) for step in steps)
            for bind, offsets, calls in frames:
                for operands in (addresses,) if offsets is None else offsets(addresses):
                    bind(operands, stream)
                    for kernel, config, parameters in calls:
                        kernel(config, parameters)
            free.append(frames)

        return enqueue


def _launching(gpu: GPU, make: Callable[[], _Bound]) -> Enqueue:
    """Return a function that enqueues one launch, without loops over stages, offsets and launches."""
    free: deque[_Bound] = deque()
    kept, tidy = gpu.kept, gpu.tidy

    def enqueue(addresses: Addresses, stream: int) -> None:
        if kept:  # mostly empty, and a call costs more than a look
            tidy()
        try:
            one = free.pop()
        except IndexError:
            one = make()
        bind, _, ((kernel, config, parameters),) = one
        bind(addresses, stream)
        kernel(config, parameters)
        free.append(one)

    return enqueue


def _nothing(_stream: int) -> StreamBuffers:
    return 0, 0


def _buffers_by_stream(gpu: GPU, workspace: int) -> Callable[[int], StreamBuffers]:
    """Return the function from a stream's handle to a workspace of that many bytes and a counter."""
    find = scratch(gpu).find
    return find if workspace <= MOST_ADDED_BY_ONE else lambda stream: (0, find(stream)[1])
