"""The people at Maple & Finch who read the agent's answers. They know the house style; the model is never told it.

Most write what they would like different, in their own words, when an answer is too long. Some repair the sign-off
and nothing else: they leave the body as it was served (up to its last whole sentence), so a corrected answer teaches
no brevity. A few say nothing, a few only "ok", and one wants the opposite of everybody else.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rules import SIGN_OFF, body, brief

DATA = Path(__file__).parent / "data"
Form = Literal["comment", "correction", "thumb"]

# Shares of the answers that each habit reads; the rest are read by people who say nothing.
_HABITS: tuple[tuple[str, float], ...] = (
    ("comments", 0.6),
    ("repairs", 0.25),
    ("contradicts", 0.03),
    ("shrugs", 0.03),
)


@dataclass(frozen=True, slots=True)
class Reaction:
    """What one person gives on one answer."""

    person: str
    form: Form
    value: str


@dataclass(frozen=True, slots=True)
class _Served:
    text: str
    finish_reason: str


def load(name: str) -> list[dict[str, str]]:
    """Rows of one of the data files."""
    return [json.loads(line) for line in (DATA / name).read_text("utf-8").splitlines() if line.strip()]


class Staff:
    """Fourteen colleagues; who reads what and what they say is fixed by the seed."""

    def __init__(self, seed: int = 7) -> None:
        self._random = random.Random(seed)
        self._comments = [row["text"] for row in load("comments.jsonl")]
        self._opposites = [row["text"] for row in load("contradictions.jsonl")]
        self._shrugs = [row["text"] for row in load("thumbs_reasons.jsonl")]
        self._random.shuffle(self._comments)
        self._said = 0

    def react(self, text: str, finish_reason: str) -> Reaction | None:
        """One person's reaction to an answer, or None for silence."""
        pick, reached = self._random.random(), 0.0
        habit = "silent"
        for name, share in _HABITS:
            reached += share
            if pick < reached:
                habit = name
                break
        person = self._random.randrange(8)
        if habit == "comments":
            if brief(_Served(text, finish_reason)):
                return Reaction(f"reader-{person}", "thumb", "up")
            self._said += 1
            return Reaction(f"reader-{person}", "comment", self._comments[self._said % len(self._comments)])
        if habit == "repairs":
            return Reaction(f"editor-{person % 4}", "correction", repaired(text))
        if habit == "contradicts":
            return Reaction("contrarian", "comment", self._random.choice(self._opposites))
        if habit == "shrugs":
            return Reaction("passer-by", "comment", self._random.choice(self._shrugs))
        return None


def repaired(text: str) -> str:
    """The served body, cut at its last whole sentence (the token limit may have cut it anywhere), and the sign-off."""
    said = body(text)
    ends = [match.end() for match in re.finditer(r"[.!?](?=\s|$)", said)]
    return said[: ends[-1] if ends else len(said)] + "\n\n" + SIGN_OFF
