"""Workspaces: a tree on disk that one agent owns, what is captured of it, and how that lands."""
