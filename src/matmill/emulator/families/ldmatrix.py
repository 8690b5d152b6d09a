"""8x8 matrices of 16-bit elements between shared memory and registers: ldmatrix, stmatrix, movmatrix.

PTX ISA, "Warp-level matrix instructions: ldmatrix", "stmatrix", "movmatrix". Lane ``8 m + r`` has the address of row
``r`` (16 bytes) of matrix ``m``. For each matrix, lane ``4 g + t`` has row ``g``, columns ``2 t`` and ``2 t + 1``, in
one register; with .trans it has column ``g``, rows ``2 t`` and ``2 t + 1``.

For the race detector a word is accessed by the lane that receives (or supplies) it, not by the lane with its row's
address. With .trans two lanes share two words; each counts as accessing one of them.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Row
from matmill.emulator.engine.bind.access import Access
from matmill.emulator.engine.bind.bound_block import BoundBlock
from matmill.emulator.engine.bind.initialised import check_written, mark_written
from matmill.emulator.families.addresses import address_of, base_registers
from matmill.emulator.frontend.syntax import Address, Instruction
from matmill.emulator.memory import banks
from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.table import Action, Call, Modifiers, Value, instructions, scalars
from matmill.emulator.races.shadow.warp_accesses import Stores
from matmill.emulator.report.hazards import fault

_ROWS = 8
_ROW_BYTES = 16
_WORD_BYTES = 4
_LANE = np.arange(LANES)
# The row of a matrix, and the byte of it, that each lane counts as accessing.
_WORDS = {
    False: (_LANE >> 2, (_LANE & 3) * _WORD_BYTES),
    True: ((_LANE & 3) * 2 + (_LANE >> 2 & 1), (_LANE >> 3) * _WORD_BYTES),
}


@instructions("ldmatrix", "stmatrix")
def transfer(i: Instruction) -> Action:
    """Bind ``ldmatrix`` and ``stmatrix`` of 1, 2 or 4 matrices of 16-bit elements."""
    m = Modifiers(i, "sync", "aligned")
    if not m.flag("m8n8"):
        raise i.unsupported("a shape other than .m8n8: only sm_100 and later GPUs have it")
    matrices = int(m.need("x1", "x2", "x4")[1:])
    transposed = m.flag("trans")
    space = m.pick(("shared", "shared::cta"), "generic").removesuffix("::cta")
    m.type("b16")
    m.done()
    loads = i.name == "ldmatrix"
    rows, data = (i.operands[1], i.operands[0]) if loads else i.operands
    address = address_of(i, rows)
    values = tuple(Value(o, "u4") for o in scalars(data))
    if len(values) != matrices:
        raise i.unsupported("its vector")

    def bind(bound: BoundBlock) -> Call:
        access = MatrixAccess(bound, i, address, space, matrices=matrices, transposed=transposed)
        return LoadMatrices(bound, access) if loads else StoreMatrices(bound, access)

    return Action(
        i,
        () if loads else values,
        values if loads else (),
        bind=bind,
        tally="memory",
        masks_itself=True,
        uses=base_registers(address),
    )


class MatrixAccess(Access):
    """The rows of ``matrices`` matrices, whose addresses come from the first lanes of each warp."""

    def __init__(
        self, bound: BoundBlock, i: Instruction, address: Address, space: str, *, matrices: int, transposed: bool
    ) -> None:
        addresses = bound.addresses(i, address, space, first=_ROWS * matrices)
        kind = "read" if i.name == "ldmatrix" else "write"
        super().__init__(bound.machine, addresses, i, offset=address.offset, element=_ROW_BYTES, vector=1, kind=kind)
        self.counted_as = i.name
        self.matrices = matrices
        self.transposed = transposed

    def _find(self) -> None:
        super()._find()
        if any(piece.region.kind != "shared" for piece in self.pieces):
            i, lane = self.instruction, int(np.flatnonzero(self.addresses.active_lanes().reshape(-1))[0])
            where = self.machine.describe(self.addresses.space, self.addresses.low + self.offset)
            message = (
                f"{self.machine.launch.kernel}: {self.addresses.lanes.thread_name(lane)} names a row at {where}, "
                f"outside shared memory, in {i.text!r}"
            )
            raise fault("out-of-bounds", message, i)

    def active_rows(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return addresses int64[warps, 32], of which the first ``8 * matrices`` count, and which warps take part."""
        return self.addresses.absolute(self.offset), self.addresses.active_lanes()[:, 0]

    def _cost(self, _kind: str, _active: NDArray[np.bool_]) -> tuple[int, int, int, int]:
        absolute, warps = self.active_rows()
        actual, ideal = banks.ldmatrix_wavefronts(absolute[warps] & 0x7FFFFFFF, self.matrices)
        requests = int(warps.sum())
        return requests, int(actual.sum()), int(ideal.sum()), requests * self.matrices * _ROWS * _ROW_BYTES

    def _watch(self, values: tuple[Row, ...]) -> None:
        detector = self.machine.detector
        if detector is None:
            return
        absolute, warps = self.active_rows()
        active = np.repeat(warps[:, None], LANES, axis=1)
        row, byte = _WORDS[self.transposed]
        for matrix in range(self.matrices):
            contents = partial(self._contents, values, matrix) if values else None
            detector.access(
                "shared",
                warp=self.addresses.lanes.warp_ids,
                addresses=self.machine.shared_offset(absolute[:, matrix * _ROWS + row] + byte),
                active=active,
                width=_WORD_BYTES,
                kind=self.kind,
                where=self.where,
                stores=Stores(self.addresses.lanes.warp_ids, contents) if contents is not None else None,
            )

    def _contents(self, values: tuple[Row, ...], matrix: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return the bytes that each lane stores of a matrix, and those before: uint8[warps, 32, 4] each."""
        piece, (row, byte), words = self.pieces[0], _WORDS[self.transposed], _ROW_BYTES // _WORD_BYTES
        rows = piece.index.reshape(-1, LANES)[:, matrix * _ROWS + row]
        held = piece.region.words[_WORD_BYTES][piece.start // _WORD_BYTES + rows * words + byte // _WORD_BYTES]
        stored = values[0].reshape(len(rows), -1, LANES)[:, matrix, row * words + byte // _WORD_BYTES]
        one, two = (np.ascontiguousarray(each)[..., None].view(np.uint8) for each in (stored, held))
        return one, two


class _Transfer:
    """The part that loads and stores of matrices share: the words of shared memory in their rows."""

    def __init__(self, bound: BoundBlock, access: MatrixAccess) -> None:
        self.access = access
        self.whole = bound.whole_warps(access.instruction)
        self.warps = bound.lanes.warp_count
        self.rows = _ROWS * access.matrices

    def locate(self, *stored: Row) -> bool:
        """Check and count one execution, which stores words; return False if no warp takes part."""
        if self.whole is not None:
            self.whole()
        return self.access.locate(stored)

    def memory(self) -> tuple[Row, NDArray[np.int64]]:
        """Return shared memory as rows of 16 bytes, and the row of each address: int64[warps, 8 * matrices]."""
        # Shared memory is one region, so all lanes are in one piece.
        piece = self.access.pieces[0]
        index = piece.index.reshape(self.warps, LANES)[:, : self.rows]
        return piece.region.words[_ROW_BYTES][piece.start // _ROW_BYTES :], index

    def oriented(self, words: Row) -> Row:
        """Return matrices as uint32[warps, matrices, 32], transposed for .trans."""
        if not self.access.transposed:
            return words
        halves = words.view(np.uint16).reshape(self.warps, -1, _ROWS, _ROWS)
        return np.ascontiguousarray(halves.swapaxes(2, 3)).view(np.uint32).reshape(words.shape)


class LoadMatrices(_Transfer):
    """A bound ``ldmatrix``."""

    def __init__(self, bound: BoundBlock, access: MatrixAccess) -> None:
        super().__init__(bound, access)
        self.epoch = -1
        self.view: Row = np.empty(0)
        self.index: NDArray[np.int64] = np.empty(0, np.int64)
        buffer = access.machine.buffers.take("load c16", "c16", self.warps * self.rows)
        self.buffer = buffer.reshape(self.warps, self.rows)

    def __call__(self, *outs: Row) -> None:
        """Load one matrix into each register."""
        if not self.locate():
            return
        access = self.access
        if access.epoch != self.epoch:
            self.view, self.index = self.memory()
            if not check_written(access, access.pieces[0], 1):
                # Every execution checks again until something is stored there.
                access.epoch = -1
            self.epoch = access.epoch
        self.view.take(self.index, out=self.buffer, mode="clip")
        words = self.oriented(self.buffer.view(np.uint32).reshape(self.warps, -1, LANES))
        for matrix, out in enumerate(outs):
            out[...] = words[:, matrix].reshape(-1)


class StoreMatrices(_Transfer):
    """A bound ``stmatrix``."""

    def __call__(self, *values: Row) -> None:
        """Store one matrix from each register; of rows with one address the last one remains."""
        each = [np.broadcast_to(value, self.warps * LANES).reshape(self.warps, LANES) for value in values]
        words = self.oriented(np.stack(each, axis=1))
        if not self.locate(words):
            return
        access = self.access
        access.machine.progress += 1
        rows = words.reshape(self.warps, -1).view(np.complex128)
        view, index = self.memory()
        _, warps = access.active_rows()
        view[index[warps]] = rows[warps]
        piece = access.pieces[0]
        mark_written(access, piece, index[warps].reshape(-1), 1)


@instructions("movmatrix")
def transpose(i: Instruction) -> Action:
    """Bind ``movmatrix``: the transpose of an 8x8 matrix of 16-bit elements in one register of a warp."""
    m = Modifiers(i, "sync", "aligned")
    shape = m.flag("m8n8") and m.flag("trans")
    m.type("b16")
    m.done()
    if not shape:
        raise i.unsupported("its shape")
    d, a = i.operands

    def bind(bound: BoundBlock) -> Call:
        whole, warps = bound.whole_warps(i), bound.lanes.warp_count

        def call(a: Row, out: Row) -> None:
            if whole is not None:
                whole()
            words = np.ascontiguousarray(np.broadcast_to(a, warps * LANES))
            halves = words.view(np.uint16).reshape(warps, _ROWS, _ROWS)
            out[...] = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(-1).view(np.uint32)

        return call

    return Action(i, (Value(a, "u4"),), (Value(d, "u4"),), bind=bind)
