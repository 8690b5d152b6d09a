"""A kernel of a file or a text, compiled and parsed, and its launches in the emulator."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path

from matmill.cuda_source.unit import CompiledKernel, compile_unit
from matmill.emulator import KernelFault, Memory, Module, Order, Report, parse, run
from matmill.emulator.frontend.syntax import Function
from matmill.emulator.program.translate import EmulatedProgram, translate
from matmill.errors import ArgumentError
from matmill.launch import Dim3, Launch
from matmill.testing.arguments import Binder, bound_arguments, bound_symbols, unwritten_outputs
from matmill.testing.findings import Findings, State
from matmill.testing.report import LaunchReport
from matmill.testing.suppressions import Suppression, apply

#: The GPU that kernels are compiled for unless a caller names another one.
_TARGET = "sm_90a"
_PTX = re.compile(r"^\s*\.version\s+\d", re.MULTILINE)
_SUFFIXES = {".cu", ".cuh", ".ptx", ".cpp", ".h", ".hpp", ".txt"}
# Python starts and imports NumPy for at least so long: more orders do not double the time of a command.
_START_SECONDS = 0.3
_parsed = lru_cache(maxsize=32)(parse)


@dataclass(frozen=True)
class Settings:
    """Settings of an emulated launch: whether races are detected, the orders of its warps, and how long they may take.

    ``orders`` takes the program and the launch and returns further orders, for a first one without errors. If the
    clock's time ``since`` when the caller works is set, they take no longer than all until then. With ``timeline`` the
    report has the events of the first order.
    """

    races: bool = True
    order: Order = field(default_factory=Order)
    orders: Callable[[EmulatedProgram, Launch], Iterable[Order]] | None = None
    since: float | None = None
    progress: Callable[[int, int], None] | None = None
    timeline: bool = False


@dataclass(frozen=True)
class PtxKernel:
    """A kernel as PTX, parsed; ``function`` has its parameters."""

    unit: CompiledKernel
    module: Module
    function: Function

    @property
    def static_shared(self) -> int:
        """Bytes of shared memory that the kernel declares statically."""
        variables = (*self.module.variables, *self.function.variables)
        return sum(v.size for v in variables if v.space == "shared" and not v.extern)

    def launch(
        self, grid: Dim3, block: Dim3, args: Sequence[object], *, shared: int = 0, cluster: Dim3 = (1, 1, 1),
        cooperative: bool = False, pdl: bool = False, pdl_writes: Sequence[str] | None = None, strict: bool = False,
        initcheck: bool = False, symbols: Mapping[str, object] | None = None, settings: Settings = Settings(),
        suppressions: Sequence[Suppression] = (),
    ) -> LaunchReport:  # fmt: skip
        """Run one launch on arrays in place; see :func:`matmill.testing.call.emulate`."""
        unit = self.unit
        memory = Memory()
        binder = Binder(memory, initcheck=initcheck)
        arguments = bound_arguments(binder, args, unit.spelled, self.function.params, unit.parameters)
        launch = Launch(
            unit.spelled, self.function.name, grid, block, arguments, shared, pdl=pdl, cluster=cluster,
            cooperative=cooperative,
        )  # fmt: skip
        variables = bound_symbols(symbols or {})

        def in_order(order: Order, *, counters: bool = False, until: float = math.inf) -> tuple[Report, bool]:
            """Run the launch; the second value tells whether it ended early."""
            try:
                return run(
                    self.module, launch, memory, symbols=variables, source=unit.statements, own_waits=strict,
                    races=settings.races, order=order, counters=counters, pdl_writes=pdl_writes,
                    until=until, progress=settings.progress if counters else None,
                    timeline=settings.timeline and counters,
                ), False  # fmt: skip
            except KernelFault as fault:
                if fault.report is None:
                    raise
                return fault.report, True

        state = State(binder, variables)
        report, faulted = in_order(settings.order, counters=True)
        notes = () if faulted else unwritten_outputs(memory, unit.spelled)
        found = Findings(unit.spelled, [*report.hazards, *notes], settings.order)
        if settings.orders is not None and not faulted and report.ok:
            further = settings.orders(translate(self.module, self.function.name), launch)
            now = time.perf_counter()
            until = math.inf if settings.since is None else now + max(now - settings.since, _START_SECONDS)
            found.compare(further, partial(in_order, until=until), state)
        hazards, suppressed = apply(found.hazards, suppressions)
        witnesses = tuple((hazard, order) for hazard, order in found.witnesses.items() if hazard in hazards)
        return LaunchReport(
            **(vars(report) | {"hazards": hazards}), launch=launch, ptx=unit.ptx, paths=unit.paths,
            static_shared=self.static_shared, source=unit.lines, left_out=unit.left_out, suppressed=suppressed,
            strict=strict, faulted=faulted, orders=found.orders, witnesses=witnesses,
        )  # fmt: skip


def load(
    source: str | Path,
    entry: str | None,
    include: Sequence[Path] = (),
    options: Sequence[str] = (),
    target: str = _TARGET,
) -> PtxKernel:
    """Return the kernel of a file or a text of CUDA C++ or PTX.

    Raises the errors of :func:`~matmill.cuda_source.unit.compile_unit`, and :class:`~matmill.errors.EmulationError` for
    text that is not PTX.
    """
    unit = _unit(source, entry, include, options, target)
    module = _parsed(unit.ptx)
    name = unit.entry
    if name not in module.entries:
        name = _only(name, module)
    function = module.entries[name]
    shared = [v for v in (*module.variables, *function.variables) if v.space == "shared" and not v.extern]
    module.shapes.update(unit.shapes((v.name, v.size) for v in shared))
    return PtxKernel(unit, module, function)


def _unit(
    source: str | Path, entry: str | None, include: Sequence[Path], options: Sequence[str], target: str
) -> CompiledKernel:
    path = source if isinstance(source, Path) else _path(source)
    text, name, folder = str(source), "kernel.cu", None
    if path is not None:
        text = _read(path)
        name, folder = path.name, path.parent
    if _PTX.search(text) is not None:
        lines = {f"PTX line {number}": line for number, line in enumerate(text.splitlines(), 1)}
        module = _parsed(text)
        spelled = entry or _only("", module)
        return CompiledKernel(text, spelled, spelled, (), lines, (), {} if path is None else {"PTX": str(path)})
    unit = compile_unit(text, name, entry, folder=folder, include=include, options=options, target=target)
    if target != _TARGET:
        unit.machine_code(target)  # the assembler refuses instructions that this GPU does not have
    return unit if path is None else replace(unit, paths=unit.paths | {name: str(path)})


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as problem:
        raise ArgumentError(
            argument="source",
            got=f"{str(path)!r}: {problem.strerror}",
            wanted="a file of CUDA C++ or PTX, or its text",
            fix="Check the name.",
        ) from problem


def _path(source: str) -> Path | None:
    """Return the path that a string without line breaks names, or None if it is source text."""
    if "\n" in source or "{" in source:
        return None
    path = Path(source)
    return path if path.suffix.lower() in _SUFFIXES or path.is_file() else None


def _only(entry: str, module: Module) -> str:
    """Return the kernel of a PTX text; ``entry`` may be None if there is only one."""
    if not entry and len(module.entries) == 1:
        return next(iter(module.entries))
    raise ArgumentError(
        argument="entry",
        got=repr(entry) if entry else "nothing",
        wanted=f"one of {', '.join(module.entries)}" if module.entries else "a file with a kernel",
        fix="Name one of them.",
    )
