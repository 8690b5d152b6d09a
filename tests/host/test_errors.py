"""Errors as values: they travel between processes with all that they say."""

from __future__ import annotations

import pickle

from matmill.errors import CompileError, ShapeError


def test_errors_can_be_pickled() -> None:
    error = ShapeError(argument="a", got="shape (2,)", wanted="two dimensions", fix="Reshape it.")
    error.add_note("seen in a test")
    error.where = "anywhere"  # type: ignore[attr-defined] # as others may add
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 — its own
    assert type(again) is ShapeError
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_the_compilers_own_words_travel_too() -> None:
    error = CompileError(argument="kernel k", got="x", wanted="y", fix="z", log="line 1: error")
    assert pickle.loads(pickle.dumps(error)).log == "line 1: error"  # noqa: S301 — its own
