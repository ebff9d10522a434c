"""ropewalk runs many coding agents on one code base and lands their work as one line of history."""

__version__ = "0.1.0"
