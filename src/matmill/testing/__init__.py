"""Tests of any CUDA kernel without a GPU: :func:`~matmill.testing.call.emulate` and the plugin for pytest."""
