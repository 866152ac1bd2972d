"""Feedback, in any form, on a call or a session; append-only, with edits and retractions as further events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

FeedbackForm = Literal["score", "thumb", "comment", "correction", "outcome"]
TargetKind = Literal["call", "session"]
FeedbackAction = Literal["give", "edit", "retract"]

FORM_MEANING: dict[FeedbackForm, str] = {
    "score": "a finite number; its scale belongs to whoever sends it",
    "thumb": "`up` or `down`",
    "comment": "free text: what should be different",
    "correction": "the answer as it should have been",
    "outcome": "what became of it: true/false, a finite number, or a short text",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """The current state of one feedback item (the last event of its chain).

    `source` names who gave it: the key's principal, or `principal/user` where an application speaks for its users.
    `revision` counts the edits. A retracted item stays on record and influences nothing.
    """

    feedback_id: str
    target_kind: TargetKind
    target_id: str
    form: FeedbackForm
    value: Any
    source: str
    created_at: float
    updated_at: float
    revision: int = 0
    retracted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackEvent:
    """One event of an item's chain, never changed and never removed.

    `event_id` is made by whoever sends the event, so that it can be sent again; the `give` event of an item usually
    has the item's own id. `target_kind` to `source` are facts of the item and the same in its every event. `value` is
    the item's value after the event; `actor` is who acted: the source, or an administrator.
    """

    event_id: str
    feedback_id: str
    action: FeedbackAction
    target_kind: TargetKind
    target_id: str
    form: FeedbackForm
    source: str
    value: Any
    actor: str
    at: float
