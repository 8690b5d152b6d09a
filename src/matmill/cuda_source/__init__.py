"""Any CUDA C++ to PTX: only device code is kept, headers are found, kernels have their C++ names.

The order of the modules: ``tokens``, ``declarations`` (a file's declarations), ``keep`` (which of them device code
needs), ``headers`` (the files of ``#include``), ``demangle``, ``unit`` (a file to PTX).
"""
