"""The time of an answer on this machine's GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from matmill.emulator import Memory
from matmill.jit.compile import NO_RESOURCES, Binary
from matmill.launch import Launch
from matmill.learn.judgement import shape
from matmill.learn.lesson import Lesson
from matmill.runtime.clock import Clock, Competitor, Timing, flush_bytes
from matmill.runtime.gpu import GPU
from matmill.testing.arguments import Binder, bound_arguments
from matmill.testing.kernel import load
from matmill.testing.languages import in_order


def time_on(gpu: GPU, lesson: Lesson, file: Path) -> Timing:
    """Time an answer on a GPU, with a cold L2 cache, on copies of the check's arguments."""
    target = gpu.arch.target
    kernel = load(file, lesson.check.kernel, target=target)
    code, entry, spelled = kernel.unit.machine_code(target), kernel.unit.entry, kernel.unit.spelled
    arguments = lesson.arguments()
    arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    copies = {name: gpu.upload(array, name) for name, array in arrays.items()}
    pointers = {name: copy.pointer(name) for name, copy in copies.items()}
    values = in_order(kernel, (), arguments | pointers)
    bound = bound_arguments(Binder(Memory()), values, spelled, kernel.function.params, kernel.unit.parameters)
    grid, block, shared, cluster = shape(lesson, kernel)
    launch = Launch(spelled, entry, grid, block, bound, shared, cluster=cluster)
    binary = Binary(spelled, entry, target, code, kernel.unit.ptx, NO_RESOURCES)
    with Clock(gpu, flush_bytes(gpu.arch, cold=True)) as clock:
        (timing,) = clock.compare([Competitor(spelled, lambda stream: gpu.launch(binary, launch, stream))])
    return timing
