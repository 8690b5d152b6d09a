"""A kernel's compile-time constants: decided on the host, emitted to the device as one named struct."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """Named integer constants of one kernel, hashable and ordered by name.

    >>> tile = Config.of(BM=128, BN=64)
    >>> tile["BM"], tile.replace(BN=128)["BN"]
    (128, 128)
    >>> print(tile.cxx())
    struct Config {
      static constexpr int BM = 128;
      static constexpr int BN = 64;
    };
    """

    constants: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, **constants: int) -> Config:
        """A config from keyword arguments."""
        return cls(tuple(sorted(constants.items())))

    def __getitem__(self, name: str) -> int:
        for key, value in self.constants:
            if key == name:
                return value
        raise KeyError(name)

    def replace(self, **changes: int) -> Config:
        """The config with some constants changed or added."""
        return Config.of(**{**dict(self.constants), **changes})

    def cxx(self) -> str:
        """The ``struct Config`` that the kernel's source reads its constants from."""
        lines = [f"  static constexpr int {name} = {value};" for name, value in self.constants]
        return "\n".join(["struct Config {", *lines, "};"])

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.constants)
