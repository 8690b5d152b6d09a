"""What enqueues all launches of a kernel, ready beforehand, so that the host takes a few microseconds to do so."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matmill.bench.timing.clock import StreamHandle
from matmill.jit.compile import Binary
from matmill.launch import Launch
from matmill.runtime.gpu import GPU


def enqueuer(gpu: GPU, binary: Binary, launches: Sequence[Launch]) -> Callable[[StreamHandle], None]:
    """A function that enqueues ``launches``, whose entry points are all in ``binary``, on the stream it is given."""
    prepared = [gpu.prepare(binary, launch) for launch in launches]
    frame = gpu.frame(launches)

    def run(stream: StreamHandle) -> None:
        frame.bind((), stream.address)
        for kernel, (config, parameters) in zip(prepared, frame.calls, strict=True):
            kernel(config, parameters)

    return run
