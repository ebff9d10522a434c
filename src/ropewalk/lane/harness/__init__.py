"""Harnesses: the adapter for each kind of agent program."""
