"""The module's ``__device__`` and ``__constant__`` variables: their addresses, and the values that the host stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.engine.state.launch import LaunchContext
from matmill.emulator.frontend.calls import code_addresses
from matmill.emulator.frontend.syntax import Instruction, Module, Variable
from matmill.emulator.memory.address_space import AddressSpace
from matmill.emulator.report.hazards import HazardLog
from matmill.errors import ArgumentError

Symbols = Mapping[str, NDArray[Any]]


def allocate_variables(module: Module, space: AddressSpace, symbols: Symbols) -> dict[Variable, int]:
    """Allocate the module's global and constant variables, with their initial values, and its functions.

    ``symbols`` are arrays by the variables' names in C++ or PTX; their bytes replace the first bytes of the variables.
    Raises ``ArgumentError`` for a name that is not a variable's, and for an array larger than its variable.
    """
    addresses: dict[Variable, int] = {}
    contents: dict[Variable, NDArray[np.uint8]] = {}
    for variable in _variables(module):
        data = np.zeros(-(-max(variable.size, 1) // 16), np.complex128).view(np.uint8)[: variable.size]
        data[: len(variable.initial)] = np.frombuffer(variable.initial, np.uint8)
        access = "rw" if variable.space == "global" else "r"
        allocation = space.allocate(variable.spelled, data, access)
        allocation.followed = True
        addresses[variable] = allocation.start
        contents[variable] = data
    addresses |= {module.code[name]: address for name, address in code_addresses(module).items()}
    for variable, data in contents.items():
        for offset, target, addend in variable.relocations:
            address = addresses[target] + addend
            data[offset : offset + 8] = np.frombuffer(address.to_bytes(8, "little"), np.uint8)
    for name, array in symbols.items():
        variable = _named(name, module)
        if array.nbytes > variable.size:
            raise ArgumentError(
                argument=f"symbols[{name!r}]",
                got=f"{array.dtype}{list(array.shape)}, {array.nbytes} bytes",
                wanted=f"at most the {variable.size} bytes of {variable.spelled}",
                fix="Give an array of the variable's type and size; a shorter one fills its beginning.",
            )
        contents[variable][: array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    return addresses


def read_back(module: Module, space: AddressSpace, addresses: Mapping[Variable, int], symbols: Symbols) -> None:
    """Copy the final values of the variables in ``symbols`` to those arrays that are writable."""
    for name, array in symbols.items():
        region = space.find(addresses[_named(name, module)])
        if region is not None and array.flags.writeable:
            array[...] = region.data[: array.nbytes].view(array.dtype).reshape(array.shape)


def note_unset(context: LaunchContext, symbols: Symbols, hazards: HazardLog) -> None:
    """Note the variables that a kernel reads and that neither the host, the source nor the kernel has set."""
    unset: dict[str, Instruction] = {}
    for variable, address in context.symbols.items():
        memory = context.space.find(address) if variable.space in {"global", "const"} else None
        if memory is None or memory.first_read is None or memory.changed or variable.initial or variable.relocations:
            continue
        name = variable.spelled
        given = any(name == each or name.endswith(f"::{each}") or each == variable.name for each in symbols)
        if given or context.source is None or context.source.initialises(name):
            continue
        qualifier = "__constant__" if variable.space == "const" else "__device__"
        unset[f"{qualifier} {name}"] = memory.first_read
    if unset:
        i = next(iter(unset.values()))
        message = (
            f"{context.launch.kernel}: reads {', '.join(unset)}, which neither the host (--symbol, symbols=) nor the "
            f"kernel has set: 0 in all bytes, in {i.text!r}"
        )
        hazards.add("unset-variable", i, message, i)


def _variables(module: Module) -> Iterator[Variable]:
    functions = (*module.entries.values(), *module.functions.values())
    for variable in (*module.variables, *(v for f in functions for v in f.variables)):
        if variable.space in {"global", "const"}:
            yield variable


def _named(name: str, module: Module) -> Variable:
    """Return the variable of a name.

    Namespaces may be omitted; for a static variable the compiler adds its own.
    """
    known = list(_variables(module))
    matches = [v for v in known if name in {v.name, v.spelled}] or [v for v in known if v.spelled.endswith(f"::{name}")]
    if len(matches) == 1:
        return matches[0]
    raise ArgumentError(
        argument="symbols",
        got=repr(name),
        wanted=f"one of {', '.join(v.spelled for v in matches or known)}" if known else "nothing: the module has none",
        fix="Name a __device__ or __constant__ variable that the kernel uses, as C++ spells it.",
    )
