"""A module to a program that is ready to run: instructions decoded, basic blocks, rows for registers."""
