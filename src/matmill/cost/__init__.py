"""Cost models: pure functions from a problem, a configuration and an arch to seconds. They predict, never measure.

They stand below the kernels, so that a kernel's own descriptor may ask them which of its constants to use.
"""
