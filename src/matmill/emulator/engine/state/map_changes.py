"""Which tensor maps a kernel has changed since they were last fenced."""

from __future__ import annotations


class MapChanges:
    """The tensor maps of a launch by generic address: what TMA has read there, and who has changed it since."""

    def __init__(self) -> None:
        self._seen: dict[int, bytes] = {}
        self._changed: dict[int, str] = {}

    def change(self, address: int, by: str) -> None:
        """Record that an instruction, described by ``by``, writes a map."""
        self._changed[address] = by

    def acquire(self, address: int) -> None:
        """Execute ``fence.proxy.tensormap::generic.acquire``: what is there now is what TMA reads next."""
        self._seen.pop(address, None)
        self._changed.pop(address, None)

    def changed(self, address: int, data: bytes) -> str | None:
        """Say who has changed the map at ``address``, whose bytes are ``data``, since it was fenced or first read."""
        seen = self._seen.setdefault(address, data)
        if address in self._changed:
            return self._changed[address]
        return None if seen == data else "an ordinary store"
