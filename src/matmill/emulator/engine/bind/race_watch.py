"""The reports of one memory instruction to the race detector, without those that are not needed again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Mask, Row
from matmill.emulator.engine.bind.addresses import Addresses, Piece
from matmill.emulator.engine.state.machine import Machine
from matmill.emulator.memory.address_space import OFFSET_MASK, SHARED_WINDOW
from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.ordering import Ordering
from matmill.emulator.races.detector import RaceDetector, Stores
from matmill.emulator.races.shadow.interval_patterns import IntervalPatterns, Pattern
from matmill.emulator.races.shadow.shared_space import RepeatedRead


@dataclass
class RaceWatch:
    """The accesses of one bound instruction ``where``: ``width`` bytes per lane, in elements of ``element`` bytes."""

    machine: Machine
    detector: RaceDetector
    addresses: Addresses
    where: int
    offset: int
    element: int
    width: int
    kind: str
    ordering: Ordering | None
    _epoch: int = field(default=-1, init=False)
    _plain: bool = field(default=False, init=False)
    _reserved: bool = field(default=False, init=False)
    _pattern: Pattern | None = field(default=None, init=False)
    _repeated: RepeatedRead | None = field(default=None, init=False)

    @property
    def _lockstep(self) -> bool:
        """True for volatile accesses of shared memory by old code, which relies on warps in lockstep: plain ones."""
        ordering, program = self.ordering, self.machine.program
        return ordering is not None and ordering.volatile and program.instructions[self.where] not in program.flags

    def tell(self, pieces: Sequence[Piece], values: tuple[Row, ...]) -> None:
        """Report one execution, which stores ``values``, before it takes effect."""
        addresses = self.addresses
        again = self._epoch == addresses.epoch
        if not again:
            self._epoch, self._pattern, self._repeated = addresses.epoch, None, None
            self._plain, self._reserved = self._is_plain(pieces), self._is_reserved(pieces)
        if self._reserved:
            return
        pattern, patterns = None, self.detector.patterns
        if self._plain and patterns is not None and patterns.followed:
            pattern = self._pattern = self._pattern or self._pattern_of(patterns)
            if patterns.follow(pattern, addresses.lanes.warp_ids, addresses.lanes.geometry.block_ids):
                return
        elif self._repeated is not None and self._repeated.again():
            return
        for piece in pieces:
            if piece.region.kind in {"global", "shared"} and piece.region.writable:
                # Reads of memory that cannot be stored to do not race.
                self._pass(piece, values, pattern)
        if again and pattern is None and self._plain and self.kind == "read":
            self._repeated = self.detector.repeated_read(
                warp=addresses.lanes.warp_ids,
                addresses=self._offsets(pieces[0]),
                active=addresses.active_lanes(),
                width=self.width,
                where=self.where,
            )

    def _pass(self, piece: Piece, values: tuple[Row, ...], pattern: Pattern | None) -> None:
        """Report the accesses of a piece."""
        kind, addresses, ordering = piece.region.kind, self.addresses, self.ordering
        stores = Stores(addresses.lanes.warp_ids, partial(self._contents, piece, values)) if values else None
        if self._lockstep and kind == "shared":
            ordering = None
        for owners, chosen in self._by_owner(piece, piece.active(addresses)):
            self.detector.access(
                kind,
                warp=addresses.lanes.warp_ids,
                addresses=addresses.absolute(self.offset) if kind == "global" else self._offsets(piece),
                active=chosen,
                width=self.width,
                kind=self.kind,
                where=self.where,
                stores=stores,
                ordering=ordering,
                owners=owners,
                pattern=pattern,
            )

    def _is_plain(self, pieces: Sequence[Piece]) -> bool:
        """Tell whether all lanes make a plain access to shared memory of their own blocks."""
        if len(pieces) != 1 or self.kind not in {"read", "write"}:
            return False
        piece, plain = pieces[0], self.ordering is None or self._lockstep
        return plain and piece.region.kind == "shared" and piece.owners is None and piece.mask is self.addresses.mask

    def _is_reserved(self, pieces: Sequence[Piece]) -> bool:
        """Tell whether it is a plain access to the reserved shared memory.

        Only cooperative_groups uses it: its lanes share by shuffles what one of them has acquired.
        """
        reserved = self.machine.program.reserved_shared
        if not reserved or (self.ordering is not None and not self.ordering.volatile):
            return False
        return pieces[0].region.kind == "shared" and pieces[0].start + self.addresses.span + self.width <= reserved

    def _pattern_of(self, patterns: IntervalPatterns) -> Pattern:
        """Return the pattern of the accesses, which is the same for all batches."""
        addresses = self.addresses
        shape = addresses.memo.get("shape")
        if shape is None:
            lanes = addresses.lanes
            members = lanes.geometry.blocks.to_bytes(8) + lanes.warps.tobytes()
            key = (members, *addresses.identity())
            shape = addresses.memo["shape"] = patterns.shape(key, addresses.distance, addresses.active_lanes())
        low = (addresses.low + self.offset) & (SHARED_WINDOW - 1)
        return patterns.pattern(shape, low, kind=self.kind, width=self.width, where=self.where)

    def _offsets(self, piece: Piece) -> NDArray[np.int64]:
        """Return addresses of shared memory as offsets in the window of the block that they belong to."""
        absolute = self.addresses.absolute(self.offset)
        return self.machine.shared_offset(absolute) if piece.owners is None else absolute & OFFSET_MASK

    def _by_owner(self, piece: Piece, active: Mask) -> Iterator[tuple[NDArray[np.int64] | None, Mask]]:
        """Yield the lanes of a piece (bool[warps, 32]) by the block whose shared memory each warp accesses."""
        if piece.owners is None:
            yield None, active
            return
        geometry, size = self.machine.geometry, self.machine.cluster.size
        own = geometry.block_of_warp[self.addresses.lanes.warps]
        rank = piece.owners.reshape(-1, LANES) % size
        for named in np.unique(rank[active]).tolist():
            yield geometry.block_ids[own - own % size + named], active & (rank == named)

    def _contents(self, piece: Piece, values: tuple[Row, ...]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return the bytes that the lanes of a piece store, and the bytes before: uint8[warps, 32, width] each."""
        shift = self.element.bit_length() - 1
        held, first, lanes = piece.region.words[self.element], piece.start >> shift, len(piece.index)
        stored = np.stack([np.broadcast_to(value.view(f"u{self.element}"), lanes) for value in values], axis=1)
        there = np.stack([held[first + i + piece.index] for i in range(len(values))], axis=1)
        shape = (-1, LANES, self.width)
        return stored.view(np.uint8).reshape(shape), there.view(np.uint8).reshape(shape)
