"""From calls and feedback to a frozen manifest.

Sessions are split whole and by time: the latest ones with feedback are held out, so what judges a candidate is later
than, and never from the same conversation as, what taught it. Every item that does not train has a reason.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from practicum.config import CurationConfig
from practicum.curation.screen import injection_reason, normalised, quoted_share
from practicum.dialects.registry import recorded_request
from practicum.errors import RequestError, UsageError
from practicum.types.calls import ModelCall
from practicum.types.feedback import Feedback
from practicum.types.manifests import Entry, EntryUse, Exclusion, Manifest, Split

_USES: Mapping[str, EntryUse] = {
    "comment": "hindsight",
    "correction": "clone",
    "thumb": "polarity",
    "score": "polarity",
    "outcome": "polarity",
}


@dataclass(frozen=True, slots=True)
class _Item:
    """One live feedback item attributed to one call."""

    feedback: Feedback
    call: ModelCall


def curate(calls: Sequence[ModelCall], feedback: Sequence[Feedback], settings: CurationConfig) -> Manifest:
    """Freeze what one run trains on and is judged by.

    Args:
        calls: every call since the last run's window, any kind and status.
        feedback: the current state of every item, retracted ones included.
        settings: caps, thresholds and the held-out share.

    Raises:
        UsageError: too little feedback to learn from or to hold any out; says how much there is and is needed.
    """
    excluded: list[Exclusion] = []
    items = _attribute(calls, feedback, excluded)
    items = _screen(items, settings, excluded)
    items = _deduplicate(items, excluded)
    items = _cap_sources(items, settings, excluded)
    split = _split_sessions(calls, items, settings)
    items = _latest_corrections(items, excluded)
    entries = tuple(_entries(items, split))
    train = tuple(c.call_id for c in calls if c.untrainable_reason is None and split.get(c.session_id) == "train")
    held = tuple(c.call_id for c in calls if c.untrainable_reason is None and split.get(c.session_id) == "heldout")
    cutoff = min((c.created_at for c in calls if split.get(c.session_id) == "heldout"), default=0.0)
    body = json.dumps([[asdict(entry) for entry in entries], held], sort_keys=True)
    return Manifest(
        entries=entries,
        excluded=tuple(excluded),
        train_calls=train,
        heldout_calls=held,
        cutoff=cutoff,
        digest=hashlib.sha256(body.encode()).hexdigest(),
    )


def _attribute(calls: Iterable[ModelCall], feedback: Iterable[Feedback], excluded: list[Exclusion]) -> list[_Item]:
    """Join each item to the exact call it is about; a session's feedback goes to its last answer that may train."""
    by_id = {known.call_id: known for known in calls}
    by_session: dict[str, list[ModelCall]] = defaultdict(list)
    for known in by_id.values():
        by_session[known.session_id].append(known)
    items = []
    for item in sorted(feedback, key=lambda f: (f.created_at, f.feedback_id)):
        reason: str | None = None
        call: ModelCall | None = by_id.get(item.target_id)
        if item.target_kind == "session":
            usable = [c for c in by_session.get(item.target_id, ()) if c.untrainable_reason is None]
            call = max(usable, key=lambda c: c.created_at, default=None)
        if item.retracted:
            reason = "retracted by its author"
        elif call is None:
            reason = "its call is not in this run's window"
        elif call.untrainable_reason is not None:
            reason = f"its call does not train: {call.untrainable_reason}"
        if reason is not None or call is None:
            excluded.append(Exclusion(item_id=item.feedback_id, source=item.source, reason=reason or ""))
        else:
            items.append(_Item(item, call))
    return items


def _screen(items: Sequence[_Item], settings: CurationConfig, excluded: list[Exclusion]) -> list[_Item]:
    kept = []
    for item in items:
        reason = _screen_reason(item, settings)
        if reason is None:
            kept.append(item)
        else:
            excluded.append(Exclusion(item_id=item.feedback.feedback_id, source=item.feedback.source, reason=reason))
    return kept


def _screen_reason(item: _Item, settings: CurationConfig) -> str | None:
    use, value = _USES[item.feedback.form], item.feedback.value
    if use == "polarity":
        return None if _polarity(item.feedback) else "no direction: a neutral score, or an outcome in words"
    text = str(value)
    if (found := injection_reason(text)) is not None:
        return f"quarantined: {found}"
    words = len(text.split())
    if use == "hindsight" and not settings.min_comment_words <= words <= settings.max_comment_words:
        return f"{words} words; comments of {settings.min_comment_words} to {settings.max_comment_words} are read"
    if use == "hindsight" and quoted_share(text, item.call.text) > settings.max_quoted_share:
        return "mostly quotes the answer"
    return _no_place_for_comments(item.call) if use == "hindsight" else None


def _no_place_for_comments(call: ModelCall) -> str | None:
    """Why no comment can be put into this call's prompt, or None: a teacher reads it in the last user message."""
    try:
        request = recorded_request(call.dialect, call.request)
    except RequestError:
        return "its call's request cannot be read back by this release"
    if request.prompt is not None:
        return "its call is a raw completion without a user message to put a comment into; correct the answer instead"
    if not any(message.role == "user" for message in request.messages):
        return "its call has no user message to put a comment into; correct the answer instead"
    return None


def _deduplicate(items: Sequence[_Item], excluded: list[Exclusion]) -> list[_Item]:
    """One source that says the same words about many calls is heard at most three times."""
    seen: Counter[tuple[str, str]] = Counter()
    kept = []
    for item in items:
        if _USES[item.feedback.form] == "hindsight":
            key = (item.feedback.source, normalised(str(item.feedback.value)))
            seen[key] += 1
            if seen[key] > 3:
                excluded.append(
                    Exclusion(
                        item_id=item.feedback.feedback_id,
                        source=item.feedback.source,
                        reason="the same source has said the same words three times already",
                    )
                )
                continue
        kept.append(item)
    return kept


def _cap_sources(items: Sequence[_Item], settings: CurationConfig, excluded: list[Exclusion]) -> list[_Item]:
    """No source gives more than its share of the items; the latest ones are kept."""
    cap = max(settings.source_floor, int(settings.max_source_share * len(items)))
    given: Counter[str] = Counter()
    kept = []
    for item in reversed(items):
        given[item.feedback.source] += 1
        if given[item.feedback.source] <= cap:
            kept.append(item)
        else:
            excluded.append(
                Exclusion(
                    item_id=item.feedback.feedback_id,
                    source=item.feedback.source,
                    reason=f"its source gave more than {cap} items in this window",
                )
            )
    return kept[::-1]


def _split_sessions(calls: Sequence[ModelCall], items: Sequence[_Item], settings: CurationConfig) -> dict[str, Split]:
    started: dict[str, float] = {}
    for call in calls:
        started[call.session_id] = min(call.created_at, started.get(call.session_id, call.created_at))
    with_feedback = {item.call.session_id for item in items}
    ordered = sorted(with_feedback, key=lambda s: (started[s], s))
    held = max(settings.min_heldout_sessions, round(settings.heldout_share * len(ordered)))
    if len(ordered) - held < settings.min_train_sessions:
        need = settings.min_heldout_sessions + settings.min_train_sessions
        raise UsageError(
            f"{len(ordered)} sessions have usable feedback; {need} are needed, so that some can be held out.",
            hint="Give feedback on more answers, or lower curation.min_train_sessions and min_heldout_sessions.",
            code="too_little_feedback",
        )
    first_held = ordered[-held]
    boundary = (started[first_held], first_held)
    return {session: "heldout" if (began, session) >= boundary else "train" for session, began in started.items()}


def _latest_corrections(items: Sequence[_Item], excluded: list[Exclusion]) -> list[_Item]:
    """A call has one right answer: the latest correction of it."""
    newest = {item.call.call_id: item for item in items if item.feedback.form == "correction"}
    kept = []
    for item in items:
        if item.feedback.form == "correction" and newest[item.call.call_id] is not item:
            excluded.append(
                Exclusion(
                    item_id=item.feedback.feedback_id,
                    source=item.feedback.source,
                    reason="a later correction of the same answer took its place",
                )
            )
        else:
            kept.append(item)
    return kept


def _entries(items: Sequence[_Item], split: Mapping[str, Split]) -> Iterable[Entry]:
    """One entry per call and use; several comments on one call are read together."""
    grouped: dict[tuple[str, EntryUse], list[_Item]] = defaultdict(list)
    for item in items:
        grouped[item.call.call_id, _USES[item.feedback.form]].append(item)
    for (call_id, use), group in sorted(grouped.items()):
        yield Entry(
            call_id=call_id,
            session_id=group[0].call.session_id,
            feedback_ids=tuple(item.feedback.feedback_id for item in group),
            sources=tuple(sorted({item.feedback.source for item in group})),
            use=use,
            split=split[group[0].call.session_id],
            text="" if use == "polarity" else "\n".join(str(item.feedback.value) for item in group),
            polarity=sum(_polarity(item.feedback) for item in group) / len(group) if use == "polarity" else 0.0,
        )


def _polarity(item: Feedback) -> float:
    """-1 to 1: thumbs and boolean outcomes are +-1; numbers are clipped to [-1, 1]; words have no direction."""
    if item.form == "thumb":
        return 1.0 if item.value == "up" else -1.0
    if isinstance(item.value, bool):
        return 1.0 if item.value else -1.0
    if isinstance(item.value, int | float):
        return max(-1.0, min(1.0, float(item.value)))
    return 0.0
