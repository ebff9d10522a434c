"""Power loss: what a disk may hold when the current goes, rebuilt from a trace of real commands."""
