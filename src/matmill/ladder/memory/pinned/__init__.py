"""Page-locked host memory, copied explicitly."""

from __future__ import annotations

from matmill.ladder.documents import S1
from matmill.ladder.memory.common import FILL, PRODUCT, TransferRung

PINNED = TransferRung(
    name="pinned",
    source=S1,
    changes="The host's matrices are in page-locked memory, which the copy engine reads and writes by itself.",
    predicts="Copies run at the speed of the bus: about 12 GB/s over PCIe 3.0 x16, twice that for each later "
    "generation. The product itself does not change.",
    claim="Transfers go from 2.5 to 12 GiB/s (2.7 to 12.9 GB/s).",
    transfer="pinned",
    fill=FILL,
    product=PRODUCT,
)
