"""The parser: what it keeps of a module, and that garbage never makes it crash."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matmill.emulator import parse
from matmill.emulator.frontend import lexer
from matmill.emulator.frontend.syntax import Address, Immediate, Instruction, Register, Vector
from matmill.emulator.program.translate import translate
from matmill.errors import EmulationError
from support.examples import examples
from support.ptx_tools import HEADER, compile_ptx, entry

SOURCE = """
struct Pair { int x; float y[3]; };
__constant__ int table[4] = {1, 2, 3, 4};
__device__ float scale = 2.5f;
extern __shared__ float dynamic[];
__device__ __noinline__ float square(float v) { return v * v * scale; }
extern "C" __global__ void __launch_bounds__(128) k(const float* a, Pair p, float* o) {
  __shared__ float tile[64];
  tile[threadIdx.x % 64] = a[threadIdx.x]; __syncthreads();
  o[threadIdx.x] = square(tile[p.x] + table[p.x & 3]) + dynamic[0];
}
"""


def test_modules_from_nvrtc() -> None:
    module = parse(compile_ptx(SOURCE))
    kernel = module.entries["k"]
    assert [(p.size, p.align) for p in kernel.params] == [(8, 8), (16, 4), (8, 8)]
    assert kernel.limit == 128
    assert [v.size for v in kernel.variables if v.space == "shared"] == [256]
    assert [v.extern for v in module.shared] == [True]
    assert len(module.functions) == 1
    table = next(v for v in module.variables if v.name == "table")
    assert table.initial.ljust(16, b"\0") == b"".join(n.to_bytes(4, "little") for n in (1, 2, 3, 4))
    lines = {s.where for s in kernel.body if isinstance(s, Instruction)}
    assert {"test.cu:9", "test.cu:10"} <= lines


def test_the_alignment_behind_ptr_is_that_of_the_memory() -> None:
    header = entry("").replace(".entry k()", ".entry k(.param .u32 n, .param .u64 .ptr .global .align 1 x)")
    assert [(p.size, p.align) for p in parse(header).entries["k"].params] == [(4, 4), (8, 8)]


def test_operands() -> None:
    body = """.reg .f32 f<3>; .reg .b64 p; ld.global.v2.f32 {f1, f2}, [p+-8];
    fma.rn.f32 f0, f1, 0f3F800000, f2; mov.b64 p, 0x1FU;"""
    load, fused, move = (
        s for s in parse(entry(body)).entries["k"].body if isinstance(s, Instruction) and s.name != "ret"
    )
    assert isinstance(load.operands[0], Vector)
    assert [r.name for r in load.operands[0].items if isinstance(r, Register)] == ["f1", "f2"]
    assert isinstance(load.operands[1], Address)
    assert load.operands[1].offset == -8
    assert fused.operands[2] == Immediate(0x3F800000, "f32")
    assert move.operands[1] == Immediate(31, "int")
    assert fused.text == "fma.rn.f32 f0, f1, 0f3F800000, f2;"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("nonsense", 1),
        (HEADER + ".entry k( {", 4),
        (HEADER + ".entry k() { add.u32 %r1, %r2, ; }", 4),
        (HEADER + ".entry k() {\n .reg .q32 v; }", 5),
        (HEADER + ".entry k() {\n ret;", 5),
        (HEADER + ".entry k() {\n\n @p bra L; }", 6),
        (HEADER + ".global .align 3 .b8 x[4];", 4),
        (HEADER + ".global .u32 x = {1, };", 4),
        (HEADER + ".global .u32 x = 99999999999999999999;", 4),
        (HEADER + "\n\n\x01", 6),
        (HEADER + ".entry k() { " + "{" * 500, 4),
        (HEADER + ".entry k() { mov.b32 " + "{" * 500, 4),
        (HEADER + ".shared .b8 x[99999999999];", 4),
    ],
)
def test_errors_name_the_line(text: str, line: int) -> None:
    with pytest.raises(EmulationError, match=f"^PTX line {line}[: ]"):
        parse(text)


WORDS = [
    ".entry",
    ".func",
    ".reg",
    ".b32",
    ".f32",
    ".pred",
    "%r<4>",
    "%r1",
    "%p",
    "k",
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    ";",
    ",",
    ":",
    "@",
    "!",
    "|",
    "-",
    "+",
    "=",
    "<",
    ">",
    "add.u32",
    "ld.global.v4.f32",
    "bra",
    "L",
    "call",
    ".param",
    ".u64",
    ".loc",
    ".file",
    "1",
    "0x10",
    "0f3F800000",
    '"a"',
    ".shared",
    ".align",
    "16",
    ".global",
    "_",
    ".section",
    ".branchtargets",
    ".version",
    ".target",
    "generic",
    "09",
    "1.5e400",
    ".pragma",
    ".alias",
    ".visible",
    ".maxntid",
    "\n",
]


@examples(400)
@given(
    text=st.one_of(
        st.text(st.characters(codec="ascii"), max_size=80), st.lists(st.sampled_from(WORDS), max_size=60).map(" ".join)
    ),
    inside=st.booleans(),
)
def test_garbage_is_refused_with_a_line_number(*, text: str, inside: bool) -> None:
    source = entry(text) if inside else HEADER + text
    try:
        module = parse(source)
    except EmulationError as error:
        assert re.match(r"PTX line \d+", str(error))  # noqa: PT017 - garbage may also happen to be right
    else:
        assert set(module.entries) <= {"k", "L", "generic", "_"} | set(re.findall(r"[\w$%.]+", source))


JUNK = ["", " ", "}", "{", ";", "%r9", "[", "-", "0", "\n", "bra", ",", ".f64", "%p1", "%rd3"]


@examples(200)
@given(st.data())
def test_damaged_modules_are_refused_or_translated(data: st.DataObject) -> None:
    text = compile_ptx(SOURCE)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        size = data.draw(st.integers(0, 12))
        text = text[:at] + data.draw(st.sampled_from(JUNK)) + text[at + size :]
    try:
        module = parse(text)
        programs = [translate(module, name) for name in module.entries]
    except EmulationError as error:
        assert re.match(r"PTX line \d+", str(error))  # noqa: PT017 - damage may be harmless
    else:
        assert len(programs) == len(module.entries)


def test_lines_are_counted_behind_sections_comments_and_places() -> None:
    text = """.version 8.0
.target sm_90
.section .debug_str
{
$L__a:
.b8 1,2 // {
.b8 3
}
.section .debug_loc { .b8 4 }
.entry k() {
.loc 1 7 2, function_name $L__a, inlined_at 1 9 3 /* of
  two lines */
add.u32 ;
ret;
}
.file 1 "a.cu"
"""
    statements = parse(text).entries["k"].body
    assert [(s.line, s.where) for s in statements if isinstance(s, Instruction)] == [(13, "a.cu:7"), (14, "a.cu:7")]


@pytest.mark.parametrize("directive", [".loc 1 7;", ".loc a 7 2;", ".loc;"])
def test_a_location_has_file_line_and_column(directive: str) -> None:
    with pytest.raises(EmulationError, match="PTX line 2") as error:
        parse(f".entry k() {{\n{directive}\nret;\n}}")
    assert "a file, a line and a column" in str(error.value)


def test_code_inlined_from_a_header_of_cuda_s_is_at_the_user_s_own_line() -> None:
    module = parse(
        """.version 8.0 .target sm_90 .address_size 64
        .entry k(.param .u64 p) {
        .reg .b64 a; .reg .b32 v;
        .loc 1 20 3
        ld.param.u64 a, [p];
        .loc 2 7 1, function_name $L__info_string0, inlined_at 1 20 3
        .loc 3 34 5, function_name $L__info_string1, inlined_at 2 7 1
        ld.global.u32 v, [a];
        .loc 2 9 1, function_name $L__info_string0, inlined_at 1 20 3
        ret; }
        .file 1 "/home/me/k.cu"
        .file 2 "/home/me/helpers.cuh"
        .file 3 "/usr/local/cuda/bin/../targets/x86_64-linux/include/cuda_fp16.hpp"
        """
    )
    first, second, last = (s for s in module.entries["k"].body if isinstance(s, Instruction))
    assert (first.where, first.within) == ("k.cu:20", "")
    assert (second.where, second.within) == ("helpers.cuh:7", "cuda_fp16.hpp:34")
    assert (last.where, last.within) == ("helpers.cuh:9", "")


def test_a_statement_is_what_its_words_spell(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [
        compile_ptx(SOURCE),
        entry(".reg .b32 a, b; .reg .pred p; @p add.u32 a, a, 1; { .reg .b32 b; mov.b32 b, a; }"),
    ]

    def told(text: str) -> list[str]:
        module = parse(text)
        return [repr(s) for f in (*module.entries.values(), *module.functions.values()) for s in f.body]

    as_one = [told(text) for text in texts]
    monkeypatch.setattr(lexer, "_STATEMENT_OR_TOKEN", lexer._TOKEN)
    assert [told(text) for text in texts] == as_one
