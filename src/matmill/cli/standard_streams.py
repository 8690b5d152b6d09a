"""stdout and stderr for readers that may close the pipe at any time: commands and their exit codes do not change."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO, cast


class _Patient:
    """A stream that drops all output after the first failed write.

    Failures of the kind ``forgiven`` are dropped too, others raised.
    """

    def __init__(self, stream: TextIO, forgiven: type[OSError]) -> None:
        self._stream, self._forgiven = stream, forgiven

    def write(self, text: str) -> int:
        """Write as a text file does."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._drop(error)
            return len(text)

    def flush(self) -> None:
        """Flush as a text file does."""
        try:
            self._stream.flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        # Buffered output needs a destination, because the interpreter flushes once more at its end.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        if not isinstance(error, self._forgiven):
            raise error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def patient_streams() -> Iterator[None]:
    """Return a context in which stdout and stderr need not be read, nor be open.

    A full disk behind stdout is still an error. Behind stderr it is not, because nothing is left to report it to.
    """
    before = sys.stdout, sys.stderr
    with ExitStack() as stack:
        # Python has None for a stream that was closed from the start.
        out, err = (each or stack.enter_context(Path(os.devnull).open("w", encoding="utf-8")) for each in before)
        sys.stdout = cast("TextIO", _Patient(out, BrokenPipeError))
        sys.stderr = cast("TextIO", _Patient(err, OSError))
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
