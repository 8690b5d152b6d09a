"""The launch of the paper's rungs, which the paper leaves open: the user's or the emulator's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from matmill.arch import Arch
from matmill.config import Config
from matmill.errors import ArgumentError
from matmill.kernel import Rung
from matmill.ladders.documents import PAPER
from matmill.problem import Gemm

#: Constants of the paper's rungs in the emulator. With enough blocks to fill a GPU no thread would have a second term,
#: and a thread's segment would look like a stride.
EMULATED_LAUNCH = {"GS": 16}
_MOST_BLOCKS = 2**31 - 1


def of_paper(rungs: Sequence[Rung[Gemm]]) -> list[Rung[Gemm]]:
    """Return the rungs from the paper, which leaves their launch open."""
    return [rung for rung in rungs if rung.source == PAPER]


def launched(rungs: Sequence[Rung[Gemm]], constants: Mapping[str, int]) -> tuple[tuple[Rung[Gemm], ...], str]:
    """Return ``rungs``, the paper's launched with ``constants`` (GS, BS), and a note about these, if there are any."""
    papers = of_paper(rungs)
    if not constants or not papers:
        return tuple(rungs), ""
    text = ", ".join(f"{name} = {value}" for name, value in constants.items())
    result = tuple(_with_constants(rung, constants) if rung in papers else rung for rung in rungs)
    return result, f"{', '.join(rung.label for rung in papers)}: launched with {text}"


def for_emulator(rungs: Sequence[Rung[Gemm]], **constants: int) -> tuple[tuple[Rung[Gemm], ...], str]:
    """Return :func:`launched`, with the emulator's defaults for constants that are not in ``constants``."""
    return launched(rungs, {**EMULATED_LAUNCH, **constants})


def paper_launch(
    rungs: Sequence[Rung[Gemm]], given: Mapping[str, int], on: Literal["gpu", "emulator"]
) -> tuple[Sequence[Rung[Gemm]], tuple[str, ...]]:
    """Return the rungs to run ``on`` a GPU or the emulator, the paper's with ``given`` GS and BS, and notes about them.

    Raises :class:`~matmill.errors.ArgumentError` if no rung takes them, or no GPU.
    """
    _check_launch(given, of_paper(rungs))
    result, note = for_emulator(rungs, **given) if on == "emulator" else launched(rungs, given)
    return result, (note,) if note else ()


def _check_launch(given: Mapping[str, int], papers: Sequence[Rung[Gemm]]) -> None:
    if not given:
        return
    if not papers:
        raise ArgumentError(
            argument=f"--{next(iter(given)).lower()}",
            got="rungs that choose their own launch",
            wanted="basic or phvm among --rungs",
            fix="Name one of them, or omit the option.",
        )
    bs, gs = given.get("BS", 32), given.get("GS", 1)
    if bs % 32 or bs > 1024:
        raise ArgumentError(
            argument="--bs", got=str(bs), wanted="a multiple of 32, at most 1024", fix="Blocks are whole warps."
        )
    if gs > _MOST_BLOCKS:
        raise ArgumentError(argument="--gs", got=str(gs), wanted=f"at most {_MOST_BLOCKS}", fix="Take fewer blocks.")


def _with_constants(rung: Rung[Gemm], constants: Mapping[str, int]) -> Rung[Gemm]:
    """Return ``rung`` with some of its constants fixed for every problem."""

    def tune(problem: Gemm, arch: Arch) -> Config:
        return rung.kernel_for(problem, arch).config.replace(**constants)

    return replace(rung, tune=tune)
