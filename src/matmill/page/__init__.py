"""HTML pages of results: one file each, without scripts and without resources from a network."""
