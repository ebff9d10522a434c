"""Programs: an adapter for each agent program."""
