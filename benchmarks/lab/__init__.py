"""What only measuring needs: searches, comparisons, fits of cost models, machine code, and the generated pages."""
