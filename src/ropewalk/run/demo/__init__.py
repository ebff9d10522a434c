"""The demo: a goal, a plan that is mended, agents in regions of a copy, a conflict, a repair, a kill, and the proof."""
