"""IEEE arithmetic on rows: sums, products and FMAs that round once, in a given direction."""
