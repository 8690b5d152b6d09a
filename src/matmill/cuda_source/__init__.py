"""Anybody's CUDA C++ as PTX: device code alone is kept, headers are found, kernels have their C++ names.

The rooms' order: ``tokens``, ``declarations`` (a file to what it declares), ``keep`` (which declarations device code
needs), ``headers`` (what ``#include`` means), ``demangle``, ``unit`` (a file to PTX).
"""
