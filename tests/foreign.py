"""A run of another program on disk, as fleetflow leaves one."""

from __future__ import annotations

import json
from pathlib import Path


def spring(folder: Path) -> Path:
    """Writes a run of one lane that ended well below a folder, and gives where it is."""
    away = folder / ".fleetflow" / "spring"
    away.mkdir(parents=True)
    packet = {"id": "api", "model": "codex", "phase": "build"}
    manifest = {"run": "spring", "base": "main", "created_by": "ff-plan/0.5.0", "orchestrator": "opus",
                "phases": ["build"], "packets": [packet]}  # fmt: skip
    (away / "manifest.json").write_text(json.dumps(manifest))
    lane = {"key": "v2:1", "id": "api", "model": "codex"}
    rows = [{"type": "started", "phase": "build", **lane},
            {"type": "result", "rc": 0, "artifact": "/x/api.last.txt", **lane}]  # fmt: skip
    (away / "journal.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (away / "api.prompt.txt").write_text("Do it.")
    (away / "api.last.txt").write_text("All done.\n")
    return away
