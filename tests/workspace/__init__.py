"""Tests of `ropewalk.workspace`."""
