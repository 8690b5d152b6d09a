"""A launch made ready to run: checked against its entry, parameters as bytes, module variables at addresses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.frontend.syntax import Module, Variable
from matmill.emulator.memory.address_space import AddressSpace
from matmill.emulator.program.translate import Program
from matmill.emulator.races.detector import RaceDetector
from matmill.errors import ArgumentError
from matmill.launch import Launch, Struct, in_memory
from matmill.tensor_map import encode

_MAX_THREADS = 1024


@dataclass(frozen=True)
class LaunchContext:
    """One launch made ready to run: what its batches of thread blocks share.

    ``symbols`` are the addresses of the module's variables, ``parameters`` the bytes of the kernel's parameters
    (uint8[a multiple of 16]). Without ``counting`` memory traffic is not counted. ``late_copies`` as for ``run``.
    """

    program: Program
    launch: Launch
    space: AddressSpace
    symbols: dict[Variable, int]
    parameters: NDArray[np.uint8]
    detector: RaceDetector | None
    counting: bool
    late_copies: bool


def check_launch(program: Program, launch: Launch) -> None:
    """The launch must be one that the driver would take, without clusters."""
    threads = launch.threads_per_block
    limit = program.entry.limit or _MAX_THREADS
    if min(*launch.grid, *launch.block) < 1 or threads > limit:
        raise ArgumentError(
            argument="launch",
            got=f"grid {launch.grid}, block {launch.block}",
            wanted=f"1 to {limit} threads per block",
            fix="Change the block shape, or the kernel's launch bounds.",
        )
    if launch.cluster != (1, 1, 1):
        raise ArgumentError(
            argument="launch.cluster",
            got=f"{launch.cluster}",
            wanted="(1, 1, 1)",
            fix="Run the kernel on a GPU: clusters are not emulated.",
        )
    if len(launch.args) != len(program.entry.params):
        raise ArgumentError(
            argument="launch.args", got=f"{len(launch.args)} values", wanted=f"{len(program.entry.params)}",
            fix=f"Give one value for each parameter of {program.entry.name}.",
        )  # fmt: skip


def parameter_bytes(program: Program, launch: Launch) -> NDArray[np.uint8]:
    """The parameters of a launch, each argument at its offset: uint8[a multiple of 16].

    Raises ``ArgumentError`` for an argument whose size, or alignment where it is a struct, is not its parameter's.
    """
    found = np.zeros(-(-max(program.parameter_bytes, 1) // 16), np.complex128).view(np.uint8)
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
        found[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return found


def allocate_variables(module: Module, space: AddressSpace) -> dict[Variable, int]:
    """Addresses for the module's global and constant variables, filled with their initial values."""
    symbols: dict[Variable, int] = {}
    contents: list[tuple[Variable, NDArray[np.uint8]]] = []
    functions = (*module.entries.values(), *module.functions.values())
    for variable in (*module.variables, *(v for f in functions for v in f.variables)):
        if variable.space in {"global", "const"}:
            data = np.zeros(-(-max(variable.size, 1) // 16), np.complex128).view(np.uint8)[: variable.size]
            data[: len(variable.initial)] = np.frombuffer(variable.initial, np.uint8)
            access = "rw" if variable.space == "global" else "r"
            symbols[variable] = space.allocate(variable.name, data, access).start
            contents.append((variable, data))
    for variable, data in contents:
        for offset, target, addend in variable.relocations:
            address = symbols[target] + addend
            data[offset : offset + 8] = np.frombuffer(address.to_bytes(8, "little"), np.uint8)
    return symbols
