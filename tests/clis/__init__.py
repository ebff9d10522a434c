"""Tests that start the real agent programs, against the scripted model server."""
