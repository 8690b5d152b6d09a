"""Results as pages of HTML: one file each, without scripts and without anything from a network."""
