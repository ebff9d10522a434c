"""Runs: many tasks, each by an agent in a workspace of its own, landed on one ref as they pass."""
