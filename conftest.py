"""Which files of the tree are not collected here: those that import a library that is optional and not installed."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("torch") else ["src/matmill/torch"]
