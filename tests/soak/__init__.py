"""The soak: writers, readers, gc, backups, imports and stock git on one store at once; `python -m tests.soak`."""
