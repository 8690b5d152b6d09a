"""A module to a program that can run: decoded instructions, basic blocks, rows for registers."""
