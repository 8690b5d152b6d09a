"""Tensor maps as TMA reads them, encoded by the driver."""

from __future__ import annotations

from matmill.errors import LaunchError
from matmill.launch import TensorMap

_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}


def encode(tensor: TensorMap, address: int) -> bytes:
    """The 128 bytes of ``tensor`` at ``address`` (CUDA driver API, ``cuTensorMapEncodeTiled``).

    Elements outside the tensor are read as zeros. Raises :class:`~matmill.errors.LaunchError` for what the driver
    refuses: its documentation lists the limits of sizes, strides and boxes.
    """
    from cuda.bindings import driver  # noqa: PLC0415 — only GPU users need it

    rank = len(tensor.sizes)
    status, encoded = driver.cuTensorMapEncodeTiled(
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{tensor.element.upper()}"),
        rank,
        address,
        [driver.cuuint64_t(size) for size in tensor.sizes],
        [driver.cuuint64_t(stride) for stride in tensor.strides],
        [driver.cuuint32_t(extent) for extent in tensor.box],
        [driver.cuuint32_t(1)] * rank,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[tensor.swizzle]}"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if int(status):
        raise LaunchError(
            argument=f"tensor map of {tensor.pointer.name}",
            got=f"{tensor} at {address:#x}, refused by the driver ({int(status)})",
            wanted="a tensor that TMA takes",
            fix="Base and strides are multiples of 16 bytes, boxes at most 256 elements a dimension.",
        )
    return b"".join(int(word).to_bytes(8, "little") for word in encoded.opaque)
