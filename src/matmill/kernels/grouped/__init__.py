"""Products of groups in one launch: lists of matrices of any sizes, and groups whose ends are on the device.

A list has a table of its groups in the kernel's parameters (``table.cuh``). The ends of groups along one dimension of a
matrix that all share are read on the device (``kernel.cuh``), as ``torch.nn.functional.grouped_mm`` takes them. Tiles
are those of single products: on the FMA units, by mma.sync, or of aligned 16-bit elements on Hopper by wgmma
(``wgmma.cuh``). Each group's sums are those of its product alone with that tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from matmill.arch import Arch
from matmill.config import Columns, Config, Configs
from matmill.dtypes import F32
from matmill.kernel import GemmOperands, Geometry, Kernel, Prediction, Production, ceil_div
from matmill.kernels import gemm, hgemm, wgmma
from matmill.kernels.gemm import tiles as fma_tiles
from matmill.kernels.hgemm import tiles as mma_tiles
from matmill.kernels.shared import model
from matmill.kernels.shared.tiled import tile_count, why_not_extents
from matmill.kernels.wgmma import tiles as wgmma_tiles
from matmill.kernels.wgmma.maps import tensor_maps
from matmill.launch import Argument, Pointer, Struct, TensorMap, Value
from matmill.parameters import Parameters
from matmill.problem import Gemm, Grouped, Listed
from matmill.tensor_map import encode_alike

#: Groups that a table has room for, alone and with two tensor maps for each. Parameters have at most 32,764 bytes.
_TABLES, _MAPPED_TABLES = (32, 256), (24, 84)
#: An entry of a table, ``matmill::Group`` in ``groups.cuh``.
ENTRY = np.dtype(
    [(name, np.uint64) for name in "abcd"]
    + [(f"{name}_{along}", np.int64) for name in "abcd" for along in ("row", "column")]
    + [(name, np.int32) for name in ("m", "n", "k", "first_tile")]
)
#: Tiles of wgmma: rows, columns and consumers. They are few, because each is compiled for itself.
_SHAPES = tuple(
    wgmma_tiles.Shape(*shape)
    for shape in ((128, 256, 2), (128, 192, 2), (128, 128, 2), (128, 64, 2), (64, 128, 1), (64, 64, 1))
)

P = TypeVar("P", Grouped, Listed)


def _threads(config: Config) -> int:
    return int((fma_tiles if config["FMA"] else mma_tiles).threads(config))


def _why_not(problem: Grouped | Listed, config: Config, arch: Arch) -> str | None:
    if config["FMA"]:
        return fma_tiles.why_not(problem.layout, config)
    if problem.dtype is F32:
        return "float32 is summed by FMA"
    missing = mma_tiles.why_not_elements(problem.layout, config, arch)
    return missing or mma_tiles.why_not(problem.layout, config, arch)


def _tabled(problem: Listed, config: Config) -> tuple[Any, int]:
    """Return the groups of a list with their first tiles, and the number of all tiles."""
    groups = np.frombuffer(problem.groups, ENTRY).copy()
    down, along = (-(-groups[name].astype(np.int64) // config[side]) for name, side in (("m", "BM"), ("n", "BN")))
    ends = np.cumsum(down * along)
    groups["first_tile"][1:] = ends[:-1]
    return groups, int(ends[-1])


def _list_geometry(problem: Listed, config: Config) -> Geometry:
    return Geometry((_tabled(problem, config)[1], 1, 1), (_threads(config), 1, 1), config["SHARED_BYTES"], even=True)


def _list_arguments(problem: Listed, config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    groups, _ = _tabled(problem, config)
    table = np.zeros(config["GROUPS"], ENTRY)
    table[: len(groups)] = groups
    scalar = problem.dtype.accumulator.scalar
    return Struct(table.tobytes(), 8), np.int32(len(groups)), scalar(operands.alpha), scalar(operands.beta)


_FMA_CONFIG = gemm.GEMM.config.replace(FMA=1)
LIST: Kernel[Listed] = Kernel(
    entry="grouped_list",
    package=__name__,
    config=_FMA_CONFIG.replace(GROUPS=_TABLES[0]),
    geometry=_list_geometry,
    arguments=_list_arguments,
    why_not_config=_why_not,
    pdl=True,
    file="table.cuh",
)

_STRIDES = ("a_row", "a_column", "b_row", "b_column", "b_batch", "d_row", "d_column", "d_batch")
_COUNTS = ("words", "groups", "m", "n", "k")
_FIELDS = {"ends": "const int*", **dict.fromkeys(_COUNTS, "int")}
_PARAMETERS = Parameters.of(
    A="const Scalar*", B="const Scalar*", D="Scalar*", **_FIELDS, **dict.fromkeys(_STRIDES, "Index"), alpha="Acc"
)
_WGMMA_PARAMETERS = Parameters.of(
    a_map="matmill::TensorMap",
    b_map="matmill::TensorMap",
    d_map="matmill::TensorMap",
    D="Scalar*",
    **_FIELDS,
    **dict.fromkeys(_STRIDES[-3:], "Index"),
    alpha="Acc",
)


def _values(problem: Grouped, operands: GemmOperands) -> dict[str, Value | float]:
    """Return the values of the fields that both kernels have."""
    whole = problem.whole
    counts = (problem.words, problem.groups, whole.m, whole.n, whole.k)
    return {
        "D": operands.d,
        "ends": operands.bias or Pointer("no ends", 0),
        **dict(zip(_COUNTS, counts, strict=True)),
        **dict(zip(_STRIDES[-3:], (*whole.d_row_col, whole.batch_strides[3]), strict=True)),
        "alpha": operands.alpha,
    }


def _most_tiles(problem: Grouped, config: Config) -> int:
    """Count the tiles that groups may have, whichever rows they start at. Rows that no group has are a group too."""
    whole = problem.whole
    if problem.terms:
        return int(tile_count(whole, config)) * problem.groups
    rows = whole.m // config["BM"] + min(whole.m, problem.groups + 1)
    return rows * int(ceil_div(whole.n, config["BN"]))


def _geometry(problem: Grouped, config: Config) -> Geometry:
    grid = (int(tile_count(problem.whole, config)), problem.groups, 1)
    if not problem.terms:
        grid = (_most_tiles(problem, config), 1, 1)
    return Geometry(grid, (_threads(config), 1, 1), config["SHARED_BYTES"], even=True)


def _arguments(problem: Grouped, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    whole = problem.whole
    strides = (*whole.a_row_col, *whole.b_row_col, whole.batch_strides[1])
    own = dict(zip(_STRIDES[:-3], strides, strict=True))
    return _PARAMETERS.pack(whole.dtype, A=operands.a, B=operands.b, **own, **_values(problem, operands))


GROUPED: Kernel[Grouped] = Kernel(
    entry="grouped_gemm",
    package=__name__,
    config=_FMA_CONFIG.replace(TERMS=0),
    geometry=_geometry,
    arguments=_arguments,
    why_not_config=_why_not,
    pdl=True,
    parameters=_PARAMETERS,
)


def _persistent(config: Config, tiles: int) -> Geometry:
    """Return the launch of a block per SM, or per tile where these are fewer."""
    blocks = min(config["SMS"], tiles)
    return Geometry((blocks, 1, 1), (wgmma_tiles.threads(config), 1, 1), config["SHARED_BYTES"])


def _wgmma_geometry(problem: Grouped, config: Config) -> Geometry:
    return _persistent(config, _most_tiles(problem, config))


def _wgmma_arguments(problem: Grouped, config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    maps = dict(zip(("a_map", "b_map", "d_map"), tensor_maps(problem.whole, config, operands), strict=True))
    return _WGMMA_PARAMETERS.pack(problem.dtype, **maps, **_values(problem, operands))


def _why_not_tma(problem: Gemm, arch: Arch) -> str | None:
    """Say why wgmma does not take a layout, or None."""
    missing = wgmma_tiles.why_not_wgmma(problem, arch) or why_not_extents(problem)
    if missing is not None:
        return missing
    if 0 in {problem.m, problem.n, problem.k, problem.batch}:
        return "TMA loads from matrices that have elements"
    unaligned = wgmma_tiles.unaligned(problem)
    return f"TMA needs rows of {unaligned[0]} that are contiguous and start on 16 bytes" if unaligned else None


def _why_not_wgmma(problem: Grouped, _config: Config, arch: Arch) -> str | None:
    if problem.terms and any(wgmma_tiles.runs(problem.whole, name).along_k for name in "AB"):
        return "the last terms of a group are zeroed where they are rows of a box, not its columns"
    return _why_not_tma(problem.whole, arch)


GROUPED_WGMMA: Kernel[Grouped] = Kernel(
    entry="grouped_wgmma",
    package=__name__,
    config=wgmma.WGMMA.config.replace(TERMS=0),
    geometry=_wgmma_geometry,
    arguments=_wgmma_arguments,
    why_not_config=_why_not_wgmma,
    pdl=True,
    parameters=_WGMMA_PARAMETERS,
    file="wgmma.cuh",
    instruction="wgmma",
)


def _wgmma_tiles(problem: Gemm, arch: Arch, **constants: int) -> tuple[Config, ...]:
    """Return the tiles, or one where wgmma does not take the layout, so that the reason is given once."""
    shapes = _SHAPES if _why_not_tma(problem, arch) is None else _SHAPES[:1]
    configs = (wgmma_tiles.configured(shape, problem, arch) for shape in shapes)
    return tuple(config.replace(D_ONE_RUN=0, **constants) for config in configs)


def _wgmma_space(problem: Grouped, arch: Arch) -> tuple[Config, ...]:
    return _wgmma_tiles(problem.whole, arch, TERMS=int(problem.terms))


#: An entry of a table with maps, ``MappedGroup`` in ``wgmma_table.cuh``: a multiple of a map's alignment.
_MAPPED_GROUP = np.dtype({
    "names": ("a", "b", "group"),
    "formats": (*[(np.uint8, TensorMap.NBYTES)] * 2, ENTRY),
    "offsets": (0, TensorMap.NBYTES, 2 * TensorMap.NBYTES),
    "itemsize": 384,
})  # fmt: skip


def _room(problem: Listed, tables: tuple[int, ...]) -> int:
    """Return the groups of the smallest table that all fit in, or of the largest one."""
    return next((room for room in tables if room * ENTRY.itemsize >= len(problem.groups)), tables[-1])


def _mapped_geometry(problem: Listed, config: Config) -> Geometry:
    return _persistent(config, _tabled(problem, config)[1])


@lru_cache(maxsize=1024)
def _map_templates(typical: Gemm, config: Config) -> tuple[TensorMap, ...]:
    """Return maps like those of each group's A and B: their addresses, sizes and pitches are to be replaced."""
    nowhere = Pointer("in the table", TensorMap.ALIGN)
    return tensor_maps(typical, config, GemmOperands(nowhere, nowhere, nowhere, nowhere))[:2]


def _mapped_arguments(problem: Listed, config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    groups, tiles = _tabled(problem, config)
    table = np.zeros(config["GROUPS"], _MAPPED_GROUP)
    filled = table[: len(groups)]
    filled["group"] = groups
    like = _map_templates(problem.typical, config)
    strides = problem.layout.a_row_col, problem.layout.b_row_col
    for name, whole, (_, column), sides in zip("ab", like, strides, (("m", "k"), ("k", "n")), strict=False):
        across, along = ("row", "column") if column == 1 else ("column", "row")
        lengths = tuple(groups[side] for side in (sides[::-1] if along == "column" else sides))
        filled[name] = encode_alike(whole, groups[name], lengths, groups[f"{name}_{across}"])
    alpha, beta = np.float32(operands.alpha), np.float32(operands.beta)
    return Struct(table.tobytes(), TensorMap.ALIGN), np.int32(len(groups)), np.int32(tiles), alpha, beta


def _why_not_mapped(problem: Listed, _config: Config, arch: Arch) -> str | None:
    return _why_not_tma(problem.typical, arch)


LIST_WGMMA: Kernel[Listed] = Kernel(
    entry="grouped_list_wgmma",
    package=__name__,
    config=wgmma.WGMMA.config.replace(D_TMA=0, TERMS=0, GROUPS=_MAPPED_TABLES[0]),
    geometry=_mapped_geometry,
    arguments=_mapped_arguments,
    why_not_config=_why_not_mapped,
    pdl=True,
    file="wgmma_table.cuh",
    instruction="wgmma",
)


def _mapped_space(problem: Listed, arch: Arch) -> tuple[Config, ...]:
    return _wgmma_tiles(problem.typical, arch, D_TMA=0, TERMS=0, GROUPS=_room(problem, _MAPPED_TABLES))


def _tiles(problem: Grouped | Listed, arch: Arch, fma: int) -> tuple[Config, ...]:
    """Return the tiles on the FMA units, or by mma.sync, for the layout that all groups have."""
    space = fma_tiles.space(problem.layout, arch) if fma else mma_tiles.space(problem.layout, arch)
    name, value = ("TERMS", int(problem.terms)) if isinstance(problem, Grouped) else ("GROUPS", _room(problem, _TABLES))
    return tuple(
        config.launched(SPLIT_K=1, REPACK_A=0, REPACK_B=0).replace(FMA=fma, **{name: value}) for config in space
    )


def _production(
    kernel: Kernel[P], like: Production[Gemm], space: Callable[[P, Arch], tuple[Config, ...]]
) -> Production[P]:
    """Return a kernel of groups whose time is that of a batch of typical products with the tiles of another one.

    A group ends anywhere in its last tile of rows: on average groups have half a tile more than their rows fill.
    """

    def explain(problem: P, configs: Configs, arch: Arch) -> Prediction:
        if isinstance(configs, Columns):
            each = [explain(problem, config, arch) for config in configs.configs]
            return model.Prediction(np.array([one.seconds for one in each]), {}, ())  # type: ignore[arg-type] # of many
        tiles = problem.typical.m / configs["BM"] + (0.0 if problem.typical.batch == 1 else 0.5)
        fewer, more = (
            like.explain(replace(problem.typical, m=max(1, count) * configs["BM"]), configs, arch)
            for count in (int(tiles), int(tiles) + 1)
        )
        seconds = fewer.seconds + (tiles - int(tiles)) * (more.seconds - fewer.seconds)
        return model.Prediction(seconds, more.terms, tuple(more.terms))

    def general(problem: P, arch: Arch) -> Config | None:
        return next(iter(space(problem, arch)), None)

    return Production(kernel, space, explain, like.tile, general=general)


#: Kernels of groups whose ends are on the device.
PRODUCTION: tuple[Production[Grouped], ...] = (
    _production(GROUPED_WGMMA, wgmma.PRODUCTION, _wgmma_space),
    _production(GROUPED, hgemm.PRODUCTION, lambda problem, arch: _tiles(problem, arch, 0)),
    _production(GROUPED, gemm.PRODUCTION, lambda problem, arch: _tiles(problem, arch, 1)),
)
#: Kernels of lists.
LISTS: tuple[Production[Listed], ...] = (
    _production(LIST_WGMMA, wgmma.PRODUCTION, _mapped_space),
    _production(LIST, hgemm.PRODUCTION, lambda problem, arch: _tiles(problem, arch, 0)),
    _production(LIST, gemm.PRODUCTION, lambda problem, arch: _tiles(problem, arch, 1)),
)
