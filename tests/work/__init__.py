"""Tests of the worker of a board."""
