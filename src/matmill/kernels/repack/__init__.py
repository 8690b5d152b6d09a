"""Repacked copies of 16-bit matrices that are not aligned; ``kernels.hgemm.repack`` describes the launch."""
