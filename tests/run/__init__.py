"""Tests of `ropewalk.run`."""
