"""Attacks on real commands: kills, I/O errors and full disks at their system calls."""
