"""The cost of one warp's memory access: passes over the 32 shared-memory banks, and 32-byte global sectors.

The rules reproduce the counters of an NVIDIA H200 (2026-11-20),
``l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{ld,st}``, ``l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{ld,st}``
and ``l1tex__t_sectors_pipe_lsu_mem_global_op_{ld,st}``, exactly, on the 195 one-warp accesses of
``tests/golden/h200_warp_counters.json``.

One pass serves lanes that access at most 128 bytes together, so a warp is cut into groups of ``min(32, 128 / width)``
lanes and its passes are summed over the groups. A group takes as many passes as its busiest bank has distinct words;
lanes that access the same word share it. Neighbouring groups of a *load* wider than four bytes are served two at a time
where every active lane ``i`` of the warp and its partner agree on the address, the partner being lane ``i ^ 1``
throughout or lane ``i ^ 2`` throughout, and an inactive lane agreeing with anybody: half of the data is then a repeat,
so two groups together still access at most 128 bytes. NVIDIA's forum describes the two pairings for compute capability
7.x (https://forums.developer.nvidia.com/t/unexpected-shared-memory-bank-conflict/77228).

A separate count showed that the whole warp decides, not each half: 16-byte loads whose first 16 lanes pair up and whose
last 16 do not, or pair the other way, took 4 passes. Without records the simplest rule holds: 1- and 2-byte accesses
count as the words that contain them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from matmill.errors import ArgumentError, ShapeError

LANES = 32
PASS_BYTES = 128
WORD_BYTES = 4
SECTOR_BYTES = 32
LINE_BYTES = 128
_ROW_BYTES = 16
_MATRIX_ROWS = 8
_MOST_SECTORS = 1 << 14  # 32-byte sectors of shared memory: more than any GPU has
_WIDTHS = (1, 2, 4, 8, 16)

Counts = NDArray[np.int64]


def shared_wavefronts(
    addresses: NDArray[np.int64], active: NDArray[np.bool_], width: int, *, store: bool
) -> tuple[Counts, Counts]:
    """Count the passes of ``n`` warp-wide shared-memory accesses, and the least for their widths and masks.

    ``addresses`` is int64[n, 32] (byte offsets below 2 GiB, multiples of ``width``), ``active`` bool[n, 32], ``width``
    the bytes per lane (1, 2, 4, 8 or 16). Returns two int64[n]: actual and ideal; both are 0 if no lane is active. Bank
    conflicts, as Nsight Compute counts them, are their difference.

    Raises ``ShapeError`` or ``ArgumentError``.

    >>> lanes = np.arange(32).reshape(1, 32)
    >>> shared_wavefronts(lanes * 8, lanes >= 0, 4, store=False)
    (array([2]), array([1]))
    >>> shared_wavefronts(lanes // 2 * 8, lanes >= 0, 8, store=False)
    (array([1]), array([1]))
    >>> shared_wavefronts(lanes // 2 * 8, lanes >= 0, 8, store=True)
    (array([2]), array([2]))
    """
    _check(addresses, active, width)
    requests = len(addresses)
    unit = max(width, WORD_BYTES)
    group = PASS_BYTES // unit
    if store or unit == WORD_BYTES:
        passes = _passes(addresses.reshape(-1, group), active.reshape(-1, group), unit)
        passes = passes.reshape(requests, LANES // group)
        return passes.sum(axis=1), np.count_nonzero(passes, axis=1).astype(np.int64)

    where = addresses.reshape(-1, 2 * group)
    mask = active.reshape(-1, 2 * group)
    merged = np.repeat(_pairs_agree(addresses, active), LANES // (2 * group))
    apart = ~merged
    actual = np.zeros(len(where), dtype=np.int64)
    ideal = np.zeros(len(where), dtype=np.int64)
    if merged.any():
        actual[merged] = _passes(where[merged], mask[merged], unit)
        ideal[merged] = actual[merged] > 0
    if apart.any():
        passes = _passes(where[apart].reshape(-1, group), mask[apart].reshape(-1, group), unit).reshape(-1, 2)
        actual[apart] = passes.sum(axis=1)
        ideal[apart] = np.count_nonzero(passes, axis=1)
    shape = (requests, LANES // (2 * group))
    return actual.reshape(shape).sum(axis=1), ideal.reshape(shape).sum(axis=1)


def ldmatrix_wavefronts(addresses: NDArray[np.int64], matrices: int) -> tuple[Counts, Counts]:
    """Count the passes of ``n`` ``ldmatrix`` instructions, and the fewest possible; transposing changes nothing.

    ``addresses`` is int64[n, 32]: lane ``8 m + r`` has the byte offset of row ``r`` (16 bytes) of matrix ``m``;
    ``matrices`` is 1, 2 or 4 and lanes beyond ``8 * matrices`` are ignored, as the instruction does. Every matrix is
    served separately: one pass per distinct row in its busiest group of four banks. Returns two int64[n].

    Raises ``ShapeError`` or ``ArgumentError``.

    >>> lanes = np.arange(32).reshape(1, 32)
    >>> ldmatrix_wavefronts(lanes * 16, 4), ldmatrix_wavefronts(lanes * 128, 4)
    ((array([4]), array([4])), (array([32]), array([4])))
    """
    _check(addresses, None, _ROW_BYTES)
    if matrices not in (1, 2, 4):
        raise ArgumentError(argument="matrices", got=repr(matrices), wanted="1, 2 or 4", fix="Read it off .x1/.x2/.x4.")
    rows = addresses[:, : _MATRIX_ROWS * matrices].reshape(-1, _MATRIX_ROWS)
    passes = _passes(rows, np.ones(rows.shape, dtype=np.bool_), _ROW_BYTES).reshape(len(addresses), matrices)
    return passes.sum(axis=1), np.full(len(addresses), matrices, dtype=np.int64)


def global_sectors(addresses: NDArray[np.int64], active: NDArray[np.bool_], width: int) -> Counts:
    """Count the distinct 32-byte sectors that the active lanes of ``n`` global accesses touch: int64[n].

    ``addresses`` is int64[n, 32] (bytes, multiples of ``width``, so that no lane straddles sectors), ``active``
    bool[n, 32], ``width`` the bytes per lane. A request with an active lane is one request, whatever its width.

    Raises ``ShapeError`` or ``ArgumentError``.

    >>> lanes = np.arange(32).reshape(1, 32)
    >>> global_sectors(lanes * 4 + 4, lanes >= 0, 4), global_sectors(lanes * 32, lanes < 8, 4)
    (array([5]), array([8]))
    """
    _check(addresses, active, width)
    sectors = np.where(active, addresses // SECTOR_BYTES, np.int64(-1))
    if (sectors[:, 1:] < sectors[:, :-1]).any():
        sectors.sort(axis=1)
    first = sectors >= 0
    first[:, 1:] &= sectors[:, 1:] != sectors[:, :-1]
    distinct: Counts = first.sum(axis=1, dtype=np.int64)
    return distinct


def copy_sectors(
    addresses: NDArray[np.int64], targets: NDArray[np.int64], active: NDArray[np.bool_], width: int
) -> Counts:
    """Count the sectors of ``n`` ``cp.async.cg``, whose lanes bypass L1: int64[n].

    ``addresses`` and ``targets`` are int64[n, 32]: bytes in global memory and in shared memory. Copies are counted in
    32-byte sectors of *shared* memory, and a sector that comes from several 128-byte lines of global memory counts once
    for each: so did an H200 in all of 414 random and chosen cases (``tests/golden/h200_cp_async.json`` has some of
    them). ``cp.async.ca`` counts as :func:`global_sectors`.

    >>> lanes = np.arange(32).reshape(1, 32)
    >>> copy_sectors(lanes * 16, lanes * 16, lanes >= 0, 16), copy_sectors(lanes * 16, lanes * 128, lanes >= 0, 16)
    (array([16]), array([32]))
    """
    # One number per line and sector: as an address in units of sectors, it can be counted in the same way.
    sectors = targets // SECTOR_BYTES
    return global_sectors((addresses // LINE_BYTES * _MOST_SECTORS + sectors) * SECTOR_BYTES, active, width)


def _passes(addresses: NDArray[np.int64], active: NDArray[np.bool_], unit: int) -> Counts:
    """Return for each row of lanes the most distinct ``unit``-byte pieces in one of the ``128 / unit`` banks.

    Pieces are aligned, so that a piece of 8 or 16 bytes fills two or four neighbouring 4-byte banks, and two pieces
    share all of these banks or none.
    """
    rows = len(addresses)
    banks = PASS_BYTES // unit
    pieces = addresses // unit
    # Sorting by (bank, depth) puts equal pieces next to each other; an inactive lane sorts first as -1. The narrow type
    # sorts faster, and is wide enough for shared memory.
    keys = np.where(active, (pieces % banks << 24) | (pieces // banks), np.int64(-1)).astype(np.int32)
    keys.sort(axis=1)
    first = keys >= 0
    first[:, 1:] &= keys[:, 1:] != keys[:, :-1]
    row, lane = np.nonzero(first)
    counts = np.bincount(row * banks + (keys[row, lane] >> 24), minlength=rows * banks)
    busiest: Counts = counts.reshape(rows, banks).max(axis=1)
    return busiest


def _pairs_agree(addresses: NDArray[np.int64], active: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Tell whether in each row all active lanes agree on the address with lane ``i ^ 1``, or with lane ``i ^ 2``."""
    agree = np.zeros(len(addresses), dtype=np.bool_)
    for distance in (1, 2):
        where = addresses.reshape(len(addresses), addresses.shape[1] // (2 * distance), 2, distance)
        mask = active.reshape(where.shape)
        differ = (where[:, :, 0] != where[:, :, 1]) & mask[:, :, 0] & mask[:, :, 1]
        agree |= ~differ.any(axis=(1, 2))
    return agree


def _check(addresses: NDArray[np.int64], active: NDArray[np.bool_] | None, width: int) -> None:
    """Refuse shapes and widths that a warp-wide access cannot have."""
    if addresses.ndim != 2 or addresses.shape[1] != LANES:
        raise ShapeError(
            argument="addresses", got=f"shape {addresses.shape}", wanted="(n, 32)", fix="Pass one row per warp."
        )
    if active is not None and active.shape != addresses.shape:
        raise ShapeError(
            argument="active",
            got=f"shape {active.shape}",
            wanted=f"the shape of addresses, {addresses.shape}",
            fix="Pass one flag per lane.",
        )
    if width not in _WIDTHS:
        raise ArgumentError(
            argument="width", got=repr(width), wanted="1, 2, 4, 8 or 16 bytes per lane", fix="Split wider accesses."
        )
