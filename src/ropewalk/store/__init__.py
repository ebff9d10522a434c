"""The version store: objects, refs, operation log, merge and land on a bare git repository and SQLite."""
