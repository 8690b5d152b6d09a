"""Choosing: kernels say what is legal, the GPU is filled, and a refusal gives every reason."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from matmill import arch
from matmill.choose import call_seconds, choose, choose_from, choose_general, choose_usable
from matmill.config import Config, Configs
from matmill.dtypes import ALL, DTYPES, F32, F64, DType
from matmill.errors import IllegalConfigError, UnknownNameError
from matmill.kernel import AuxLaunch, GemmOperands, Geometry, Kernel, Production
from matmill.kernels.shared.model import Prediction, for_each
from matmill.parameters import Parameters
from matmill.problem import Gemm
from matmill.registry import PRODUCTION
from support.examples import examples


def _geometry(problem: Gemm, config: Config) -> Geometry:
    return Geometry((-(-problem.m // config["BM"]), 1, 1), (32, 1, 1), config["SHARED"])


def _arguments(_problem: Gemm, _config: Config, _operands: GemmOperands) -> tuple[()]:
    return ()


def _why_not(problem: Gemm, config: Config, _arch: arch.Arch) -> str | None:
    return f"m = {problem.m} is odd" if config["EVEN"] and problem.m % 2 else None


def _explain(problem: Gemm, config: Configs, _arch: arch.Arch) -> Prediction:
    return Prediction(1.0 + abs(problem.m / 10 - config["BM"]), {}, ())


def _production(*configs: Config) -> Production[Gemm]:
    kernel = Kernel("toy", "matmill.kernels.toy", configs[0], _geometry, _arguments, _why_not)
    return Production(kernel, lambda _problem, _arch: configs, _explain)


BIG = Config.of(BM=128, SHARED=0, EVEN=1)
SMALL = Config.of(BM=1, SHARED=0, EVEN=0)
HUGE = Config.of(BM=1, SHARED=10**6, EVEN=0)


def test_the_least_predicted_wins() -> None:
    h200 = arch.get("h200")
    for m, config in ((1280, BIG), (10, SMALL)):
        choice = choose_from([_production(SMALL, BIG)], Gemm(m=m, n=1, k=1), h200)
        assert (choice.kernel.config, choice.predicted_seconds) == (config, 1.0)
        assert choice.reasons[-1].endswith("the least of 2 legal configurations")


@pytest.mark.parametrize(
    ("seconds", "chosen", "said"),
    [
        # The host decides on both: one launch.
        ({"alone": 8e-6, "two": 5e-6}, "alone", "8.0 us predicted, 10.0 us a call, the least of 2"),
        # Longer than a host with two launches, and shorter than the GPU with one.
        ({"alone": 17e-6, "two": 16e-6}, "two", "16.0 us predicted, the least of 2"),
        ({"alone": 13e-6, "two": 12e-6}, "alone", "13.0 us predicted, 13.0 us a call, the least of 2"),
        ({"alone": 4e-6, "two": 5e-6}, "alone", "4.0 us predicted, the least of 2"),
    ],
)
def test_a_launch_that_the_host_waits_for_is_spared(seconds: dict[str, float], chosen: str, said: str) -> None:
    alone, two = Config.of(BM=1, SHARED=0, EVEN=0, LAST_BLOCK=1), Config.of(BM=1, SHARED=0, EVEN=0, LAST_BLOCK=0)
    kernel = replace(
        _production(alone).kernel,
        after=(AuxLaunch("more", "toy", Config(), Parameters(()), _geometry, lambda *_: ()),),
        last_block_reduces=lambda _problem, config: config["LAST_BLOCK"] == 1,
    )

    def explain(_problem: Gemm, config: Configs, _arch: arch.Arch) -> Prediction:
        (predicted,) = for_each(config, lambda one: (seconds["alone" if one["LAST_BLOCK"] else "two"],), "LAST_BLOCK")
        return Prediction(predicted, {}, ())

    problem = Gemm(m=1, n=1, k=1)
    choice = choose_from([Production(kernel, lambda _problem, _arch: (alone, two), explain)], problem, arch.get("h200"))
    assert choice.kernel.config == {"alone": alone, "two": two}[chosen]
    assert choice.predicted_seconds == seconds[chosen]
    assert said in choice.reasons[-1]
    assert choice.kernel.count_launches(problem) == {"alone": 1, "two": 2}[chosen]


def test_a_kernel_that_cannot_win_is_not_looked_at() -> None:
    spaces: list[str] = []

    def slow(name: str, least: float) -> Production[Gemm]:
        def space(_problem: Gemm, _arch: arch.Arch) -> tuple[Config, ...]:
            spaces.append(name)
            return (HUGE, SMALL)

        return replace(_production(SMALL), space=space, least=lambda _problem, _arch: least)

    problem, h200 = Gemm(m=10, n=1, k=1), arch.get("h200")  # takes a second with SMALL
    candidates = [slow("hopeless", 1.1), slow("as fast", 1.0), _production(SMALL)]
    kernel = replace(candidates[1].kernel, entry="first")
    choice = choose_from([candidates[0], replace(candidates[1], kernel=kernel), candidates[2]], problem, h200)
    assert spaces == ["as fast"]
    assert choice.kernel.entry == "first"  # of equals the one that comes first


def test_no_slower_call_with_as_many_launches_is_asked_whether_it_is_legal() -> None:
    configs = tuple(Config.of(BM=1, SHARED=0, EVEN=0, LAST_BLOCK=0, N=number) for number in range(50))
    asked: list[int] = []

    def why_not(_problem: Gemm, config: Config, _arch: arch.Arch) -> str | None:
        asked.append(config["N"])
        return "not the first one" if config["N"] == 0 else None

    more = AuxLaunch("more", "toy", Config(), Parameters(()), _geometry, lambda *_: ())
    kernel = replace(_production(BIG).kernel, after=(more,), why_not_config=why_not)
    production = Production(
        kernel, lambda _problem, _arch: configs, lambda *case: Prediction(5e-6 + 1e-9 * case[1]["N"], {}, ())
    )
    choice = choose_from([production], Gemm(m=1, n=1, k=1), arch.get("h200"))
    assert (choice.kernel.config["N"], asked) == (1, [0, 1])


@given(
    st.sampled_from(["a100", "h200"]),
    st.sampled_from(list(ALL.values())),
    st.tuples(*[st.integers(1, 5000)] * 3, st.sampled_from([1, 1, 70])),
    st.booleans(),
)
@examples(15)
def test_no_legal_configuration_takes_less(name: str, dtype: DType, sizes: tuple[int, ...], columns: bool) -> None:
    gpu, (m, n, k, batch) = arch.get(name), sizes
    align = min(16, (dtype.itemsize * k) & -(dtype.itemsize * k))
    problem = Gemm(m, n, k, dtype, batch, a_align=align, b_align=align, b_strides=(1, k) if columns else None)
    choice = choose_from(PRODUCTION, problem, gpu)
    kernels = [kernel for entry in PRODUCTION for kernel in entry.legal(problem, gpu)]
    seconds = [one for entry in PRODUCTION for one in _seconds(entry, problem, gpu)]
    calls = [call_seconds(kernel, problem, one) for kernel, one in zip(kernels, seconds, strict=True)]
    own = call_seconds(choice.kernel, problem, choice.predicted_seconds)
    assert choice.kernel in kernels
    assert own <= 1.07 * min(calls)
    assert choice.predicted_seconds == min(
        one for one, call in zip(seconds, calls, strict=True) if call <= 1.07 * min(calls)
    )


def _seconds(entry: Production[Gemm], problem: Gemm, gpu: arch.Arch) -> list[float]:
    return entry.predict(problem, [kernel.config for kernel in entry.legal(problem, gpu)], gpu)


def test_a_choice_asks_few_configurations_whether_they_are_legal(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    why_not = Kernel.why_not

    def counted(self: Kernel[Gemm], problem: Gemm, gpu: arch.Arch) -> str | None:
        nonlocal asked
        asked += 1
        return why_not(self, problem, gpu)

    monkeypatch.setattr(Kernel, "why_not", counted)
    for m in (8, 500, 4000):
        choice = choose_from(PRODUCTION, Gemm(m, 4096, 4096, ALL["float16"]), arch.get("h200"))
    assert asked <= 9
    assert "legal configurations" in choice.reasons[-1]
    assert asked > 50  # reasons ask all of them


def test_illegal_configs_are_passed_over_with_their_reason() -> None:
    choice = choose_from([_production(BIG, HUGE, SMALL)], Gemm(m=128 * 999 + 1, n=1, k=1), arch.get("h200"))
    assert choice.kernel.config == SMALL
    assert "is odd" in choice.reasons[0]
    assert "shared memory 1000000 >" in choice.reasons[1]


def test_a_launch_that_is_not_made_rules_nothing_out() -> None:
    def huge(_problem: Gemm, _config: Config) -> Geometry:
        return Geometry((1, 10**6, 1), (32, 1, 1))

    def made(problem: Gemm, _config: Configs) -> bool:
        return problem.k > 1

    kernel = replace(
        _production(SMALL).kernel,
        after=(AuxLaunch("more", "toy", Config(), Parameters(()), huge, lambda *_: (), made),),
    )
    assert kernel.why_not(Gemm(m=1, n=1, k=1), arch.get("h200")) is None
    assert kernel.why_not(Gemm(m=1, n=1, k=2), arch.get("h200")) == "grid.y = 1000000 > 65535"


def test_a_refusal_names_problem_arch_and_every_reason() -> None:
    with pytest.raises(IllegalConfigError, match=r"3x1x1 float32 on H200.*is odd.*shared memory 1000000"):
        choose_from([_production(BIG, HUGE)], Gemm(m=3, n=1, k=1), arch.get("h200"))


_ARCH = st.sampled_from([one for one in arch.ARCHES.values() if one.compiles])
_extent = st.one_of(st.integers(1, 70), st.sampled_from([128, 1000, 4096, 10**6]))


@examples(40)
@given(_extent, _extent, st.integers(0, 5000), st.sampled_from(sorted(DTYPES)), st.integers(1, 70), _ARCH, _ARCH)
def test_every_problem_has_a_kernel_on_every_arch(  # noqa: PLR0917 — Hypothesis fills them in
    m: int, n: int, k: int, dtype: str, batch: int, one: arch.Arch, other: arch.Arch
) -> None:
    problem = Gemm(m=m, n=n, k=k, dtype=DTYPES[dtype], batch=batch)
    for target in (one, other):
        assert choose(problem, target).kernel.why_not(problem, target) is None


_side = st.one_of(st.integers(1, 300), st.sampled_from([1000, 4096, 10**5]))


@examples(30)
@given(_side, _side, st.integers(0, 5000), st.sampled_from(["float16", "bfloat16"]), st.integers(1, 70))
@example(1, 1, 0, "bfloat16", 1)
def test_every_16_bit_problem_has_a_kernel_where_there_are_tensor_cores_for_it(
    m: int, n: int, k: int, dtype: str, batch: int
) -> None:
    problem = Gemm(m=m, n=n, k=k, dtype=ALL[dtype], batch=batch)
    for target in arch.ARCHES.values():
        if target.compiles and (dtype in target.matrix_flops or max(m, n) <= 128):
            assert choose(problem, target).kernel.why_not(problem, target) is None


@pytest.mark.parametrize(
    ("m", "n", "k", "entry"),
    [
        (1, 1, 10**6, "inner"),
        (8, 8, 10**6, "inner"),
        (16, 16, 10**6, "inner"),
        (128, 128, 10**6, "hgemm"),
        (127, 127, 10**6 + 1, "hgemm"),
        (200, 200, 200, "wgmma_gemm"),
        (16, 4096, 4096, "wgmma_gemm"),
        (4097, 4097, 4097, "wgmma_gemm"),
    ],
)
def test_16_bit_products_go_where_they_are_faster(m: int, n: int, k: int, entry: str) -> None:
    align = 16 if k % 8 == 0 else 2
    problem = Gemm(m, n, k, dtype=ALL["float16"], a_align=align)
    assert choose(problem, arch.get("h200")).kernel.entry == entry


def test_the_size_of_a_16_bit_product_decides_its_tile() -> None:
    sizes = {}
    for side in (8192, 2048, 512, 64):
        for name in ("a100", "h200"):
            config = choose(Gemm(side, side, side, dtype=ALL["bfloat16"]), arch.get(name)).kernel.config
            sizes[name, side] = config["BM"] * config["BN"]
    assert min(sizes["h200", 8192], sizes["h200", 2048], sizes["a100", 8192]) >= 128 * 192
    assert max(sizes[name, side] for name in ("a100", "h200") for side in (512, 64)) <= 64 * 64


@pytest.mark.parametrize("name", ["t4", "rtx4090", "h200"])
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize(("m", "n", "k"), [(96, 64, 10**6), (72, 96, 6144), (96, 96, 5000), (33, 80, 10**5)])
def test_long_products_have_a_kernel_where_shared_memory_is_small(
    m: int, n: int, k: int, dtype: DType, name: str
) -> None:
    for b_strides in ((n, 1), (1, k)):
        problem = Gemm(m=m, n=n, k=k, dtype=dtype, b_strides=b_strides)
        entry = choose(problem, arch.get(name)).kernel.entry
        # A short k of float64 is no longer for an H200's tensor cores than for the inner kernel.
        assert entry == "inner" or (entry == "hgemm" and name == "h200" and dtype is F64 and k < 10**4)


def test_few_tiles_and_a_long_k_are_split() -> None:
    h200 = arch.get("h200")
    for m, n, k in ((64, 1024, 16384), (200, 200, 100_000), (256, 256, 8192)):
        kernel = choose(Gemm(m, n, k, dtype=ALL["float16"]), h200).kernel
        assert kernel.entry == "wgmma_gemm"
        rows, columns = (n, m) if kernel.config["EXCHANGED"] else (m, n)
        tiles = -(-rows // kernel.config["BM"]) * -(-columns // kernel.config["BN"])
        slices = kernel.config["SPLIT_K"] * kernel.config["CLUSTER_K"]
        assert slices > 1
        # Clusters have powers of two of blocks, and may occupy 7/8 of the SMs.
        least = 7 / 16 if kernel.config["CLUSTER_K"] > 1 else 1 / 2
        assert least * h200.sms < tiles * slices <= h200.sms
    assert choose(Gemm(4096, 4096, 4096, dtype=ALL["float16"]), h200).kernel.config["SPLIT_K"] == 1


def test_bfloat16_without_tensor_cores_is_refused_in_words() -> None:
    with pytest.raises(IllegalConfigError) as raised:
        choose(Gemm(200, 200, 200, dtype=ALL["bfloat16"]), arch.get("t4"))
    assert str(raised.value).count("mma.sync on bfloat16 needs compute capability 8.0: t4 has 7.5") == 1
    assert "float32 needs no tensor core" in str(raised.value)
    assert choose(Gemm(100, 100, 200, dtype=ALL["bfloat16"]), arch.get("t4")).kernel.entry == "inner"


def test_production_kernels_have_names_of_their_own() -> None:
    packages = [production.kernel.package for production in PRODUCTION]
    assert packages
    assert len(set(packages)) == len(packages)


@pytest.mark.parametrize("precision", ["default", "high", "tf32"])
@pytest.mark.parametrize(("n", "k"), [(3, 3), (4, 4), (16, 16), (1, 64), (40, 17), (120, 40)])
def test_twice_the_rows_take_twice_the_time(n: int, k: int, precision: str) -> None:
    """No cliff as far as kernels count in 32 bits, or where operands are repacked, as far as the workspace goes."""
    h200 = arch.get("h200")
    most = 23 if precision == "tf32" else 30
    extents = [2**power + 5 for power in range(16, most + 1)]
    tall = [Gemm(extent, n, k, precision=precision) for extent in extents]
    wide = [Gemm(n, extent, k, precision=precision) for extent in extents]
    for problems in (tall, wide):
        seconds = [choose(problem, h200).predicted_seconds for problem in problems]
        assert all(less < 20e-6 or more <= 2.2 * less for less, more in pairwise(seconds))


def test_a_gpu_is_named_or_described() -> None:
    problem = Gemm(200, 200, 200)
    assert choose(problem, "h200") == choose(problem, arch.get("h200"))
    with pytest.raises(UnknownNameError, match="h200"):
        choose(problem, "h20")


def test_only_usable_kernels_are_chosen_and_the_general_one_where_others_are_slow() -> None:
    problem, h200 = Gemm(64, 200, 64), arch.get("h200")
    best, general = choose(problem, h200), choose_general(problem, h200)
    assert general is not None
    assert choose_usable(problem, h200, lambda _kernel, _problem: False) is None
    chosen = choose_usable(problem, h200, lambda _kernel, _problem: True)
    assert chosen == best
    assert chosen.reasons[0].endswith("us predicted, the least usable")
    slow = choose_usable(problem, h200, lambda kernel, _problem: kernel.config == general.kernel.config)
    assert slow == general
    assert slow.reasons == ("takes what others do not",)
