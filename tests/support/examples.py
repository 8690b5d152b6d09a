"""How many examples property tests try: each test names the number for the continuous integration, profiles scale it.

``pytest --hypothesis-profile=dev`` tries a fifth, ``nightly`` twenty times as many.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import HealthCheck, settings

_CI = 50
_LEAST = 3


def register() -> None:
    """Register the profiles, and make that of the continuous integration the default."""
    for name, examples in (("dev", _CI // 5), ("ci", _CI), ("nightly", 20 * _CI)):
        settings.register_profile(name, max_examples=examples, deadline=None)
    settings.load_profile("ci")


def examples(number: int, *, ignore: Sequence[HealthCheck] = ()) -> settings:
    """Decorate a property test that tries ``number`` examples in the profile ``ci``.

    ``ignore`` are health checks that would fail it.
    """
    scaled = max(min(number, _LEAST), number * settings().max_examples // _CI)
    return settings(max_examples=scaled, deadline=None, suppress_health_check=list(ignore))
