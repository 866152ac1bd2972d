"""What a corrected answer changed, word by word, so that a reader sees what was asked for and not a wall of text."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import Literal

# Longer texts are not compared: the time grows with the product of their lengths.
MOST_WORDS = 400
_END_MARKUP = re.compile(r"(?:\s*<[|/]?[^<>\s]{1,40}>)+\s*$")

Change = tuple[Literal["same", "gone", "new"], str]


def word_diff(served: str, corrected: str) -> tuple[Change, ...]:
    """The corrected answer as runs of words that stayed, went or came; empty where the two cannot be compared.

    Markup at the end of the served text (an end-of-turn token) is no part of the answer.
    """
    if len(served) + len(corrected) > 40 * MOST_WORDS:
        return ()
    old, new = _words(_END_MARKUP.sub("", served)), _words(corrected)
    if not old or not new or max(len(old), len(new)) > MOST_WORDS:
        return ()
    changes: list[Change] = []
    for kind, i, j, k, m in SequenceMatcher(None, _bare(old), _bare(new), autojunk=False).get_opcodes():
        if kind == "equal":
            changes.append(("same", "".join(new[k:m])))
        if kind in ("replace", "delete"):
            changes.append(("gone", "".join(old[i:j]).rstrip() + " "))
        if kind in ("replace", "insert"):
            changes.append(("new", "".join(new[k:m])))
    return tuple(changes)


def _words(text: str) -> list[str]:
    """Words, each with the space after it."""
    return re.findall(r"\S+\s*", text.strip())


def _bare(words: list[str]) -> list[str]:
    return [word.rstrip() for word in words]
