"""Asynchronous copies, mbarriers and products of warpgroups: what is in flight, and who waits for it."""
