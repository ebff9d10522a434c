"""Cages: what a lane's processes may read, write and reach, and what holds them to it."""
