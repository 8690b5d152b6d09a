"""Analysis of a GPU, a problem or a tile without running anything: rooflines, and bank conflicts of layouts."""
