"""What a kernel launch is, independent of where it runs.

A :class:`Launch` is plain data: the CUDA executor (``gpu``) and the PTX emulator (``emulator``) take the same record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

Dim3: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True)
class Pointer:
    """An address in the address space of the executor that made it, with the name to use in messages."""

    name: str
    address: int


Argument: TypeAlias = "Pointer | np.generic"
#: The first compute capability with early launches: programmatic dependent launch in the CUDA programming guide.
STARTS_EARLY = (9, 0)


@dataclass(frozen=True)
class Launch:
    """One kernel launch: grid and block in blocks and threads, shared memory in bytes.

    ``args`` follow the entry point's parameters in order: pointers, and NumPy scalars of the parameter's exact type.
    ``early`` says that it may start while the launch before it on the stream still runs, whose end it waits for itself
    (``ptx/order.cuh``). ``resident`` is how many blocks the kernel is made for on one multiprocessor: where the launch
    has no more for each, shared memory is kept for those that it has and the rest of it is L1 cache. 0 leaves that to
    the driver, which makes room for as many blocks as registers allow.
    """

    kernel: str
    entry: str
    grid: Dim3
    block: Dim3
    args: tuple[Argument, ...]
    dynamic_shared: int = 0
    early: bool = False
    resident: int = 0

    @property
    def threads_per_block(self) -> int:
        """Threads in one block."""
        x, y, z = self.block
        return x * y * z

    @property
    def blocks(self) -> int:
        """Blocks in the grid."""
        x, y, z = self.grid
        return x * y * z

    def __str__(self) -> str:
        return f"{self.kernel}<<<grid {self.grid}, block {self.block}, {self.dynamic_shared} B shared>>>"
