"""What enqueues all launches of a kernel, ready beforehand, so that the host takes a few microseconds to do so."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matmill.jit.compile import Binary
from matmill.launch import Launch
from matmill.runtime.clock import StreamHandle
from matmill.runtime.gpu import GPU


def enqueuer(gpu: GPU, steps: Sequence[tuple[Binary, Launch]]) -> Callable[[StreamHandle], None]:
    """Return a function that enqueues the launches of ``steps``, each of its own binary, on the stream it is given."""
    prepared = [gpu.prepare(binary, launch) for binary, launch in steps]
    frame = gpu.frame([launch for _, launch in steps])

    def run(stream: StreamHandle) -> None:
        frame.bind((), stream.address)
        for kernel, (config, parameters) in zip(prepared, frame.calls, strict=True):
            kernel(config, parameters)

    return run
