"""Parsers of option values, shared by all commands."""

from __future__ import annotations

import argparse
import os
import secrets
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

from matmill.errors import ArgumentError
from matmill.problem import PRECISIONS

#: The result of argparse's ``add_subparsers``; it has no public name, and is generic only for type checkers.
Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 — no other name

PLOT_SUFFIXES = (".png", ".svg")


#: Libraries count elements in signed 64-bit integers.
_MOST_SIZE = 2**63
#: More seconds than any measurement takes.
_MOST_SECONDS = 1e9


def size(text: str) -> int:
    """Return a positive whole number below 2**63, ``5e7`` included.

    >>> size("4096"), size("5e7")
    (4096, 50000000)
    """
    try:
        value = int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        value = 0
    if not 1 <= value < _MOST_SIZE or value != int(value):  # NaN is not in any range
        message = f"got {text!r}; wanted a positive whole number below 2**63, for instance 4096 or 5e7"
        raise argparse.ArgumentTypeError(message)
    return int(value)


def seconds(text: str) -> float:
    """Return a time in seconds, more than 0.

    >>> seconds("1.93e-4")
    0.000193
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < _MOST_SECONDS:  # NaN is not in any range
        message = f"got {text!r}; wanted seconds, more than 0, for instance 1.93e-4"
        raise argparse.ArgumentTypeError(message)
    return value


def seed_value(text: str) -> int:
    """Return a seed: a whole number, zero included.

    >>> seed_value("0")
    0
    """
    if not text.isdigit():
        message = f"got {text!r}; wanted a whole number, zero or more"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def seed(given: int | None) -> int:
    """Return the seed of the option, or a random one."""
    return secrets.randbits(32) if given is None else given


def plot_file(text: str | None) -> Path | None:
    """Return the file of a plot, checked before a long run: known suffix, existing folder, matplotlib installed."""
    if text is None:
        return None
    path = Path(text)
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise ArgumentError(
            argument="--plot",
            got=f"{text!r}",
            wanted=f"a file name ending in {' or '.join(PLOT_SUFFIXES)}",
            fix="The suffix decides the format.",
        )
    writable(path, "--plot")
    if find_spec("matplotlib") is None:
        raise ArgumentError(
            argument="--plot",
            got="no matplotlib on this machine",
            wanted="matplotlib, of the extra 'plots'",
            fix="Install it: pip install 'matmill[plots]'",
        )
    return path


def writable(path: Path, argument: str) -> None:
    """Raise :class:`~matmill.errors.ArgumentError` if no file can be written at ``path``, before the work starts."""
    if path.is_dir():
        got, wanted, fix = f"{str(path)!r}, which is a folder", "a file name", "Add a name to it."
    elif not path.parent.is_dir():
        got, wanted, fix = f"{str(path)!r}", "a file in a folder that exists", "Make the folder first."
    elif not os.access(path.parent, os.W_OK):
        got, wanted, fix = f"{str(path)!r}", "a file in a folder that you may write to", "Name another folder."
    else:
        return
    raise ArgumentError(argument=argument, got=got, wanted=wanted, fix=fix)


def add_precision(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how a product is summed."""
    names = "|".join(PRECISIONS)
    parser.add_argument("--precision", metavar=names, help="how a product is summed (default: the type's own way)")
    same = "a row's bits are the same whatever m and the other rows are"
    parser.add_argument("--batch-invariant", action="store_true", help=same)
