"""Lanes: one agent process doing one task in one workspace, from its start to the last of its children."""
