"""Extents of shared arrays as the source declares them, for elements in messages: ``tile[1][0]``."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod

from matmill.cuda_source.declarations import Declaration, File
from matmill.cuda_source.tokens import Token, tokens

_SIZES = {
    "char": 1, "bool": 1, "uchar": 1, "int8_t": 1, "uint8_t": 1, "short": 2, "ushort": 2, "half": 2, "__half": 2,
    "__nv_bfloat16": 2, "nv_bfloat16": 2, "int16_t": 2, "uint16_t": 2, "int": 4, "unsigned": 4, "uint": 4, "float": 4,
    "int32_t": 4, "uint32_t": 4, "half2": 4, "__half2": 4, "long": 8, "double": 8, "size_t": 8, "int64_t": 8,
    "uint64_t": 8, "float2": 8, "int2": 8, "float3": 12, "float4": 16, "int4": 16, "double2": 16,
}  # fmt: skip
_DEFINE = re.compile(r"#\s*define\s+(\w+)\s+([^\n]+)")
_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.LShift: operator.lshift,
}
#: Bytes of an element and the extents of an array.
ArrayShape = tuple[int, tuple[int, ...]]


def shared_arrays(files: Iterable[File], template: Mapping[str, str]) -> dict[str, list[tuple[str, list[str]]]]:
    """Return the shared arrays of all files by name: the element type and the extents, as written.

    ``template`` has the values of template parameters.
    """
    arrays: dict[str, list[tuple[str, list[str]]]] = {}
    for file in files:
        every = [token for token in tokens(file.text) if token.kind != "directive"]
        for at, token in enumerate(every):
            if token.text == "__shared__":
                _declared(every[at + 1 : at + 120], template, arrays)
    return arrays


def _declared(
    after: Sequence[Token], template: Mapping[str, str], arrays: dict[str, list[tuple[str, list[str]]]]
) -> None:
    """Read ``float a[32][33], b[4];`` after __shared__."""
    words: list[str] = []
    name, extents, kind = "", [], ""
    at = 0
    while at < len(after):
        text = after[at].text
        if text == "[":
            end = next((n for n in range(at, len(after)) if after[n].text == "]"), len(after))
            extents.append(" ".join(token.text for token in after[at + 1 : end]))
            at = end
        elif text in {",", ";", "=", "{"}:
            if name and extents:
                arrays.setdefault(name, []).append((template.get(kind, kind), extents))
            name, extents = "", []
            if text != ",":
                return
        elif after[at].kind == "word":
            if not words or text not in {"const", "volatile"}:
                words.append(text)
            kind, name = (words[-2] if len(words) > 1 and not kind else kind), text
        at += 1


def constants(files: Iterable[File], template: Mapping[str, str]) -> dict[str, str]:
    """Return the text for each name: macros, constants with an initial value, and template parameters."""
    values: dict[str, str] = {}
    for file in files:
        for directive in file.directives:
            match = _DEFINE.match(directive.text)
            if match is not None:
                values[match[1]] = match[2].split("//")[0].strip()
        every = [token for token in tokens(file.text) if token.kind != "directive"]
        for at, token in enumerate(every[1:-1], 1):
            if token.text == "=" and every[at - 1].kind == "word":
                end = next((n for n in range(at, min(at + 24, len(every))) if every[n].text in {";", ","}), at + 1)
                values.setdefault(every[at - 1].text, " ".join(each.text for each in every[at + 1 : end]))
    return values | dict(template)


def shape_of(size: int, declared: tuple[str, list[str]], names: Mapping[str, str]) -> ArrayShape | None:
    """Return the shape of an array of ``size`` bytes, or None unless the declaration has exactly that size."""
    kind, written = declared
    extents = [_value(each, names, 0) for each in written]
    item = _SIZES.get(kind)
    unknown = extents.count(None)
    whole = prod(each for each in extents if each)
    if item is None and not unknown and whole and not size % whole:
        item = size // whole
    if item is None or unknown > 1 or not whole:
        return None
    if unknown:
        extents[extents.index(None)] = size // (whole * item)
    shape = tuple(each for each in extents if each is not None)
    return (item, shape) if prod(shape) * item == size else None


def evaluate(text: str, names: Mapping[str, str]) -> int | None:
    """Evaluate a constant expression of + - * / <<, names and sizes of types, or return None.

    >>> evaluate("n * sizeof(float)", {"n": "1 << 4"})
    64
    """
    return _value(text, names, 0)


def _value(text: str, names: Mapping[str, str], depth: int) -> int | None:
    if depth > 8:
        return None
    try:
        text = re.sub(r"sizeof\s*\(\s*(\w+)\s*\)", lambda found: str(_SIZES.get(found[1], "?")), text)
        return _number(ast.parse(re.sub(r"(?<=\d)[uUlL]+\b", "", text).strip(), mode="eval").body, names, depth)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _number(node: ast.expr, names: Mapping[str, str], depth: int) -> int | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return _value(names[node.id], names, depth + 1)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = _number(node.left, names, depth), _number(node.right, names, depth)
        return None if left is None or right is None else _OPERATIONS[type(node.op)](left, right)
    return None


def template_values(declaration: Declaration, spelled: str) -> dict[str, str]:
    """Return the values of a template's parameters in an instantiation: for ``scale<float, 4>`` T is float, N is 4."""
    begin = spelled.find("<")
    if begin < 0:
        return {}
    values = [each.strip() for each in spelled[begin + 1 : spelled.rindex(">")].split(",")]
    return dict(zip(declaration.template_parameters, values, strict=False))
