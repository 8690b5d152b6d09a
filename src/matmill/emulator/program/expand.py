"""Instructions that are replaced by others: wmma by loads, mma.sync and stores, vector atomics by scalar ones.

Cache policies are dropped. PTX ISA, "Warp-level matrix instructions: wmma". The PTX ISA does not define which lane has
which element of a fragment, and programs may only load, multiply, store and change all elements alike. Here fragments
have the layout of mma.sync, which computes the products: 8 rows of a matrix are a tile of 8 x 4 registers, lane
``4 g + t`` has row ``g``; B is stored as its transpose, and m8n32 is the transposed product of m32n8. Registers beyond
the matrix's elements have copies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from matmill.emulator.frontend.syntax import (
    TYPE_BYTES,
    Address,
    Immediate,
    Instruction,
    PtxOperand,
    Register,
    Special,
    Symbol,
    Vector,
)

_HINTED = {"ld", "st", "atom", "red", "cp"}
_VECTORS = {"v2", "v4", "v8"}
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_BITS = {
    "f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "f64": 64, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1, "s32": 32,
}  # fmt: skip


def expanded(s: Instruction) -> list[Instruction]:
    """Return the instructions that replace one; mostly itself."""
    if s.name == "wmma":
        try:
            return list(_Wmma(s).instructions())
        except (IndexError, KeyError, ValueError) as problem:
            raise s.unsupported("operands or modifiers that do not fit it") from problem
    if s.name in {"atom", "red"} and not _VECTORS.isdisjoint(s.modifiers):
        return _one_by_one(s)
    if s.name in _HINTED and "L2::cache_hint" in s.modifiers and "bulk" not in s.modifiers:
        modifiers = tuple(m for m in s.modifiers if m != "L2::cache_hint")
        return [replace(s, modifiers=modifiers, operands=s.operands[:-1])]
    return [s]


def _one_by_one(s: Instruction) -> list[Instruction]:
    """Return the scalar atomics that replace a vector one: each element is updated separately."""
    modifiers = tuple(m for m in s.modifiers if m not in _VECTORS)
    at = next(n for n, o in enumerate(s.operands) if isinstance(o, Address))
    address, size = s.operands[at], next(TYPE_BYTES[m] for m in modifiers if m in TYPE_BYTES)
    vectors = [o.items if isinstance(o, Vector) else (o,) for o in s.operands if o is not address]
    if not isinstance(address, Address) or len({len(v) for v in vectors}) != 1:
        raise s.unsupported("its vectors")
    steps = []
    for n, scalars in enumerate(zip(*vectors, strict=True)):
        element = replace(address, offset=address.offset + n * size)
        steps.append(replace(s, modifiers=modifiers, operands=(*scalars[:at], element, *scalars[at:])))
    return steps


@dataclass
class _Wmma:
    """One wmma instruction: its shape, and its replacement."""

    whole: Instruction
    count: int = 0
    body: list[Instruction] = field(default_factory=list)
    after: list[Instruction] = field(default_factory=list)

    def instructions(self) -> Iterator[Instruction]:
        """Yield the instructions that replace it."""
        words = [m for m in self.whole.modifiers if m not in {"sync", "aligned"}]
        shape = next((m for m in words if _SHAPE.fullmatch(m)), "")
        if not shape or words[0] not in {"load", "mma", "store"}:
            raise self.whole.unsupported("its form")
        m, n, k = (int(x) for x in _SHAPE.fullmatch(shape).groups())  # type: ignore[union-attr]
        self.transposed = m == 8 and n == 32
        self.shape = (n, m, k) if self.transposed else (m, n, k)
        types = [w for w in words if w in _BITS]
        if not types:
            raise self.whole.unsupported("its types")
        if words[0] == "mma":
            self._multiply(words, types)
        else:
            self._move(words, types[0])
        yield from self.body

    def _fresh(self, kind: str) -> Register:
        self.count += 1
        return Register(f"wmma#{self.whole.line}:{self.count}", kind)

    def _add(self, name: str, modifiers: tuple[str, ...], *operands: PtxOperand) -> None:
        self.body.append(self._like(name, modifiers, *operands))

    def _like(self, name: str, modifiers: tuple[str, ...], *operands: PtxOperand) -> Instruction:
        return replace(self.whole, name=name, modifiers=modifiers, operands=operands)

    # Loads and stores

    def _move(self, words: list[str], kind: str) -> None:
        """Load or store one fragment."""
        part, by_rows = words[1], "row" in words
        m, n, k = self.shape
        if self.transposed:
            part, by_rows = {"a": "b", "b": "a"}.get(part, part), not by_rows
        rows, columns = {"a": (m, k), "b": (n, k), "c": (m, n), "d": (m, n)}[part]
        if part == "b":
            by_rows = not by_rows
        operands = list(self.whole.operands)
        load = words[0] == "load"
        fragment, address = (operands[0], operands[1]) if load else (operands[1], operands[0])
        registers = fragment.items if isinstance(fragment, Vector) else (fragment,)
        if not isinstance(address, Address):
            raise self.whole.unsupported("its address")
        stride: PtxOperand = operands[2] if len(operands) > 2 else Immediate(columns if by_rows else rows, "int")
        spaces = tuple(w for w in words if w.startswith(("global", "shared")))
        bits = _BITS[kind]
        packed = max(1, 32 // bits)
        width = 2 if part in {"c", "d"} else packed
        tile = 8 if part in {"c", "d"} else 4 * packed
        per_register = min(packed, width)
        tiles = [(8 * r, tile * c) for c in range(columns // tile) for r in range(rows // 8)]
        if part == "b":
            tiles = [(8 * r, tile * c) for r in range(rows // 8) for c in range(columns // tile)]
        slots = [(row, column + e) for row, column in tiles for e in range(0, width, per_register)]
        row, column = self._lane(width)
        for index, register in enumerate(registers):
            if index >= len(slots) and not load:
                raise self.whole.unsupported("the number of its registers")
            first = slots[index % len(slots)]
            if not isinstance(register, Register):
                raise self.whole.unsupported("its fragment")
            pointers = [
                self._pointer(address, stride, (row, first[0]), (column, first[1] + e), bits, by_rows=by_rows)
                for e in range(per_register)
            ]
            self._element(register, pointers, bits, spaces, load=load, contiguous=by_rows)

    def _lane(self, width: int) -> tuple[Register, Register]:
        """Return the row and the first column of a tile that belong to this lane."""
        lane, row, column = self._fresh("u32"), self._fresh("u32"), self._fresh("u32")
        self._add("mov", ("u32",), lane, Special("%laneid"))
        self._add("shr", ("u32",), row, lane, Immediate(2, "int"))
        self._add("and", ("b32",), column, lane, Immediate(3, "int"))
        self._add("mul", ("lo", "u32"), column, column, Immediate(width, "int"))
        return row, column

    def _pointer(
        self,
        address: Address,
        stride: PtxOperand,
        row: tuple[Register, int],
        column: tuple[Register, int],
        bits: int,
        *,
        by_rows: bool,
    ) -> Register:
        """Return the address of an element of so many bits, or of the byte in which it begins."""
        long, short = (row, column) if by_rows else (column, row)
        outer, inner, offset = self._fresh("u32"), self._fresh("u32"), self._fresh("u32")
        self._add("add", ("u32",), outer, long[0], Immediate(long[1], "int"))
        self._add("add", ("u32",), inner, short[0], Immediate(short[1], "int"))
        self._add("mad", ("lo", "u32"), offset, outer, stride, inner)
        if bits < 8:
            self._add("shr", ("u32",), offset, offset, Immediate((8 // bits).bit_length() - 1, "int"))
        narrow = isinstance(address.base, Register) and TYPE_BYTES[address.base.type] == 4
        pointer = self._fresh("u32" if narrow else "u64")
        base: PtxOperand = address.base
        if isinstance(base, Symbol):
            base = replace(base, offset=base.offset + address.offset)
            added = 0
        else:
            added = address.offset
        form = ("lo", "u32") if narrow else ("wide", "u32")
        self._add("mad", form, pointer, offset, Immediate(max(bits // 8, 1), "int"), base)
        if added:
            self._add("add", ("u32" if narrow else "u64",), pointer, pointer, Immediate(added, "int"))
        return pointer

    def _element(
        self,
        register: Register,
        pointers: list[Register],
        bits: int,
        spaces: tuple[str, ...],
        *,
        load: bool,
        contiguous: bool,
    ) -> None:
        """Load or store one register, at once or element by element."""
        whole = bits * len(pointers)
        if contiguous or len(pointers) == 1:
            kind = f"b{whole}"
            if load:
                self._add("ld", (*spaces, kind), register, Address(pointers[0]))
            else:
                self._add("st", (*spaces, kind), Address(pointers[0]), register)
            return
        parts = [self._fresh("b16" if bits == 16 else "b32") for _ in pointers]
        if not load:
            if bits != 16:
                raise self.whole.unsupported("its type")
            self._add("mov", ("b32",), Vector(tuple(parts)), register)
        for part, pointer in zip(parts, pointers, strict=True):
            if load:
                self._add("ld", (*spaces, f"b{bits}" if bits == 16 else "u8"), part, Address(pointer))
            else:
                self._add("st", (*spaces, f"b{bits}"), Address(pointer), part)
        if not load:
            return
        if bits == 16:
            self._add("mov", ("b32",), register, Vector(tuple(parts)))
            return
        self._add("mov", ("b32",), register, parts[0])
        for index, part in enumerate(parts[1:], 1):
            where = Immediate(8 * index, "int")
            self._add("bfi", ("b32",), register, part, register, where, Immediate(8, "int"))

    # Products

    def _multiply(self, words: list[str], types: list[str]) -> None:
        """Expand D = A B + C to products of mma.sync with 8 columns."""
        d, a, b, c = (o.items if isinstance(o, Vector) else (o,) for o in self.whole.operands)
        if self.transposed:
            a, b = b, a
            types = [types[0], types[2], types[1], types[3]] if len(types) == 4 else types
        m, n, k = self.shape
        if len(types) == 2:  # wmma.mma.….f32.f32: the types of D and C, with factors of f16
            d_type, a_type, b_type, c_type = types[0], "f16", "f16", types[1]
        elif len(types) == 4:
            d_type, a_type, b_type, c_type = types
        else:
            raise self.whole.unsupported("its types")
        if d_type != c_type:
            c, d = self._converted(c, c_type, d)
            c_type = d_type = "f32"
        tall = 8 if m == 8 else 16
        packed_a, packed_c = max(1, 32 // _BITS[a_type]), max(1, 32 // _BITS[d_type])
        a_tiles = (tall // 8) * (k // (4 * packed_a))
        b_tiles = k // (4 * packed_a)
        c_each = 2 * (tall // 8) // packed_c
        rows_a = m // 8
        for j in range(n // 8):
            for i in range(m // tall):
                left = [
                    a[c_ * rows_a + i * (tall // 8) + r] for c_ in range(k // (4 * packed_a)) for r in range(tall // 8)
                ]
                right = list(b[j * b_tiles : (j + 1) * b_tiles])
                start = (j * (m // tall) + i) * c_each
                if len(left) != a_tiles or start + c_each > len(d):
                    raise self.whole.unsupported("the number of its registers")
                more = [word for word in words if word in {"xor", "and", "popc"}]
                more += ["satfinite"] if "satfinite" in words and d_type == "s32" else []
                self._add(
                    "mma",
                    ("sync", "aligned", f"m{tall}n8k{k}", "row", "col", *more, d_type, a_type, b_type, c_type),
                    Vector(tuple(d[start : start + c_each])),
                    Vector(tuple(left)),
                    Vector(tuple(right)),
                    Vector(tuple(c[start : start + c_each])),
                )
        self.body += self.after

    def _converted(
        self, c: tuple[PtxOperand, ...], c_type: str, d: tuple[PtxOperand, ...]
    ) -> tuple[tuple[PtxOperand, ...], tuple[PtxOperand, ...]]:
        """Return C as float32, and registers for a float32 D, if one of the two is float16."""
        if c_type == "f32":
            sums = [(self._fresh("f32"), self._fresh("f32")) for _ in d]
            for (lower, upper), packed in zip(sums, d, strict=True):
                self.after.append(self._like("cvt", ("rn", "f16x2", "f32"), packed, upper, lower))
            return c, tuple(x for pair in sums for x in pair)
        wide: list[PtxOperand] = []
        for packed in c:
            halves = self._fresh("b16"), self._fresh("b16")
            self._add("mov", ("b32",), Vector(halves), packed)
            for half in halves:
                wide.append(self._fresh("f32"))
                self._add("cvt", ("f32", "f16"), wide[-1], half)
        return tuple(wide), d
