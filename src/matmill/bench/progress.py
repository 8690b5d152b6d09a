"""Progress reports of long runs."""

from __future__ import annotations

from collections.abc import Callable

#: Called with a label, the steps done and the number of steps.
Progress = Callable[[str, int, int], None]


def silent(_label: str, _done: int, _total: int) -> None:
    """Show no progress."""
