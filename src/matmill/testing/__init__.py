"""Kernels of anybody's, tested without a GPU: :func:`~matmill.testing.call.emulate` and the plugin for pytest."""
