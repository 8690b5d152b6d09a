"""Hazards: the mistakes of a kernel that the emulator detects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.report.counters import Conflict, Counters, LineCounts, MemoryAccess
from matmill.emulator.report.events import Event
from matmill.errors import MatmillError

Severity: TypeAlias = Literal["error", "warning", "note"]
# An error makes results wrong or undefined. A warning may do so on other GPUs or with other data. A note is about
# correct code that deserves a look.
SEVERITIES: dict[str, Severity] = {
    "out-of-bounds": "error",
    "misaligned": "error",
    "read-only": "error",
    "uninitialised-shared": "error",
    "uninitialised-global": "error",
    "uninitialised-local": "error",
    "uninitialised-register": "error",
    "read-only-cache": "error",
    # A variable, or an array, that nobody has set: maybe what was meant, maybe a forgotten argument.
    "unset-variable": "note",
    "unwritten-output": "note",
    # An output that is not what a file, or a caller, says it should be.
    "wrong-output": "error",
    "use-after-free": "error",
    "invalid-free": "error",
    "race": "error",
    "same-value": "note",
    "deadlock": "error",
    "divergent-barrier": "error",
    "early-exit": "note",
    "missing-wait": "error",
    "dependent-launch": "error",
    "step-limit": "error",
    # Results that differ between two orders of warps or two times of asynchronous copies.
    "order": "warning",
    "trap": "error",
    "assert": "error",
    "call-target": "error",
    "stack-overflow": "error",
    "partial-warp": "error",
    "shuffle": "error",
    # The emulator does not track whether the value is used; a kernel that never uses it is correct.
    "shuffle-source": "warning",
    "mbarrier": "error",
    "missing-proxy-fence": "error",
    "register-in-flight": "error",
    "missing-wgmma-fence": "error",
    "warpgroup": "error",
    "matrix-descriptor": "error",
    "tensor-map": "error",
    "bulk-copy": "error",
    "box-outside": "note",
    "swizzle": "error",
    "unwaited": "warning",
    "register-pool": "error",
    "cluster": "error",
    "texture": "error",
    "texture-type": "error",
    "texture-written": "error",
    # Hardware returns some texel; which one is undocumented.
    "texture-coordinate": "warning",
}
KINDS = tuple(SEVERITIES)
# One hazard is kept per kind and instruction pair, and at most this many altogether: a broken kernel has thousands.
MOST_HAZARDS = 100


@dataclass(frozen=True)
class Hazard:
    """One mistake: its kind, a message, the source line ("kernel.cuh:53") and the instruction's text.

    The kinds that :func:`fault` takes end the run with a :class:`KernelFault`; all others are collected, and
    "out-of-bounds" too for an access to another array of its thread block or thread.
    """

    kind: str
    message: str
    where: str
    instruction: str

    @property
    def severity(self) -> Severity:
        """Its severity: "error", "warning" or "note"; each kind has one."""
        return SEVERITIES[self.kind]

    def __str__(self) -> str:
        return f"{self.severity}: {self.kind} at {self.where}: {self.message}"


@dataclass(frozen=True)
class Report:
    """The result of a run: counts (also per source line), hazards, and the output of the kernel's printf.

    ``worst`` is the access with the most bank conflicts, or None. ``fidelity`` says how exactly it was
    executed. ``accesses`` has the traffic of each memory instruction, ``threads_by_line`` each line's instructions
    times the threads that took part, ``timeline`` the events of the first block. ``ok`` says that
    no hazard is an error.
    """

    counters: Counters
    hazards: tuple[Hazard, ...] = ()
    by_line: dict[str, LineCounts] = field(default_factory=dict)
    printed: str = ""
    worst: Conflict | None = None
    fidelity: str = ""
    accesses: tuple[MemoryAccess, ...] = field(default=(), repr=False)
    threads_by_line: dict[str, int] = field(default_factory=dict, repr=False)
    timeline: tuple[Event, ...] = field(default=(), repr=False)

    @property
    def ok(self) -> bool:
        """True if no hazard is an error; warnings and notes do not count."""
        return not any(hazard.severity == "error" for hazard in self.hazards)


class KernelFault(MatmillError, RuntimeError):  # noqa: N818 - "fault" is the field's word for it
    """An illegal operation that would end the kernel on a GPU; ``hazard`` is the last one, ``earlier`` those before.

    The earlier hazards are also notes of the exception: a race may be why no thread can run. ``report`` has the counts
    and hazards up to the fault, with ``hazard`` as the last one; it is None before the run has made it.
    """

    def __init__(self, hazard: Hazard, *, wanted: str, fix: str) -> None:
        self.hazard = hazard
        self.earlier: tuple[Hazard, ...] = ()
        self.report: Report | None = None
        super().__init__(argument=f"kernel at {hazard.where}", got=hazard.message, wanted=wanted, fix=fix)

    def after(self, hazards: tuple[Hazard, ...]) -> None:
        """Store the hazards before the fault."""
        self.earlier += hazards
        for hazard in hazards:
            self.add_note(f"found before: {hazard}")


_WANTED = {
    "out-of-bounds": ("accesses inside the bound buffers", "Check the index arithmetic and the guards at the edges."),
    "misaligned": ("addresses that are multiples of the width", "Use a narrower access or pad the leading dimension."),
    "read-only": ("stores to writable buffers alone", 'Bind the buffer with access="rw", or store elsewhere.'),
    "deadlock": ("every wait to be answered", "Check that all threads reach the barrier and that each flag is set."),
    "step-limit": ("a kernel that ends", "Check the loop conditions, or give the kernel a smaller problem."),
    "trap": ("no trap", "Read the assertion that the kernel made."),
    "assert": ("an assertion that holds", "Look at what the assertion is about."),
    "call-target": ("a function of these arguments", "Look at where the pointer, or the object's class, comes from."),
    "stack-overflow": ("calls that end", "Check what ends the recursion, or write it as a loop."),
    "tensor-map": ("128 bytes that describe a tensor", "Encode the map anew, or look at what has changed it."),
    "bulk-copy": ("a copy that TMA takes", "Change the copy, or the shape and alignment of what it copies."),
    "texture": ("a handle of the kind that the kernel uses", "Look at the order of the arguments and their shapes."),
    "partial-warp": ("whole warps", "Move it out of the branch, or let all lanes of a warp take the same way."),
    "warpgroup": ("four warps that execute it together", "Let them all take one way with equal operands."),
    "matrix-descriptor": ("a descriptor as sm_90 has them", "Align the tile to 8 rows of its swizzle."),
    "register-pool": ("more registers with .inc, fewer with .dec", "Check what the warpgroup holds from launch on."),
}  # fmt: skip


def fault(kind: str, message: str, instruction: Instruction) -> KernelFault:
    """Return the error for a fatal hazard of ``kind`` at ``instruction``."""
    wanted, fix = _WANTED[kind]
    return KernelFault(_hazard(kind, message, instruction), wanted=wanted, fix=fix)


def _hazard(kind: str, message: str, instruction: Instruction) -> Hazard:
    """Return a hazard at the user's own line; for code in a header, the header's line follows."""
    inlined = f" (inlined from {instruction.within})" if instruction.within else ""
    return Hazard(kind, message + inlined, instruction.location, instruction.text)


class HazardLog:
    """The hazards of a run that do not end it: one per kind and instruction (pair), at most ``MOST_HAZARDS``."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, object], Hazard] = {}

    def add(self, kind: str, key: object, message: str, instruction: Instruction) -> None:
        """Add a hazard unless its kind and ``key`` are in the log."""
        if (kind, key) not in self._found and len(self._found) < MOST_HAZARDS:
            self._found[kind, key] = _hazard(kind, message, instruction)

    def has(self, kind: str, key: object) -> bool:
        """Tell whether a hazard of this kind and key is in the log."""
        return (kind, key) in self._found

    def merge(self, other: HazardLog) -> None:
        """Add the hazards of ``other``."""
        for key, hazard in other._found.items():
            if len(self._found) < MOST_HAZARDS:
                self._found.setdefault(key, hazard)

    def hazards(self) -> tuple[Hazard, ...]:
        """Return all hazards, in the order of detection."""
        return tuple(self._found.values())
