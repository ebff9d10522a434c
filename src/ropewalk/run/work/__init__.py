"""The worker of a board: it takes tasks, has agents do them, and lands what passes its check."""
