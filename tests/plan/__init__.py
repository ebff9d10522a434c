"""Tests of the plan's core."""
