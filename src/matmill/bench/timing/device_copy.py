"""A long copy by matmill's own kernel: the bandwidth that percentages of moving bytes refer to."""

from __future__ import annotations

from typing import Self

from matmill.dtypes import F32
from matmill.jit.compile import compile_source
from matmill.jit.source import generate
from matmill.kernels.probe import buffers
from matmill.kernels.probe.stream import COPY, VECTOR, orderly
from matmill.runtime.clock import StreamHandle
from matmill.runtime.gpu import GPU

COPY_NAME = "copy"
#: The fewest and the most bytes that are read, and written: long compared with a launch and the caches, and far from
#: filling any GPU.
LEAST, MOST = 2**28, 2**31


class Copying:
    """Two buffers and the kernel that copies one to the other; a context manager.

    It moves ``moved`` bytes, half of them read and half written, clamped to :data:`LEAST` and :data:`MOST`; ``nbytes``
    is the actual number.
    """

    name = COPY_NAME

    def __init__(self, gpu: GPU, moved: int) -> None:
        one = min(max(moved // 2, LEAST), MOST) // VECTOR * VECTOR
        self.nbytes = 2 * one
        self._gpu = gpu
        self._binary = compile_source(generate(COPY, F32), gpu.arch.target)
        self._buffers = [gpu.empty(one), gpu.empty(one)]
        source, target = (buffer.pointer(name) for buffer, name in zip(self._buffers, ("read", "written"), strict=True))
        self._buffers[0].fill_bytes(0x5A)  # unwritten memory may not have pages of its own
        self._launch = COPY.launch(orderly(one // VECTOR), buffers(source, target))

    def run(self, stream: StreamHandle) -> None:
        """Enqueue one copy."""
        self._gpu.launch(self._binary, self._launch, stream=stream)

    def rate(self, seconds: float) -> float:
        """Return the bytes per second, read and written, of a copy that takes ``seconds``."""
        return self.nbytes / seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for buffer in self._buffers:
            buffer.close()
