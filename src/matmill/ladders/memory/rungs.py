"""The memory ladder: one product, with three ways to move matrices between host and device."""

from __future__ import annotations

from matmill.ladders.documents import SLIDES
from matmill.ladders.memory.common import FILL, PRODUCT, Fill, TransferRung, filled

# -- Ordinary host memory, copied explicitly.

PAGEABLE = TransferRung(
    name="pageable",
    source=SLIDES,
    idea="pageable memory, copied",
    changes="The starting point: matrices in ordinary host memory, copied to the device before the product and back "
    "after it.",
    predicts="Each copy passes through a page-locked buffer of the driver's, so the processor's own copying sets the "
    "pace, not the bus: the 12 MiB at 1024 take longer than the product.",
    claim="Transfers at 2.5 GiB/s (2.7 GB/s).",
    transfer="pageable",
    fill=FILL,
    product=PRODUCT,
)


# -- Page-locked host memory, copied explicitly.

PINNED = TransferRung(
    name="pinned",
    source=SLIDES,
    idea="page-locked, copied",
    changes="The host's matrices are in page-locked memory, which the copy engine reads and writes by itself.",
    predicts="Copies run at the speed of the bus: about 12 GB/s over PCIe 3.0 x16, twice that for each later "
    "generation. The product itself does not change.",
    claim="Transfers go from 2.5 to 12 GiB/s (2.7 to 12.9 GB/s).",
    transfer="pinned",
    fill=FILL,
    product=PRODUCT,
)


# -- Unified memory: one address for host and device, no explicit copies.

UNIFIED = TransferRung(
    name="unified",
    source=SLIDES,
    idea="managed, no copies",
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


# -- The ladder

__all__ = ["FILL", "MEMORY", "PRODUCT", "Fill", "TransferRung", "filled"]

MEMORY: tuple[TransferRung, ...] = (PAGEABLE, PINNED, UNIFIED)
