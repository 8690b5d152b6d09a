"""Short names of element types, as PTX and the literature write them: f16 beside float16."""

from __future__ import annotations

from collections.abc import Mapping

from matmill.dtypes import ELEMENTWISE, DType
from matmill.errors import unknown_name

SHORT = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "i8": "int8", "i32": "int32"}


def element_type(text: str, table: Mapping[str, DType] = ELEMENTWISE, argument: str = "--dtype") -> DType:
    """The type in ``table`` that ``text`` names, long or short.

    Raises :class:`~matmill.errors.UnknownNameError` with the nearest name.

    >>> element_type("f16").name, element_type("int8").name
    ('float16', 'int8')
    """
    found = table.get(SHORT.get(text.lower(), text.lower()))
    if found is None:
        short = [name for name, long in SHORT.items() if long in table]
        raise unknown_name(argument, text, [*short, *table])
    return found
