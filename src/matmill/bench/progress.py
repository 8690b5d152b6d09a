"""How a long run tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

#: Told what is running, steps done, steps in all.
Progress = Callable[[str, int, int], None]


def silent(_label: str, _done: int, _total: int) -> None:
    """Show no progress."""
