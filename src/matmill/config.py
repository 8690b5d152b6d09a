"""A kernel's constants: chosen on the host, and emitted to the device as one struct where its code depends on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Config:
    """Named integer constants of one kernel, hashable and ordered by name.

    ``constants`` are compiled in. ``launch`` has the constants that only the host needs, such as the size of the grid:
    kernels that differ only in these share one binary.

    >>> tile = Config.of(BM=128, BN=64).launched(SPLIT_K=264)
    >>> tile["BM"], tile.replace(BN=128)["BN"], tile["SPLIT_K"]
    (128, 128, 264)
    >>> print(tile.cxx())
    struct Config {
      static constexpr int BM = 128;
      static constexpr int BN = 64;
    };
    """

    constants: tuple[tuple[str, int], ...] = ()
    launch: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, **constants: int) -> Config:
        """Return a config from keyword arguments."""
        return cls(tuple(sorted(constants.items())))

    def __getitem__(self, name: str) -> int:
        return self._values[name]

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str, default: int = 0) -> int:
        """Return the constant ``name``, or ``default`` for a kernel without it."""
        return self._values.get(name, default)

    @cached_property
    def _values(self) -> dict[str, int]:
        # Cost models read a dozen constants for each of a thousand configurations.
        return dict((*self.launch, *self.constants))

    def replace(self, **changes: int) -> Config:
        """Return the config with some compiled constants changed or added."""
        return replace(self, constants=tuple(sorted({**dict(self.constants), **changes}.items())))

    def launched(self, **changes: int) -> Config:
        """Return the config with some constants of the launch changed or added."""
        result = Config(self.constants, tuple(sorted({**dict(self.launch), **changes}.items())))
        vars(result)["_values"] = {**self._values, **changes}  # what the property would compute
        return result

    def without(self, name: str) -> Config:
        """Return the config without a constant of the launch."""
        if name not in self:
            return self
        return Config(self.constants, tuple(pair for pair in self.launch if pair[0] != name))

    def cxx(self) -> str:
        """Return the ``struct Config`` that the kernel's source reads its constants from."""
        lines = [f"  static constexpr int {name} = {value};" for name, value in self.constants]
        return "\n".join(["struct Config {", *lines, "};"])

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in (*self.constants, *self.launch))


class Columns:
    """Many configurations of one kernel: each constant is an array, with one element for each configuration.

    Constants are float64, so that no product of them overflows.

    >>> tiles = Columns([Config.of(BM=128, BN=64), Config.of(BM=64, BN=64)])
    >>> tiles["BM"] * tiles["BN"]
    array([8192., 4096.])
    """

    def __init__(self, configs: Sequence[Config]) -> None:
        self.configs = tuple(configs)
        self._rows = [config._values for config in self.configs]  # noqa: SLF001 — a class of this file
        self._columns: dict[str, Any] = {}
        self._groups: dict[tuple[str, ...], tuple[list[Config], Any]] = {}

    def __getitem__(self, name: str) -> Any:
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = np.array([one[name] for one in self._rows], np.float64)
        return column

    def groups(self, names: tuple[str, ...]) -> tuple[list[Config], Any]:
        """Return a configuration for each combination of those constants, and for each configuration which it has.

        >>> tiles = Columns([Config.of(BM=128, BN=64), Config.of(BM=64, BN=64), Config.of(BM=128, BN=8)])
        >>> [len(found) for found in tiles.groups(("BM",))]
        [2, 3]
        """
        known = self._groups.get(names)
        if known is None:
            first: dict[tuple[int, ...], int] = {}
            keys = (tuple([one.get(name, 0) for name in names]) for one in self._rows)
            which = [first.setdefault(key, len(first)) for key in keys]
            examples = [self.configs[which.index(number)] for number in range(len(first))]
            known = self._groups[names] = examples, np.array(which)
        return known

    def __contains__(self, name: str) -> bool:
        return name in self.configs[0]

    def get(self, name: str, default: int = 0) -> Any:
        """Return the constant ``name``, or ``default`` for a kernel without it."""
        return self[name] if name in self.configs[0] else np.full(len(self.configs), float(default))


#: The argument of a cost model: one configuration or many.
Configs = Config | Columns
