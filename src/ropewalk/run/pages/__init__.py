"""The report of a run as pages: pure functions from its account to text."""
