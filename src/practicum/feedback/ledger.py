"""The ledger: who said what about which call or session, when, and how it changed. Append-only.

Invariants:
- An item names its source. Only that source, or an administrator, edits or retracts it; its history stays.
- A source has one standing thumb per target: a second one changes the first. Comments may be several.
- Feedback may arrive at any time after its call, whatever has happened since; it joins by id.
- An id that the client made may be sent again: the same content changes nothing, another is a conflict.

Each decision is made inside the store's write transaction. Writes return futures that resolve once the event is on
disk; what the caller did wrong in itself is raised at once, what depends on the record is the future's.

It must not know HTTP, nor what is learned from feedback.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from practicum.errors import Conflict, Forbidden, NotFound
from practicum.feedback.values import check_form, check_name, check_value
from practicum.store import FeedbackView, Store
from practicum.types.feedback import Feedback, FeedbackAction, FeedbackEvent, TargetKind
from practicum.types.ids import new_id


class Ledger:
    """Feedback of one store. `max_comment_chars` bounds comments and corrections; `clock` gives UTC seconds."""

    def __init__(self, store: Store, max_comment_chars: int = 16384, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._longest = max_comment_chars
        self._clock = clock

    def give(
        self,
        target_kind: TargetKind,
        target_id: str,
        form: str,
        value: Any,
        source: str,
        feedback_id: str | None = None,
        created_at: float | None = None,
        *,
        param: str = "value",
    ) -> Future[Feedback]:
        """Take a new item; returns its state, which is an earlier item's where a thumb changes one.

        `param` is how the caller names the value in errors. Raises: RequestError at once; through the future
        NotFound for an unknown target and Conflict for a used id.
        """
        item_id = new_id("fb") if feedback_id is None else check_name(feedback_id, "feedback_id")
        event = FeedbackEvent(
            event_id=item_id,
            feedback_id=item_id,
            action="give",
            target_kind=target_kind,
            target_id=check_name(target_id, f"{target_kind}_id"),
            form=check_form(form),
            source=source,
            value=check_value(check_form(form), value, self._longest, param),
            actor=source,
            at=self._clock() if created_at is None else created_at,
        )
        return self._store.append_feedback(lambda view: _plan_give(view, event))

    def edit(self, feedback_id: str, value: Any, source: str, *, admin: bool = False) -> Future[Feedback]:
        """Change an item's value; the same value again changes nothing.

        Through the future: RequestError, NotFound, Forbidden for another source, Conflict for a retracted item.
        """
        event_id, now = new_id("fbe"), self._clock()

        def plan(view: FeedbackView) -> FeedbackEvent | Feedback:
            if (done := view.event(event_id)) is not None:
                return _item(view, done.feedback_id)
            item = _own_item(view, feedback_id, source, admin)
            if item.retracted:
                raise Conflict(f"Feedback {feedback_id} is retracted.", hint="Give it anew.")
            checked = check_value(item.form, value, self._longest)
            return item if _same(checked, item.value) else _next(item, event_id, "edit", checked, source, now)

        return self._store.append_feedback(plan)

    def retract(self, feedback_id: str, source: str, admin: bool = False) -> Future[Feedback]:
        """Take an item back: it stays on record and influences nothing.

        Through the future: NotFound, Forbidden for another source, Conflict for an item that is retracted already.
        """
        event_id, now = new_id("fbe"), self._clock()

        def plan(view: FeedbackView) -> FeedbackEvent | Feedback:
            if (done := view.event(event_id)) is not None:
                return _item(view, done.feedback_id)
            item = _own_item(view, feedback_id, source, admin)
            if item.retracted:
                raise Conflict(f"Feedback {feedback_id} is retracted already.", code="already_retracted")
            return _next(item, event_id, "retract", item.value, source, now)

        return self._store.append_feedback(plan)

    def get(self, feedback_id: str) -> Feedback:
        """An item's current state. Raises NotFound."""
        found = self._store.get_feedback(feedback_id)
        if found is None:
            raise _unknown(feedback_id)
        return found

    def history(self, feedback_id: str) -> Sequence[FeedbackEvent]:
        """An item's events, oldest first. Raises NotFound."""
        self.get(feedback_id)
        return self._store.feedback_events(feedback_id)

    def list(
        self,
        target_id: str | None = None,
        source: str | None = None,
        include_retracted: bool = False,
        since: float | None = None,
        *,
        principal: str | None = None,
        limit: int | None = None,
        after: str | None = None,
        newest_first: bool = False,
    ) -> Sequence[Feedback]:
        """Current states; the arguments are `Store.feedback`'s."""
        return self._store.feedback(
            target_id,
            source,
            include_retracted,
            since,
            principal=principal,
            limit=limit,
            after=after,
            newest_first=newest_first,
        )


def _plan_give(view: FeedbackView, event: FeedbackEvent) -> FeedbackEvent | Feedback:
    if (known := view.event(event.event_id)) is not None:
        return _repeated(view, known, event)
    if view.item(event.event_id) is not None:
        raise _used(event.event_id)
    if not view.has_target(event.target_kind, event.target_id):
        raise NotFound(
            f"There is no {event.target_kind} {event.target_id[:80]!r}.",
            hint=f"Send the {event.target_kind} id that the model endpoint returned.",
            param=f"{event.target_kind}_id",
        )
    if event.form == "thumb":
        standing = view.standing("thumb", event.target_kind, event.target_id, event.source)
        if standing is not None:
            if standing.value == event.value:
                return standing
            return _next(standing, event.event_id, "edit", event.value, event.actor, event.at)
    return event


def _repeated(view: FeedbackView, known: FeedbackEvent, event: FeedbackEvent) -> Feedback:
    facts = ("target_kind", "target_id", "form", "source")
    same = all(getattr(known, name) == getattr(event, name) for name in facts)
    if known.action == "retract" or not same or not _same(known.value, event.value):
        raise _used(event.event_id)
    return _item(view, known.feedback_id)


def _own_item(view: FeedbackView, feedback_id: str, source: str, admin: bool) -> Feedback:
    item = _item(view, feedback_id)
    if item.source != source and not admin:
        raise Forbidden(
            f"Feedback {feedback_id} was given by another source.",
            hint="Only its source or an administrator may change it.",
        )
    return item


def _item(view: FeedbackView, feedback_id: str) -> Feedback:
    item = view.item(feedback_id)
    if item is None:
        raise _unknown(feedback_id)
    return item


def _next(item: Feedback, event_id: str, action: FeedbackAction, value: Any, actor: str, at: float) -> FeedbackEvent:
    return FeedbackEvent(
        event_id=event_id,
        feedback_id=item.feedback_id,
        action=action,
        target_kind=item.target_kind,
        target_id=item.target_id,
        form=item.form,
        source=item.source,
        value=value,
        actor=actor,
        at=at,
    )


def _same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and bool(left == right)


def _unknown(feedback_id: str) -> NotFound:
    return NotFound(f"There is no feedback {feedback_id[:80]!r}.", hint="Listing the target's feedback shows the ids.")


def _used(feedback_id: str) -> Conflict:
    return Conflict(
        f"The feedback id {feedback_id[:80]!r} is in use for another content.",
        hint="Make a new id for new feedback; change an item by editing it.",
        code="feedback_id_used",
        param="feedback_id",
    )
