"""Tests of `ropewalk.lane`."""
