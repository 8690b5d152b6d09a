"""transpose_add: its shapes, and what differs in its search, comparison, report and launches."""
