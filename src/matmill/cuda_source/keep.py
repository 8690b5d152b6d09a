"""Selects the declarations that device code needs: kernels, and transitively all that they mention."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from matmill.cuda_source.declarations import Declaration, File, host_member

_STAYS = re.compile(r"#\s*(if|ifdef|ifndef|elif|else|endif|define|undef|include)\b")
_WORD = re.compile(r"[A-Za-z_]\w*")
_MOST_NAMED = 3


def needed(files: Sequence[File], entry: str | None, spelled: str, *, host_functions: bool) -> set[int]:
    """Return the identities of the declarations that the kernels ``entry`` need, or all kernels for None.

    Names in the template arguments of ``spelled`` are needed, too. Functions without ``__device__`` are omitted, unless
    ``host_functions`` keeps those that are mentioned.
    """
    by_name: dict[str, list[Declaration]] = {}
    for file in files:
        for declaration in file.declarations:
            for name in declaration.names:
                by_name.setdefault(name, []).append(declaration)
    kernels = [d for file in files for d in file.declarations if d.kernel and (entry is None or entry in d.names)]
    operators = [d for d in by_name.get("operator", ()) if d.device]
    kept: set[int] = set()
    seen: set[str] = set()
    left = [*kernels, *operators]
    for name in _WORD.findall(spelled):
        left += _meant(by_name.get(name, ()), host_functions=host_functions)
    while left:
        declaration = left.pop()
        if id(declaration) in kept:
            continue
        kept.add(id(declaration))
        for name in declaration.mentions - seen:
            seen.add(name)
            left += _meant(by_name.get(name, ()), host_functions=host_functions)
    return kept


def _meant(declarations: Iterable[Declaration], *, host_functions: bool) -> Iterator[Declaration]:
    """Yield the declarations of one name that device code may refer to."""
    declarations = list(declarations)
    marked = any(d.device and d.kind in {"function", "variable"} and (d.body or d.prototype) for d in declarations)
    for declaration in declarations:
        function = declaration.body or (declaration.prototype and declaration.kind == "variable")
        if not function or declaration.device or (host_functions and not marked):
            yield declaration


def device_text(file: File, kept: set[int], *, host_functions: bool) -> tuple[str, list[Declaration]]:
    """Return the text of a file with blanks in place of other declarations, so that line numbers do not change.

    The second value are the declarations that were kept.
    """
    spans: list[tuple[int, int]] = []
    dropped: list[Declaration] = []
    # Declarations of one macro invocation have one start, and are kept or omitted together.
    starts = {declaration.start for declaration in file.declarations if id(declaration) in kept}
    for declaration in file.declarations:
        if declaration.kind == "macro" or (declaration.kind == "using" and not _of_host(declaration)):
            continue
        if id(declaration) not in kept:
            if declaration.start in starts:
                continue
            spans.append((declaration.start, declaration.end))
            dropped.append(declaration)
        elif not host_functions:
            spans += _host_members(declaration)
    blanked = list(file.text)
    for start, end in spans:
        blanked[start:end] = [c if c in "\r\n" else " " for c in blanked[start:end]]
    for token in file.directives:
        if _STAYS.match(token.text) is not None:
            blanked[token.start : token.end] = token.text
    return "".join(blanked), dropped


def _of_host(using: Declaration) -> bool:
    """Tell whether ``using namespace`` names one that only host headers have: std::chrono, std::literals."""
    return "std" in using.mentions and not using.mentions <= {"using", "namespace", "std", "cuda"}


def _host_members(declaration: Declaration) -> Iterator[tuple[int, int]]:
    for member in declaration.members:
        if host_member(member):
            yield member.start, member.end
        else:
            yield from _host_members(member)


def summary(dropped: Sequence[Declaration]) -> str:
    """Describe the omitted declarations, or return "" if none is worth mentioning.

    >>> summary([Declaration("function", 0, 1, ("main",), frozenset(), body=True)])
    'host code: main'
    """
    names = list(
        dict.fromkeys(d.names[0] for d in dropped if d.kind == "function" and d.names and d.body and not d.device)
    )
    if not names:
        return ""
    shown = ", ".join(names[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    return f"host code: {shown}" + (f" and {more} more" if more > 0 else "")
