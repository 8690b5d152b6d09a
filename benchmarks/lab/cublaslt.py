"""Products by cuBLASLt through its C interface: with no algorithm named, and with each that its heuristic offers.

Constants and signatures are those of ``cublasLt.h`` and ``cublas_api.h`` of CUDA 13.
"""

from __future__ import annotations

import ctypes
import importlib
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

#: cudaDataType of matrices and scalars, and the type in which products are summed (cublasComputeType_t).
_TYPES = {"float16": 2, "bfloat16": 14, "float32": 0, "float64": 1}
_COMPUTE = {"float16": 68, "bfloat16": 68, "float32": 68, "float64": 70}
_TRANSPOSE_A, _TRANSPOSE_B, _MOST_WORKSPACE = 3, 4, 1
#: What tells one algorithm from another, by its number among the attributes of an algorithm.
_ATTRIBUTES = {"id": 0, "tile": 1, "split_k": 2, "reduction": 3, "swizzle": 4, "option": 5, "stages": 6, "cluster": 8}
#: Those of 16 bits; all others have 32.
_SHORT = {"cluster"}
_WORKSPACE = 32 * 2**20

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
_ARGUMENTS: dict[str, list[Any]] = {
    "cublasLtCreate": [_POINTER],
    "cublasLtMatmulDescCreate": [_POINTER, ctypes.c_int, ctypes.c_int],
    "cublasLtMatmulDescSetAttribute": [_POINTER, ctypes.c_int, _POINTER, _SIZE],
    "cublasLtMatrixLayoutCreate": [_POINTER, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64],
    "cublasLtMatmulPreferenceCreate": [_POINTER],
    "cublasLtMatmulPreferenceSetAttribute": [_POINTER, ctypes.c_int, _POINTER, _SIZE],
    "cublasLtMatmulAlgoGetHeuristic": [*[_POINTER] * 7, ctypes.c_int, _POINTER, _POINTER],
    "cublasLtMatmulAlgoConfigGetAttribute": [_POINTER, ctypes.c_int, _POINTER, _SIZE, _POINTER],
    "cublasLtMatmul": [*[_POINTER] * 14, _SIZE, _POINTER],
    "cublasLtMatmulDescDestroy": [_POINTER],
    "cublasLtMatrixLayoutDestroy": [_POINTER],
    "cublasLtMatmulPreferenceDestroy": [_POINTER],
}


class Candidate(ctypes.Structure):
    """An algorithm of the heuristic (``cublasLtMatmulHeuristicResult_t``)."""

    _fields_ = [
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


def library_path() -> str:
    """Return the path of the newest libcublasLt in NVIDIA's wheels, else the name that the system may know."""
    spec = find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec is not None else []
    files = [str(path) for folder in folders for path in folder.glob("*/lib/libcublasLt.so.*")]
    return max(files, default="libcublasLt.so.13")


class CublasLt:
    """cuBLASLt on the current GPU, with torch's tensors."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        for name, arguments in _ARGUMENTS.items():
            getattr(self._library, name).argtypes = arguments
        self._library.cublasLtGetVersion.restype = _SIZE

    @property
    def version(self) -> str:
        """The version of the library that was loaded."""
        number = int(self._library.cublasLtGetVersion())
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    @cached_property
    def handle(self) -> ctypes.c_void_p:
        """The library's state on the GPU."""
        result = _POINTER()
        self.call("cublasLtCreate", ctypes.byref(result))
        return result

    @cached_property
    def workspace(self) -> Any:
        """The memory that algorithms may use."""
        torch: Any = importlib.import_module("torch")
        return torch.empty(_WORKSPACE, dtype=torch.uint8, device="cuda")

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library; raises ``RuntimeError`` where it does not succeed."""
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} returned {status}")

    def created(self, kind: str, *arguments: Any) -> ctypes.c_void_p:
        """Return a new descriptor."""
        result = _POINTER()
        self.call(f"cublasLt{kind}Create", ctypes.byref(result), *arguments)
        return result


class Problem:
    """A product of tensors ``a`` (m, k) and ``b`` (k, n), by rows or columns, whose result is ``out``, by rows.

    cuBLASLt's matrices are by columns, so that what it computes is out's transpose: B's times A's.
    """

    def __init__(self, library: CublasLt, a: Any, b: Any, out: Any) -> None:
        self.library, self.a, self.b, self.out = library, a, b, out
        dtype = str(a.dtype).removeprefix("torch.")
        scalar = ctypes.c_double if dtype == "float64" else ctypes.c_float
        self._one, self._zero = scalar(1), scalar(0)
        self._descriptors: list[tuple[str, ctypes.c_void_p]] = []
        self._operation = self._created(
            "MatmulDesc", _COMPUTE[dtype], _TYPES["float64" if dtype == "float64" else "float32"]
        )
        self._layouts = []
        for matrix, attribute in ((b, _TRANSPOSE_A), (a, _TRANSPOSE_B)):
            by_rows = matrix.is_contiguous()
            transposed = ctypes.c_int32(not by_rows)
            library.call("cublasLtMatmulDescSetAttribute", self._operation, attribute, ctypes.byref(transposed), 4)
            self._layouts.append(self._layout(matrix if by_rows else matrix.t()))
        self._layouts.append(self._layout(out))

    def _created(self, kind: str, *arguments: Any) -> ctypes.c_void_p:
        result = self.library.created(kind, *arguments)
        self._descriptors.append((kind, result))
        return result

    def _layout(self, matrix: Any) -> ctypes.c_void_p:
        rows, columns = matrix.shape
        return self._created("MatrixLayout", _TYPES[str(matrix.dtype).removeprefix("torch.")], columns, rows, columns)

    def candidates(self, most: int) -> list[Candidate]:
        """Return the algorithms that the heuristic offers."""
        preference = self._created("MatmulPreference")
        workspace = _SIZE(_WORKSPACE)
        self.library.call(
            "cublasLtMatmulPreferenceSetAttribute", preference, _MOST_WORKSPACE, ctypes.byref(workspace), 8
        )
        offered, count = (Candidate * most)(), ctypes.c_int()
        b, a, d = self._layouts
        self.library.call(
            "cublasLtMatmulAlgoGetHeuristic", self.library.handle, self._operation, b, a, d, d, preference, most,
            offered, ctypes.byref(count),
        )  # fmt: skip
        return [each for each in offered[: count.value] if not each.status]

    def run(self, candidate: Candidate | None, stream: int) -> None:
        """Enqueue the product, with no algorithm named or with a candidate."""
        b, a, d = self._layouts
        workspace = self.library.workspace
        algorithm = None if candidate is None else ctypes.byref(candidate, Candidate.algorithm.offset)
        self.library.call(
            "cublasLtMatmul", self.library.handle, self._operation, ctypes.byref(self._one), self.b.data_ptr(), b,
            self.a.data_ptr(), a, ctypes.byref(self._zero), self.out.data_ptr(), d, self.out.data_ptr(), d, algorithm,
            workspace.data_ptr(), _WORKSPACE, stream,
        )  # fmt: skip

    def described(self, candidate: Candidate) -> dict[str, int]:
        """Return what tells an algorithm from others."""
        result = {}
        for name, attribute in _ATTRIBUTES.items():
            value, written = ctypes.c_uint16() if name in _SHORT else ctypes.c_uint32(), _SIZE()
            self.library.call(
                "cublasLtMatmulAlgoConfigGetAttribute", ctypes.byref(candidate, Candidate.algorithm.offset), attribute,
                ctypes.byref(value), ctypes.sizeof(value), ctypes.byref(written),
            )  # fmt: skip
            result[name] = value.value
        return result

    def close(self) -> None:
        """Destroy the descriptors."""
        while self._descriptors:
            kind, descriptor = self._descriptors.pop()
            self.library.call(f"cublasLt{kind}Destroy", descriptor)
