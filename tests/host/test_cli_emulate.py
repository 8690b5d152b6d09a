"""`matmill emulate`: arguments of every form, files, reports, exit codes, and the commands of docs/emulator.md."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from matmill import cli
from matmill.cli import console, main
from matmill.jit.compile import compile_ptx
from matmill.jit.source import Source

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "emulator.md"

AXPY = """#include "scale.cuh"
extern "C" __global__ void axpy(const float* x, float* y, float a, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += scaled(a, x[i]);
}
"""
HEADER = "__device__ inline float scaled(float a, float x) { return a * x; }\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a working folder with a kernel and its header."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "axpy.cu").write_text(AXPY)
    (tmp_path / "scale.cuh").write_text(HEADER)
    return tmp_path


LAUNCH = ["emulate", "axpy.cu", "--grid", "2", "--block", "64"]


def asked(*arguments: str, code: int = cli.OK, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == code
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what a command line says that is refused as wrong usage."""
    assert main([*arguments]) == cli.USAGE
    text = capsys.readouterr()
    assert text.out == ""
    return text.err


def test_files_in_and_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = np.arange(100, dtype=np.float32), np.ones(100, np.float32)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    arguments = ["--arg", "in:x.npy", "--arg", "out:y.npy", "--arg", "2.5", "--arg", "100"]
    record = asked(*LAUNCH, *arguments, "--out", "0=copy.npy", capsys=capsys)
    assert (np.load(folder / "y.npy") == y + np.float32(2.5) * x).all()
    assert (np.load(folder / "copy.npy") == x).all()
    assert record["ok"] is True
    assert record["hazards"] == []
    assert record["kernel"] == "axpy"
    assert record["counters"]["ffma"] == 100
    assert record["counters"]["global_load_sectors"] == 2 * 13
    assert record["by_line"]["axpy.cu:4"]["global_store_requests"] == 4
    assert record["outputs"] == [
        {"argument": 1, "file": "y.npy", "dtype": "float32", "shape": [100]},
        {"argument": 0, "file": "copy.npy", "dtype": "float32", "shape": [100]},
    ]


def test_arrays_made_on_the_spot(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--arg", "random:f32:10x10", "--arg", "zeros:f32:100", "--arg=-1", "--arg", "i32:100"]
    asked(*LAUNCH, *arguments, "--out", "0=x.npy", "--out", "1=y.npy", capsys=capsys)
    x, y = np.load(folder / "x.npy"), np.load(folder / "y.npy")
    assert x.shape == (10, 10)
    assert (np.abs(x) <= 1).all()
    assert x.std() > 0.4
    assert (y == -x.reshape(-1)).all()
    spelled = [a.replace("f32", "float32").replace("i32", "int32") for a in arguments]
    asked(*LAUNCH, *spelled, "--out", "0=again.npy", capsys=capsys)
    assert (np.load(folder / "again.npy") == x).all()
    seeded = [a.replace("10x10", "10x10:99") for a in arguments]
    asked(*LAUNCH, *seeded, "--out", "0=other.npy", capsys=capsys)
    assert (np.load(folder / "other.npy") != x).any()


def test_a_new_output_shows_what_was_not_stored(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "half.cu").write_text(
        'extern "C" __global__ void half(float* y) { if (threadIdx.x < 4) y[threadIdx.x] = 1; }'
    )
    asked("emulate", "half.cu", "--block", "32", "--arg", "out:y.npy:f32:2x4", capsys=capsys)
    y = np.load(folder / "y.npy")
    assert (y[0] == 1).all()
    assert np.isnan(y[1]).all()


TYPED = """extern "C" __global__ void k(signed char a, unsigned short b, long long c, double d, unsigned long long* o) {
  o[0] = a; o[1] = b; o[2] = c; o[3] = __double_as_longlong(d);
}"""


def test_numbers_of_every_type(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "k.cu").write_text(TYPED)
    for numbers in (["-3", "0xFFFE", "-5", "1.5"], ["i8:-3", "u16:65534", "i64:-5", "f64:1.5"]):
        values = [word for number in numbers for word in (f"--arg={number}",)]
        asked("emulate", "k.cu", "--block", "1", *values, "--arg", "out:o.npy:u64:4", capsys=capsys)
        signed = np.load(folder / "o.npy").view(np.int64)
        assert signed[:3].tolist() == [-3, 65534, -5]
        assert signed.view(np.float64)[3] == 1.5


SCALED = """struct Args { const float* x; int n; float* y; double by; signed char sign; };
extern "C" __global__ void k(int first, const __grid_constant__ Args args) {
  const int i = first + threadIdx.x;
  if (i < args.n) args.y[i] = args.x[i] * args.by * args.sign;
}"""


def test_structs_by_value(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "k.cu").write_text(SCALED)
    struct = "struct:random:f32:8,i32:7,out:y.npy:f32:8,f64:2,i8:-1"
    command = ["emulate", "k.cu", "--block", "32", "--arg", "1", "--arg"]
    record = asked(*command, struct, "--out", "1.0=x.npy", capsys=capsys)
    x, y = np.load(folder / "x.npy"), np.load(folder / "y.npy")
    assert (y[1:7] == -2 * x[1:7]).all()
    assert np.isnan(y[[0, 7]]).all()
    assert [(each["argument"], each["file"]) for each in record["outputs"]] == [("1.2", "y.npy"), ("1.0", "x.npy")]
    record = asked(*command, struct.replace("i32:7", "i32:9"), code=cli.FAILED, capsys=capsys)
    assert "0 B behind the end of args.0 (32 B)" in record["hazards"][0]["message"]


@pytest.mark.parametrize(
    ("struct", "words"),
    [
        ("struct:i64:0,i32:7,i64:0,f64:2", "got a struct of 32 bytes, aligned to 8; wanted 40 bytes, aligned to 8"),
        ("struct:i64:0,7", "--arg number 1, member 1: got '7'; wanted a number of a known type"),
        ("struct:i64:0,zeros:f33:1", "--arg number 1, member 1: got 'zeros:f33:1'"),
        ("5", "or struct: and each member"),
    ],
)
def test_wrong_structs(folder: Path, struct: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "k.cu").write_text(SCALED)
    assert words in refused(capsys, "emulate", "k.cu", "--block", "32", "--arg", "1", "--arg", struct)


def test_variables_of_the_module(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "k.cu").write_text(
        "__constant__ float scale; __device__ int calls;\n"
        "__global__ void k(float* x) { x[threadIdx.x] *= scale; if (!threadIdx.x) atomicAdd(&calls, 1); }"
    )
    command = ["emulate", "k.cu", "--block", "32", "--arg", "random:f32:32", "--symbol", "scale=f32:2"]
    result = asked(*command, "--symbol", "calls=out:calls.npy:i32:1", "--out", "0=x.npy", capsys=capsys)
    assert {output["argument"] for output in result["outputs"]} == {0, "calls"}
    assert np.load(folder / "calls.npy").tolist() == [0]
    for given, words in (
        ("scale", "--symbol: got 'scale'; wanted NAME=VALUE"),
        ("scale=2", "--symbol scale: got '2'; wanted a number of a known type"),
        ("bias=f32:2", "symbols: got 'bias'; wanted one of"),
    ):
        assert words in refused(capsys, *command, "--symbol", given)


def test_halves_need_their_type(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "k.cu").write_text(
        'struct H { unsigned short bits; }; extern "C" __global__ void k(H h, unsigned short* o) { *o = h.bits; }'
    )
    command = ["emulate", "k.cu", "--block", "1", "--arg", "out:o.npy:u16:1"]
    for kind, dtype in (("f16", np.float16), ("bf16", ml_dtypes.bfloat16)):
        asked(*command[:4], "--arg", f"{kind}:1.5", *command[4:], capsys=capsys)
        assert np.load(folder / "o.npy").view(dtype)[0] == 1.5
    text = refused(capsys, *command[:4], "--arg", "1.5", *command[4:])
    assert "--arg number 0: got '1.5'; wanted a value of 2 bytes for parameter k_param_0" in text
    assert "f16:1.5" in text


def test_ptx_files_and_names_of_kernels(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = 'extern "C" __global__ void one(int* o) { *o = 1; } extern "C" __global__ void two(int* o) { *o = 2; }'
    (folder / "both.ptx").write_text(compile_ptx(Source("both", "one", two), "sm_80"))
    command = ["emulate", "both.ptx", "--block", "1", "--arg", "out:o.npy:i32:1"]
    for number, name in enumerate(("one", "two"), 1):
        asked(*command, "--entry", name, capsys=capsys)
        assert np.load(folder / "o.npy")[0] == number
    assert "got nothing; wanted one of " in refused(capsys, *command)
    text = refused(capsys, *command, "--entry", "three")
    assert re.search("wanted one of (one, two|two, one)", text)


def test_hazards_end_with_code_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "racy.cu").write_text(
        'extern "C" __global__ void racy(float* y) {\n  __shared__ float s[64];\n  s[threadIdx.x] = 1;\n'
        "  y[threadIdx.x] = s[63 - threadIdx.x];\n}\n"
    )
    command = ["emulate", "racy.cu", "--block", "64", "--arg", "zeros:f32:64"]
    record = asked(*command, code=cli.FAILED, capsys=capsys)
    assert record["ok"] is False
    (hazard,) = record["hazards"]
    assert (hazard["severity"], hazard["kind"], hazard["where"]) == ("error", "race", "racy.cu:4")
    assert "with nothing that orders them" in hazard["message"]
    assert record["counters"]["shared_load_requests"] == 2
    assert main(command) == cli.FAILED
    shown = capsys.readouterr().out
    assert "1 error\n" in shown
    assert "\nerror: race at racy.cu:4: racy: " in shown
    assert "  racy.cu:3  s[threadIdx.x] = 1;" in shown
    assert "  racy.cu:4  y[threadIdx.x] = s[63 - threadIdx.x];" in shown
    assert asked(*command, "--no-races", capsys=capsys)["ok"] is True


ORDERED = """__device__ int flag;
__global__ void k(const float* x, float* y) {
  const int t = threadIdx.x;
  if (blockIdx.x == 0 && t == 0) atomicExch(&flag, 1);
  float sum = 0;
  for (int i = 0; i < 64; i++) sum += x[i];
  if (blockIdx.x == 1 && t == 0 && atomicAdd(&flag, 0) == 0) WRONG;
  y[blockIdx.x * 64 + t] = sum;
}
"""


@pytest.mark.parametrize(
    ("wrong", "kind"), [("while (atomicAdd(&flag, 0) != 2)", "deadlock"), ("sum = 0", "order"), ("y[0] = 1", "race")]
)
def test_what_only_another_order_shows_comes_with_a_witness(
    wrong: str, kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "k.cu").write_text(ORDERED.replace("WRONG", wrong))
    command = [
        "emulate",
        "k.cu",
        "--grid",
        "2",
        "--block",
        "64",
        "--arg",
        "random:f32:64",
        "--arg",
        "out:y.npy:f32:128",
    ]
    alone = asked(*command, "--orders", "1", capsys=capsys)
    assert (alone["hazards"], alone["orders"]) == ([], 1)
    code = cli.OK if kind == "order" else cli.FAILED
    record = asked(*command, "--orders", "4", "--witness", "w.json", code=code, capsys=capsys)
    assert record["orders"] == 4
    assert {hazard["kind"] for hazard in record["hazards"]} == {kind}
    assert record["witnesses"][0]["order"] == {"ahead": [1, -1]}
    assert json.loads((folder / "w.json").read_text())["order"] == {"ahead": [1, -1]}
    again = asked(*command, "--order", "w.json", code=code, capsys=capsys)
    assert kind in {"order", *(hazard["kind"] for hazard in again["hazards"])}
    # Without --orders as many run as double the time: on a busy machine perhaps not this one, or none.
    assert main(command) in {code, cli.OK}
    assert capsys.readouterr().out.startswith("k<<<grid (2, 1, 1)")
    (folder / "w.json").write_text("{}")
    assert main([*command, "--order", "w.json"]) == cli.USAGE


def test_notes_fail_only_where_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "flag.cu").write_text(
        'extern "C" __global__ void flag(int* y) {\n  if (threadIdx.x >= 40) return;\n  __syncthreads();\n'
        "  *y = 1;\n}\n"
    )
    command = ["emulate", "flag.cu", "--block", "64", "--arg", "zeros:i32:1"]
    record = asked(*command, capsys=capsys)
    assert record["ok"] is True
    result = [("note", "early-exit"), ("note", "same-value")]
    assert [(hazard["severity"], hazard["kind"]) for hazard in record["hazards"]] == result
    assert asked(*command, "--strict", code=cli.FAILED, capsys=capsys) == record | {"ok": False}
    assert main(command) == cli.OK
    shown = capsys.readouterr().out
    assert ": 2 notes\n" in shown
    assert "\nnote: early-exit at flag.cu:3: flag: " in shown


def test_reads_of_outputs_are_reported_on_demand(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(folder / "old.npy", np.zeros(90, np.float32))
    command = [*LAUNCH, "--arg", "zeros:f32:90", "--arg", "out:y.npy:f32:90", "--arg", "1", "--arg", "90"]
    assert asked(*command, capsys=capsys)["ok"] is True
    (hazard,) = asked(*command, "--initcheck", code=cli.FAILED, capsys=capsys)["hazards"]
    assert (hazard["kind"], hazard["where"]) == ("uninitialised-global", "axpy.cu:4")
    for given in ("zeros:f32:90", "out:old.npy"):
        command[len(LAUNCH) + 3] = given
        assert asked(*command, "--initcheck", capsys=capsys)["ok"] is True


def test_faults_end_with_code_1_and_write_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*LAUNCH, "--arg", "zeros:f32:100", "--arg", "out:y.npy:f32:90", "--arg", "1", "--arg", "100"]
    record = asked(*command, code=cli.FAILED, capsys=capsys)
    assert [hazard["kind"] for hazard in record["hazards"]] == ["out-of-bounds"]
    assert "0 B behind the end of y (360 B)" in record["hazards"][0]["message"]
    assert record["counters"] == {}
    assert record["outputs"] == []
    assert not (folder / "y.npy").exists()
    assert main(command) == cli.FAILED
    assert "  axpy.cu:4  if (i < n)" in capsys.readouterr().out


def test_inputs_are_read_only(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(folder / "y.npy", np.zeros(100, np.float32))
    command = [*LAUNCH, "--arg", "zeros:f32:100", "--arg", "in:y.npy", "--arg", "1", "--arg", "100"]
    record = asked(*command, code=cli.FAILED, capsys=capsys)
    assert record["hazards"][0]["kind"] == "read-only"


LATE = """extern "C" __global__ void late(const int* x, int* y) {
  __shared__ int s[32];
  const unsigned at = unsigned(__cvta_generic_to_shared(s + threadIdx.x));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at), "l"(x + threadIdx.x) : "memory");
  y[threadIdx.x] = s[threadIdx.x];
}"""


def test_late_copies_and_other_orders(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "late.cu").write_text(LATE)
    command = ["emulate", "late.cu", "--block", "32", "--arg", "random:i32:32", "--arg", "out:y.npy:i32:32"]
    command += ["--out", "0=x.npy", "--schedule", "5"]
    for options, same in (([], True), (["--late-copies"], False)):
        record = asked(*command, *options, code=cli.FAILED, capsys=capsys)
        assert record["hazards"][0]["kind"] == "missing-wait"
        assert bool((np.load(folder / "x.npy") == np.load(folder / "y.npy")).all()) == same


def test_dynamic_shared_memory(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "k.cu").write_text(
        'extern "C" __global__ void k(int* y) { extern __shared__ int s[]; s[threadIdx.x] = 7; *y = s[threadIdx.x]; }'
    )
    command = ["emulate", "k.cu", "--block", "1,1,1", "--grid", "1,1", "--arg", "zeros:i32:1"]
    assert asked(*command, "--shared", "16", capsys=capsys)["shared"] == 16
    assert asked(*command, code=cli.FAILED, capsys=capsys)["hazards"][0]["kind"] == "out-of-bounds"


BULK = """.version 8.3
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 o) {
  .reg .b64 x, o; .reg .pred done; .shared .align 128 .b8 tile[256]; .shared .align 8 .b64 full;
  ld.param.u64 x, [x]; ld.param.u64 o, [o];
  mbarrier.init.shared::cta.b64 [full], 1;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 256;
  cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [tile], [x], 256, [full];
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 done, [full], 0;
  @!done bra WAIT;
  cp.async.bulk.global.shared::cta.bulk_group [o], [tile], 128;
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
  ret;
}
"""


def test_bulk_copies_and_their_barriers_are_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bulk.ptx").write_text(BULK)
    launch = ["emulate", "bulk.ptx", "--grid", "1", "--block", "1"]
    arguments = [*launch, "--arg", "random:f32:64", "--arg", "zeros:f32:32"]
    assert main(arguments) == cli.OK
    text = capsys.readouterr().out
    for count in ("bulk_loads", "bulk_load_sectors", "bulk_store_bytes", "mbarrier_waits", "mbarrier_arrivals"):
        assert count in text
    assert re.search(r"^PTX line +access +requests +moved +fewest", text, re.MULTILINE)
    assert re.search(r"^9 +bulk load +1 +8 +8 +cp\.async\.bulk\.shared", text, re.MULTILINE)
    assert re.search(r"^13 +bulk store +1 +4 +4 +cp\.async\.bulk\.global", text, re.MULTILINE)
    lines = asked(*arguments, capsys=capsys)["by_line"]
    assert lines["PTX line 9"]["bulk_load_bytes"] == 256
    assert lines["PTX line 8"]["mbarrier_arrivals"] == 1
    assert lines["PTX line 11"]["mbarrier_waits"] == 1


def test_headers_of_other_folders(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "scale.cuh").rename(folder / "elsewhere" / "scale.cuh")
    arguments = ["--arg", "zeros:f32:1", "--arg", "zeros:f32:1", "--arg", "1", "--arg", "1"]
    assert main([*LAUNCH, *arguments]) == cli.FAILED
    assert "headers were not found: scale.cuh" in capsys.readouterr().err
    assert asked(*LAUNCH, *arguments, "--include", "elsewhere", capsys=capsys)["ok"] is True


GOOD = ["--arg", "zeros:f32:1", "--arg", "zeros:f32:1", "--arg", "1", "--arg", "1"]


@pytest.mark.parametrize(
    ("index", "value", "words"),
    [
        (1, "zeros:f33:1", "got 'zeros:f33:1'; wanted a number"),
        (
            1,
            "zeros:float33:1",
            "Types are f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, or in full, as float32",
        ),
        (1, "zeros:f32:1y2", "a shape is 64x32"),
        (1, "zeros:f32", "a shape is 64x32"),
        (1, "random:f32:4:x", "a shape is 64x32"),
        (1, "zeros:f32:99999999x99999999", "a shape is 64x32"),
        (
            1,
            "in:missing.npy",
            "got missing.npy: No such file or directory; wanted a .npy file with one array of any type.",
        ),
        (1, "in:axpy.cu", "not one, by its first bytes"),
        (1, "out:nowhere/y.npy:f32:4", "a file in a folder that exists"),
        (5, "one", "got 'one'; wanted a number"),
        (5, "f32:", "got 'f32:'"),
        (7, "1.5", "got '1.5'"),
        (7, "99999999999", "got '99999999999'"),
        (7, "i64:1", "wanted 4 bytes for int n"),
        (7, "u8:256", "got 'u8:256'"),
    ],
)
def test_wrong_arguments(folder: Path, index: int, value: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert folder.is_dir()
    assert words in refused(capsys, *LAUNCH, *GOOD[:index], value, *GOOD[index + 1 :])


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("axpy.cu --block 64", "--arg: got 0 values; wanted 4: x (8 B), y (8 B), a (4 B), n (4 B)"),
        ("axpy.cu", "--block"),
        ("axpy.cu --block 0", "positive whole numbers"),
        ("axpy.cu --block 1,2,3,4", "one to three"),
        ("axpy.cu --block 4096 GOOD", "got block.x = 4096 > 1024; wanted a launch that a GPU of"),
        ("axpy.cu --block 1,1,128 GOOD", "got block.z = 128 > 64"),
        ("axpy.cu --block 1 --grid 1,70000 GOOD", "got grid.y = 70000 > 65535"),
        ("axpy.cu --block 1 --shared 400000 GOOD", "got shared memory 400000 > 232448"),
        ("axpy.cu --block 1 --shared x GOOD", "zero or more"),
        ("axpy.cu --block 1 GOOD --out 2=y.npy", "an array argument: 0, 1"),
        ("axpy.cu --block 1 GOOD --out y.npy", "INDEX=FILE.npy"),
        ("axpy.cu --block 1 GOOD --target sm_1", "target: got 'sm_1'"),
        ("missing.cu --block 1", "No such file"),
        ("scale.txt --block 1", "ending in .ptx, .cu or .cuh"),
    ],
)
def test_wrong_usage(folder: Path, command: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert folder.is_dir()
    assert words in refused(capsys, "emulate", *command.replace("GOOD", " ".join(GOOD)).split())


#: Files as learners start them: kernel and host code, the signature, and the command without its first words.
STARTED = {
    "one dimension": (
        """#define N (1 << 10)
        __global__ void add(const float* A, const float* B, float* C, int n) {
          int i = blockIdx.x * blockDim.x + threadIdx.x;
          if (i < n) C[i] = A[i] + B[i];
        }
        int main() {
          size_t bytes = N * sizeof(float);
          float *d_A, *d_B, *d_C;
          cudaMalloc(&d_A, bytes); cudaMalloc((void**)&d_B, bytes); cudaMalloc(&d_C, bytes);
          int threads = 256, blocks = (N + threads - 1) / threads;
          add<<<blocks, threads>>>(d_A, d_B, d_C, N);
        }""",
        "add(const float* A, const float* B, float* C, int n)",
        "--grid 4 --block 256 --arg random:f32:1024 --arg random:f32:1024 --arg zeros:f32:1024 --arg 1024",
    ),
    "two dimensions": (
        """#define TILE 16
        __global__ void product(double* A, double* B, double* C, int m, int n) {
          int r = blockIdx.y * TILE + threadIdx.y, c = blockIdx.x * TILE + threadIdx.x;
          if (r < m && c < n) C[r * n + c] = A[r * n + c] * B[c];
        }
        void host() {
          const int M = 64, N = 40;
          cudaMalloc(&A, M * N * sizeof(double)); cudaMalloc(&B, N * sizeof(double));
          cudaMalloc(&C, sizeof(double) * M * N);
          dim3 block(TILE, TILE);
          dim3 grid((N + TILE - 1) / TILE, (M + TILE - 1) / TILE);
          product<<<grid, block>>>(A, B, C, M, N);
        }""",
        "product(double* A, double* B, double* C, int m, int n)",
        "--grid 3,4 --block 16,16 --arg random:f64:2560 --arg random:f64:40 --arg zeros:f64:2560 --arg 64 --arg 40",
    ),
    "a template with the host's constants": (
        """template <int BLOCK, int ITEMS> __global__ void dot(const float* a, float* out, int n) {
          if (threadIdx.x < n) atomicAdd(out, a[threadIdx.x] * BLOCK * ITEMS);
        }
        int main() {
          const int threads = 64; constexpr int items = 4;
          dot<threads, items><<<dim3(2), threads, 2 * threads>>>(a, out, 100);
        }""",
        "dot<64, 4>(const float* a, float* out, int n)",
        "--entry 'dot<64, 4>' --grid 2 --block 64 --shared 128 --arg random:f32:100 --arg zeros:f32:100 --arg 100",
    ),
    "no host code": (
        """__global__ void scale(float* x, const float* y, float a, int n) {
          int i = threadIdx.x;
          if (i < n) x[i] = a * y[i];
        }""",
        "scale(float* x, const float* y, float a, int n)",
        "--grid 4 --block 256 --arg zeros:f32:1024 --arg random:f32:1024 --arg 1.0 --arg 1024",
    ),
}


@pytest.mark.parametrize("name", STARTED)
@pytest.mark.parametrize("suffix", [".cu", ".cuh"])
def test_a_file_alone_says_how_it_may_be_run(
    name: str, suffix: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, signature, words = STARTED[name]
    (folder / f"k{suffix}").write_text(source)
    for some in ([], ["--block", "64"]):
        said = refused(capsys, "emulate", f"k{suffix}", *some)
        begun = (
            "A command to begin with, whose sizes are guesses:" if name == "no host code" else "A command that runs it:"
        )
        assert f"The kernel is {signature}. {begun}\n" in said
        assert said.rstrip().endswith(f"matmill emulate k{suffix} {words}")
    assert main(["emulate", f"k{suffix}", *shlex.split(words)]) == cli.OK
    shown = capsys.readouterr().out
    assert "\nfidelity: " in shown
    assert " warp instructions as hardware was recorded to execute them" in shown


def test_elements_of_arrays_and_ranges_of_random_numbers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "k.cu").write_text(
        "__global__ void k(const int* x, const float* f, float* y) {\n"
        "  const int i = threadIdx.x;\n  y[i] = x[i - 3] + expf(f[i]);\n}"
    )
    command = ["emulate", "k.cu", "--block", "32", "--arg", "random:i32:64:2..4@3", "--arg", "random:f32:32:0..0.5:7"]
    record = asked(*command, "--arg", "out:y.npy:f32:64@32", capsys=capsys)
    assert record["ok"]
    assert "approx" in record["fidelity"]
    y = np.load(folder / "y.npy")
    assert np.isnan(y[:32]).all()
    assert ((y[32:] >= 3) & (y[32:] < 4 + np.exp(0.5))).all()
    assert "random:i8:4:0..300" in refused(capsys, *command[:4], *("--arg", "random:i8:4:0..300") * 3)


def test_long_runs_tell_of_their_progress(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "k.cu").write_text("__global__ void k(float* y) { y[blockIdx.x * 64 + threadIdx.x] = 1; }")
    command = ["emulate", "k.cu", "--grid", "200", "--block", "64", "--arg", "zeros:f32:12800", "--orders", "1"]
    assert main(command) == cli.OK
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(console, "_EVERY", 0.0)
    assert main(command) == cli.OK
    said = capsys.readouterr().err
    assert "the emulator takes roughly 0 s for this on one core" in said
    assert "k, 4 of 4 done" in said


def test_ptx_that_the_emulator_lacks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "k.ptx").write_text(".version 8.0\n.target sm_90\n.address_size 64\n.entry k() {\n tcgen05.ld;\n ret; }")
    assert main(["emulate", "k.ptx", "--block", "32"]) == cli.FAILED
    assert "PTX line 5: got 'tcgen05.ld;' (the tensor memory" in capsys.readouterr().err


TILE = """__global__ void tile_by_tile(const float* in, float* out, int n) {
  __shared__ float tile[32][EXTENT];
  const int i = threadIdx.x, j = threadIdx.y, x = blockIdx.x * 32, y = blockIdx.y * 32;
  tile[j][i] = in[(y + j) * n + x + i] + 0.0f;  // a long line, which does not fit
  __syncthreads();
  out[(x + j) * n + y + i] = tile[i][j];
}"""
TILES = ["--grid", "2,2", "--block", "32,32", "--arg", "random:f32:64x64", "--arg", "zeros:f32:64x64", "--arg", "64"]


def test_a_report_opens_with_the_verdict_and_fits_the_terminal(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "tile.cu").write_text(TILE.replace("EXTENT", "32"))
    command = ["emulate", "tile.cu", *TILES]
    monkeypatch.delenv("COLUMNS", raising=False)
    widths = {}
    for columns in (60, 80, 120):
        if columns != 80:  # which is that of a pipe
            monkeypatch.setenv("COLUMNS", str(columns))
        assert main(command) == cli.OK
        lines = capsys.readouterr().out.splitlines()
        assert lines[1:4] == [
            "",
            "verdict:",
            "  tile.cu:6  32 passes where 1 would do (bank conflicts)",
        ]
        assert "    → pad tile to [32][33]: shared passes 4,096 → 128" in lines
        cut = lines.index("Memory traffic by line")
        assert re.match(r"6 +shared load +128 +4,096 +128 +32x", lines[cut + 6])
        widths[columns] = max(len(line) for line in lines[cut:])
        monkeypatch.delenv("COLUMNS", raising=False)
    assert widths[60] < 80
    assert widths[80] <= 80
    assert 100 < widths[120] <= 120
    advice = asked(*command, capsys=capsys)["verdict"][0]
    assert (advice["rule"], advice["where"]) == ("bank conflicts", "tile.cu:6")
    assert (advice["before"], advice["after"], advice["unit"]) == (4096, 128, "shared passes")
    assert advice["gain"] == "shared passes 4,096 → 128"


def test_outputs_are_compared_with_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.arange(100, dtype=np.float32)
    np.save(folder / "x.npy", x)
    np.save(folder / "right.npy", 3 * x.reshape(10, 10))
    command = [*LAUNCH, "--arg", "in:x.npy", "--arg", "out:y.npy:f32:100", "--arg", "2", "--arg", "100"]
    command[command.index("out:y.npy:f32:100")] = "in:x.npy"
    np.save(folder / "y.npy", x)
    command[command.index("in:x.npy", command.index("in:x.npy") + 1)] = "out:y.npy"
    record = asked(*command, "--expect", "right.npy", capsys=capsys)
    assert [each["different"] for each in record["expected"]] == [0]
    wrong = 3 * x.reshape(10, 10)
    wrong[2, 5:] += 1
    wrong[9] = np.nan
    np.save(folder / "wrong.npy", wrong)
    np.save(folder / "y.npy", x)
    assert main([*command, "--expect", "1=wrong.npy"]) == cli.FAILED
    text = capsys.readouterr().out
    assert "argument 1 differs from wrong.npy in 15 of 100 elements:\n  [2][5] is 75.0, wanted 76.0\n" in text
    assert "\n  and 10 more\n" in text
    np.save(folder / "y.npy", x)
    near = np.where(np.arange(100) == 7, 22, 3 * x)
    np.save(folder / "near.npy", near)
    record = asked(*command, "--expect", "1=near.npy", code=cli.FAILED, capsys=capsys)
    assert record["expected"][0]["first"] == [{"index": [7], "got": 21.0, "wanted": 22.0}]
    assert (record["ok"], [each["kind"] for each in record["hazards"]]) == (False, ["wrong-output"])
    np.save(folder / "y.npy", x)
    assert main([*command, "--expect", "1=near.npy", "--sarif", str(folder / "log.sarif")]) == cli.FAILED
    assert "differs from near.npy in 1 of 100" in (folder / "log.sarif").read_text(encoding="utf-8")
    capsys.readouterr()
    np.save(folder / "y.npy", x)
    np.save(folder / "exact.npy", 3 * x.astype(np.float64) + 1e-6)  # within the rounding of the output's type
    assert asked(*command, "--expect", "1=exact.npy", capsys=capsys)["ok"]
    np.save(folder / "y.npy", x)
    assert asked(*command, "--expect", "1=near.npy", "--tolerance", "0.01", capsys=capsys)["ok"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--expect", "right.npy"], "INDEX=FILE.npy, where INDEX is an array argument: 0, 1"),
        (["--expect", "2=right.npy"], "an array argument: 0, 1"),
        (["--expect", "1=gone.npy"], "--expect: got gone.npy: No such file"),
        (["--expect", "1=right.npy"], "--expect: got right.npy: float32 (3,); wanted float32 (100,), as argument 1"),
        (["--expect", "1=whole.npy"], "--expect: got whole.npy: int64 (100,); wanted float32 (100,)"),
        (["--tolerance", "-1"], "a number, zero or more"),
    ],
)
def test_wrong_expectations(folder: Path, given: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(folder / "right.npy", np.zeros(3, np.float32))
    np.save(folder / "whole.npy", np.zeros(100, np.int64))
    arguments = ["--arg", "zeros:f32:100", "--arg", "zeros:f32:100", "--arg", "2", "--arg", "100"]
    assert words in refused(capsys, *LAUNCH, *arguments, *given)


# The page


def console_blocks() -> list[tuple[str, list[str]]]:
    """Return the page's commands, and what it shows of their output."""
    blocks = re.findall(r"^```console\n\$ (.*?)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [(command, shown.splitlines()) for command, shown in blocks]


def without_numbers(line: str) -> str:
    """Return a line without the numbers of registers, which are the compiler's, and without spaces at its end."""
    return re.sub(r"%([a-z]+)\d+", r"%\1", line).rstrip()


@pytest.mark.parametrize(("command", "shown"), console_blocks(), ids=lambda x: x[16:36] if isinstance(x, str) else "")
def test_the_page_shows_what_its_commands_print(
    command: str, shown: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    code = main(shlex.split(command)[1:])
    assert code == (cli.FAILED if "_race" in command else cli.OK)
    printed = [without_numbers(line) for line in capsys.readouterr().out.splitlines()]
    wanted = [without_numbers(line) for line in shown if line and line != "…"]
    assert len(wanted) >= 4
    positions = [printed.index(line) for line in wanted]
    assert positions == sorted(positions)


def test_the_fixed_example_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).standard_normal((5, 777)).astype(np.float32)
    np.save("x.npy", x)
    command = ["emulate", str(ROOT / "examples" / "rowsum.cu"), "--grid", "5", "--block", "128"]
    assert main([*command, "--arg", "in:x.npy", "--arg", "out:s.npy:f32:5", "--arg", "777", "--json"]) == cli.OK
    assert np.abs(np.load("s.npy") - x.sum(axis=1, dtype=np.float64)).max() < 1e-3
