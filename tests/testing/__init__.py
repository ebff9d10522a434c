"""Tests of what is for users and tests."""
