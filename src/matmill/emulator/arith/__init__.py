"""IEEE arithmetic on rows: sums, products and fused multiply-adds that round once, in the direction asked for."""
