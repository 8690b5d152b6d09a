"""The memory ladder: the same product behind three ways of moving matrices between host and device."""

from __future__ import annotations

from matmill.ladder.memory.common import FILL, PRODUCT, Fill, TransferRung, filled
from matmill.ladder.memory.pageable import PAGEABLE
from matmill.ladder.memory.pinned import PINNED
from matmill.ladder.memory.unified import UNIFIED

__all__ = ["FILL", "MEMORY", "PRODUCT", "Fill", "TransferRung", "filled"]

MEMORY: tuple[TransferRung, ...] = (PAGEABLE, PINNED, UNIFIED)
