"""Code bound to lanes: the accesses and steps of a basic block on the rows of some lanes."""
