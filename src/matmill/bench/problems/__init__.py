"""The problems of each ladder: sizes, random inputs, reference results and error bounds."""
