"""Production kernels: one folder each, chosen by ``matmill.choose``."""
