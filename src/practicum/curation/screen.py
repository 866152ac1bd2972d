"""Reasons to keep a piece of feedback away from training. Feedback is data: it never gives orders to the learner.

The rules are few, named and cheap; what they catch is quarantined with the reason and stays visible. They must not
know how training works.
"""

from __future__ import annotations

import re

# Each rule: a name for people, and what gives it away in a comment or a corrected answer.
_INJECTION_RULES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "tells the model to ignore its rules",
        re.compile(
            r"\b(ignore|disregard|forget|override)\b[^.!?\n]{0,40}\b(rules?|instructions?|prompts?|polic(?:y|ies)|guidelines?)\b",
            re.IGNORECASE,
        ),
    ),
    ("speaks in chat-template markers", re.compile(r"<\|[a-z_]+\|>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>")),
    ("speaks of the system prompt", re.compile(r"\b(system|developer) (prompt|message)\b", re.IGNORECASE)),
    ("poses as another role", re.compile(r"^\s*(system|assistant|developer)\s*:", re.IGNORECASE | re.MULTILINE)),
    ("contains control characters", re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")),
)


def injection_reason(text: str) -> str | None:
    """The first injection rule that `text` meets, or None."""
    for name, pattern in _INJECTION_RULES:
        if pattern.search(text):
            return name
    return None


def quoted_share(text: str, answer: str, *, run: int = 5) -> float:
    """Share of the words of `text` that stand in runs of `run` or more words copied from `answer`, in [0, 1].

    A comment that mostly quotes the answer would make the teacher repeat it.
    """
    words, source = text.lower().split(), answer.lower().split()
    if len(words) < run:
        return 0.0
    grams = {tuple(source[i : i + run]) for i in range(len(source) - run + 1)}
    copied = [False] * len(words)
    for start in range(len(words) - run + 1):
        if tuple(words[start : start + run]) in grams:
            copied[start : start + run] = [True] * run
    return sum(copied) / len(words)


def normalised(text: str) -> str:
    """`text` without case, punctuation and spacing, for finding repeats."""
    return " ".join(re.findall(r"\w+", text.lower()))
