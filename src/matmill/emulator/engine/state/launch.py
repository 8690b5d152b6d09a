"""A launch prepared to run: checked against its entry, with parameters as bytes and module variables at addresses."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.engine.state.dependent_launch import GridWaits
from matmill.emulator.engine.state.map_changes import MapChanges
from matmill.emulator.frontend.syntax import Instruction, Variable
from matmill.emulator.memory.address_space import AddressSpace
from matmill.emulator.memory.heap import Heap
from matmill.emulator.program.translate import EmulatedProgram
from matmill.emulator.races.detector import RaceDetector
from matmill.errors import ArgumentError
from matmill.launch import STATIC_SHARED, Launch, Struct, in_memory, shared_per_block, why_not_shape
from matmill.tensor_map import encode

_MAX_THREADS = 1024
# With the attribute for non-portable sizes; otherwise 8 (CUDA C++ programming guide, "Thread Block Clusters").
_MAX_CLUSTER = 16


# Bytes of printf's default buffer; the driver drops further output.
_PRINT_BUFFER = 1 << 20


class Printed:
    """The output of printf, in the order of execution."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.size = 0

    def add(self, text: str) -> None:
        """Append one thread's output."""
        if self.size < _PRINT_BUFFER:
            self.parts.append(text)
            self.size += len(text)


class SourceFacts(Protocol):
    """Facts of the source. Barriers and branches are given by their line and their callers' lines, innermost first."""

    def diverges(self, branch: Sequence[str], barrier: Sequence[str]) -> bool | None:
        """Tell whether a barrier is inside a branch; None means unknown."""

    def conditional(self, barrier: Sequence[str]) -> bool:
        """Tell whether a barrier is inside any branch or loop, and no thread returns before it."""

    def opposed(self, barrier: Sequence[str]) -> bool:
        """Tell whether the barrier's line has barriers on both sides of one branch."""

    def initialises(self, variable: str) -> bool:
        """Tell whether a variable has a value where it is declared."""


@dataclass(frozen=True)
class LaunchContext:
    """A prepared launch: the data that its batches of thread blocks share.

    ``heap`` is malloc's, ``symbols`` are the addresses of the module's variables, ``parameters`` the bytes of the
    kernel's parameters (uint8[a multiple of 16]). Without ``counting`` memory traffic is not counted. ``late_copies``,
    ``source``, ``own_waits``, ``pdl_writes``, ``until`` and ``progress`` are as for ``run``. ``workspace`` is the
    address of memory with which a cooperative launch synchronizes its grid, 0 in other launches. ``meetings`` has, by
    its instruction, the warps that came together to a barrier which does not wait for the whole block.
    """

    program: EmulatedProgram
    launch: Launch
    space: AddressSpace
    heap: Heap
    symbols: dict[Variable, int]
    parameters: NDArray[np.uint8]
    detector: RaceDetector | None
    counting: bool
    late_copies: bool
    source: SourceFacts | None = None
    own_waits: bool = False
    workspace: int = 0
    pdl_writes: Collection[str] | None = None
    until: float = math.inf
    progress: Callable[[int, int], None] | None = None
    meetings: dict[Instruction, set[tuple[int, ...]]] = field(default_factory=dict)
    printed: Printed = field(default_factory=Printed)
    maps: MapChanges = field(default_factory=MapChanges)
    waits: GridWaits = field(default_factory=GridWaits)


def check_launch(program: EmulatedProgram, launch: Launch, capability: tuple[int, int]) -> None:
    """Check that the driver would accept the launch on a GPU of this compute capability."""
    entry = program.entry
    why = why_not_shape(
        launch.grid,
        launch.block,
        launch.dynamic_shared,
        most_threads=entry.limit or _MAX_THREADS,
        most_shared=shared_per_block(capability),
        static=program.static_shared,
    )
    if entry.required not in {None, launch.block}:
        why = f"block {launch.block}, where the kernel is compiled for {entry.required} alone"
    elif program.static_shared > STATIC_SHARED:
        why = f"{program.static_shared} bytes of static shared memory > {STATIC_SHARED}"
    if why is not None:
        raise ArgumentError(
            argument=f"launch {launch}",
            got=why,
            wanted=f"a launch that a GPU of compute capability {'.'.join(map(str, capability))} takes",
            fix="Change the launch's shape, the kernel's launch bounds, or the target that it is compiled for.",
        )
    _check_cluster(launch, program.entry.cluster)
    if len(launch.args) != len(program.entry.params):
        raise ArgumentError(
            argument="launch.args", got=f"{len(launch.args)} values", wanted=f"{len(program.entry.params)}",
            fix=f"Give one value for each parameter of {program.entry.name}.",
        )  # fmt: skip


def _check_cluster(launch: Launch, required: tuple[int, int, int] | None) -> None:
    """Check that clusters divide the grid and do not exceed the limits of the hardware and of the compiled kernel."""
    divides = all(side > 0 and not blocks % side for side, blocks in zip(launch.cluster, launch.grid, strict=True))
    if not divides or math.prod(launch.cluster) > _MAX_CLUSTER or launch.cluster != (required or launch.cluster):
        raise ArgumentError(
            argument="launch.cluster",
            got=f"{launch.cluster} in a grid of {launch.grid}",
            wanted=f"{required}, as the kernel requires"
            if required
            else f"a divisor of it, {_MAX_CLUSTER} blocks at most",
            fix="Round the grid up to whole clusters and let the blocks beyond the problem do nothing.",
        )


def parameter_bytes(program: EmulatedProgram, launch: Launch) -> NDArray[np.uint8]:
    """Return the parameters of a launch, each argument at its offset: uint8[a multiple of 16].

    Raises ``ArgumentError`` for an argument whose size (or, for a struct, alignment) differs from its parameter's.
    """
    block = np.zeros(-(-max(program.parameter_bytes, 1) // 16), np.complex128).view(np.uint8)
    for index, (variable, argument) in enumerate(zip(program.entry.params, launch.args, strict=True)):
        data = in_memory(argument, encode)
        if isinstance(argument, Struct) and (len(data), argument.align) != (variable.size, variable.align):
            raise ArgumentError(
                argument=f"launch.args[{index}]",
                got=f"a struct of {len(data)} bytes, aligned to {argument.align}",
                wanted=f"{variable.size} bytes, aligned to {variable.align}, for parameter {variable.name}",
                fix="Lay it out as the kernel's source does, with the padding between its members and at its end.",
            )
        if len(data) != variable.size:
            raise ArgumentError(
                argument=f"launch.args[{index}]",
                got=f"{len(data)} bytes ({type(argument).__name__})",
                wanted=f"{variable.size} bytes for parameter {variable.name}",
                fix="Give a NumPy scalar of the parameter's exact type, a Pointer, or a struct.",
            )
        start = program.parameters[variable]
        block[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return block
