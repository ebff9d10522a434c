"""What is done on the model disk: each story makes a world, runs commands in it, and says what they promised."""

from __future__ import annotations

from . import again, beside, damage, others, packs, runs, workspaces, writes
from .base import STORIES

__all__ = ["STORIES", "again", "beside", "damage", "others", "packs", "runs", "workspaces", "writes"]
