"""What only measuring needs: searches, comparisons, fits of cost models, machine code, and the generated pages."""

import os

# What is timed is the kernel that is best for a product, not one that answers while that is being compiled.
os.environ.setdefault("MATMILL_COMPILE", "wait")
