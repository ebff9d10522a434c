"""The board: tasks, claims, returns and verdicts as git refs, in a store or on any git server."""
