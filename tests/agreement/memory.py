"""Cases: loads and stores of every width, local and generic addresses, atomics, asynchronous copies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agreement.case import C_TYPES, POISON, Array, Case, Op, compare_slots
from agreement.values import floats, words
from agreement.warps import slots

_ATOMICS = (
    *((f"{name}.{t}", "u4") for name in ("add", "min", "max") for t in ("u32", "s32")),
    *((f"{name}.b32", "u4") for name in ("and", "or", "xor", "exch")),
    ("inc.u32", "u4"), ("dec.u32", "u4"), ("add.u64", "u8"),
    *((f"{name}.{t}", "u8") for name in ("min", "max") for t in ("u64", "s64")),
    *((f"{name}.b64", "u8") for name in ("and", "or", "xor", "exch")),
    ("add.f32", "f4"), ("add.f64", "f8"), ("add.noftz.f16", "f2"), ("add.noftz.bf16", "bf"),
    ("add.noftz.f16x2", "f2x2"), ("add.noftz.bf16x2", "bfx2"), ("cas.b32", "u4"), ("cas.b64", "u8"), ("cas.b16", "u2"),
)  # fmt: skip
_CARRIER = {"f2": "u2", "bf": "u2", "f2x2": "u4", "bfx2": "u4"}
# Sums of pairs in shared memory have a kernel of their own. Beside sums of single halves with the same 64-bit word,
# ptxas 13.5 for sm_90a adds the word's bits 32 to 47 to the upper halves where the PTX says bits 16 to 31: seen in its
# machine code, and on an H200, 994 of 2048 results. Alone it adds whole words.
_PAIRS = tuple(x for x in _ATOMICS if x[0].endswith("x2"))
_NO_PAIRS = tuple(x for x in _ATOMICS if x not in _PAIRS)


def _own_addresses(space: str, atomics: Sequence[tuple[str, str]], label: str = "atomics") -> Case:
    """Give every one of ``atomics`` once per thread on a slot of its own: the old value and what is left in memory."""
    lines = []
    count = 2048
    for n, (name, kind) in enumerate(atomics):
        carrier = _CARRIER.get(kind, kind)
        c_type, constraint, bits = C_TYPES[carrier]
        third = ", %4" if name.startswith("cas") else ""
        address = {"global": "m", "shared": "s"}[space]
        slot = f"m + {n} * n + i" if space == "global" else "slot + threadIdx.x"
        # Operands are bits: a float is made of them without conversion.
        lines.append(
            f"{{ unsigned long long* at = {slot}; *at = a; __syncthreads();\n"
            f"  union {{ unsigned long long u; {c_type} v; }} y = {{b}}, z = {{c}}; {c_type} d;\n"
            f'  asm volatile("atom.{space}.{name} %0, [%1], {"%2, %3" if third else "%2"};" : "={constraint}"(d) : '
            f'"l"({"__cvta_generic_to_global(at)" if address == "m" else "__cvta_generic_to_shared(at)"}), '
            f'"{constraint}"(y.v), "{constraint}"(z.v) : "memory");\n'
            f"  o[{n} * n + i] = {bits}; m[{n} * n + i] = *at; }}\n"
        )
    source = f"""extern "C" __global__ void k(const unsigned long long* x, const unsigned long long* y,
    const unsigned long long* z, unsigned long long* o, unsigned long long* m, int n) {{
  __shared__ unsigned long long slot[128];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned long long a = x[i], b = y[i], c = z[i];
  {"".join(lines)} }}"""
    integers, singles, doubles, halves = (
        words(64, count, 30),
        floats("f4", 4096, 31),
        floats("f8", 4096, 32),
        floats("f2", 4096, 33),
    )

    def operand(index: int) -> Array:
        # A quarter each: bits of any kind, float32 (its subnormals above all), float64, pairs of halves.
        part = count // 4
        single = singles[index][:part].astype(np.uint64)
        half = halves[index][:part].astype(np.uint64) * np.uint64(0x10001)
        result = [integers[index][:part], single, doubles[index][:part], half]
        result[0][::3] = integers[0][:part][::3]
        return np.concatenate(result)

    ops = [Op(f"atom.{space}.{name}", kind) for name, kind in atomics]

    def differences(gpu: dict[str, Array], emulator: dict[str, Array]) -> list[str]:
        inputs = [operand(n) for n in range(3)]
        kept = [
            np.uint64((1 << {"u2": 16, "u4": 32}.get(_CARRIER.get(k, k), 32 if k == "f4" else 64)) - 1)
            for _, k in atomics
        ]
        memory = [
            (side["m"].reshape(len(ops), -1) & np.array(kept)[:, None]).reshape(-1) for side in (gpu, emulator)
        ]  # beside a narrow value the slot keeps its bits, which the masks drop
        old = compare_slots(ops, inputs, gpu["o"], emulator["o"])
        return [f"old value: {x}" for x in old] + [f"memory: {x}" for x in compare_slots(ops, inputs, *memory)]

    def arrays() -> dict[str, Array]:
        result = {name: operand(n) for n, name in enumerate("xyz")}
        return {**result, "o": slots(len(ops) * count), "m": slots(len(ops) * count)}

    return Case(
        f"{label} on own {space} addresses", source, arrays, ("o", "m"), (count // 128, 1, 1),
        values=(np.int32(count),), differences=differences, ops=tuple(ops),
        operands=tuple(operand(n) for n in range(3)),
    )  # fmt: skip


def _shared_addresses() -> Case:
    """Yield accesses of many threads to few addresses; only what does not depend on their order."""
    names = [n for n, kind in _ATOMICS if kind in {"u4", "u8"} and n.split(".")[0] not in {"exch", "cas", "inc", "dec"}]
    names += ["inc.u32", "dec.u32"]
    lines = []
    for n, name in enumerate(names):
        wide = name.endswith("64")
        value = "v" if wide else "(unsigned)v"
        value = "37u" if name in {"inc.u32", "dec.u32"} else value
        constraint = "l" if wide else "r"
        for space, base in (
            ("shared", "(unsigned)__cvta_generic_to_shared(cell + t % 3)"),
            ("global", f"o + {n * 8} + v % 5"),
        ):
            lines.append(
                f'asm volatile("red.{space}.{name} [%0], %1;" :: "{"r" if space == "shared" else "l"}"({base}), '
                f'"{constraint}"({value}) : "memory");\n'
            )
        lines.append(
            f"__syncthreads();\n"
            f"if (t < 3) {{ p[(blockIdx.x * {len(names)} + {n}) * 3 + t] = cell[t]; cell[t] = 12; }}\n"
            f"__syncthreads();\n"
        )
    source = f"""
extern "C" __global__ void k(const unsigned long long* x, unsigned long long* o, unsigned long long* p) {{
  __shared__ unsigned long long cell[3];
  const int t = threadIdx.x;
  const unsigned long long v = x[blockIdx.x * blockDim.x + t];
  if (t < 3) cell[t] = 12;
  __syncthreads();
  {"".join(lines)} }}"""
    inputs = words(64, 1024, seed=34)[2]

    def arrays() -> dict[str, Array]:
        return {"x": inputs.copy(), "o": np.full(8 * len(names), 9, np.uint64), "p": slots(8 * len(names) * 3)}

    return Case("atomics on shared addresses", source, arrays, ("o", "p"), (8, 1, 1))


def _widths() -> Case:
    """Return vectors of every width and element through global, shared and local memory, with sign extension."""
    lines = []
    forms = [("u8", 1), ("s8", 1), ("u8", 2), ("s8", 4), ("u16", 1), ("s16", 2), ("u16", 4), ("s32", 1), ("u32", 2),
             ("f32", 4), ("u64", 1), ("b64", 1), ("s64", 2), ("f64", 2)]  # fmt: skip
    for n, (t, width) in enumerate(forms):
        bits = int(t[1:])
        register = {8: "b32", 16: "b16", 32: "b32", 64: "b64"}[bits] if t[0] != "f" else f"f{bits}"
        names = ", ".join(f"r{i}" for i in range(width))
        vector, group = (f".v{width}", f"{{{names}}}") if width > 1 else ("", "r0")
        stored = f"st.shared{vector}.{t} [%1], {group}; ld.shared{vector}.{t} {group}, [%1];"
        swapped = "{" + ", ".join(f"r{(i + 1) % width}" for i in range(width)) + "}" if width > 1 else "r0"
        lines.append(
            f'asm volatile("{{.reg .{register} {names}; ld.global{vector}.{t} {group}, [%0]; {stored} '
            f'st.global{vector}.{t} [%2], {swapped};}}" '
            f':: "l"(x + i * 16), "r"(s), "l"(o + ({n} * n + i) * 16) : "memory");\n'
        )
        if bits == 8 and width == 1:
            lines.append(
                f'{{ unsigned w; asm volatile("ld.global.{t} %0, [%1];" : "=r"(w) : "l"(x + i * 16 + 3)); '
                f"*(unsigned*)(o + ({n} * n + i) * 16 + 4) = w; }}\n"
            )
    source = f"""extern "C" __global__ void k(const unsigned char* x, unsigned char* o, int n) {{
  __shared__ alignas(16) unsigned char room[128 * 16];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned s = __cvta_generic_to_shared(room + threadIdx.x * 16);
  {"".join(lines)} }}"""
    data = words(64, 512, seed=35)[2].view(np.uint8)
    return Case(
        "vector widths", source,
        lambda: {"x": data.copy(), "o": np.full(len(forms) * 256 * 16, 0xDE, np.uint8)}, ("o",), (2, 1, 1),
        values=(np.int32(256),),
    )  # fmt: skip


def _addresses() -> Case:
    """Return a case of local arrays indexed at run time, and of generic addresses into three state spaces."""
    source = """__device__ unsigned table[8] = {3, 1, 4, 1, 5, 9, 2, 6};
__constant__ unsigned fixed[4] = {2, 7, 1, 8};
extern "C" __global__ void k(unsigned* x, unsigned long long* o, int n) {
  __shared__ unsigned room[128];
  const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  unsigned local[16];
  unsigned v = x[i];
  for (int j = 0; j < 16; j++) local[(j * 7 + i) % 16] = v * j + fixed[(v >> j) & 3];
  room[t] = v; __syncthreads();
  unsigned* targets[3] = {local + v % 16, room + (t + 1) % 128, x + n + i};
  unsigned* p = targets[v % 3];
  const unsigned before = *p;
  __syncthreads();
  *p = before * 3 + table[i % 8];
  __syncthreads();
  unsigned hash = 0;
  for (int j = 0; j < 16; j++) hash = hash * 31 + local[(j ^ t) % 16];
  hash += __isShared(p) * 2 + __isGlobal(p) * 4 + __isLocal(p) * 8 + __isConstant(fixed) * 16;
  unsigned back;
  asm volatile("{.reg .u64 a; cvta.to.shared.u64 a, %1; ld.shared.u32 %0, [a];}"
               : "=r"(back) : "l"(room + t) : "memory");
  o[i] = (unsigned long long)(hash ^ before) << 32 | (back ^ room[(t + 5) % 128]);
}"""
    value = words(32, 1024, seed=36)[2]
    return Case(
        "addresses", source, lambda: {"x": value.copy(), "o": slots(512)}, ("o", "x"), (4, 1, 1),
        values=(np.int32(512),),
    )  # fmt: skip


def _copies() -> Case:
    """Return cp.async of every size, filling with zeros what it does not read, in several groups."""
    lines = []
    n = 0
    for size, caches in ((4, ("ca",)), (8, ("ca",)), (16, ("ca", "cg"))):
        for cache in caches:
            for amount in ("", ", %2"):
                lines.append(
                    f"{{ const unsigned s = base + {n} * 2048; const unsigned some = v % {size + 1};\n"
                    f'  asm volatile("cp.async.{cache}.shared.global [%0], [%1], {size}{amount};" '
                    f':: "r"(s), "l"(x + i * 16), "r"(some) : "memory");\n'
                    f'  asm volatile("cp.async.commit_group;" ::: "memory"); }}\n'
                )
                n += 1
    source = f"""extern "C" __global__ void k(const unsigned char* x, unsigned* o, int n) {{
  extern __shared__ unsigned char room[];
  const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  for (int j = t; j < {n} * 512; j += blockDim.x) ((unsigned*)room)[j] = 0xABABABABu;
  __syncthreads();
  const unsigned v = x[i * 16 + 1], base = __cvta_generic_to_shared(room) + t * 16;
  {"".join(lines)}
  asm volatile("cp.async.wait_group 2;" ::: "memory");
  for (int j = 0; j < {n - 2} * 4; j++) o[(i * {n} * 4) + j] = ((unsigned*)room)[j / 4 * 512 + t * 4 + j % 4];
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  for (int j = {n - 2} * 4; j < {n} * 4; j++)
    o[(i * {n} * 4) + j] = ((unsigned*)room)[j / 4 * 512 + (t ^ 37) * 4 + j % 4];
}}"""
    data = words(64, 512, seed=37)[2].view(np.uint8)
    return Case(
        "asynchronous copies", source,
        lambda: {"x": data.copy(), "o": np.full(256 * n * 4, POISON & 0xFFFFFFFF, np.uint32)}, ("o",), (2, 1, 1),
        values=(np.int32(0),), shared=n * 2048,
    )  # fmt: skip


CASES = (
    _own_addresses("global", _ATOMICS),
    _own_addresses("shared", _NO_PAIRS),
    _own_addresses("shared", _PAIRS, "atomics of pairs"),
    _shared_addresses(),
    _widths(),
    _addresses(),
    _copies(),
)
