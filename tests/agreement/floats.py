"""Cases: floating-point arithmetic, comparisons and conversions."""

from __future__ import annotations

import numpy as np

from agreement.case import Array, Case, Op, table
from agreement.values import floats, limits, midpoints, words, zipped

MODES = ("rn", "rz", "rm", "rp")
_WITHOUT_MODE = ("", ".ftz", ".sat")
_BESIDE_BYTES = np.array([0, 0x40000, 0x80000, 0xC0000, 0x7FFFF, 0x80001, 0xFFFFF, 0x3FFFF], np.uint32)
_TYPES = {"f4": "f32", "f8": "f64", "f2": "f16", "bf": "bf16"}


def _arithmetic_f32() -> Case:
    ops = []
    for mode in MODES:
        for more in ("", ".ftz", ".sat", ".ftz.sat"):
            ops += [Op(f"{name}.{mode}{more}.f32 %0, %1, %2;", "f4") for name in ("add", "sub", "mul")]
            ops.append(Op(f"fma.{mode}{more}.f32 %0, %1, %2, %3;", "f4"))
        for ftz in ("", ".ftz"):
            ops.append(Op(f"div.{mode}{ftz}.f32 %0, %1, %2;", "f4"))
            ops += [Op(f"{name}.{mode}{ftz}.f32 %0, %1;", "f4") for name in ("rcp", "sqrt")]
    ops += [Op(f"{name}{more}.f32 %0, %1, %2;", "f4") for name in ("add", "sub", "mul") for more in _WITHOUT_MODE]
    ops += [Op("add.sat.f32 %0, %1, 0f00000000;", "f4")]
    return table("arithmetic f32", [("f4", x) for x in zipped(floats("f4"), midpoints(np.float32))], ops)


def _arithmetic_f64() -> Case:
    ops = []
    for mode in MODES:
        ops += [Op(f"{name}.{mode}.f64 %0, %1, %2;", "f8") for name in ("add", "sub", "mul", "div")]
        ops.append(Op(f"fma.{mode}.f64 %0, %1, %2, %3;", "f8"))
        ops += [Op(f"{name}.{mode}.f64 %0, %1;", "f8") for name in ("rcp", "sqrt")]
    ops += [Op(f"{name}.f64 %0, %1, %2;", "f8") for name in ("add", "sub", "mul")]
    return table("arithmetic f64", [("f8", x) for x in zipped(floats("f8"), midpoints(np.float64), limits())], ops)


def _signs_and_extrema() -> Case:
    ops = []
    for kind, first, second in (("f4", "%1", "%2"), ("f8", "%3", "%4")):
        t = _TYPES[kind]
        for ftz in ("", ".ftz") if kind == "f4" else ("",):
            ops += [Op(f"{name}{ftz}.{t} %0, {first}, {second};", kind) for name in ("min", "max")]
            ops += [Op(f"{name}{ftz}.{t} %0, {first};", kind) for name in ("neg", "abs")]
        ops.append(Op(f"copysign.{t} %0, {first}, {second};", kind))
        for name in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
            ops.append(Op(f"{{.reg .pred p; testp.{name}.{t} p, {first}; selp.u32 %0, 1, 0, p;}}", "u4"))
    ops += [Op(f"{name}{ftz}.NaN.f32 %0, %1, %2;", "f4") for name in ("min", "max") for ftz in ("", ".ftz")]
    ops += [Op(f"slct{ftz}.b32.f32 %0, 5, 6, %1;", "u4") for ftz in ("", ".ftz")]
    ops += [Op("slct.f32.f32 %0, %2, %1, %1;", "f4"), Op("slct.f64.f32 %0, %3, %4, %1;", "f8")]
    a, b = floats("f4", seed=1)[:2], floats("f8", seed=1)[:2]
    size = min(len(a[0]), len(b[0]))
    operands = [*(("f4", x[:size]) for x in a), *(("f8", x[:size]) for x in b)]
    return table("signs and extrema", operands, ops)


def _flushing() -> Case:
    """Return results beside the smallest normal number, which decide whether .ftz looks before or after rounding."""
    rng = np.random.default_rng(5)
    near = rng.integers(0x3F7FFF00, 0x3F800100, 2048).astype(np.uint32)
    tiny = rng.integers(0x00800000, 0x00800010, 2048).astype(np.uint32)
    near[:4], tiny[:4] = (
        [0x3F7FFFFF, 0x3F7FFFFE, 0x3F800001, 0x3F7FFFFF],
        [0x00800000, 0x00800000, 0x00800000, 0x00800001],
    )
    ops = [Op(f"mul.{mode}.ftz.f32 %0, %1, %2;", "f4") for mode in MODES]
    ops += [Op(f"fma.{mode}.ftz.f32 %0, %1, %2, 0f00000000;", "f4") for mode in MODES]
    ops += [Op(f"mul.{mode}.f32 %0, %1, %2;", "f4") for mode in MODES]
    ops += [Op(f"div.{mode}.ftz.f32 %0, %2, %1;", "f4") for mode in MODES]
    ops += [Op(f"rcp.{mode}.ftz.f32 %0, %3;", "f4") for mode in MODES]
    ops += [Op(f"cvt.{mode}.ftz.f32.f64 %0, %4;", "f4") for mode in MODES]
    ops.append(Op("mul.rn.ftz.f16 %0, %5, %6;", "f2"))
    ops.append(Op("{.reg .b16 z; mov.b16 z, 0; fma.rn.ftz.f16 %0, %5, %6, z;}", "f2"))
    # Numbers about 2**126, quarters of float32's last place below 2**-126 and their neighbours, and the same in f16.
    large = rng.integers(0x7E7FFFF0, 0x7E800010, 2048).astype(np.uint32)
    steps = rng.integers(-16, 8, 2048) * (1 << 26) + rng.integers(-1, 2, 2048) + (0x3810 << 48)
    double = steps.astype(np.uint64) | rng.integers(0, 2, 2048).astype(np.uint64) << np.uint64(63)
    half = [rng.integers(*ends, 2048).astype(np.uint16) for ends in ((0x3BE0, 0x3C10), (0x0400, 0x0410))]
    operands = [("f4", near), ("f4", tiny), ("f4", large), ("f8", double), *(("f2", x) for x in half)]
    return table("flushing at the boundary", operands, ops)


def _halves(kind: str) -> Case:
    """Return f16 or bf16, single and packed."""
    t = _TYPES[kind]
    ops = []
    for suffix, a, b, c, out in (("", "%1", "%2", "%3", kind), ("x2", "%4", "%5", "%6", f"{kind}x2")):
        names = ["add", "sub", "mul"]
        forms = ("", ".ftz", ".sat", ".ftz.sat") if kind == "f2" else ("",)
        for form in forms:
            ops += [Op(f"{name}.rn{form}.{t}{suffix} %0, {a}, {b};", out) for name in names]
            ops.append(Op(f"fma.rn{form}.{t}{suffix} %0, {a}, {b}, {c};", out))
        ops += [Op(f"{name}.{t}{suffix} %0, {a}, {b};", out) for name in names]
        relu = (".relu", ".ftz.relu") if kind == "f2" else (".relu",)
        ops += [Op(f"fma.rn{form}.{t}{suffix} %0, {a}, {b}, {c};", out) for form in relu]
        for form in ("", ".NaN", *((".ftz", ".ftz.NaN") if kind == "f2" else ())):
            ops += [Op(f"{name}{form}.{t}{suffix} %0, {a}, {b};", out) for name in ("min", "max")]
        ops += [Op(f"{name}.{t}{suffix} %0, {a};", out) for name in ("neg", "abs")]
        if kind == "f2":
            ops += [Op(f"{name}.ftz.{t}{suffix} %0, {a};", out) for name in ("neg", "abs")]
        if kind == "f2" and not suffix:
            ops.append(Op(f"tanh.approx.{t} %0, {a};", out, (2.0**-9.5, 2.0**-24)))
    operands = [(kind, x) for x in floats(kind, seed=2)]
    rng = np.random.default_rng(3)
    pairs = [(f"{kind}x2", x.astype(np.uint32) | (rng.permutation(x).astype(np.uint32) << 16)) for _, x in operands]
    return table(f"halves {t}", [*operands, *pairs], ops)


def _turns() -> Case:
    """Return sines and cosines of whole turns, which ptxas takes with .ftz alone."""
    ops = [Op(f"{name}.approx.2pi{ftz}.f32 %0, %1;", "f4") for name in ("sin", "cos") for ftz in ("", ".ftz")]
    return table("turns", [("f4", np.linspace(-40, 40, 2048).astype(np.float32).view(np.uint32))], ops)


COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"]


def _comparisons() -> Case:
    """Return setp and set with ordered, unordered and NaN comparisons of every floating-point type."""
    ops = []
    for kind, a, b in (("f4", "%1", "%2"), ("f8", "%3", "%4"), ("f2", "%5", "%6"), ("bf", "%5", "%6")):
        t = _TYPES[kind]
        for name in COMPARISONS:
            for ftz in ("", ".ftz") if kind in {"f4", "f2"} else ("",):
                text = f"{{.reg .pred p, q; setp.{name}{ftz}.{t} p, {a}, {b}; selp.u32 %0, 1, 0, p;}}"
                ops.append(Op(text, "u4"))
    for name in ("lt", "neu", "num"):
        for kind, a, b in (("f4", "%1", "%2"), ("f8", "%3", "%4")):
            text = (
                f"{{.reg .pred p, q, c; setp.gt.{_TYPES[kind]} c, {b}, {a}; "
                f"setp.{name}.xor.{_TYPES[kind]} p|q, {a}, {b}, !c; selp.u32 %0, 1, 0, p; @q add.u32 %0, %0, 2;}}"
            )
            ops.append(Op(text, "u4"))
        ops.append(Op(f"set.{name}.u32.f32 %0, %1, %2;", "u4"))
        ops.append(Op(f"set.{name}.ftz.f32.f32 %0, %1, %2;", "f4"))
        ops.append(Op(f"set.{name}.f16.f16 %0, %5, %6;", "f2"))
    ops.append(Op("{.reg .pred p; setp.eq.ftz.f32 p, %1, 0f00000000; selp.u32 %0, 1, 0, p;}", "u4"))
    singles, doubles, halves = (floats(kind, seed=4)[:2] for kind in ("f4", "f8", "f2"))
    size = min(len(singles[0]), len(doubles[0]), len(halves[0]))
    operands = [(kind, x[:size]) for kind, xs in (("f4", singles), ("f8", doubles), ("u2", halves)) for x in xs]
    return table("comparisons of floats", operands, ops)


def _to_integers() -> Case:
    ops = []
    for source, register in (("f32", "%1"), ("f64", "%2"), ("f16", "%3"), ("bf16", "%4")):
        for mode in ("rni", "rzi", "rmi", "rpi"):
            for bits in (8, 16, 32, 64):
                if source == "bf16" and bits == 8:
                    continue  # ptxas takes none of the registers that inline assembly can name
                out = {8: "u4", 16: "u2", 32: "u4", 64: "u8"}[bits]
                ops += [Op(f"cvt.{mode}.{sign}{bits}.{source} %0, {register};", out) for sign in "us"]
            if source != "bf16":
                kind = {"f32": "f4", "f64": "f8", "f16": "f2"}[source]
                ops.append(Op(f"cvt.{mode}.{source}.{source} %0, {register};", kind))
        if source == "f32":
            ops += [Op(f"cvt.{mode}.ftz.s32.f32 %0, %1;", "u4") for mode in ("rmi", "rpi")]
            ops += [Op(f"cvt.{mode}.ftz.f32.f32 %0, %1;", "f4") for mode in ("rmi", "rpi")]
    values = [floats(kind, seed=6)[2] for kind in ("f4", "f8", "f2", "bf")]
    values = [
        np.concatenate([floats(k, seed=7)[0][::7], v]) for k, v in zip(("f4", "f8", "f2", "bf"), values, strict=True)
    ]
    size = min(len(v) for v in values)
    return table(
        "floats to integers", [(k, v[:size]) for k, v in zip(("f4", "f8", "f2", "bf"), values, strict=True)], ops
    )


def _from_integers() -> Case:
    ops = []
    for bits, register in ((8, "%3"), (16, "%1"), (32, "%2"), (64, "%4")):
        for sign in "us":
            for mode in MODES:
                kinds = ("f4", "f8", "f2", *(("bf",) if bits > 8 else ()))
                ops += [Op(f"cvt.{mode}.{_TYPES[kind]}.{sign}{bits} %0, {register};", kind) for kind in kinds]
            ops.append(Op(f"cvt.rn.sat.f32.{sign}{bits} %0, {register};", "f4"))
    a, b, c, d = words(16, seed=12)[0], words(32, seed=13)[0], words(32, seed=14)[0], words(64, seed=15)[0]
    return table("integers to floats", [("u2", a), ("u4", b), ("u4", c), ("u8", d)], ops)


def _conversions() -> tuple[list[tuple[str, Array]], list[Op]]:
    """Return cvt among floating-point types in every rounding, with saturation, and the packed forms."""
    ops = []
    for mode in MODES:
        ops += [Op(f"cvt.{mode}{more}.f32.f64 %0, %3;", "f4") for more in ("", ".ftz", ".sat")]
    for mode in ("rn", "rz", "rm", "rp"):
        ops += [Op(f"cvt.{mode}{more}.f16.f32 %0, %1;", "f2") for more in ("", ".ftz", ".sat")]
        ops.append(Op(f"cvt.{mode}.f16.f64 %0, %3;", "f2"))
    for mode in ("rn", "rz"):
        ops += [Op(f"cvt.{mode}{more}.bf16.f32 %0, %1;", "bf") for more in ("", ".relu")]
        ops.append(Op(f"cvt.{mode}.relu.f16.f32 %0, %1;", "f2"))
        for t, kind in (("f16x2", "f2x2"), ("bf16x2", "bfx2")):
            ops += [Op(f"cvt.{mode}{more}.{t}.f32 %0, %1, %2;", kind) for more in ("", ".relu")]
    ops += [Op(f"cvt{m}.f32.f16 %0, %4;", "f4") for m in ("", ".ftz", ".sat")]
    ops += [Op("cvt.f32.bf16 %0, %4;", "f4"), Op("cvt.f64.f32 %0, %1;", "f8"), Op("cvt.ftz.f64.f32 %0, %1;", "f8")]
    ops += [Op("cvt.f64.f16 %0, %4;", "f8"), Op("cvt.sat.f32.f32 %0, %1;", "f4"), Op("cvt.ftz.f32.f32 %0, %1;", "f4")]
    ops += [
        Op("cvt.sat.f16.f16 %0, %4;", "f2"),
        Op("cvt.sat.f64.f64 %0, %3;", "f8"),
        Op("cvt.rn.bf16.f64 %0, %3;", "bf"),
    ]
    ops += [Op("cvt.rn.bf16.f16 %0, %4;", "bf"), Op("cvt.rn.f16.bf16 %0, %4;", "f2")]
    ops += [Op(f"cvt.{mode}.tf32.f32 %0, %1;", "tf") for mode in ("rna", "rn", "rz")]
    ops.append(Op("cvt.rn.relu.tf32.f32 %0, %1;", "tf"))
    for t, more in ((t, more) for t in ("e4m3x2", "e5m2x2") for more in ("", ".relu")):
        ops.append(Op(f"cvt.rn.satfinite{more}.{t}.f32 %0, %1, %2;", "u2"))
        ops.append(Op(f"cvt.rn{more}.f16x2.{t} %0, %4;", "f2x2"))
        ops.append(Op(f"cvt.rn.satfinite{more}.{t}.f16x2 %0, %5;", "u2"))
    rng = np.random.default_rng(8)
    single, _, drawn = floats("f4", seed=8)
    # Midpoints of f16, bf16 and tf32, and their neighbours, in the lower bits of float32.
    low = rng.choice(np.array([0x1000, 0x0FFF, 0x1001, 0x8000, 0x7FFF, 0x8001, 0x2000], np.uint32), len(drawn))
    halfway = (drawn & ~np.uint32(0xFFFF)) | low
    single = np.concatenate([single[::11], halfway])[: len(drawn)]
    # Those midpoints and their neighbours in float64, of exponents that all types have.
    kept = halfway & np.uint32(0x87FFFFFF) | np.uint32(0x38000000)
    beside = kept.view(np.float32).astype(np.float64).view(np.uint64) + rng.integers(-1, 2, len(kept)).astype(np.uint64)
    double, half = floats("f8", seed=9)[0], floats("f2", seed=10)[0]
    size = min(len(x) for x in (single, double, half, halfway))
    double = np.concatenate([double[::9], beside])[:size]
    every = np.resize(np.arange(1 << 16, dtype=np.uint32)[::7], size)
    pairs = every | every[::-1] << np.uint32(16)
    # Midpoints of e4m3 and e5m2, and their neighbours, of exponents that f16 has.
    small = (drawn & np.uint32(0x87F00000)) | np.uint32(0x38000000) | rng.choice(_BESIDE_BYTES, len(drawn))
    byte_pair = np.where(np.arange(size) % 2, small[:size], halfway[:size])
    operands = [("f4", single[:size]), ("f4", byte_pair), ("f8", double), ("f2", half[:size]), ("u4", pairs)]
    return operands, ops


def _between_floats() -> Case:
    operands, ops = _conversions()
    return table("conversions between floats", operands, ops)


def _later_conversions() -> Case:
    """Return forms that PTX has for GPUs after Hopper, or that ptxas does not take for it."""
    operands, _ = _conversions()
    # A NaN whose payload is in the bits that tf32 drops is infinity to .rna of sm_90, which .satfinite might clamp.
    bits = operands[0][1]
    operands[0] = ("f4", np.where(bits & 0x7FFFFFFF > 0x7F800000, np.uint32(0x7FFFFFFF), bits))
    ops = [Op("cvt.rn.satfinite.bf16.f32 %0, %1;", "bf"), Op("cvt.rna.satfinite.tf32.f32 %0, %1;", "tf")]
    for t, more in ((t, more) for t in ("e4m3x2", "e5m2x2") for more in ("", ".relu")):
        ops.append(Op(f"cvt.rn.satfinite{more}.{t}.bf16x2 %0, %5;", "u2"))
        ops.append(Op(f"cvt.rn{more}.bf16x2.{t} %0, %4;", "bfx2"))
    return table("later conversions between floats", operands, ops)


def _approximate() -> Case:
    """Return functions of which PTX bounds the error; bounds as in the PTX ISA, with a bit to spare."""
    rel, step = 2.0**-21.5, 2.0**-148
    ops = []
    for ftz in ("", ".ftz"):
        # At the edge of the subnormals a flushed result may be the smallest normal number on one side.
        bound = (rel, 2.0**-125.9 if ftz else step)
        ops += [Op(f"{name}.approx{ftz}.f32 %0, %1;", "f4", bound) for name in ("rcp", "sqrt", "rsqrt")]
        # Below -126 the code squares a result, and so doubles its error.
        ops.append(Op(f"ex2.approx{ftz}.f32 %0, %1;", "f4", (2.0**-20.5, 2.0**-125.9 if ftz else step)))
        ops.append(Op(f"lg2.approx{ftz}.f32 %0, %1;", "f4", (2.0**-21, 2.0**-21)))
        ops.append(Op(f"div.full{ftz}.f32 %0, %1, %2;", "f4", bound))
        ops.append(Op(f"div.approx{ftz}.f32 %0, %1, %2;", "f4", bound))
        ops += [Op(f"{name}.approx{ftz}.f32 %0, %3;", "f4", (0.0, 2.0**-19.5)) for name in ("sin", "cos")]
    ops.append(Op("tanh.approx.f32 %0, %1;", "f4", (2.0**-10.5, 2.0**-126)))
    a, b, _ = floats("f4", seed=11)
    angles = np.linspace(-np.pi, np.pi, len(a), dtype=np.float32).view(np.uint32)
    return table("approximate functions", [("f4", a), ("f4", b), ("f4", angles)], ops)


CASES = (
    _arithmetic_f32(),
    _arithmetic_f64(),
    _signs_and_extrema(),
    _flushing(),
    _halves("f2"),
    _halves("bf"),
    _comparisons(),
    _to_integers(),
    _from_integers(),
    _between_floats(),
    _approximate(),
)
#: What only the emulator runs.
LATER = (_later_conversions(), _turns())
