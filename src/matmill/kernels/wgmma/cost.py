"""How long a product takes in the warp-specialised kernel of ``kernels/wgmma``.

The time of a launch is a constant, and two terms that overlap, of which the larger decides: the least bytes over the
bandwidth that reading reaches, and the work tiles of the busiest SM. A k-step takes as long as the slowest of five
things that go on at the same time (``pace``): tensor cores multiply, shared memory delivers operands and takes the
next ones, L2 delivers these, their latency passes, and a warp group issues its products one after another. Filling the
pipeline once, the first meeting of a cluster's blocks, and each tile's epilogue come on top; two consumers that
alternate hide most of all but the last epilogue. So do the launch that repacks matrices and the one that adds split-K
partial sums.

:class:`Demand` counts what a product asks of the GPU with a configuration; :class:`Constants` say what that costs.
``benchmarks/fit_model.py`` fits them to what was measured of every tile, and by ``shapes.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from matmill.arch import Arch
from matmill.config import Config, Configs
from matmill.kernel import ceil_div
from matmill.kernels.pieces.cost import Splitting, pieces_of
from matmill.kernels.repack.copies import RepackedMatrix, repacked, repacked_matrix
from matmill.kernels.repack.cost import Repacking, repacking_of
from matmill.kernels.shared.exchange import as_launched, launched_extents
from matmill.kernels.shared.model import PRICES, Prediction, Prices, for_each, load_constants, of_tiles, overlapped
from matmill.kernels.shared.tiled import VECTOR_BYTES
from matmill.kernels.splitk.cost import Reduction
from matmill.kernels.wgmma.tiles import (
    K_BYTES,
    ROWS,
    SPAN,
    as_multiplied,
    boxed,
    cluster_blocks,
    clusters_at_once,
    runs,
)
from matmill.problem import Gemm


@dataclass(frozen=True)
class Constants:
    """What the model does not derive. Times in seconds, the rest in cycles of an SM or shares of a data sheet's."""

    #: Seconds before the first stage is requested: tensor maps and barriers; until the blocks of a cluster have met.
    start: float
    meeting: float
    #: Share of the data sheet's bandwidth that reading reaches.
    read_share: float
    #: Share of the tensor cores' rate at the boost clock: an H200's power allows 866 to 897 of 989 TFLOP/s.
    mma_share: float
    #: Bytes per clock that shared memory delivers and takes, and that L2 delivers to each SM.
    shared_bytes: float
    l2_bytes: float
    #: Cycles from one narrow product of a warp group to the next.
    issue: float
    #: What is added to the bytes of rows that straddle cache lines, as a share of them: K-major ones, MN-major ones.
    straddle: float
    mn_straddle: float
    #: Cycles from the request of a stage to its arrival.
    latency: float
    #: Cycles of a tile's epilogue: alone, per 1024 outputs through staging and TMA, through staging and ordinary
    #: stores, stored directly, and where all its rows are one run.
    tile: float
    staged: float
    ordinary: float
    direct: float
    one_run: float
    #: Cycles for each run of D's elements that leaves by ordinary stores: both of its ends do so one by one.
    run: float
    #: Share of epilogues that consumers which alternate do not hide.
    exposed: float
    #: Cycles of adding the sums of a cluster's slices, and bytes per clock that its first block reads of the others.
    cluster_sum: float
    remote_bytes: float
    #: How much slower blocks of a cluster go, which wait for each other.
    cluster: float
    #: Cycles in which the producer's threads copy a vector of 16 bytes of an unaligned A.
    copied: float
    #: The terms of a k-step overlap partly: the p-norm of their cycles with this p. So do memory and SMs.
    pace_overlap: float
    overlap: float
    #: That p for a k-step and the producer's copies: they share the path to shared memory.
    copy_overlap: float


DEFAULT = load_constants(__name__, Constants)


@dataclass(frozen=True)
class Demand:
    """What a product demands of a GPU with a configuration; costs are in :class:`Constants`.

    Per k-step of a block: cycles of the tensor cores at their full rate (``multiply``), bytes that shared memory
    delivers or takes (``shared``), bytes from L2, and those of them in rows that straddle cache lines, of K-major and
    of MN-major operands; a warp group issues ``products``, ``ahead`` stages are in flight, ``clusters`` is 1 where
    blocks share operands, ``copied`` vectors of an unaligned A are copied by threads. Of the busiest SM: k-steps, work
    tiles (``rounds``), whether consumers alternate, units of 1024 outputs that are staged, leave by ordinary stores, in
    so many ``runs``, are stored directly, or are ``one_run``, and tiles whose sums are added in a cluster
    (``cluster_sums``), with the bytes of these sums (``remote``). Of the whole GPU: the least ``bytes``; what repacking
    and the reduction of partial sums demand.
    """

    multiply: float
    shared: float
    l2_bytes: float
    straddling: float
    mn_straddling: float
    products: float
    ahead: float
    clusters: float
    copied: float
    steps: float
    rounds: float
    turns: float
    staged: float
    ordinary: float
    runs: float
    direct: float
    one_run: float
    cluster_sums: float
    remote: float
    bytes: float
    repacking: Repacking
    splitting: Splitting
    reduction: Reduction
    bytes_per_s: float
    hz: float
    sms: float


def explain(
    problem: Gemm, config: Configs, arch: Arch, constants: Constants = DEFAULT, prices: Prices = PRICES
) -> Prediction:
    """Explain the seconds that ``problem`` takes with ``config`` on ``arch``."""
    return times(demand(problem, config, arch), constants, prices)


def least(problem: Gemm, arch: Arch, constants: Constants = DEFAULT, prices: Prices = PRICES) -> float:
    """Return seconds that no configuration undercuts: those of memory, of all products and of the epilogues."""
    c, multiply = constants, 0.0
    if not problem.split_methods:
        name = "tf32" if problem.precision == "tf32" else problem.dtype.name
        multiply = problem.flops / arch.matrix_flops.get(name, inf) / c.mma_share
    epilogue = c.tile * (1 + c.exposed * (ceil_div(problem.batch, arch.sms) - 1)) / arch.boost_hz
    memory = problem.least_bytes / (c.read_share * arch.dram_bytes_per_s)
    return prices.launch + c.start + overlapped(c.overlap, multiply + epilogue, memory)


def times(counts: Demand, constants: Constants, prices: Prices = PRICES) -> Prediction:
    """Price ``counts``, whose fields may be arrays of one shape; the result's fields then are, too."""
    c, p = constants, constants.overlap
    pace = {
        "multiply": counts.multiply / c.mma_share,
        "shared": counts.shared / c.shared_bytes,
        "l2": (counts.l2_bytes + c.straddle * counts.straddling + c.mn_straddle * counts.mn_straddling) / c.l2_bytes,
        "latency": c.latency / counts.ahead,
        "issue": c.issue * counts.products,
    }
    waits = 1 + counts.clusters * (c.cluster - 1)
    step = overlapped(c.pace_overlap, *pace.values()) * waits
    pace["copies"] = c.copied * counts.copied
    main_loop = counts.steps * overlapped(c.copy_overlap, step, pace["copies"]) / counts.hz
    own = c.tile * counts.rounds + c.staged * counts.staged + c.ordinary * counts.ordinary + c.direct * counts.direct
    own = (
        own
        + c.one_run * counts.one_run
        + c.run * counts.runs
        + c.cluster_sum * counts.cluster_sums
        + counts.remote / c.remote_bytes
    )
    # Ping-pong hides each epilogue but the last behind the other consumer's main loop.
    shown = 1 - counts.turns * (1 - c.exposed) * (1 - 1 / counts.rounds)
    epilogue = own * shown / counts.hz
    compute = main_loop + epilogue + c.latency / counts.hz
    memory = counts.bytes / (c.read_share * counts.bytes_per_s)
    together = overlapped(p, compute, memory)
    sm_hz = counts.sms * counts.hz
    repack = counts.repacking.seconds(prices, counts.bytes_per_s, sm_hz)
    second = counts.reduction.seconds(prices, sm_hz)
    split = counts.splitting.seconds(prices, counts.bytes_per_s)
    meeting = c.meeting * (counts.clusters + (counts.cluster_sums > 0))
    seconds = prices.launch + c.start + meeting + together + repack + split + second
    # The main loop and the epilogue are parts of ``compute``, which overlaps with memory.
    terms = {"compute": compute, "main_loop": main_loop, "epilogue": epilogue}
    terms |= {"memory": memory, "repack": repack, "split": split, "second": second}
    bounding = ("main_loop", "memory", "epilogue", "repack", "split", "second")
    return Prediction(seconds, terms, bounding, pace, paced="main_loop")


def demand(problem: Gemm, config: Configs, arch: Arch) -> Demand:
    """Count what ``problem`` demands of ``arch`` with one configuration or with each of many."""
    (terms, a_loaded, b_loaded, a_apart, b_apart, shared, ahead, clusters, copied, turns, blocks, rows, columns,
     k_slices, products, staged, ordinary, d_runs, one_run, direct, direct_sums, cluster_sums,
     remote) = of_tiles(config, _of_tile)  # fmt: skip
    slices = config["SPLIT_K"]
    m, n = launched_extents(problem, config)
    tiles = ceil_div(m, rows) * ceil_div(n, columns) * problem.batch * slices
    rounds = 1.0 * ceil_div(tiles, clusters_at_once(arch.sms, blocks))
    a_straddles, b_straddles, *copies = for_each(config, lambda one: _of_operands(problem, one), *_OF_COPIES)
    if np.any(products > 1):  # in pieces
        (fmas,) = for_each(config, lambda one: (_fmas(as_multiplied(problem, one), arch),), "EXCHANGED", "PIECES")
        splitting = Splitting.of(config, lambda one: pieces_of(problem, one), "EXCHANGED", "PIECES")
    else:
        fmas, splitting = _fmas(problem, arch), Splitting(0.0, 0.0)
    # Elements off 16 bytes write about twice as many sectors, and more.
    direct = direct * (1 + (problem.d_align < VECTOR_BYTES)) + direct_sums * (1 + (problem.n % 4 > 0))
    return Demand(
        multiply=terms / fmas,
        shared=shared,
        l2_bytes=a_loaded + b_loaded,
        straddling=a_loaded * a_straddles * config["A_K_INNER"] + b_loaded * b_straddles * config["B_K_INNER"],
        mn_straddling=a_loaded * _mn_straddles(a_straddles, a_apart) * (1 - config["A_K_INNER"])
        + b_loaded * _mn_straddles(b_straddles, b_apart) * (1 - config["B_K_INNER"]),
        products=SPAN / K_BYTES,
        ahead=ahead,
        clusters=clusters,
        copied=copied,
        steps=rounds * products * ceil_div(ceil_div(problem.k, config["BK"]), slices * k_slices),
        rounds=rounds,
        turns=turns,
        staged=rounds * staged,
        ordinary=rounds * ordinary,
        runs=rounds * d_runs,
        direct=rounds * direct,
        one_run=rounds * one_run,
        cluster_sums=rounds * cluster_sums,
        remote=rounds * remote,
        bytes=float(problem.least_bytes),
        repacking=Repacking(*copies),
        splitting=splitting,
        reduction=Reduction.of(problem, config),
        bytes_per_s=arch.dram_bytes_per_s,
        hz=arch.boost_hz,
        sms=float(arch.sms),
    )


def _mn_straddles(pitch: Any, start: Any) -> Any:
    """Return the share of an MN-major operand's rows that straddle lines: all by the pitch, or some by their start."""
    return pitch + (1 - pitch) * start


def _starts_apart(extent: Any, line: Any) -> Any:
    """Return the share of tiles of so many elements that start off cache lines of ``line`` elements."""
    return 1 - np.gcd(np.asarray(extent, np.int64), np.asarray(line, np.int64)) / line


def _of_tile(config: Configs) -> tuple[Any, ...]:
    """Return what :func:`demand` counts of tiles whatever the problem, in the order in which it takes them apart."""
    bm, bn, partial = config["BM"], config["BN"], config["PARTIAL_SUMS"]
    cluster_m, cluster_n, cluster_k = config["CLUSTER_M"], config["CLUSTER_N"], config["CLUSTER_K"]
    direct, tma, wide = config["STAGED"] == 0, config["D_TMA"], config["FLOAT32_D"]
    outputs, transposed = bm * bn / 1024, config["D_TRANSPOSED"]
    row_by_row = (1 - direct) * (1 - tma) * (1 - config["D_ONE_RUN"])
    columns = bn + (boxed(bn) - bn) * (1 - config["B_K_INNER"])
    # Loads of single elements take as long as those of pairs. K-major rows of several shifts meet in banks.
    meeting = config["A_K_INNER"] * (1 - config["INTERLEAVED"])
    fragments = config["A_IN_REGISTERS"] * bm * SPAN * (1 - config["A_PAIRED"]) * (1 + meeting)
    return (
        bm * bn * config["BK"],
        bm / cluster_n * SPAN,
        columns / cluster_m * SPAN,
        # Tiles of an MN-major operand start on a cache line where they are as wide as some lines.
        _starts_apart(bm, config["BK"]),
        _starts_apart(bn, config["BK"]),
        # Every wgmma reads both of its operands, in registers or not; TMA or threads write each once.
        1.0 * ((bm // ROWS * (ROWS + bn) + bm + columns) * SPAN + fragments),
        config["STAGES"] - 1.0,
        1.0 * (cluster_m * cluster_n > 1),
        config["A_IN_REGISTERS"] * (bm * SPAN / VECTOR_BYTES + ROWS + config["A_K_INNER"] * (bm - ROWS)),
        1.0 * config["PINGPONG"],
        cluster_blocks(config),
        bm * cluster_m,
        bn * cluster_n,
        cluster_k,
        1 + 2 * (config.get("PIECES") > 0),
        outputs * tma,
        # Runs of D's columns are 64 elements, the others mostly 128 and more: twice as many ends leave one by one.
        # Rows of float32 are twice as many vectors.
        outputs * row_by_row * (1 + transposed) * (1 + wide),
        1.0 * row_by_row * bm * bn / (64 * transposed + bn * (1 - transposed)),
        1.0 * outputs * config["D_ONE_RUN"],
        outputs * direct * (1 - partial),
        outputs * direct * partial,
        1.0 * (cluster_k > 1),
        1.0 * (cluster_k - 1) * bm * bn * 4,
    )


#: The constants that copies of A and B depend on.
_OF_COPIES = ("EXCHANGED", "REPACK_A", "REPACK_B", "A_K_INNER", "B_K_INNER", "PIECES")


def _copies(problem: Gemm, config: Config) -> dict[str, RepackedMatrix]:
    """Give the repacked matrices of one configuration, by name, of the problem as it is launched."""
    launched = as_launched(problem, config)
    return {name: repacked_matrix(launched, config, name) for name in repacked(config)}


def _of_operands(problem: Gemm, config: Config) -> tuple[float, ...]:
    """Tell whether rows of A and of B, or of their copies, straddle cache lines (1 or 0); return what copies demand."""
    product, copies = as_multiplied(problem, config), _copies(problem, config)
    pitches = ((copies.get(name) or runs(product, name)).pitch for name in "AB")
    straddles = (float(pitch * product.dtype.itemsize % SPAN > 0) for pitch in pitches)
    return *straddles, *repacking_of(copies.values())


def _fmas(product: Gemm, arch: Arch) -> float:
    """Count the FMAs of an SM's tensor cores per clock, of a product as they see it."""
    name = "tf32" if product.precision == "tf32" else product.dtype.name
    return arch.matrix_flops[name] / (2 * arch.sms * arch.boost_hz)
