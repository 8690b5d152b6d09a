"""Code bound to lanes: the accesses and steps of a basic block, for the rows of some lanes."""
