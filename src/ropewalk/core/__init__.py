"""Errors, ids, clock, processes, configuration and events: no behaviour of the product."""
