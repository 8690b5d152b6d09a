"""The ``matmill`` command: one module per subcommand, each with ``add_parser(subparsers)`` and ``run(args) -> int``.

Exit codes: 0 fine, 1 failed, 2 usage, 3 a GPU was required and there is none, 130 interrupted. A reader that closes the
pipe early (``matmill … | head -1``) changes none of them: the command goes on, and its output is dropped.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence

from matmill import __version__
from matmill.cli.standard_streams import patient_streams
from matmill.errors import (
    ArgumentError,
    DTypeError,
    MatmillError,
    NoGPUError,
    ShapeError,
    UnknownNameError,
    unknown_name,
)

OK, FAILED, USAGE, NO_GPU, INTERRUPTED = 0, 1, 2, 3, 130

#: Subcommands, each in the module of its name, in the order that ``--help`` lists them.
COMMANDS = (
    "matmul",
    "inner",
    "ladder",
    "why",
    "tune",
    "model",
    "roofline",
    "layout",
    "learn",
    "emulate",
    "compare",
    "audit",
    "probe",
    "doctor",
    "warm",
    "cache",
)

_CODES: tuple[tuple[tuple[type[BaseException], ...], int], ...] = (
    ((ArgumentError, UnknownNameError, ShapeError, DTypeError), USAGE),
    ((NoGPUError,), NO_GPU),
    ((KeyboardInterrupt,), INTERRUPTED),
    ((Exception,), FAILED),
)

#: Messages for exceptions without text.
_UNSAID: dict[type[BaseException], str] = {KeyboardInterrupt: "interrupted", MemoryError: "out of memory"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (``sys.argv`` by default) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with patient_streams():
        code = _code_of(lambda: _run(arguments))
        return _code_of(sys.stdout.flush) or code


def _code_of(action: Callable[[], int | None]) -> int:
    """Return the exit code of an action, and print the error if it fails."""
    try:
        return action() or OK
    except SystemExit as stop:  # argparse has printed the error or the help
        return stop.code if isinstance(stop.code, int) else USAGE
    except (MatmillError, OSError, MemoryError, KeyboardInterrupt) as error:
        sys.stderr.write(f"matmill: {str(error) or _UNSAID.get(type(error), type(error).__name__)}\n")
        return next(code for kinds, code in _CODES if isinstance(error, kinds))


def _run(arguments: list[str]) -> int:
    # Only this command's module is loaded: `doctor` must work when a library that others need is broken.
    named = arguments[0] if arguments else ""
    wanted = [name for name in COMMANDS if name == named] or (() if named == "--version" else COMMANDS)
    modules = {name: importlib.import_module(f"matmill.cli.{name}") for name in wanted}
    parser = argparse.ArgumentParser(
        prog="matmill",
        description="Matrix kernels in CUDA C++ that run on a GPU, run as their own PTX without one, and explain "
        "their speed.",
        epilog="Exit codes: 0 fine, 1 failed, 2 usage, 3 no GPU where one was demanded.",
    )
    parser.add_argument("--version", action="version", version=f"matmill {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for module in modules.values():
        module.add_parser(subparsers)
    if not arguments:
        parser.print_help()
        return USAGE
    if not arguments[0].startswith("-") and arguments[0] not in modules:
        raise unknown_name("command", arguments[0], COMMANDS)
    args = parser.parse_args(arguments)
    code: int = modules[args.command].run(args)
    return code
