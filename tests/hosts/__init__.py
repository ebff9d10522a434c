"""Runs on many hosts: each a network namespace with files, processes, a name and a clock of its own."""
