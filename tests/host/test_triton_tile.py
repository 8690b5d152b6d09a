"""The peer written in Triton, as far as it can be looked at without Triton."""

from __future__ import annotations

import inspect

from matmill.bench.libraries import triton_tile


def test_its_parameters_say_nothing_that_tritons_compiler_does_not_know() -> None:
    text = {p.name: p.annotation for p in inspect.signature(triton_tile._source).parameters.values()}
    constants = {name for name, annotation in text.items() if annotation == "tl.constexpr"}
    assert constants == {"WIDE", "ROWS", "COLUMNS"}
    assert {annotation for name, annotation in text.items() if name not in constants} == {inspect.Parameter.empty}
