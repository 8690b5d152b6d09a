"""Source lines of a module, from ``.file`` and ``.loc``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from matmill.emulator.frontend.lexer import Token, syntax_error

_LOCATION = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:.*\binlined_at\s+(\d+)\s+(\d+)\s+(\d+))?")
# Paths of CUDA's own headers, in wheels and in toolkits, and of what Triton and numba bring in Python.
_TOOLKIT = re.compile(
    r"/(?:nvidia|cuda|targets)\b.*/include/|/include/(?:cccl|cub|cuda|cooperative_groups|crt)/"
    r"|/site-packages/(?:triton|numba|numba_cuda)/"
)
# NVRTC's built-in copy of CUDA's headers, whose lines no user can see.
_BUILTIN = "__nv_nvrtc_builtin_header.h"
_MOST_CALLERS = 64


class Locations:
    """The files of a module, and the current source line, which changes as the text is read.

    ``where`` is "file:line", or the numbers of both if the file has no name. ``within`` is the line of a CUDA header
    that was inlined there, or "". ``callers`` are the lines of the calls that inline ``where``.
    ``moved`` says that they are those of neighbouring code.
    """

    def __init__(self, tokens: Sequence[Token]) -> None:
        """Read all files first, because ``.file`` may come after the code."""
        self.where = self.within = ""
        self.callers: tuple[str, ...] = ()
        self.moved = False
        self._files: dict[str, str] = {}
        self._toolkit: set[str] = set()
        self._callers: dict[tuple[str, str, str], tuple[str, str, str]] = {}
        self._known: dict[str, tuple[str, str, tuple[str, ...]]] = {}
        for directive, number, name in zip(tokens, tokens[1:], tokens[2:], strict=False):
            if directive.text == ".file" and name.kind == "string":
                self._name(number.text, name.text)

    def _name(self, number: str, quoted: str) -> None:
        path = quoted.strip('"').replace("\\\\", "/")
        self._files[number] = path.rsplit("/", 1)[-1]
        if _TOOLKIT.search(path) or path == _BUILTIN:
            self._toolkit.add(number)

    def leave(self) -> None:
        """Set no line for the following code."""
        self.where, self.within, self.callers, self.moved = "", "", (), False

    def move(self, token: Token) -> None:
        """Set the line of a ``.loc``."""
        match = _LOCATION.match(token.text)
        if match is None:
            raise syntax_error(token.line, token.text, ".loc with a file, a line and a column")
        file, line, column, *inlined = match.groups()
        # NVRTC marks moved code with line 0; the last real line is more useful.
        self.moved = line == "0"
        if self.moved:
            return
        chain = f"{file}:{line}"
        if inlined[0] is not None:
            caller: tuple[str, str, str] | None = (inlined[0], inlined[1], inlined[2])
            self._callers[file, line, column] = inlined[0], inlined[1], inlined[2]
            while caller is not None and chain.count("<") < _MOST_CALLERS:
                chain += f"<{caller[0]}:{caller[1]}"
                caller = self._callers.get(caller)
        if chain not in self._known:
            self._known[chain] = self._named(chain)
        self.where, self.within, self.callers = self._known[chain]

    def _named(self, chain: str) -> tuple[str, str, tuple[str, ...]]:
        """Return ``where``, ``within`` and ``callers`` for a line and those that inline it, innermost first."""
        if not self._files:
            return chain, "", ()
        lines = [each.partition(":") for each in chain.split("<")]
        # The user's line is the first that is not in a CUDA header.
        own = next((each for each in lines if each[0] not in self._toolkit), lines[0])
        number, _, line = own
        where = f"{self._files[number]}:{line}" if number in self._files else chain
        inner, _, inner_line = lines[0]
        named = own is not lines[0] and self._files.get(inner, _BUILTIN) != _BUILTIN
        within = f"{self._files[inner]}:{inner_line}" if named else ""
        outer = lines[lines.index(own) + 1 :]
        callers = tuple(f"{self._files[each]}:{at}" for each, _, at in outer if each in self._files)
        return where, within, callers
