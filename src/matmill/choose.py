"""Choose the kernel and configuration that should run a problem on an arch, with the reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from math import inf, isnan
from operator import itemgetter
from typing import Any, Generic

import numpy as np

from matmill.arch import Arch, get
from matmill.config import Columns, Tiles
from matmill.covering import covering
from matmill.errors import IllegalConfigError
from matmill.kernel import Kernel, P, Production
from matmill.lowering import MOST_BATCHES, SubProblem, split_batch
from matmill.problem import Geam, Gemm
from matmill.registry import COMPLEX, IN_SLICES, KERNELS_OF, PRODUCTION, TRANSPOSE_ADD_KERNELS

#: Seconds of host time until a call's first launch, and for each further launch, measured with an H200. A GPU that is
#: faster waits for the host.
_FIRST, _FURTHER = 10e-6, 5e-6
#: Calls within this factor of the fastest count as equal: saving a third of the GPU's time is worth 6% more host time.
ALIKE = 1.07
#: A long product that takes so many times its least seconds is chosen among all configurations: sizes that no drawn
#: product had may be slow with the tiles of the others.
_LONG, _FAR = 12e-6, 1.5
#: What least seconds are multiplied with, so that rounding rules nothing out.
_ROUNDED = 1 - 1e-9


@dataclass(frozen=True)
class Choice(Generic[P]):
    """A kernel with its constants.

    ``predicted_seconds`` is the GPU's time by the cost model. ``explain`` returns :attr:`reasons`, which take
    longer than the choice.
    """

    kernel: Kernel[P]
    predicted_seconds: float
    explain: Callable[[], tuple[str, ...]] = field(default=tuple, compare=False, repr=False)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons why others were ruled out, and why this kernel was chosen."""
        return self.explain()


@lru_cache(maxsize=1024)
def choose(problem: Gemm, arch: Arch | str, *, exhaustive: bool = False) -> Choice[Gemm]:
    """Choose the best legal production kernel for a product on ``arch``, an :class:`~matmill.arch.Arch` or its name.

    It is among the few of the covering set (:mod:`matmill.covering`), or with ``exhaustive`` among all, as are long
    products that are far slower than the data sheet allows. What a measurement preferred (:func:`prefer`) counts in
    either case.

    Raises :class:`~matmill.errors.IllegalConfigError`, with every reason, where none is legal, and
    :class:`~matmill.errors.UnknownNameError` for a name of no GPU.

    >>> choose(Gemm(4096, 3, 10**6), "h200").kernel.entry == choose(Gemm(4096, 3, 10**6), get("h200")).kernel.entry
    True
    """
    arch = get(arch) if isinstance(arch, str) else arch
    return _measured(entries(problem), problem, arch) or choose_by_models(problem, arch, exhaustive=exhaustive)


def choose_by_models(problem: Gemm, arch: Arch, *, exhaustive: bool = False) -> Choice[Gemm]:
    """Choose as :func:`choose` does, whatever a measurement preferred."""
    tiles = None if exhaustive else covering(problem, arch)
    choice = choose_from(entries(problem), problem, arch, tiles)
    if tiles is not None and choice.predicted_seconds > max(_LONG, _FAR * _least_seconds(problem, arch)):
        return choose_from(entries(problem), problem, arch)
    return choice


def _least_seconds(problem: Gemm, arch: Arch) -> float:
    """Return the time of the least bytes, or of all operations, at the data sheet's rates: whichever is longer."""
    name = "tf32" if problem.precision == "tf32" else problem.dtype.name
    if problem.dtype.itemsize == 1:  # of tensor cores, which a data sheet names for 16 bits
        name = "float16"
    flops = arch.matrix_flops.get(name, arch.peak(problem.dtype.accumulator.name))
    return max(problem.least_bytes / arch.dram_bytes_per_s, problem.flops / flops)


@lru_cache(maxsize=1024)
def choose_transpose_add(problem: Geam, arch: Arch) -> Choice[Geam]:
    """Choose as :func:`choose` does, for a transpose-add."""
    return _measured(TRANSPOSE_ADD_KERNELS, problem, arch) or choose_from(TRANSPOSE_ADD_KERNELS, problem, arch)


@dataclass(frozen=True)
class Preference:
    """A configuration that a measurement preferred: the kernel's name, its constants as text, and seconds.

    ``first_seconds`` is what the model's first choice took in the same measurement.
    """

    entry: str
    config: str
    seconds: float
    first_seconds: float


#: Preferences by arch and :func:`problem_text`.
_preferences: dict[Arch, dict[str, Preference]] = {}


def problem_text(problem: Any) -> str:
    """Return a Gemm or Geam as one line of text, which two different problems never share.

    >>> problem_text(Gemm(2, 3, 4, a_strides=(1, 2)))
    '2x3x4 float32, a_strides=(1, 2)'
    """
    shown = {"m", "n", "k", "batch", "dtype"}
    other = ((field, getattr(problem, field.name)) for field in fields(problem) if field.name not in shown)
    parts = (f"{field.name}={getattr(value, 'name', value)}" for field, value in other if value != field.default)
    return ", ".join((str(problem), *parts))


def prefer(problem: Gemm | Geam, arch: Arch, preference: Preference | None) -> None:
    """Let ``choose`` return a measured configuration for exactly this problem on ``arch``, or with None the model's.

    Plans that were prepared before keep theirs: see :func:`matmill.dispatch.plan_cache.forget_plans`.
    """
    if preference is None:
        _preferences.get(arch, {}).pop(problem_text(problem), None)
        _forget_choices()
    else:
        prefer_all(arch, {problem_text(problem): preference})


def prefer_all(arch: Arch, preferences: Mapping[str, Preference]) -> None:
    """Do as :func:`prefer` for many problems, each by its :func:`problem_text`."""
    _preferences.setdefault(arch, {}).update(preferences)
    _forget_choices()


def forget() -> None:
    """Drop all preferences: the models choose again."""
    _preferences.clear()
    _forget_choices()


def _forget_choices() -> None:
    choose.cache_clear()
    choose_transpose_add.cache_clear()


def _measured(entries: Sequence[Production[P]], problem: P, arch: Arch) -> Choice[P] | None:
    """Return the preferred choice, or None without one, or if no kernel has such a legal configuration any more."""
    known = _preferences.get(arch)
    preference = known.get(problem_text(problem)) if known else None
    if preference is None:
        return None
    for entry in entries:
        if entry.kernel.entry != preference.entry:
            continue
        for config in entry.space(problem, arch):
            if str(config) == preference.config:
                kernel = entry.kernel.with_config(config)
                if kernel.why_not(problem, arch) is not None:
                    return None
                (predicted,) = entry.predict(problem, [config], arch)
                first = preference.first_seconds
                other = "did not run" if first == inf else f"took {_us(first)}"
                words = f"measured on this GPU: {_us(preference.seconds)}, the model's first {other}"
                return Choice(kernel, predicted, _saying(f"{kernel.entry} ({config}): {words}"))
    return None


def _saying(*reasons: str) -> Callable[[], tuple[str, ...]]:
    return lambda: reasons


def fit_batches(stages: Sequence[SubProblem[Any]], arch: Arch) -> tuple[SubProblem[Any], ...]:
    """Split batches that exceed a grid's second dimension, unless a kernel takes them whole in less time.

    Persistent kernels take any batch at once; the others are limited by the grid's extent. Of two ways to compute the
    same (:attr:`SubProblem.instead`) the one of less time is taken.
    """
    fitting: list[SubProblem[Any]] = []
    for stage in stages:
        if stage.instead:
            own, other = (fit_batches(way, arch) for way in ((replace(stage, instead=()),), stage.instead))
            fitting += own if stages_seconds(own, arch) <= stages_seconds(other, arch) else other
            continue
        if not isinstance(stage.problem, Gemm) or stage.problem.batch <= MOST_BATCHES:
            fitting.append(stage)
            continue
        runs = tuple(split_batch(stage))
        fitting += runs if stages_seconds(runs, arch) < stages_seconds((stage,), arch) else (stage,)
    return tuple(fitting)


def stages_seconds(stages: Sequence[SubProblem[Any]], arch: Arch) -> float:
    """Predict the seconds of all launches of a call, one after the other; infinite where no kernel takes a stage."""
    seconds = 0.0
    for stage in stages:
        try:
            choice: Choice[Any] = choose_stage(stage, arch)
        except IllegalConfigError:
            return inf
        seconds += call_seconds(choice.kernel, stage.problem, choice.predicted_seconds, len(stage.offsets))
    return seconds


def choose_stage(stage: SubProblem[Any], arch: Arch) -> Choice[Any]:
    """Choose the kernel for a stage of any operation."""
    problem = stage.problem
    if isinstance(problem, Gemm):
        return choose(problem, arch)
    if isinstance(problem, Geam):
        return choose_transpose_add(problem, arch)
    return choose_from(entries(problem), problem, arch)


def choose_usable(
    problem: Any, arch: Arch, usable: Callable[[Kernel[Any], Any], bool], enough: float = 0.0
) -> Choice[Any] | None:
    """Choose among the kernels for which ``usable(kernel, problem)`` is true; None without any.

    The general one is among them, unless another takes no more than ``enough`` seconds.
    """
    choices: list[Choice[Any]] = []
    with suppress(IllegalConfigError):
        tiles = covering(problem, arch) if isinstance(problem, Gemm) else None
        choices.append(choose_from(entries(problem), problem, arch, tiles, usable=usable))
    if not choices or choices[0].predicted_seconds > enough:
        general = choose_general(problem, arch)
        if general is not None and usable(general.kernel, problem):
            choices.append(general)
    return min(choices, key=lambda choice: choice.predicted_seconds, default=None)


def choose_general(problem: Any, arch: Arch) -> Choice[Any] | None:
    """Choose the kernel that takes most problems of the same element type, or None without one."""
    for entry in entries(problem):
        config = None if entry.general is None else entry.general(problem, arch)
        if config is not None and entry.kernel.with_config(config).why_not(problem, arch) is None:
            (predicted,) = entry.predict(problem, [config], arch)
            return Choice(entry.kernel.with_config(config), predicted, _saying("takes what others do not"))
    return None


def entries(problem: Any) -> Sequence[Production[Any]]:
    """Return the kernels that may run a problem."""
    if isinstance(problem, Gemm):
        if problem.dtype.part is not None:
            return COMPLEX
        return IN_SLICES if problem.slice_k else PRODUCTION
    return KERNELS_OF[type(problem)]


def choose_from(
    candidates: Sequence[Production[P]],
    problem: P,
    arch: Arch,
    tiles: Mapping[str, Tiles] | None = None,
    *,
    usable: Callable[[Kernel[P], P], bool] | None = None,
) -> Choice[P]:
    """Choose among ``candidates``, as :func:`choose` does: the legal configuration with the least time per call.

    For calls in a row this is the GPU's or the host's time, whichever is longer (:func:`call_seconds`). Among about
    equal calls, such as those limited by the host, the configuration with the least GPU time wins.

    ``tiles`` are those to choose among, by kernel, with all of a kernel that it lacks. Where none of them is legal, or
    for None, all are considered. With ``usable`` only kernels for which it is true count, and none beside ``tiles``.
    """
    alike = _fastest(candidates, problem, arch, tiles, usable)
    if not alike and tiles is not None and usable is None:
        tiles = None
        alike = _fastest(candidates, problem, arch, tiles)
    if not alike:
        ruled_out = ["no other is usable"] if usable else _judged(candidates, problem, arch)[0]
        raise IllegalConfigError(
            argument="problem",
            got=f"{problem} on {arch.title}",
            wanted="a problem that one of the production kernels takes",
            fix="Ruled out: " + ("; ".join(ruled_out) or "no kernel has a configuration for it") + ".",
        )
    least, call, _index, best = min(alike, key=itemgetter(0, 1, 2))
    if usable is not None:
        return Choice(best, least, _saying(f"{best.entry} ({best.config}): {_us(least)} predicted, the least usable"))

    def explain() -> tuple[str, ...]:
        reasons, legal = _judged(candidates, problem, arch)
        less = min(legal)  # seconds of the configurations that take the host longer
        each, other = ("", "") if less == least else (f", {_us(call)} a call", f"; {_us(less)} with one launch more")
        number = f"{len(legal)} legal configurations"
        if tiles is not None:
            whole = choose_from(candidates, problem, arch).predicted_seconds
            each = f", {_us(call)} a call" if call > least else ""
            count = len(list(legal_among(candidates, problem, arch, tiles)))
            number = f"{count} legal configurations of the covering set"
            other = f"; the choice among all {len(legal)} takes {_us(whole)}" if whole < least else ", and of all"
        words = f"{_us(least)} predicted{each}, the least of {number}{other}"
        return (*reasons, f"{best.entry} ({best.config}): {words}")

    return Choice(best, least, explain)


#: Seconds, those of a call, the order among equals (a candidate and its configuration), and a kernel.
_Ranked = tuple[float, float, tuple[int, int], Kernel[P]]


def _fastest(
    candidates: Sequence[Production[P]],
    problem: P,
    arch: Arch,
    tiles: Mapping[str, Tiles] | None,
    usable: Callable[[Kernel[P], P], bool] | None = None,
) -> list[_Ranked[P]]:
    """Return legal configurations with about the least time per call; few others are asked whether they are legal.

    Kernels that no configuration makes fast enough (:attr:`Production.least`) are left out.
    """
    fastest: list[_Ranked[P]] = []
    quickest = enough = inf  # seconds of the quickest call, and beyond which no configuration is the choice
    for least, number in _by_least(candidates, problem, arch, tiles):
        if least > enough:
            break
        candidate = candidates[number]
        columns = considered(candidate, problem, arch, tiles)
        if not len(columns):
            continue
        with np.errstate(all="ignore"):  # models know legal configurations
            predictions = [inf if isnan(seconds) else seconds for seconds in candidate.predict(problem, columns, arch)]
        calls: list[float] = []
        least_call = inf
        for row in sorted(range(len(columns)), key=predictions.__getitem__):
            seconds = predictions[row]
            if seconds > enough:
                break
            if least_call < inf:  # only a call with fewer launches may be better
                calls = calls or _calls(candidate.kernel, problem, columns, predictions)
                if calls[row] >= least_call:
                    continue
            kernel = candidate.kernel.with_config(columns.config(row))
            is_legal = len(columns) == 1 or kernel.why_not(problem, arch) is None
            if is_legal and (usable is None or usable(kernel, problem)):
                call = call_seconds(kernel, problem, seconds)
                fastest.append((seconds, call, (number, row), kernel))
                least_call, quickest = call, min(quickest, call)
                enough = min(enough, ALIKE * call)
                if call <= max(seconds, _FIRST):  # no slower one takes the host less
                    enough = min(enough, seconds)
                    break
    return [one for one in fastest if one[1] <= ALIKE * quickest]


def _calls(kernel: Kernel[P], problem: P, columns: Columns, seconds: list[float]) -> list[float]:
    """Return :func:`call_seconds` of many configurations."""
    launches = kernel.launches_with(problem, columns)
    calls: list[float] = np.maximum(seconds, _FIRST + _FURTHER * (launches - 1)).tolist()
    return calls


def _by_least(
    candidates: Sequence[Production[P]], problem: P, arch: Arch, tiles: Mapping[str, Tiles] | None
) -> list[tuple[float, int]]:
    """Return the seconds that none of a candidate's configurations undercuts, and its number, the least first.

    Those without tiles are left out.
    """
    return sorted(
        (0.0 if candidate.least is None else _ROUNDED * candidate.least(problem, arch), number)
        for number, candidate in enumerate(candidates)
        if _own(candidate, tiles) != frozenset()
    )


def considered(candidate: Production[P], problem: P, arch: Arch, tiles: Mapping[str, Tiles] | None = None) -> Columns:
    """Return the configurations of one kernel that are considered: none where a single one stands for a reason."""
    columns = candidate.columns(problem, arch, _own(candidate, tiles))
    alone = len(columns) == 1 and candidate.kernel.with_config(columns.config(0)).why_not(problem, arch) is not None
    return Columns(()) if alone else columns


def legal_among(
    candidates: Sequence[Production[P]], problem: P, arch: Arch, tiles: Mapping[str, Tiles] | None
) -> Iterator[Kernel[P]]:
    """Yield the kernels with each legal configuration among ``tiles``."""
    for candidate in candidates:
        yield from candidate.legal(problem, arch, _own(candidate, tiles))


def _own(candidate: Production[P], tiles: Mapping[str, Tiles] | None) -> Tiles | None:
    """Return a kernel's part of ``tiles``, or None where all of its configurations are considered."""
    return None if tiles is None else tiles.get(candidate.kernel.entry)


def _judged(candidates: Sequence[Production[P]], problem: P, arch: Arch) -> tuple[list[str], list[float]]:
    """Return why configurations are ruled out, and the predicted seconds of the legal ones."""
    reasons: list[str] = []
    seconds: list[float] = []
    for candidate in candidates:
        legal = []
        for config in candidate.space(problem, arch):
            kernel = candidate.kernel.with_config(config)
            reason = kernel.why_not(problem, arch)
            if reason is None:
                legal.append(config)
            else:
                reasons.append(f"{kernel.entry} ({config}): {reason}")
        seconds += candidate.predict(problem, legal, arch)
    return reasons, seconds


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"


def call_seconds(kernel: Kernel[P], problem: P, seconds: float, times: int = 1) -> float:
    """Return the seconds per call of many calls in a row: the GPU's ``seconds`` or the host's, whichever is longer.

    A call solves ``problem`` ``times`` times, each time at other addresses.
    """
    return max(times * seconds, _FIRST + _FURTHER * (times * kernel.count_launches(problem) - 1))
