"""What became of each piece of feedback: a manifest, read item by item, beside the training log.

Whether something was trained on is told from the log, never from the plan: a use whose loss appears in no step has
taught nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from practicum.dashboard.records import Fate, Item
from practicum.types.calls import ModelCall
from practicum.types.feedback import Feedback
from practicum.types.manifests import Entry, EntryUse, Exclusion, Manifest

_LOSS: Mapping[EntryUse, str] = {"clone": "cross_entropy", "hindsight": "distill", "polarity": "policy_gradient"}


class FeedbackSource(Protocol):
    """Where the items are on record."""

    def get_feedback(self, feedback_id: str) -> Feedback | None:
        """The current state of an item."""

    def get_call(self, call_id: str) -> ModelCall | None:
        """The call with this id."""


def fates(
    manifest: Manifest, records: FeedbackSource, *, log: Sequence[Mapping[str, Any]], trained: bool, until: float
) -> tuple[Item, ...]:
    """Every item that the manifest names, earliest first.

    Args:
        manifest: the run's selection.
        records: feedback by id.
        log: the figures of each training step.
        trained: whether training came to its end.
        until: when the run looked (UTC seconds); what an author did afterwards is marked.
    """
    losses = {name.partition("/")[0] for figures in log for name in figures if name.endswith("/loss")}
    items = [item for entry in manifest.entries for item in _of_entry(entry, records, losses, trained, until)]
    items += [_of_exclusion(exclusion, records, until) for exclusion in manifest.excluded]
    return tuple(sorted(items, key=lambda item: (item.at or 0.0, item.feedback_id)))


def _of_entry(entry: Entry, records: FeedbackSource, losses: set[str], trained: bool, until: float) -> Iterator[Item]:
    call = records.get_call(entry.call_id) if entry.use == "clone" else None
    for feedback_id in entry.feedback_ids:
        found = records.get_feedback(feedback_id)
        alone = entry.text if len(entry.feedback_ids) == 1 else ""
        yield Item(
            feedback_id=feedback_id,
            form=found.form if found else None,
            source=found.source if found else ", ".join(entry.sources),
            at=found.created_at if found else None,
            text="" if found and found.retracted else alone or (_words(found.value) if found else entry.text),
            fate=_fate(entry, losses, trained),
            use=entry.use,
            call_id=entry.call_id,
            later=_later(found, until),
            served=call.text if call and not (found and found.retracted) else "",
        )


def _of_exclusion(exclusion: Exclusion, records: FeedbackSource, until: float) -> Item:
    found = records.get_feedback(exclusion.item_id)
    return Item(
        feedback_id=exclusion.item_id,
        form=found.form if found else None,
        source=exclusion.source,
        at=found.created_at if found else None,
        text="" if found is None or found.retracted else _words(found.value),
        fate="excluded",
        call_id=found.target_id if found and found.target_kind == "call" else "",
        reason=exclusion.reason,
        later=_later(found, until),
    )


def _fate(entry: Entry, losses: set[str], trained: bool) -> Fate:
    if entry.split == "heldout":
        return "heldout"
    if not trained:
        return "chosen"
    return "trained" if _LOSS[entry.use] in losses else "unused"


def _later(found: Feedback | None, until: float) -> Literal["", "edited", "retracted"]:
    if found is None or found.updated_at <= until:
        return ""
    return "retracted" if found.retracted else "edited"


def _words(value: Any) -> str:
    """A value as people read it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
