"""How long a product takes in the warp-specialised kernel of ``kernels/wgmma``.

The time of a launch is a constant, and two terms that overlap, of which the larger decides: the least bytes over the
bandwidth that reading reaches, and the work tiles of the busiest SM. A k-step takes as long as the slowest of four
things that go on at the same time (``pace``): tensor cores multiply, shared memory delivers operands and takes the
next ones, L2 delivers these, and their latency passes. Filling the pipeline once, and each tile's epilogue come on top;
two consumers that alternate hide most of all but the last epilogue. So do the launch that repacks matrices and the one
that adds split-K partial sums.

:class:`Demand` counts what a product asks of the GPU with a configuration; :class:`Constants` say what that costs.
``benchmarks/fit_model.py`` fits them to what was measured of every tile, and by ``shapes.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from matmill.arch import Arch
from matmill.config import Config, Configs
from matmill.kernel import ceil_div
from matmill.kernels.pieces.cost import Splitting, pieces_of
from matmill.kernels.repack.copies import RepackedMatrix, repacked, repacked_matrix
from matmill.kernels.repack.cost import Repacking
from matmill.kernels.shared.exchange import as_launched, launched_extents
from matmill.kernels.shared.model import PRICES, Prediction, Prices, for_each, load_constants, overlapped
from matmill.kernels.shared.tiled import VECTOR_BYTES
from matmill.kernels.splitk.cost import Reduction
from matmill.kernels.wgmma.tiles import ROWS, SPAN, as_multiplied, cluster_blocks, cluster_tiles, runs
from matmill.problem import Gemm


@dataclass(frozen=True)
class Constants:
    """What the model does not derive. Times in seconds, the rest in cycles of an SM or shares of a data sheet's."""

    #: Seconds before the first stage is requested: tensor maps, barriers, and a cluster's first meeting.
    start: float
    #: Share of the data sheet's bandwidth that reading reaches.
    read_share: float
    #: Share of the tensor cores' rate at the boost clock: an H200's power allows 866 to 897 of 989 TFLOP/s.
    mma_share: float
    #: Bytes per clock that shared memory delivers and takes, and that L2 delivers to each SM.
    shared_bytes: float
    l2_bytes: float
    #: What is added to the bytes of rows that straddle cache lines, as a share of them.
    straddle: float
    #: Cycles from the request of a stage to its arrival.
    latency: float
    #: Cycles of a tile's epilogue: alone, per 1024 outputs through staging and TMA, through staging and ordinary
    #: stores, and stored directly.
    tile: float
    staged: float
    ordinary: float
    direct: float
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
    delivers or takes (``shared``), bytes from L2, and those of them in rows that straddle cache lines; ``ahead`` stages
    are in flight, ``clusters`` is 1 where blocks share operands, ``copied`` vectors of an unaligned A are copied by
    threads. Of the busiest SM: k-steps, work tiles (``rounds``),
    whether consumers alternate, units of 1024 outputs that are staged, leave by ordinary stores, or are stored
    directly, and tiles whose sums are added in a cluster (``cluster_sums``), with the bytes of these sums (``remote``).
    Of the whole GPU: the least ``bytes``; what repacking and the reduction of partial sums demand.
    """

    multiply: float
    shared: float
    l2_bytes: float
    straddling: float
    ahead: float
    clusters: float
    copied: float
    steps: float
    rounds: float
    turns: float
    staged: float
    ordinary: float
    direct: float
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


def times(counts: Demand, constants: Constants, prices: Prices = PRICES) -> Prediction:
    """Price ``counts``, whose fields may be arrays of one shape; the result's fields then are, too."""
    c, p = constants, constants.overlap
    pace = {
        "multiply": counts.multiply / c.mma_share,
        "shared": counts.shared / c.shared_bytes,
        "l2": (counts.l2_bytes + c.straddle * counts.straddling) / c.l2_bytes,
        "latency": c.latency / counts.ahead,
    }
    waits = 1 + counts.clusters * (c.cluster - 1)
    step = overlapped(c.pace_overlap, *pace.values()) * waits
    pace["copies"] = c.copied * counts.copied
    main_loop = counts.steps * overlapped(c.copy_overlap, step, pace["copies"]) / counts.hz
    own = c.tile * counts.rounds + c.staged * counts.staged + c.ordinary * counts.ordinary + c.direct * counts.direct
    own = own + c.cluster_sum * counts.cluster_sums + counts.remote / c.remote_bytes
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
    seconds = prices.launch + c.start + together + repack + split + second
    # The main loop and the epilogue are parts of ``compute``, which overlaps with memory.
    terms = {"compute": compute, "main_loop": main_loop, "epilogue": epilogue}
    terms |= {"memory": memory, "repack": repack, "split": split, "second": second}
    bounding = ("main_loop", "memory", "epilogue", "repack", "split", "second")
    return Prediction(seconds, terms, bounding, pace, paced="main_loop")


def demand(problem: Gemm, config: Configs, arch: Arch) -> Demand:
    """Count what ``problem`` demands of ``arch`` with one configuration or with each of many."""
    bm, bn, slices = config["BM"], config["BN"], config["SPLIT_K"]
    products = 1 + 2 * (config.get("PIECES") > 0)
    cluster_m, cluster_n, cluster_k = config["CLUSTER_M"], config["CLUSTER_N"], config["CLUSTER_K"]
    tiles = cluster_tiles(*launched_extents(problem, config), config) * problem.batch * slices
    rounds = ceil_div(tiles, arch.sms // cluster_blocks(config))
    row_tiles = bm // ROWS
    outputs = rounds * bm * bn / 1024
    loaded = {"A": bm / cluster_n * SPAN, "B": bn / cluster_m * SPAN}
    a_straddles, b_straddles = for_each(config, lambda one: _straddles(problem, one), *_OF_COPIES)
    direct, tma, wide = config["STAGED"] == 0, config["D_TMA"], config["FLOAT32_D"]
    partial = config["PARTIAL_SUMS"]
    off = partial * (problem.n % 4 > 0) + (1 - partial) * (problem.d_align < VECTOR_BYTES)
    # Loads of single elements take as long as those of pairs. K-major rows of several shifts meet in banks.
    meeting = config["A_K_INNER"] * (1 - config["INTERLEAVED"])
    fragments = config["A_IN_REGISTERS"] * bm * SPAN * (1 - config["A_PAIRED"]) * (1 + meeting)
    return Demand(
        multiply=bm * bn * config["BK"] / for_each(config, lambda one: (_fmas(problem, one, arch),), "PIECES")[0],
        # Every wgmma reads both of its operands, in registers or not; TMA or threads write each once.
        shared=1.0 * ((row_tiles * (ROWS + bn) + bm + bn) * SPAN + fragments),
        l2_bytes=loaded["A"] + loaded["B"],
        straddling=loaded["A"] * a_straddles + loaded["B"] * b_straddles,
        ahead=config["STAGES"] - 1.0,
        clusters=1.0 * (cluster_m * cluster_n > 1),
        copied=config["A_IN_REGISTERS"] * (bm * SPAN / VECTOR_BYTES + ROWS + config["A_K_INNER"] * (bm - ROWS)),
        steps=1.0 * rounds * products * ceil_div(ceil_div(problem.k, config["BK"]), slices * cluster_k),
        rounds=1.0 * rounds,
        turns=1.0 * config["PINGPONG"],
        staged=outputs * tma,
        # Runs of D's columns are 64 elements, the others mostly 128 and more: twice as many ends leave one by one.
        # Rows of float32 are twice as many vectors.
        ordinary=outputs * (1 - direct) * (1 - tma) * (1 + config["D_TRANSPOSED"]) * (1 + wide),
        direct=outputs * direct * (1 + off),  # elements off 16 bytes write about twice as many sectors, and more
        cluster_sums=1.0 * rounds * (cluster_k > 1),
        remote=1.0 * rounds * (cluster_k - 1) * bm * bn * 4,
        bytes=float(problem.least_bytes),
        repacking=Repacking.of(config, lambda one: _copies(problem, one).values(), *_OF_COPIES),
        splitting=Splitting.of(config, lambda one: pieces_of(problem, one), "EXCHANGED", "PIECES"),
        reduction=Reduction.of(problem, config),
        bytes_per_s=arch.dram_bytes_per_s,
        hz=arch.boost_hz,
        sms=float(arch.sms),
    )


#: The constants that copies of A and B depend on.
_OF_COPIES = ("EXCHANGED", "REPACK_A", "REPACK_B", "A_K_INNER", "B_K_INNER", "PIECES")


def _copies(problem: Gemm, config: Config) -> dict[str, RepackedMatrix]:
    """Give the repacked matrices of one configuration, by name, of the problem as it is launched."""
    launched = as_launched(problem, config)
    return {name: repacked_matrix(launched, config, name) for name in repacked(config)}


def _straddles(problem: Gemm, config: Config) -> tuple[float, float]:
    """Tell whether rows of A and of B, or of their copies, straddle cache lines: 1 or 0."""
    product, copies = as_multiplied(problem, config), _copies(problem, config)
    pitches = ((copies.get(name) or runs(product, name)).pitch for name in "AB")
    a, b = (float(pitch * product.dtype.itemsize % SPAN > 0) for pitch in pitches)
    return a, b


def _fmas(problem: Gemm, config: Config, arch: Arch) -> float:
    """Count the FMAs of an SM's tensor cores per clock."""
    product = as_multiplied(problem, config)
    name = "tf32" if product.precision == "tf32" else product.dtype.name
    return arch.matrix_flops[name] / (2 * arch.sms * arch.boost_hz)
