"""What can be said of a GPU or a tile without running anything: rooflines, and bank conflicts of layouts."""
