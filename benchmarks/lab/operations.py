"""The command line that searches, comparisons and launches share: a word for the operation, then options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TypeVar

#: What differs between operations.
T = TypeVar("T")


def chosen(
    operations: Mapping[str, T], description: str | None, add_arguments: Callable[[argparse.ArgumentParser, T], None]
) -> tuple[T, argparse.Namespace]:
    """Return what differs in the operation that the command line names, and the options (``add_arguments``).

    The options have ``fail``, which ends the program with a message about usage.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = parser.add_subparsers(dest="operation", required=True)
    for name, operation in operations.items():
        own = words.add_parser(name)
        own.set_defaults(fail=own.error)
        add_arguments(own, operation)
    args = parser.parse_args()
    return operations[args.operation], args
