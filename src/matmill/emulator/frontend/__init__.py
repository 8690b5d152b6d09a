"""PTX text to a module: tokens, statements, and device functions expanded at their calls."""
