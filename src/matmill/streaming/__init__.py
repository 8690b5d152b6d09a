"""Inner products of arrays and files larger than a GPU's memory, through buffers of fixed size.

:func:`plan_stream` splits the product into chunks, and :func:`stream_inner` computes it on a :class:`Device` with the
launches of :func:`inner_steps`.
"""

from __future__ import annotations

from matmill.streaming.device import Device, OnGPU
from matmill.streaming.engine import Progress, stream_inner
from matmill.streaming.plan import BUDGET, BUFFERS, CHUNK, StreamPlan, plan_stream
from matmill.streaming.steps import Steps, inner_steps

__all__ = [
    "BUDGET",
    "BUFFERS",
    "CHUNK",
    "Device",
    "OnGPU",
    "Progress",
    "Steps",
    "StreamPlan",
    "inner_steps",
    "plan_stream",
    "stream_inner",
]
