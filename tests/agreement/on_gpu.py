"""A case on a GPU."""

from __future__ import annotations

from contextlib import ExitStack

from agreement.case import Array, Case
from matmill.runtime.gpu import GPU


def on_gpu(device: GPU, case: Case) -> dict[str, Array]:
    """Return the arrays after a run on the GPU."""
    arrays = case.arrays()
    with ExitStack() as stack:
        held = {name: stack.enter_context(device.upload(array, name)) for name, array in arrays.items()}
        launch = case.launch([held[name].pointer(name) for name in arrays])
        device.launch(case.binary(device.arch.target), launch)
        device.synchronize()
        return {name: held[name].download(array.shape, array.dtype) for name, array in arrays.items()}
