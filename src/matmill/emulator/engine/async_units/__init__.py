"""Asynchronous copies, mbarriers and products of warpgroups: the operations in flight and the waits for them."""
