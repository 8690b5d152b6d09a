"""The PTX emulator: runs NVRTC's PTX of a CUDA C++ kernel, in NumPy, on a machine without a GPU.

:func:`run` executes a launch on arrays bound in a :class:`Memory`, counts, and reports hazards:

>>> import numpy as np
>>> from matmill.launch import Launch
>>> ptx = '''.version 8.0 .target sm_90 .address_size 64
... .entry twice(.param .u64 p) { .reg .b64 a; .reg .b32 t, v;
...   ld.param.u64 a, [p]; mov.u32 t, %tid.x; mad.wide.u32 a, t, 4, a;
...   ld.global.u32 v, [a]; add.u32 v, v, v; st.global.u32 [a], v; ret; }'''
>>> memory, data = Memory(), np.arange(32, dtype=np.uint32)
>>> pointer = memory.bind("data", data, access="rw")
>>> report = run(ptx, Launch("twice", "twice", (1, 1, 1), (32, 1, 1), (pointer,)), memory)
>>> int(data[31]), report.ok, report.counters.global_load_sectors
(62, True, 4)

Exact: results of all IEEE operations (each rounds once), memory requests, sectors, wavefronts and bytes, arithmetic by
class, barriers. Approximate: the .approx functions, which are computed more precisely than by hardware; NaN payloads.
Not modelled: cycles, cache hits, DRAM bytes, and integer instructions of SASS.

The packages, low to high: ``arith``, ``memory`` and ``frontend`` (PTX text to a module), ``report``, ``program`` (a
module to blocks of decoded instructions), ``races``, ``engine`` (what runs them), ``families`` (the instructions),
``run``.
"""

from __future__ import annotations

from matmill.emulator import families
from matmill.emulator.engine.schedule.warp_order import Order
from matmill.emulator.frontend.parse import parse
from matmill.emulator.frontend.syntax import Module
from matmill.emulator.memory.address_space import Memory
from matmill.emulator.report.counters import Counters, LineCounts
from matmill.emulator.report.events import Event
from matmill.emulator.report.hazards import Hazard, KernelFault, Report
from matmill.emulator.run import run

# Importing ``families`` registers its instructions in the table.
__all__ = [
    "Counters", "Event", "Hazard", "KernelFault", "LineCounts", "Memory", "Module", "Order", "Report", "families",
    "parse", "run",
]  # fmt: skip
