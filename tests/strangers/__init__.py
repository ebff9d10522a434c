"""Real projects' histories, built from what package registries give, and what the store makes of them."""
