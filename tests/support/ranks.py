"""Processes of one process group: each runs the same cases and writes down how each of them ended.

They are forked from one process that has imported torch, which takes seconds, and has touched no GPU. A case is a
function of a :class:`Ranks`. What it raises is written down, and the rank goes on with the next case: cases must fail
on all ranks or on none, or else the others wait until the group's timeout.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray

#: A collective that takes longer than this has failed.
TIMEOUT_S = 60
#: Where a rank is expected to end: how long the others wait at most.
SHORT_TIMEOUT_S = 10


@dataclass(frozen=True)
class Ranks:
    """One rank among those of its group, and where its tensors are."""

    rank: int
    world: int
    backend: str
    device: Any

    @property
    def group(self) -> Any:
        """All ranks."""
        return dist.group.WORLD

    def tensor(self, array: NDArray[Any]) -> Any:
        """Return a copy of an array, on this rank's device."""
        array = np.ascontiguousarray(array)
        if array.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16).to(self.device)
        return torch.from_numpy(array.copy()).to(self.device)

    def same_everywhere(self, x: Any) -> bool:
        """Tell whether all ranks have the same bits."""
        own = x.contiguous().view(torch.uint8).reshape(-1)
        others = [torch.empty_like(own) for _ in range(self.world)]
        dist.all_gather(others, own)
        return all(torch.equal(own, other) for other in others)


def host(x: Any) -> NDArray[Any]:
    """Return a tensor as an array of NumPy's, bfloat16 too."""
    x = x.detach().cpu().contiguous()
    array: NDArray[Any] = (
        x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()
    )
    return array


Case = Callable[[Ranks], None]


def run(
    cases: Sequence[Case], *, world: int, backend: str, folder: Path, limit: float, ends: int | None = None
) -> list[dict[str, Any]]:
    """Return what the ranks wrote down.

    Ranks that have not ended within ``limit`` seconds are killed, and get a row that says so; so do those that end
    otherwise than they should, but for the rank ``ends``.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    processes: list[BaseProcess] = [
        context.Process(target=_rank, args=(cases, rank, world, backend, port, folder)) for rank in range(world)
    ]
    for process in processes:
        process.start()
    deadline = time.monotonic() + limit
    rows: list[dict[str, Any]] = []
    for rank, process in enumerate(processes):
        process.join(max(0.0, deadline - time.monotonic()))
        file = folder / f"rank{rank}.jsonl"
        rows += map(json.loads, file.read_text(encoding="utf-8").splitlines()) if file.exists() else []
        error = f"ended with code {process.exitcode}" if process.exitcode and rank != ends else ""
        if process.is_alive():
            error = f"did not end within {limit} s"
            process.kill()
            process.join()
        if error:
            rows.append({"case": "end", "rank": rank, "error": error, "seconds": limit})
    return rows


def refused(kind: type[Exception], call: Callable[[], Any], *words: str) -> None:
    """Assert that a call raises an error of that kind, with these words in its message."""
    with pytest.raises(kind) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def die() -> None:
    """End this process at once, as a fault or the kernel's memory killer would."""
    os.kill(os.getpid(), signal.SIGKILL)


def _rank(  # noqa: PLR0917 — a process's arguments
    cases: Sequence[Case], rank: int, world: int, backend: str, port: int, folder: Path
) -> None:
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=TIMEOUT_S),
        device_id=device if device.type == "cuda" else None,
    )
    ranks = Ranks(rank, world, backend, device)
    with (folder / f"rank{rank}.jsonl").open("a", encoding="utf-8") as file:
        for case in cases:
            started, error = time.monotonic(), ""
            try:
                case(ranks)
            except Exception:  # noqa: BLE001 — whatever it was, it is the case's result
                error = traceback.format_exc()
            row = {"case": case.__name__, "rank": rank, "error": error, "seconds": time.monotonic() - started}
            file.write(json.dumps(row) + "\n")
            file.flush()
    # The group is not destroyed: that waits for the other ranks, which may be gone.
    os._exit(0)
