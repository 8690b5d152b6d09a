"""The memory ladder: one product, with three ways to move matrices between host and device."""
