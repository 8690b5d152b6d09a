"""Advice for arguments that are not arrays, by the library that they come from."""

from __future__ import annotations

#: Code that converts a value to an array, by the first part of its class's module; ``{}`` is the argument's name.
#: Tables and labelled arrays are not converted silently: their labels would be lost.
_CURES = {
    "scipy": "{}.toarray()",
    "cupyx": "{}.toarray()",
    "sparse": "{}.todense()",
    "dask": "{}.compute()",
    "pandas": "{}.to_numpy()",
    "polars": "{}.to_numpy()",
    "pyarrow": "{}.to_numpy()",
    "xarray": "{}.to_numpy()",
    "modin": "{}.to_numpy()",
    "cudf": "{}.to_cupy()",
    "h5py": "{}[...]",
    "zarr": "{}[...]",
}


def cure(x: object, argument: str) -> str:
    """Return the advice for an argument that is not an array.

    >>> cure([1.0, 2.0], "a")
    "Convert it first: numpy.asarray(a, dtype='float32')."
    >>> cure([2, 5], "offsets")
    "Convert it first: numpy.asarray(offsets, dtype='int64')."
    """
    if any(base.__module__.startswith(("dask.dataframe", "dask_expr")) for base in type(x).__mro__):
        return f"Pass {argument}.compute().to_numpy()."
    modules = (base.__module__.partition(".")[0] for base in type(x).__mro__)
    remedy = next((_CURES[module] for module in modules if module in _CURES), None)
    if remedy is not None:
        return f"Pass {remedy.format(argument)}."
    if x is None:
        return "Pass an array."
    kind = "int64" if argument == "offsets" else "float32"
    return f"Convert it first: numpy.asarray({argument}, dtype='{kind}')."
