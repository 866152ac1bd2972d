"""What people said, in their own words: the same words from several people are one voice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from practicum.dashboard.records import Item
from practicum.dashboard.wording import fate_words
from practicum.types.feedback import FeedbackForm


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """One text, who said it, when last, and what became of it (words and how often, most frequent first)."""

    form: FeedbackForm
    text: str
    sources: tuple[str, ...]
    times: int
    last_at: float | None
    fates: tuple[tuple[str, int], ...]
    items: tuple[Item, ...]


def voices(items: Sequence[Item]) -> tuple[Voice, ...]:
    """Comments before corrections, those that most often say the same first; withdrawn words are not repeated."""
    grouped: dict[tuple[FeedbackForm, str], list[Item]] = {}
    for item in items:
        if item.form in ("comment", "correction") and item.text.strip():
            grouped.setdefault((item.form, " ".join(item.text.split())), []).append(item)
    found = [_voice(form, group) for (form, _), group in grouped.items()]
    return tuple(sorted(found, key=lambda voice: (voice.form != "comment", -voice.times)))


def _voice(form: FeedbackForm, group: Sequence[Item]) -> Voice:
    return Voice(
        form=form,
        text=group[0].text,
        sources=tuple(dict.fromkeys(item.source for item in group)),
        times=len(group),
        last_at=max((item.at for item in group if item.at is not None), default=None),
        fates=tuple(Counter(fate_words(item) for item in group).most_common()),
        items=tuple(group),
    )


def forms(items: Sequence[Item]) -> tuple[tuple[str, int], ...]:
    """How many items of each form."""
    return tuple(Counter(item.form or "unknown" for item in items).most_common())


def reasons(items: Sequence[Item]) -> tuple[tuple[str, int], ...]:
    """Each fate in words and how many items met it, most frequent first."""
    return tuple(Counter(fate_words(item) for item in items).most_common())
