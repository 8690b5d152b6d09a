"""The memory ladder: the same product behind three ways of moving matrices between host and device."""
