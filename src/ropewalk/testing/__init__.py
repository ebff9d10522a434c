"""For users and tests: a scripted agent that is a real process, and a sample project."""
