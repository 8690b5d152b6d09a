"""Running a launch: parameters, batches of blocks, threads, and the report."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.counters import Counters, LineCounts
from matmill.emulator.early import starts_early
from matmill.emulator.hazards import Hazard, HazardLog
from matmill.emulator.machine import Machine
from matmill.emulator.memory import AddressSpace, Memory
from matmill.emulator.parse import parse
from matmill.emulator.program import Program, translate
from matmill.emulator.races import RaceDetector
from matmill.emulator.scheduler import Scheduler
from matmill.emulator.syntax import Module, Variable
from matmill.emulator.tally import Tally
from matmill.errors import ArgumentError
from matmill.launch import Launch, Pointer

# Lanes in a batch: long enough rows for NumPy, while the registers of a busy kernel stay near a core's own cache.
_BATCH_LANES = 4096
_MAX_THREADS = 1024


@dataclass(frozen=True)
class Report:
    """What a run found: counts (also per source line) and hazards. ``ok`` says that there were no hazards."""

    counters: Counters
    hazards: tuple[Hazard, ...] = ()
    by_line: dict[str, LineCounts] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing was found wrong."""
        return not self.hazards


def run(
    module: Module | str,
    launch: Launch,
    memory: Memory,
    *,
    races: bool = True,
    late_copies: bool = False,
    schedule: int = 0,
    counters: bool = True,
    threads: int | None = None,
) -> Report:
    """Run one launch of a PTX module on the arrays bound in ``memory``.

    ``races`` looks for unordered accesses. ``late_copies`` lets cp.async land as late as its waits allow instead of at
    once. ``schedule`` chooses the order of warps between barriers: 0 keeps them together, other numbers are seeds of
    orders in which some run far ahead. ``threads`` is the number of Python threads, one by default: NumPy lets go
    of the interpreter only inside its loops, and two threads measured no faster. With races or atomics it is always
    one, so that results never depend on it. Without ``counters`` the counts of memory traffic stay 0.

    Raises ``EmulationError`` for PTX that the emulator does not know, ``ArgumentError`` for a launch that does not fit
    the entry, and ``KernelFault`` where a GPU would stop the kernel or never end it.
    """
    module = _parsed(module) if isinstance(module, str) else module
    program = translate(module, launch.entry)
    _check(program, launch)
    space = AddressSpace(memory)
    symbols = _place_variables(module, space)
    parameters = _parameters(program, launch)
    launch = replace(launch, early=starts_early(launch, module))
    detector = None
    geometry_warps = -(-launch.threads_per_block // 32)
    if races:
        detector = RaceDetector(
            blocks=launch.blocks,
            warps_per_block=geometry_warps,
            partial_barriers=program.has_partial_barriers,
            releases=program.has_releases,
        )
    per_batch = max(1, min(launch.blocks, _BATCH_LANES // (geometry_warps * 32)))
    order = np.arange(launch.blocks)
    if schedule:
        order = np.random.default_rng(schedule).permutation(order)
    batches = [order[i : i + per_batch] for i in range(0, len(order), per_batch)]
    workers = 1 if races or program.has_atomics else min(threads or 1, len(batches))

    def worker(mine: list[NDArray[np.int64]]) -> tuple[Tally, HazardLog]:
        pool = _Pool(
            program,
            launch,
            space,
            symbols,
            parameters,
            detector=detector,
            counting=counters,
            late=late_copies,
            schedule=schedule,
        )
        return pool.run(mine)

    shares = [batches[i::workers] for i in range(workers)]
    if workers == 1:
        results = [worker(shares[0])]
    else:
        with ThreadPoolExecutor(workers) as executor:
            results = list(executor.map(worker, shares))
    tally, hazards = results[0]
    for other_tally, other_hazards in results[1:]:
        tally.merge(other_tally)
        hazards.merge(other_hazards)
    if detector is not None:
        _report_races(detector, program, launch, space, hazards)
    by_line = tally.by_line() if counters else {}
    return Report(tally.counters(by_line), hazards.hazards(), by_line)


# Reading a kernel's PTX takes longer than many of its launches, and most callers launch the same text again.
@lru_cache(maxsize=32)
def _parsed(text: str) -> Module:
    return parse(text)


class _Pool:
    """Runs batches one after another; one that only spins is set aside, since a later one may be what it waits for."""

    def __init__(
        self, program: Program, launch: Launch, space: AddressSpace, symbols: dict[Variable, int],
        parameters: NDArray[np.uint8], *, detector: RaceDetector | None, counting: bool, late: bool, schedule: int,
    ) -> None:  # fmt: skip
        self.program, self.launch, self.space, self.symbols, self.parameters = (
            program,
            launch,
            space,
            symbols,
            parameters,
        )
        self.detector, self.counting, self.late, self.schedule = detector, counting, late, schedule
        self.idle: dict[int, Scheduler] = {}
        self.machines: list[Machine] = []
        self.waiting: list[Scheduler] = []

    def _scheduler(self, blocks: int) -> Scheduler:
        scheduler = self.idle.pop(blocks, None)
        if scheduler is None:
            machine = Machine(
                self.program, self.launch, self.space, self.symbols, self.parameters, blocks=blocks,
                detector=self.detector, counting=self.counting, late_copies=self.late,
            )  # fmt: skip
            self.machines.append(machine)
            scheduler = Scheduler(machine, schedule=self.schedule)
        return scheduler

    def run(self, batches: list[NDArray[np.int64]]) -> tuple[Tally, HazardLog]:
        def noted(_kind: str, _flag: int) -> None:
            for machine in self.machines:
                machine.underflow[0] = True

        with np.errstate(all="ignore"), np.errstate(under="call", call=noted):
            for batch in batches:
                scheduler = self._scheduler(len(batch))
                scheduler.machine.begin(batch)
                scheduler.begin()
                self._finish(scheduler, batch)
            while self.waiting:
                if not self._wake():
                    raise self.waiting[0].spinning()
        tally, hazards = Tally(self.program), HazardLog()
        for machine in self.machines:
            tally.merge(machine.tally)
            hazards.merge(machine.hazards)
        return tally, hazards

    def _finish(self, scheduler: Scheduler, batch: NDArray[np.int64]) -> None:
        if not self._ended(scheduler):
            self.waiting.append(scheduler)
            return
        self.idle[len(batch)] = scheduler
        self._wake()

    def _ended(self, scheduler: Scheduler) -> bool:
        """Run a batch as far as it gets; True at its end."""
        if not scheduler.run():
            return False
        if scheduler.machine.waits is not None:
            scheduler.machine.waits.end(self.program.instructions[-1])
        return True

    def _wake(self) -> bool:
        """Try the batches that were set aside again; True if one of them got further."""
        moved = False
        for scheduler in list(self.waiting):
            scheduler.machine.progress += 1
            before = scheduler.machine.progress
            if self._ended(scheduler):
                self.waiting.remove(scheduler)
                moved = True
            moved = moved or scheduler.machine.progress != before
        return moved


def _check(program: Program, launch: Launch) -> None:
    """The launch must be one that the driver would take."""
    threads = launch.threads_per_block
    limit = program.entry.limit or _MAX_THREADS
    if min(*launch.grid, *launch.block) < 1 or threads > limit:
        raise ArgumentError(
            argument="launch",
            got=f"grid {launch.grid}, block {launch.block}",
            wanted=f"1 to {limit} threads per block",
            fix="Change the block shape, or the kernel's launch bounds.",
        )
    if len(launch.args) != len(program.entry.params):
        raise ArgumentError(
            argument="launch.args", got=f"{len(launch.args)} values", wanted=f"{len(program.entry.params)}",
            fix=f"Give one value for each parameter of {program.entry.name}.",
        )  # fmt: skip


def _parameters(program: Program, launch: Launch) -> NDArray[np.uint8]:
    """The parameter bytes of a launch: each argument at its offset."""
    block = np.zeros(-(-max(program.parameter_bytes, 1) // 16), np.complex128).view(np.uint8)
    for variable, argument in zip(program.entry.params, launch.args, strict=True):
        if isinstance(argument, Pointer):
            data = argument.address.to_bytes(8, "little")
        else:
            data = np.asarray(argument).tobytes()
        if len(data) != variable.size:
            raise ArgumentError(
                argument=f"launch.args[{program.entry.params.index(variable)}]",
                got=f"{len(data)} bytes ({type(argument).__name__})",
                wanted=f"{variable.size} bytes for parameter {variable.name}",
                fix="Give a NumPy scalar of the parameter's exact type, or a Pointer.",
            )
        start = program.parameters[variable]
        block[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return block


def _place_variables(module: Module, space: AddressSpace) -> dict[Variable, int]:
    """Addresses for the module's global and constant variables, filled with their initial values."""
    symbols: dict[Variable, int] = {}
    contents: list[tuple[Variable, NDArray[np.uint8]]] = []
    functions = (*module.entries.values(), *module.functions.values())
    for variable in (*module.variables, *(v for f in functions for v in f.variables)):
        if variable.space in {"global", "const"}:
            data = np.zeros(-(-max(variable.size, 1) // 16), np.complex128).view(np.uint8)[: variable.size]
            data[: len(variable.initial)] = np.frombuffer(variable.initial, np.uint8)
            access = "rw" if variable.space == "global" else "r"
            symbols[variable] = space.place(variable.name, data, access).start
            contents.append((variable, data))
    for variable, data in contents:
        for offset, target, addend in variable.relocations:
            address = symbols[target] + addend
            data[offset : offset + 8] = np.frombuffer(address.to_bytes(8, "little"), np.uint8)
    return symbols


def _report_races(
    detector: RaceDetector, program: Program, launch: Launch, space: AddressSpace, hazards: HazardLog
) -> None:
    """Races as hazards, in the words of the source."""
    for race in detector.races():
        first, second = (program.instructions[n] for n in (race.first_where, race.second_where))
        if race.space == "shared":
            place = program.describe("shared", race.address, launch.dynamic_shared)
        else:
            place = space.describe(race.address)
        threads = [f"thread {t} of block {b}" for b, t in (race.first_thread, race.second_thread)]
        message = (
            f"{launch.kernel}: {place}: {race.first_kind} by {threads[0]} in "
            f"{first.text!r} ({first.place}) and {race.second_kind} by {threads[1]} in {second.text!r} "
            f"({second.place}), with nothing that orders them"
        )
        hazards.add(
            race.kind, (race.first_where, race.second_where, race.first_kind, race.second_kind), message, second
        )
