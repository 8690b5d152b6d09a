"""The only reader of environment variables.

==========================  ==========================================================================================
``MATMILL_CACHE_DIR``       where compiled kernels are kept (default: ``$XDG_CACHE_HOME/matmill``)
``MATMILL_CACHE=off``       compile every time, keep nothing on disk
``MATMILL_COMPILE=wait``    calls wait for the compiler, though a compiled kernel could answer (default: ``background``)
``MATMILL_EXECUTOR``        ``auto`` (default), ``gpu``, ``cpu`` or ``emulator``, where a call names none
``RANK``                    this process's number in its job, as torchrun sets it
``COLUMNS``                 how wide output may be where it goes to a file or a pipe (default 80)
``NO_COLOR``                any non-empty value: plain text (https://no-color.org)
==========================  ==========================================================================================
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from matmill.errors import unknown_name

#: The backends that a call may name.
Executor: TypeAlias = Literal["auto", "gpu", "cpu", "emulator"]
EXECUTORS: tuple[Executor, ...] = get_args(Executor)
#: What a call does whose best kernel is not compiled, while another one can answer.
COMPILE = ("background", "wait")


def cache_dir() -> Path | None:
    """Return the folder of the compile cache, or None if the cache is switched off. Nothing is created."""
    if os.environ.get("MATMILL_CACHE", "").lower() in {"off", "0", "no", "false"}:
        return None
    named = os.environ.get("MATMILL_CACHE_DIR")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification says to ignore relative paths.
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "matmill"


def default_executor() -> str:
    """Return the executor of calls that name none: one of :data:`EXECUTORS`.

    An empty value counts as unset.
    """
    name = (os.environ.get("MATMILL_EXECUTOR") or "auto").lower()
    if name not in EXECUTORS:
        raise unknown_name("MATMILL_EXECUTOR", name, EXECUTORS)
    return name


def compiles_in_background() -> bool:
    """Tell whether calls leave a missing kernel to the background compiler where another one can answer."""
    name = (os.environ.get("MATMILL_COMPILE") or COMPILE[0]).lower()
    if name not in COMPILE:
        raise unknown_name("MATMILL_COMPILE", name, COMPILE)
    return name == COMPILE[0]


@contextmanager
def waiting_for_compiler() -> Iterator[None]:
    """Let calls in a ``with`` block wait for the compiler, unless the environment says what they do."""
    unset = "MATMILL_COMPILE" not in os.environ
    os.environ.setdefault("MATMILL_COMPILE", COMPILE[1])
    try:
        yield
    finally:
        if unset:
            del os.environ["MATMILL_COMPILE"]


def rank() -> int:
    """Return this process's number in its job, as torchrun sets it in ``RANK``; 0 for any other program."""
    number = os.environ.get("RANK", "")
    return int(number) if number.isdecimal() else 0


def columns() -> int | None:
    """Return the width of output that ``COLUMNS`` names, or None if it names none."""
    named = os.environ.get("COLUMNS", "")
    return int(named) if named.isdigit() and int(named) else None


def plain_text() -> bool:
    """Return True where the user asked for no colour."""
    return bool(os.environ.get("NO_COLOR"))
