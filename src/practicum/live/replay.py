"""The general prompts that a run replays: a JSONL file with `text` and, if wanted, `system`."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from practicum.errors import ConfigError
from practicum.types.messages import Message


def replay_conversations(path: Path | None) -> list[tuple[Message, ...]]:
    """Conversations of one user message each, from `path` or from the file that ships. Raises ConfigError."""
    try:
        text = (
            path.read_text("utf-8")
            if path is not None
            else (files("practicum.live") / "replay.jsonl").read_text("utf-8")
        )
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        found = [
            (
                *([Message(role="system", content=row["system"])] if row.get("system") else []),
                Message(role="user", content=row["text"]),
            )
            for row in rows
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"learn.replay_prompts {path} cannot be read: {error!r}.",
            hint='Each line is {"text": "...", "system": "..." or null}.',
        ) from error
    if not found:
        raise ConfigError("learn.replay_prompts holds no prompt.", hint="Set learn.replay_rows to 0 to go without.")
    return found
