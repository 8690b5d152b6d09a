"""``torch.compile`` with matmill's kernels, once somebody compiles: Inductor takes seconds to import."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from matmill.torch.decide import Decider

if TYPE_CHECKING:
    from matmill.torch.inductor import Compiling

#: The oldest and the newest release of torch whose Inductor is known.
RELEASES = (2, 11), (2, 14)
_DYNAMO = "torch._dynamo.trace_rules"


class Compiler:
    """Inductor with the decisions of the session that is on, from the first call of ``torch.compile``."""

    def __init__(self, originally: Callable[[Callable[[], None]], None]) -> None:
        #: Calls something while torch has all of its own functions.
        self._originally = originally
        #: True once Dynamo's tables are those of torch's own functions; None before the first session.
        self._known: bool | None = None
        self._decider: Decider | None = None
        self._hooks: Compiling | None = None
        self._compile: Any = None

    def use(self, decider: Decider | None) -> None:
        """Compile with these decisions from now on, or without any."""
        if decider is self._decider:
            return
        if self._known is None:  # no function is replaced yet
            self._known = _DYNAMO in sys.modules
        self._decider = decider
        if self._hooks is not None:
            self._hooks.leave()
            self._hooks = None
        if decider is None:
            if self._compile is not None and torch.compile is self._compile[0]:
                torch.compile = self._compile[1]
            self._compile = None
        elif "torch._inductor.compile_fx" in sys.modules:
            self._enter()
        elif self._compile is None:
            self._wait()

    def _enter(self) -> None:
        if self._decider is not None and self._hooks is None and known_release():
            self.read_tables()
            from matmill.torch.inductor import Compiling  # noqa: PLC0415 — it imports Inductor

            self._hooks = Compiling(self._decider)
            self._hooks.enter()

    def read_tables(self) -> None:
        """Let Dynamo read its tables of torch's functions anew, if it was loaded while some were replaced."""
        if not self._known and _DYNAMO in sys.modules:
            self._known = True
            self._originally(_read_tables)

    def _wait(self) -> None:
        """Replace ``torch.compile``, which imports Inductor, until it is called."""
        original = torch.compile

        def compile(*arguments: Any, **options: Any) -> Any:  # noqa: A001 — torch's name
            result = original(*arguments, **options)
            self._enter()
            return result

        compile.__doc__, compile.__module__ = original.__doc__, original.__module__
        self._compile = compile, original
        torch.compile = compile


def _read_tables() -> None:
    rules = sys.modules[_DYNAMO]
    rules.clear_lru_cache()
    rules.get_torch_obj_rule_map()
    rules.get_tensor_method()


@cache
def known_release() -> bool:
    """Tell whether this release's Inductor is known; say so once where it is not."""
    release = tuple(int(number) for number in torch.__version__.split(".")[:2])
    oldest, newest = RELEASES
    if oldest <= release <= newest:
        return True
    warnings.warn(
        f"torch.compile keeps torch's own products: matmill knows Inductor of torch {oldest[0]}.{oldest[1]} to "
        f"{newest[0]}.{newest[1]}, and this is {torch.__version__}.",
        RuntimeWarning,
        stacklevel=4,
    )
    return False


def lower_operators() -> None:
    """Let Inductor, which is tracing one of matmill's operators, write its result to a buffer of its own."""
    if "torch._inductor.compile_fx" in sys.modules and known_release():
        from matmill.torch.inductor import lower  # noqa: PLC0415 — it imports Inductor

        lower()
