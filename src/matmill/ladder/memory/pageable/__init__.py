"""Ordinary host memory, copied explicitly."""

from __future__ import annotations

from matmill.ladder.documents import S1
from matmill.ladder.memory.common import FILL, PRODUCT, TransferRung

PAGEABLE = TransferRung(
    name="pageable",
    source=S1,
    changes="The starting point: matrices in ordinary host memory, copied to the device before the product and back "
    "after it.",
    predicts="Each copy passes through a page-locked buffer of the driver's, so the processor's own copying sets the "
    "pace, not the bus: the 12 MiB at 1024 take longer than the product.",
    claim="Transfers at 2.5 GiB/s (2.7 GB/s).",
    transfer="pageable",
    fill=FILL,
    product=PRODUCT,
)
