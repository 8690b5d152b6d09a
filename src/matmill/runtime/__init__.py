"""What runs on a GPU at launch time: its memory, and what each stream has of its own."""
