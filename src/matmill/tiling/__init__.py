"""The host's side of the headers' arithmetic: tile shapes, shared-memory sums, why_not. Names match the headers."""
