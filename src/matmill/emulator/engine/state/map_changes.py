"""The tensor maps that a kernel has changed since they were last fenced."""

from __future__ import annotations


class MapChanges:
    """The tensor maps of a launch by generic address: the bytes that TMA has read there, and who changed them since."""

    def __init__(self) -> None:
        self._seen: dict[int, bytes] = {}
        self._changed: dict[int, str] = {}

    def change(self, address: int, by: str) -> None:
        """Record that an instruction, described by ``by``, writes a map."""
        self._changed[address] = by

    def acquire(self, address: int) -> None:
        """Execute ``fence.proxy.tensormap::generic.acquire``: TMA's next read sees the present bytes."""
        self._seen.pop(address, None)
        self._changed.pop(address, None)

    def changed(self, address: int, data: bytes) -> str | None:
        """Return who has changed the map at ``address`` since it was fenced or first read, or None.

        ``data`` are its present bytes.
        """
        seen = self._seen.setdefault(address, data)
        if address in self._changed:
            return self._changed[address]
        return None if seen == data else "an ordinary store"
