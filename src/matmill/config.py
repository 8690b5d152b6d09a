"""A kernel's constants: chosen on the host, and emitted to the device as one struct where its code depends on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

Q = TypeVar("Q")
R = TypeVar("R")


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

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # of dozens of pairs, and asked again by every cache
        return hash((self.constants, self.launch))

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
        constants = dict(self.constants)
        added = not changes.keys() <= constants.keys()
        constants.update(changes)
        pairs = constants.items()
        return Config(tuple(sorted(pairs) if added else pairs), self.launch)

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
        self._made = dict(enumerate(configs))
        self._columns: dict[str, Any] = {}
        self._groups: dict[tuple[str, ...], tuple[list[Config], Any]] = {}
        self._kept: dict[Any, tuple[Any, Any]] = {}
        self._tables: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self._made)

    @property
    def configs(self) -> tuple[Config, ...]:
        """All configurations."""
        return tuple([self.config(index) for index in range(len(self))])

    def config(self, index: int) -> Config:
        """Return one configuration."""
        config = self._made.get(index)
        if config is None:
            config = self._made[index] = self._make(index)
        return config

    def _make(self, index: int) -> Config:
        raise IndexError(index)

    @property
    def origins(self) -> Any:
        """A number for each configuration: equal ones differ in constants of the launch alone."""
        return np.arange(len(self))

    def take(self, rows: Any, **launch: Any) -> Columns:
        """Return the configurations ``rows``, with constants of the launch added: an array for each of these.

        >>> tiles = Columns([Config.of(BM=128), Config.of(BM=64)])
        >>> tiles.take([1, 1, 0], SPLIT_K=[1, 4, 1]).configs[1]["SPLIT_K"]
        4
        """
        return _Taken(self, np.asarray(rows, np.intp), launch, {})

    def launched(self, **launch: Any) -> Columns:
        """Return the same configurations with more constants of the launch, an array for each."""
        return _Taken(self, None, launch, self._kept)

    def kept(self, function: Callable[[Q, Columns], R], problem: Q) -> R:
        """Return a function's result for a problem and these columns, kept for those :meth:`launched` from them too."""
        known = self._kept.get(function)
        if known is None or known[0] is not problem:
            known = self._kept[function] = problem, function(problem, self)
        result: R = known[1]
        return result

    def table(self, function: Callable[[Any], Sequence[Any]]) -> Any:
        """Return what a function of the constants gives: arrays, kept for those that are taken from these too.

        It must not depend on constants that :meth:`take` or :meth:`launched` adds.

        >>> tiles = Columns([Config.of(BM=128, BN=64), Config.of(BM=64, BN=64)])
        >>> tiles.take([1], SPLIT_K=[4]).table(lambda tile: (tile["BM"] * tile["BN"], tile["BM"] + tile["BN"])).tolist()
        [[4096.0], [128.0]]
        """
        table = self._tables.get(function)
        if table is None:
            table = self._tables[function] = np.array(function(self), np.float64)
        return table

    def having(self, names: tuple[str, ...], tiles: Tiles | None) -> Columns:
        """Return the configurations whose constants ``names`` are among ``tiles``; all of them for None.

        >>> Columns([Config.of(BM=128), Config.of(BM=64)]).having(("BM",), frozenset([(64,)])).configs[0]["BM"]
        64
        """
        if tiles is None:
            return self
        return Columns([one for one in self.configs if tuple([one.get(name) for name in names]) in tiles])

    def __getitem__(self, name: str) -> Any:
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = np.array([values[name] for values in self._values], np.float64)
        return column

    @cached_property
    def _values(self) -> list[dict[str, int]]:
        return [config._values for config in self.configs]  # noqa: SLF001 — a file of its own kind

    def groups(self, names: tuple[str, ...]) -> tuple[list[Config], Any]:
        """Return a configuration for each combination of those constants, and for each configuration which it has.

        >>> tiles = Columns([Config.of(BM=128, BN=64), Config.of(BM=64, BN=64), Config.of(BM=128, BN=8)])
        >>> [len(found) for found in tiles.groups(("BM",))]
        [2, 3]
        """
        known = self._groups.get(names)
        if known is None:
            first: dict[tuple[float, ...], int] = {}
            keys = zip(*(self.get(name).tolist() for name in names), strict=True)
            which = [first.setdefault(key, len(first)) for key in keys]
            examples = [self.config(which.index(number)) for number in range(len(first))]
            known = self._groups[names] = examples, np.array(which)
        return known

    def __contains__(self, name: str) -> bool:
        return name in self.config(0)

    def get(self, name: str, default: int = 0) -> Any:
        """Return the constant ``name``, or ``default`` for a kernel without it."""
        return self[name] if name in self else np.full(len(self), float(default))


class Table(Columns):
    """Configurations by arrays of constants, or one number for all, and of ``counts`` that follow from these.

    One is made when it is asked for: few of those that are predicted are.

    >>> sides = np.array([128.0, 64.0])
    >>> tiles = Table({"BM": sides, "BN": 64}, {"SPLIT_K": np.ones(2)}, {"OUTPUTS": 64 * sides})
    >>> tiles.config(1) == Config.of(BM=64, BN=64).launched(SPLIT_K=1), tiles["OUTPUTS"]
    (True, array([8192., 4096.]))
    """

    def __init__(self, compiled: Mapping[str, Any], launch: Mapping[str, Any], counts: Mapping[str, Any]) -> None:
        super().__init__(())
        self._compiled, self._launch = compiled, launch
        self._columns = {**compiled, **launch, **counts}
        self._count = len(next(iter(launch.values())))

    def __len__(self) -> int:
        return self._count

    def _make(self, index: int) -> Config:
        compiled, launch = (
            sorted((name, int(value[index] if isinstance(value, np.ndarray) else value)) for name, value in own.items())
            for own in (self._compiled, self._launch)
        )
        return Config(tuple(compiled), tuple(launch))

    def __getitem__(self, name: str) -> Any:
        column = self._columns[name]
        if not isinstance(column, np.ndarray):
            column = self._columns[name] = np.full(len(self), float(column))
        return column

    def __contains__(self, name: str) -> bool:
        return name in self._columns


class _Taken(Columns):
    """Some configurations of others, or all where ``rows`` is None, with constants of the launch added: as in Table."""

    def __init__(self, base: Columns, rows: Any, launch: dict[str, Any], kept: dict[Any, tuple[Any, Any]]) -> None:
        super().__init__(())
        self._base, self._rows, self._kept = base, rows, kept
        self._launch = {name: np.asarray(values, np.float64) for name, values in launch.items()}
        self._columns = dict(self._launch)

    def __len__(self) -> int:
        return len(self._base) if self._rows is None else len(self._rows)

    @property
    def origins(self) -> Any:
        return self._base.origins if self._rows is None else self._base.origins[self._rows]

    def table(self, function: Callable[[Any], Sequence[Any]]) -> Any:
        table = self._tables.get(function)
        if table is None:
            table = self._base.table(function)
            table = self._tables[function] = table if self._rows is None else table[:, self._rows]
        return table

    def _make(self, index: int) -> Config:
        config = self._base.config(index if self._rows is None else int(self._rows[index]))
        return config.launched(**{name: int(values[index]) for name, values in self._launch.items()})

    def __getitem__(self, name: str) -> Any:
        column = self._columns.get(name)
        if column is None:
            column = self._base[name]
            column = self._columns[name] = column if self._rows is None else column[self._rows]
        return column

    def groups(self, names: tuple[str, ...]) -> tuple[list[Config], Any]:
        known = self._groups.get(names)
        if known is not None or not self._launch.keys().isdisjoint(names):
            return known or super().groups(names)
        examples, which = self._base.groups(names)
        if self._rows is not None:
            which = which[self._rows]
            used = sorted(set(which.tolist()))
            if len(used) < len(examples):  # others may not suit the problem
                which = np.searchsorted(used, which)
            examples = [examples[number] for number in used]
        self._groups[names] = examples, which
        return examples, which

    def __contains__(self, name: str) -> bool:
        return name in self._launch or name in self._base


#: Tiles: the values of the constants that the host is free to choose, in the order of ``Production.tile``.
Tiles = frozenset[tuple[int, ...]]
#: The argument of a cost model: one configuration or many.
Configs = Config | Columns
