"""The ``.npy`` files that outputs of an emulated launch should equal, as ``--expect`` names them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from matmill.cli.emulate_arguments import Files, Value
from matmill.cli.files import ANY, load
from matmill.errors import ArgumentError

if TYPE_CHECKING:
    from matmill.testing.expected import Pair


def pair(text: str, arguments: Mapping[str, Value], files: Files) -> Pair:
    """Parse ``[INDEX=]FILE.npy``: the argument INDEX, by default the one that is written to a file, and the file.

    Raises :class:`~matmill.errors.ArgumentError`.
    """
    arrays = {name: each for name, each in arguments.items() if isinstance(each, np.ndarray)}
    written = list(dict.fromkeys(files.values())) or [name for name, each in arrays.items() if each.flags.writeable]
    name, separator, path = text.rpartition("=")
    if not separator and len(written) == 1:
        name = written[0]
    if name not in arrays:
        raise ArgumentError(
            argument="--expect",
            got=repr(text),
            wanted=f"INDEX=FILE.npy, where INDEX is an array argument: {', '.join(arrays) or 'there is none'}",
            fix="Arguments count from 0, in the order of --arg.",
        )
    got, wanted = arrays[name], np.asarray(load(Path(path), "--expect", wanted=ANY))
    if wanted.dtype.itemsize == got.dtype.itemsize and wanted.dtype.kind == "V":
        wanted = wanted.view(got.dtype)
    alike = wanted.size == got.size if 1 in {wanted.ndim, got.ndim} else wanted.shape == got.shape
    if not alike or (wanted.dtype.kind in "iub") != (got.dtype.kind in "iub"):
        raise ArgumentError(
            argument="--expect",
            got=f"{path}: {wanted.dtype} {wanted.shape}",
            wanted=f"{got.dtype} {got.shape}, as argument {name}",
            fix="Write it with numpy.save in the shape and type of the output.",
        )
    return name, path, got.reshape(wanted.shape), wanted
