"""Legal configurations with their predictions, their rounds of work tiles, and descriptions of both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matmill.arch import Arch
from matmill.choose import call_seconds
from matmill.config import Config
from matmill.kernel import Kernel, Prediction, Production, ceil_div
from matmill.kernels.pieces import method
from matmill.kernels.repack.copies import repacked
from matmill.problem import Geam, Gemm


@dataclass(frozen=True)
class Waves:
    """Rounds of work tiles: ``slots`` of the ``tiles`` are computed at a time, a share of that in the last round.

    ``last`` is that share. ``useful`` is the share of all SMs' FMAs in these rounds that computes outputs of D: the
    rest is for parts of tiles outside D, or is lost on SMs without a tile in the last round. ``cluster`` is the number
    of blocks that share a tile, or have neighbouring ones.
    """

    tiles: int
    slots: int
    rounds: int
    last: float
    useful: float
    cluster: int = 1

    @property
    def words(self) -> str:
        """The rounds in words."""
        if self.rounds == 1:
            where = "SMs" if self.cluster == 1 else "clusters of SMs"
            return f"one round of {self.tiles} tiles on {self.slots} {where}"
        return f"{self.rounds} rounds of tiles, the last {self.last:.0%} full"


@dataclass(frozen=True)
class Candidate:
    """A legal configuration and its prediction: the GPU's seconds, those of a call in a row, and the model's terms.

    ``bound`` and the names of ``terms`` are those of the kernel's cost model. Only kernels that compute tiles of D have
    ``waves``. ``pace`` are the cycles of a k-step by unit, if the model has them. ``workspace`` is in bytes.
    """

    kernel: Kernel[Any]
    seconds: float
    call_seconds: float
    bound: str
    terms: Mapping[str, float]
    pace: Mapping[str, float]
    waves: Waves | None
    workspace: int
    launches: int

    @property
    def config(self) -> Config:
        """The kernel's constants."""
        return self.kernel.config


def candidates(
    entries: Sequence[Production[Any]], problem: Gemm | Geam, arch: Arch
) -> tuple[list[Candidate], dict[str, str]]:
    """Return all legal configurations, those with the fastest calls first, and the reason against each other one."""
    legal, ruled_out = [], {}
    for entry in entries:
        for config in entry.space(problem, arch):
            kernel = entry.kernel.with_config(config)
            reason = kernel.why_not(problem, arch)
            if reason is not None:
                ruled_out[f"{kernel.entry} ({config})"] = reason
                continue
            prediction = entry.explain(problem, config, arch)
            legal.append(
                Candidate(
                    kernel,
                    prediction.seconds,
                    call_seconds(kernel, problem, prediction.seconds),
                    prediction.bound,
                    _terms(prediction),
                    prediction.pace,
                    waves(kernel, problem, arch),
                    kernel.workspace(problem),
                    kernel.count_launches(problem),
                )
            )
    return sorted(legal, key=lambda one: (one.call_seconds, one.seconds)), ruled_out


def _terms(prediction: Prediction) -> dict[str, float]:
    """Return the finite terms of a prediction: some are infinite for an empty problem."""
    return {name: value for name, value in prediction.terms.items() if math.isfinite(value)}


def waves(kernel: Kernel[Any], problem: Gemm | Geam, arch: Arch) -> Waves | None:
    """Return the rounds in which the GPU computes the tiles of D, or None for a kernel without tiles of D.

    >>> from matmill.arch import get
    >>> from matmill.registry import PRODUCTION
    >>> waves(PRODUCTION[0].kernel, Gemm(1024, 1024, 64), get("h200"))
    Waves(tiles=32, slots=132, rounds=1, last=0.24242424242424243, useful=0.24242424242424243, cluster=1)
    """
    if kernel.work_tiles is None or not isinstance(problem, Gemm):
        return None
    config = kernel.config
    tiles, blocks = kernel.work_tiles(problem, config)
    slots = arch.sms // blocks
    rounds = ceil_div(tiles, slots)
    computable = rounds * slots * blocks * config.get("PRODUCTS", 1) * config["BM"] * config["BN"]
    # The blocks of a cluster with slices of one tile's k compute it together.
    useful = problem.batch * problem.m * problem.n * slices(config) * config.get("CLUSTER_K", 1) / computable
    return Waves(tiles, slots, rounds, (tiles - (rounds - 1) * slots) / slots, useful, blocks)


def slices(config: Config) -> int:
    """Return the number of split-K slices."""
    return config.get("SPLIT_K", 1)


def tile(one: Candidate) -> tuple[object, ...]:
    """Return the constants that make up a configuration's tile, or all constants for a kernel without tiles of D."""
    if one.waves is None:
        return one.config.constants
    names = (
        "PRODUCTS",
        "BM",
        "BN",
        "BK",
        "TM",
        "TN",
        "STAGES",
        "PINGPONG",
        "CLUSTER_M",
        "CLUSTER_N",
        "CLUSTER_K",
        "WARPS_M",
        "WARPS_N",
        "SLICES",
    )
    return tuple(one.config.get(name) for name in names)


def exchanged(one: Candidate) -> int:
    """Return 1 if A and B are exchanged."""
    return one.config.get("EXCHANGED")


def copied(config: Config) -> tuple[str, ...]:
    """Return the caller's matrices that a configuration repacks."""
    names = repacked(config)
    return tuple(sorted("AB"["BA".index(name)] for name in names)) if config.get("EXCHANGED") else names


def in_registers(config: Config) -> str:
    """Return the caller's matrix that goes through registers, or nothing."""
    if not config.get("A_IN_REGISTERS"):
        return ""
    return "B" if config.get("EXCHANGED") else "A"


def label(config: Config) -> str:
    """Return the description of a configuration that computes tiles of D.

    With ``exchanged`` the tile is one of D's transpose, which is B's transpose times A's.

    >>> from matmill.registry import PRODUCTION
    >>> label(PRODUCTION[0].kernel.config.launched(SPLIT_K=4))
    '128x256x8, 2x4 warps, split-K 4'
    """
    if "BK" not in config:  # all of k
        return _of_all_k(config)
    text = "x".join(str(config[name]) for name in ("BM", "BN", "BK"))
    cluster = config.get("CLUSTER_M", 1), config.get("CLUSTER_N", 1)
    parts = [
        f"{text} pingpong" if config.get("PINGPONG") else text,
        f"{config['WARPS_M']}x{config['WARPS_N']} warps" if config.get("WARPS_M") else "",
        f"clusters of {cluster[0]}x{cluster[1]}" if cluster != (1, 1) else "",
        "exchanged" if config.get("EXCHANGED") else "",
        f"split-K {config['CLUSTER_K']} in clusters" if config.get("CLUSTER_K", 1) > 1 else "",
        f"split-K {slices(config)}" if slices(config) > 1 else "",
        f"{' and '.join(copied(config))} repacked" if copied(config) else "",
        f"{in_registers(config)} through registers" if in_registers(config) else "",
        f"A and B in pieces by {method(config)}" if config.get("PIECES") else "",
    ]
    return ", ".join(part for part in parts if part)


def _of_all_k(config: Config) -> str:
    """Return the description of a configuration whose work tiles have all of k; tiles from 16 rows on are warps'."""
    products = f"{config['PRODUCTS']} products of " if config["PRODUCTS"] > 1 else ""
    who, threads = ("warps", config["THREADS"] // 32) if config["TM"] >= 16 else ("threads", config["THREADS"])
    stages = "two stages" if config["STAGES"] == 2 else "one stage"
    return f"{products}{config['BM']}x{config['BN']}, {threads} {who} of {config['TM']}x{config['TN']}, {stages}"


def described(one: Candidate, chosen: Candidate) -> str:
    """Return the description of a configuration, or the constants in which it differs if it has no tile."""
    same_kernel = one.kernel.entry == chosen.kernel.entry
    if one.waves is not None and (one is chosen or not same_kernel or label(one.config) != label(chosen.config)):
        return label(one.config)
    if not same_kernel:
        return "its best"
    own, other = ([*candidate.config.constants, *candidate.config.launch] for candidate in (one, chosen))
    return " ".join(f"{name}={number}" for name, number in own if (name, number) not in other)
