"""All ladders, by name, in the order in which they are listed.

A ladder is a folder: its rungs (``rungs.py``), its problems and the libraries to compare with (``subject.py``), and a
``.cuh`` for each rung. The command line, the runners, the tables, the plots and the pages read this table.
"""

from __future__ import annotations

from typing import Any

from matmill.ladders.hgemm.subject import LADDER as HGEMM
from matmill.ladders.inner.subject import LADDER as INNER
from matmill.ladders.memory.subject import LADDER as MEMORY
from matmill.ladders.runner.ladder import Ladder
from matmill.ladders.sgemm.subject import LADDER as SGEMM
from matmill.ladders.transpose_add.subject import LADDER as TRANSPOSE_ADD

LADDERS: dict[str, Ladder[Any]] = {ladder.name: ladder for ladder in (SGEMM, HGEMM, MEMORY, INNER, TRANSPOSE_ADD)}
