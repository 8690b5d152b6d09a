"""Teaching kernels: one folder per ladder, one folder per rung, each rung one idea further than the last."""
