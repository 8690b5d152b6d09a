"""Runs a ladder, emulated or on a GPU, and keeps what it found."""
