"""Short replacements of a host compiler's headers for device code: NVRTC has no such headers.

Types and limits are those of CCCL for NVRTC, since it may be included too: 64-bit integers are long long. nvcc includes
these headers before any source, so they are always there.
"""

from __future__ import annotations

import re

_HOST_HEADERS = (
    "algorithm any array assert.h atomic bit bits/stdc++.h bitset builtin_types.h cassert ccomplex cctype cerrno "
    "cfenv cfloat charconv chrono cinttypes climits clocale cmath complex concepts condition_variable csetjmp "
    "csignal cstdarg cstddef cstdint cstdio cstdlib cstring ctime ctype.h cub.cuh cublas.h cublasLt.h cublas_v2.h "
    "cuda.h cudaProfiler.h cuda_gl_interop.h cuda_profiler_api.h cuda_runtime.h cuda_runtime_api.h cudnn.h cufft.h "
    "cufftXt.h curand.h cusolverDn.h cusparse.h cwchar deque device_functions.h device_launch_parameters.h dirent.h "
    "driver_types.h errno.h exception exception.h execution fcntl.h fenv.h filesystem float.h format forward_list "
    "fstream functional future getopt.h helper_cuda.h helper_cuda_drvapi.h helper_functions.h helper_gl.h "
    "helper_image.h helper_multiprocess.h helper_string.h helper_timer.h host_defines.h immintrin.h "
    "initializer_list inttypes.h iomanip ios iosfwd iostream istream iterator limits limits.h list locale malloc.h "
    "map math.h math_constants_host.h math_functions.h memory memory.h memory_resource mm_malloc.h mpi.h mutex "
    "nccl.h new numbers numeric nvToolsExt.h nvrtc.h nvtx3/nvToolsExt.h omp.h optional ostream pthread.h queue "
    "random ranges ratio regex sched.h semaphore set shared_mutex signal.h sm_30_intrinsics.h span sstream stack "
    "stdarg.h stdbool.h stddef.h stdexcept stdint.h stdio.h stdlib.h streambuf string string.h string_view "
    "strings.h sys/mman.h sys/resource.h sys/stat.h sys/time.h sys/types.h system_error thread time.h tuple "
    "type_traits typeindex typeinfo unistd.h unordered_map unordered_set utility variant vector vector_functions.h "
    "vector_types.h version wchar.h windows.h x86intrin.h"
)
#: Headers of C, C++ and CUDA's host side of which device code needs nothing, or only what the prelude has.
HOST_HEADERS = frozenset((*_HOST_HEADERS.split(), "cub/cub.cuh"))

#: Replacements of host headers whose types device code uses: other headers, or a few declarations.
INSTEAD = {
    **dict.fromkeys(
        ("cublas_v2.h", "cublas.h", "cublasLt.h", "cudnn.h", "cusparse.h"),
        "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <cuComplex.h>",
    ),
    **dict.fromkeys(
        ("cufft.h", "cufftXt.h"),
        "#include <cuComplex.h>\ntypedef float cufftReal; typedef double cufftDoubleReal; typedef float2 cufftComplex; "
        "typedef double2 cufftDoubleComplex;",
    ),
    # Sizes as in glibc, for the user's host structs with such members.
    "pthread.h": "typedef unsigned long pthread_t; struct pthread_mutex_t { long words[5]; }; "
    "struct pthread_cond_t { long words[6]; };",
    # NVRTC does not compile all of CUB, only its block and warp primitives.
    "cub.cuh": "\n".join(
        f"#include <cub/{each}.cuh>"
        for each in (
            *(f"block/block_{name}" for name in ("load", "store", "reduce", "scan", "radix_sort", "exchange")),
            *(f"warp/warp_{name}" for name in ("reduce", "scan")),
        )
    ),
}

PRELUDE = """\
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t; typedef long long intptr_t; typedef unsigned long long uintptr_t;
typedef int8_t int_fast8_t; typedef uint8_t uint_fast8_t;
typedef long ssize_t; typedef unsigned char uchar; typedef unsigned int uint; typedef unsigned short ushort;
typedef unsigned long ulong; typedef unsigned long long CUdeviceptr, CUtexObject, CUsurfObject;
struct FILE;
#define register
#ifndef __linux__
#define __linux__ 1
#endif
#define INT8_MAX 127
#define INT16_MAX 32767
#define INT32_MAX 2147483647
#define INT32_MIN (-2147483647 - 1)
#define INT64_MAX 9223372036854775807l
#define INT64_MIN (-9223372036854775807l - 1)
#define UINT8_MAX 255
#define UINT16_MAX 65535
#define UINT32_MAX 4294967295u
#define UINT64_MAX 18446744073709551615ul
#define SIZE_MAX 18446744073709551615ul
#define CHAR_BIT 8
#define SCHAR_MAX 127
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define LONG_MAX 9223372036854775807l
#define LONG_MIN (-9223372036854775807l - 1)
#define ULONG_MAX 18446744073709551615ul
#define LLONG_MAX 9223372036854775807ll
#define LLONG_MIN (-9223372036854775807ll - 1)
#define ULLONG_MAX 18446744073709551615ull
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define DBL_MAX 1.7976931348623157e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-16
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#ifndef __FLT_MAX__
#define __FLT_MAX__ 3.402823466e+38f
#endif
#define HUGE_VALF __int_as_float(0x7f800000)
#define HUGE_VAL __longlong_as_double(0x7ff0000000000000ll)
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
"""

_MATH = (
    "abs acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim floor "
    "fma fmax fmin fmod frexp hypot ilogb isfinite isinf isnan ldexp lgamma log log10 log1p log2 logb lrint lround "
    "modf nearbyint nextafter pow remainder rint round scalbn signbit sin sinh sqrt tan tanh tgamma trunc"
)
_TYPES = "int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t intptr_t uintptr_t size_t"
# Written here, because including CCCL takes a second or more.
_SMALL = {
    "max": "template <class T> constexpr const T& max(const T& a, const T& b) { return a < b ? b : a; }",
    "min": "template <class T> constexpr const T& min(const T& a, const T& b) { return b < a ? b : a; }",
    "clamp": "template <class T> constexpr const T& clamp(const T& v, const T& a, const T& b) "
    "{ return v < a ? a : b < v ? b : v; }",
    "swap": "template <class T> constexpr void swap(T& a, T& b) { T c = a; a = b; b = c; }",
    "printf": "using ::printf;",
    "memcpy": "using ::memcpy;",
    "memset": "using ::memset;",
    **{name: f"using ::{name};" for name in f"{_MATH} {_TYPES}".split()},
    "ptrdiff_t": "typedef long ptrdiff_t;",
    **{f"{name}f": f"using ::{name}f;" for name in _MATH.split() if not name.startswith("is")},
    # For members of types that kernels mention; only the host uses them.
    "vector": "template <class T> struct vector { T *first, *last, *end_; };",
    "string": "struct string { char* data_; unsigned long size_; char local[16]; };",
}
# CCCL's headers, with the names of the standard library that each has.
_CCCL = {
    "limits": "numeric_limits",
    "array": "array",
    "tuple": "tuple make_tuple tie tuple_size tuple_element",
    "complex": "complex",
    "utility": "pair make_pair move forward index_sequence make_index_sequence integer_sequence make_integer_sequence "
    "index_sequence_for declval exchange",
    "functional": "plus minus multiplies divides less greater equal_to not_equal_to invoke reference_wrapper",
    "optional": "optional nullopt",
    "span": "span",
    "bit": "bit_cast popcount countl_zero",
    "atomic": "atomic memory_order_relaxed memory_order_acquire memory_order_release memory_order_seq_cst",
    "initializer_list": "initializer_list",
    "numbers": "numbers",
}
_TRAIT = re.compile(
    r"is_\w+|enable_if\w*|conditional\w*|remove_\w+|add_\w+|decay\w*|common_type\w*|true_type|false_type|void_t|"
    r"integral_constant|bool_constant|underlying_type\w*|make_(un)?signed\w*|result_of\w*|invoke_result\w*|"
    r"conjunction\w*|disjunction\w*|negation\w*|alignment_of|aligned_storage\w*|integral_constant"
)
# Functions of CUDA's device runtime that NVRTC does not know, as nvcc compiles them.
_RUNTIME = {
    "cudaGridDependencySynchronize": "griddepcontrol.wait",
    "cudaTriggerProgrammaticLaunchCompletion": "griddepcontrol.launch_dependents",
}
_STD = re.compile(r"\bstd\s*::\s*(\w+)")
_USING = re.compile(r"\busing\s+namespace\s+std\b")
_NAMESPACES = re.compile(r"\busing\s+namespace\s+(?:::)?(\w+)\s*;")


def prelude(texts: list[str], *, cccl: bool) -> str:
    """Return the text before the user's: types, limits, and the used parts of ``std``, from CCCL if it is installed."""
    whole = "\n".join(texts)
    used = set(_STD.findall(whole))
    if _USING.search(whole) is not None:
        words = set(re.findall(r"\b[a-z_]\w*\b", whole))
        used |= {name for name in words if name in {"vector", "string", "numeric_limits", "swap", "array", "pair"}}
    small = [_SMALL[name] for name in sorted(used & _SMALL.keys())]
    headers = [header for header, names in _CCCL.items() if not used.isdisjoint(names.split())]
    if any(_TRAIT.fullmatch(name) for name in used):
        headers.append("type_traits")
    parts = [PRELUDE]
    parts += [
        f"#if __CUDA_ARCH__ >= 900\n__device__ __forceinline__ void {name}() "
        f'{{ asm volatile("{instruction};" ::: "memory"); }}\n#else\n'
        f"__device__ __forceinline__ void {name}() {{}}\n#endif"
        for name, instruction in _RUNTIME.items()
        if name in whole and f"void {name}" not in whole
    ]
    parts += [f"namespace {name} {{}}" for name in sorted(set(_NAMESPACES.findall(whole)) - {"std"})]
    if headers and cccl:
        parts += [f"#include <cuda/std/{header}>" for header in headers]
        parts.append("namespace std { using namespace ::cuda::std; }")
    parts.append("namespace std { " + "\n".join(small) + " }")
    return "\n".join(parts) + "\n"
