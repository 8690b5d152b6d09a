"""The kernels around one that splits k over blocks; :mod:`matmill.tiling.split_k` describes their launches."""
