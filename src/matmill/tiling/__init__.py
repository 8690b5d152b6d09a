"""The host's side of the headers' arithmetic: tile shapes, shared-memory sums, legality. Names match the headers."""
