"""Feedback in the store: an item's facts once, its events appended; its current state is its last event.

Who may do what is the ledger's to know. It decides inside the write transaction (`append`), so two processes cannot
both find an item unchanged, and a decision and its event are one commit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from practicum.store import call_rows
from practicum.store.codec import JSON, PLAIN, TEXT, Codec, decode_row, encode_json, encode_text
from practicum.types.feedback import Feedback, FeedbackEvent, FeedbackForm, TargetKind

_STATE: dict[str, Codec] = {
    "feedback_id": TEXT,
    "target_kind": PLAIN,
    "target_id": TEXT,
    "form": PLAIN,
    "value": JSON,
    "source": TEXT,
    "created_at": PLAIN,
    "updated_at": PLAIN,
    "revision": PLAIN,
    "retracted": Codec(int, bool),
}
_EVENT: dict[str, Codec] = {
    "event_id": TEXT,
    "feedback_id": TEXT,
    "action": PLAIN,
    "target_kind": PLAIN,
    "target_id": TEXT,
    "form": PLAIN,
    "source": TEXT,
    "value": JSON,
    "actor": TEXT,
    "at": PLAIN,
}
_SELECT_STATE = """
SELECT i.feedback_id, i.target_kind, i.target_id, i.form, e.value, i.source, i.created_at, e.at, e.revision,
       e.action = 'retract'
FROM feedback_items i JOIN feedback_events e ON e.feedback_id = i.feedback_id AND e.position =
  (SELECT max(position) FROM feedback_events WHERE feedback_id = i.feedback_id)
"""
_SELECT_EVENT = """
SELECT e.event_id, i.feedback_id, e.action, i.target_kind, i.target_id, i.form, i.source, e.value, e.actor, e.at
FROM feedback_events e JOIN feedback_items i USING (feedback_id)
"""


class FeedbackView:
    """What a decision about feedback may look at, inside its own transaction."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def item(self, feedback_id: str) -> Feedback | None:
        """The current state of an item."""
        return get(self._connection, feedback_id)

    def event(self, event_id: str) -> FeedbackEvent | None:
        """An event that is on record already."""
        rows = self._connection.execute(f"{_SELECT_EVENT} WHERE e.event_id = ?", (encode_text(event_id),)).fetchall()
        return FeedbackEvent(**decode_row(rows[0], _EVENT)) if rows else None

    def standing(self, form: FeedbackForm, target_kind: TargetKind, target_id: str, source: str) -> Feedback | None:
        """The newest item of this form by this source on this target that is not retracted."""
        found = _states(
            self._connection,
            "WHERE i.target_id = ? AND i.target_kind = ? AND i.source = ? AND i.form = ? AND e.action <> 'retract'"
            " ORDER BY i.seq DESC LIMIT 1",
            (encode_text(target_id), target_kind, encode_text(source), form),
        )
        return found[0] if found else None

    def has_target(self, target_kind: TargetKind, target_id: str) -> bool:
        """Whether the call, or a call of the session, is on record."""
        return call_rows.exists(self._connection, target_kind, target_id)


# Looks, then either names the event to append or the item that needs none; raises to refuse.
Plan = Callable[[FeedbackView], FeedbackEvent | Feedback]


def append(connection: Any, plan: Plan) -> Feedback:
    """Run a plan and append the event it asks for; returns the item's state after it."""
    outcome = plan(FeedbackView(connection))
    return outcome if isinstance(outcome, Feedback) else append_event(connection, outcome)


def append_event(connection: Any, event: FeedbackEvent) -> Feedback:
    """Append one event; an event id that is on record already changes nothing."""
    feedback_id = encode_text(event.feedback_id)
    known = connection.execute("SELECT 1 FROM feedback_events WHERE event_id = ?", (encode_text(event.event_id),)).get
    if not known:
        if event.action == "give":
            connection.execute(
                "INSERT INTO feedback_items (feedback_id, target_kind, target_id, form, source, principal, created_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    feedback_id,
                    event.target_kind,
                    encode_text(event.target_id),
                    event.form,
                    encode_text(event.source),
                    encode_text(event.source.partition("/")[0]),
                    event.at,
                ),
            )
        connection.execute(
            "INSERT INTO feedback_events (event_id, feedback_id, position, revision, action, value, actor, at)"
            " SELECT :event, :item, count(*), coalesce(max(revision), 0) + (:action = 'edit'),"
            "  :action, :value, :actor, :at FROM feedback_events WHERE feedback_id = :item",
            {
                "event": encode_text(event.event_id),
                "item": feedback_id,
                "action": event.action,
                "value": encode_json(event.value),
                "actor": encode_text(event.actor),
                "at": event.at,
            },
        )
    state = get(connection, event.feedback_id)
    if state is None:
        raise ValueError(f"event {event.event_id} is on record for another item than {event.feedback_id}")
    return state


def get(connection: Any, feedback_id: str) -> Feedback | None:
    """The current state of an item."""
    found = _states(connection, "WHERE i.feedback_id = ?", (encode_text(feedback_id),))
    return found[0] if found else None


def events(connection: Any, feedback_id: str) -> list[FeedbackEvent]:
    """An item's events, oldest first."""
    rows = connection.execute(
        f"{_SELECT_EVENT} WHERE e.feedback_id = ? ORDER BY e.position", (encode_text(feedback_id),)
    )
    return [FeedbackEvent(**decode_row(row, _EVENT)) for row in rows]


def select(
    connection: Any,
    *,
    target_id: str | None,
    source: str | None,
    principal: str | None,
    include_retracted: bool,
    since: float | None,
    after: str | None,
    limit: int | None,
    newest_first: bool,
) -> list[Feedback]:
    """Items that match, in the order in which they were first given."""
    where: list[str] = [] if include_retracted else ["e.action <> 'retract'"]
    values: list[Any] = []
    for condition, value in (
        ("i.target_id = ?", None if target_id is None else encode_text(target_id)),
        ("i.source = ?", None if source is None else encode_text(source)),
        ("i.principal = ?", None if principal is None else encode_text(principal)),
        ("e.at >= ?", since),
        (
            f"i.seq {'<' if newest_first else '>'} (SELECT seq FROM feedback_items WHERE feedback_id = ?)",
            None if after is None else encode_text(after),
        ),
    ):
        if value is not None:
            where.append(condition)
            values.append(value)
    clause = f"WHERE {' AND '.join(where)}" if where else ""
    values.append(-1 if limit is None else limit)
    order = "DESC" if newest_first else "ASC"
    return _states(connection, f"{clause} ORDER BY i.seq {order} LIMIT ?", tuple(values))


def _states(connection: Any, clause: str, values: tuple[Any, ...]) -> list[Feedback]:
    return [Feedback(**decode_row(row, _STATE)) for row in connection.execute(_SELECT_STATE + clause, values)]
