"""Inner products: their grids, and what differs in their search, comparison, report and launches."""
