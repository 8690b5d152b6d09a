"""``matmill cache``: the folder and the size of the cache of compiled kernels, and clearing it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from matmill.cli.options import Subparsers
from matmill.jit.cache import DiskCache
from matmill.jit.compile import cached_kernels
from matmill.settings import cache_dir


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command's arguments."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "cache", help="show or clear the compiled kernels on disk", description="Show or clear the compile cache."
    )
    parser.add_argument("action", nargs="?", choices=("show", "clear"), default="show", help="default: show")


def by_target(kernels: Mapping[str, int]) -> str:
    """Format the numbers of kernels that GPUs need not compile.

    >>> by_target({"sm_80": 2, "sm_90a": 31}), by_target({})
    ('kernels: 2 for sm_80, 31 for sm_90a', 'kernels: none for a GPU')
    """
    return "kernels: " + (", ".join(f"{count} for {target}" for target, count in kernels.items()) or "none for a GPU")


def run(args: argparse.Namespace) -> int:
    """Show or clear the cache."""
    folder = cache_dir()
    if folder is None:
        sys.stdout.write("The cache is off (MATMILL_CACHE).\n")
        return 0
    store = DiskCache(folder)
    if args.action == "clear":
        sys.stdout.write(f"Removed {store.clear()} entries from {folder}.\n")
        return 0
    entries, size = store.size()
    sys.stdout.write(f"{folder}: {entries} entries, {size} bytes; {by_target(cached_kernels())}\n")
    return 0
