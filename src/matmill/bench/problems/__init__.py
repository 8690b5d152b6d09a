"""The problems that each ladder runs on: sizes, random inputs, right answers and error bounds."""
