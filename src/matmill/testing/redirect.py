"""Launches that programs of other languages make themselves, on the emulator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from matmill.errors import unknown_name
from matmill.testing.call import emulate
from matmill.testing.report import LaunchReport

_HOSTS = {"numba": "numba_host", "triton": "triton_kernels"}


@contextmanager
def redirected(language: str, *, check: bool = True, **settings: Any) -> Iterator[list[LaunchReport]]:
    """Run the launches that a program makes itself on the emulator; yield the list that their reports are added to.

    ``language`` is ``"numba"`` (``kernel[grid, block](…)``, ``cuda.to_device``, …) or ``"triton"``
    (``kernel[grid](…)`` on torch tensors of the CPU). With ``check`` a launch whose report is not ``ok`` raises
    :class:`~matmill.testing.report.HazardError`. ``settings`` are keywords of :func:`matmill.emulate`.

    Raises :class:`~matmill.errors.UnknownNameError` for another language.
    """
    if language not in _HOSTS:
        raise unknown_name("language", language, list(_HOSTS))
    reports: list[LaunchReport] = []

    def launch(kernel: object, grid: object = None, block: Any = None, args: Sequence[object] = (), **own: Any) -> None:
        reports.append(emulate(kernel, None, grid, block, *args, **(settings | own)))
        if check:
            reports[-1].raise_if()

    with import_module(f"matmill.testing.languages.{_HOSTS[language]}").redirection(
        launch, settings.get("target", "sm_90a")
    ):
        yield reports
