"""Unified memory: one address for host and device, no explicit copies."""

from __future__ import annotations

from matmill.ladder.documents import S1
from matmill.ladder.memory.common import FILL, PRODUCT, TransferRung

UNIFIED = TransferRung(
    name="unified",
    source=S1,
    changes="Matrices are in unified (managed) memory; the driver moves pages when host or device first touches them, "
    "and no copy is written down.",
    predicts="The same 12 MiB at 1024 move, now inside the first kernel that touches them: that kernel grows by the "
    "time of the copies, and the wall time stays about that of explicit copies from pageable memory.",
    claim="Wall time about that of explicit copies; at 1024 on GTX Titan X the kernel takes 146.8 ms and filling the "
    "inputs on the device 1.1 ms.",
    transfer="unified",
    fill=FILL,
    product=PRODUCT,
)
