"""What people said, in their own words: the same words from several people are one voice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from practicum.dashboard.diff import Change, word_diff
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

    @property
    def left_out(self) -> bool:
        """Whether every item of it was."""
        return all(item.fate == "excluded" for item in self.items)

    @property
    def changes(self) -> tuple[Change, ...]:
        """What a correction changed in the served answer; empty where it replaced several different ones."""
        served = {item.served for item in self.items}
        return word_diff(self.items[0].served, self.text) if len(served) == 1 else ()


def voices(items: Sequence[Item]) -> tuple[Voice, ...]:
    """Comments, then corrections, then what was left out; the most repeated first. Withdrawn words are not repeated."""
    grouped: dict[tuple[FeedbackForm, str], list[Item]] = {}
    for item in items:
        if item.form in ("comment", "correction") and item.text.strip():
            grouped.setdefault((item.form, " ".join(item.text.split())), []).append(item)
    found = [_voice(form, group) for (form, _), group in grouped.items()]
    return tuple(sorted(found, key=lambda voice: (voice.left_out, voice.form != "comment", -voice.times)))


def first_few(found: Sequence[Voice], comments: int = 5, corrections: int = 2) -> tuple[list[Voice], list[Voice]]:
    """The voices to show at once, some of each form, and the others."""
    heard = [voice for voice in found if not voice.left_out]
    first = [voice for voice in heard if voice.form == "comment"][:comments]
    first += [voice for voice in heard if voice.form == "correction"][:corrections]
    return first, [voice for voice in found if voice not in first]


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
